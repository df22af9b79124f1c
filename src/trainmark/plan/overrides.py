"""Choose a recipe and change it by words; the rules of a case's closed and open divisions.

Which recipe fields may change is said by ``recipe_field(rule=…)``. What the ``rules.toml`` beside a
``case.py`` leaves out is as in the one beside this module, which also holds for a case without one.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt, TypeAdapter, ValidationError

from trainmark import cases
from trainmark.data.documents import Frozen
from trainmark.errors import UsageError, nearest
from trainmark.recipe import FIELD_ALIASES, PRECISION_ALIASES, SHORT_NAMES, Recipe, fields_under
from trainmark.toml_file import read_toml
from trainmark.validation import in_words, misfit_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.spec import Case

RULES_FILE = "rules.toml"
DivisionName = Literal["closed", "open"]
_DataFact = Literal["origin", "train_samples", "eval_samples"]


class Division(Frozen):
    """What the launches of one result must have in common and must show.

    Args:
        launches: at least.
        seeds: over the launches.
        target: quality of each launch.
        data: accepted values by name; what is not named may be any.
    """

    launches: PositiveInt
    seeds: Literal["distinct", "fixed", "any"]
    target: Literal["reached", "evaluated", "any"]
    data: dict[_DataFact, list[str | int]]


class Rules(Frozen):
    """Both divisions of a case."""

    closed: Division
    open: Division


def read_rules(case: Case | None) -> Rules:
    """Return the rules of ``case``; the general ones for None and where it has no file.

    Raises:
        UsageError: the file is not TOML, or has an unknown key or value.
    """
    general = read_toml(Path(__file__).with_name(RULES_FILE))
    own: dict[str, Any] = {}
    try:
        if case and (path := cases.folder(case.name) / RULES_FILE).is_file():
            own = read_toml(path)
        merged = {name: part | own.get(name, {}) for name, part in general.items()}
        return Rules.model_validate(own | merged, strict=True)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"cannot be read: {in_words(error)}",
            where=f"{case.name if case else 'general'}/{RULES_FILE}",
            rule=f"a division has {', '.join(Division.model_fields)}",
            fix="docs/audit.md describes the file",
        ) from None


@cache  # making one takes 10 ms, and a plan file may have 1,000 runs
def _build_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def choose_recipe(case: Case, name: str | None, *, world: str, real_data: bool) -> str:
    """Return the name of the recipe to run.

    Without a name: the first generated recipe, or ``standard`` when data is given and the
    case has it. The word ``standard`` means the standard recipe written for this world.

    Raises:
        UsageError: no such recipe.
    """
    published = any(key.split("-")[0] == "standard" for key in case.recipes)
    if name is None and not (real_data and published):
        for key, item in case.recipes.items():
            if item.data == "generated":
                return key
    wanted = name or "standard"
    if wanted in case.recipes:
        return wanted
    sized = f"{wanted}-{world}"
    if sized in case.recipes:
        return sized
    family = sorted(key for key in case.recipes if key.startswith(f"{wanted}-"))
    raise UsageError(
        f"case {case.name} has no recipe {wanted!r}" + f" for a world of {world}" * bool(family),
        where="--recipe",
        fix=f"name one of {', '.join(family)}" if family else nearest(wanted, case.recipes),
    )


def apply_overrides(recipe: Recipe, overrides: Mapping[str, str]) -> Recipe:
    """Return ``recipe`` with ``overrides`` applied.

    Raises:
        UsageError: an unknown field, or a value outside its type or range.
    """
    known = {item.name for item in fields(recipe)}
    values: dict[str, Any] = {}
    for key, text in overrides.items():
        name, where = FIELD_ALIASES.get(key, key), f"{key}={text}"
        if name not in known:
            names = known | {k for k, v in FIELD_ALIASES.items() if v in known}
            what = f"unknown recipe field {key!r}"
            raise UsageError(what, where=where, fix=nearest(key, names))
        if name in fields_under(type(recipe), "fixed"):
            raise UsageError(
                f"{name} cannot be changed by hand", where=where,
                rule="it follows from the recipe and from --data",
                fix="choose another --recipe, or give --data",
            )  # fmt: skip
        if name in values:
            raise UsageError(f"{name} is given twice", where=where, fix="name it once")
        known_as = PRECISION_ALIASES if name == "precision" else {}
        values[name] = None if text.lower() == "none" else known_as.get(text, text)
    kind: Any = type(recipe)  # mypy takes a dataclass's hash for that of its class
    try:
        resolved: Recipe = _build_adapter(kind).validate_python({**asdict(recipe), **values})
    except ValidationError as error:
        # A field of several types has a misfit for each.
        misfits = [misfit_of(details) for details in error.errors(include_url=False)]
        name = misfits[0].key.partition(".")[0] or "recipe"
        rules = [x.rule for x in misfits if x.key.partition(".")[0] in (name, "")]
        usual = getattr(recipe, name, None)
        raise UsageError(
            f"{values.get(name)!r} is not valid", where=f"recipe field {name}",
            rule="; or ".join(dict.fromkeys(rules)),
            fix=f"the recipe's own value is {'none' if usual is None else repr(usual)}",
        ) from None  # fmt: skip
    return resolved


def find_standard_recipe(case: Case, recipe_name: str, *, world: str) -> str:
    """Return the name of the recipe that a run of ``recipe_name`` is compared with.

    It is the case's standard recipe for ``world``; without one, that for the world which
    ``recipe_name`` was written for; else that with the nearest number of ranks. A recipe on
    generated data that was written for no world (``tiny``) is work of its own and compares
    with itself, and so does every recipe of a case without a standard one.
    """
    recipe = case.recipes[recipe_name]
    standards = {
        item.world or world: name
        for name, item in case.recipes.items()
        if name in ("standard", f"standard-{item.world}")
    }
    if not standards or (recipe.world is None and recipe.data == "generated"):
        return recipe_name
    for wanted in (world, recipe.world):
        if wanted in standards:
            return standards[wanted]
    ranks = {key: math.prod(map(int, key.split("x"))) for key in (*standards, world)}
    return standards[
        min(standards, key=lambda key: (abs(math.log2(ranks[key] / ranks[world])), key))
    ]


def compare_with_standard(
    resolved: Recipe, *, named: Recipe, standard: Recipe
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what ``resolved`` changes of ``standard``: ``fix_hp`` and ``extra``, by field name.

    Args:
        named: the shipped recipe that was asked for; what it sets of the scope is no change.
    """
    fix_hp, extra = {}, {}
    for item in fields(resolved):
        rule, value = item.metadata.get("rule", "open"), getattr(resolved, item.name)
        if rule in ("free", "fixed") or value == getattr(standard, item.name):
            continue
        if rule == "closed":
            fix_hp[item.name] = value
        elif rule == "open" or value != getattr(named, item.name):
            extra[item.name] = value
    return fix_hp, extra


def format_fix_hp(values: Mapping[str, Any]) -> str:
    """Return changed fields as the pages print them, ``bs=96,lr=0.00015``; empty for none."""
    parts = [
        f"{SHORT_NAMES.get(name, name)}={format_setting(value)}" for name, value in values.items()
    ]
    return ",".join(parts)


def format_setting(value: Any) -> str:
    """Return the value of a recipe field as ``KEY=VALUE`` takes it: ``0.00015``, ``none``."""
    if isinstance(value, float) and math.isfinite(value):
        text = format(Decimal(repr(value)), "f")  # every digit, and no exponent
        return text.rstrip("0").rstrip(".") if "." in text else text
    if value is None:
        return "none"
    return json.dumps(value) if isinstance(value, bool) else str(value)


def parse_assignments(words: Sequence[str], example: str = "bs=96") -> dict[str, str]:
    """Split ``KEY=VALUE`` words.

    Args:
        example: such a word, for the message about one that is not.

    Raises:
        UsageError: a word without ``=``, or a key given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{word!r} is not KEY=VALUE",
                where="KEY=VALUE",
                fix=f"write {example}, for example",
            )
        if name in values:
            raise UsageError(f"{name} is given twice", where=word, fix="name it once")
        values[name] = text
    return values
