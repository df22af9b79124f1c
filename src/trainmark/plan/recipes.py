"""Choose a recipe, apply overrides to it, and compare it with the standard one.

``recipe_field(rule=…)`` states which recipe fields may change.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from trainmark.errors import UsageError, suggest_nearest
from trainmark.recipe import (
    FIELD_ALIASES,
    PRECISION_ALIASES,
    SHORT_NAMES,
    Recipe,
    list_fields_with_rule,
)
from trainmark.validation import describe_misfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.spec import Case


@cache  # building one takes 10 ms, and a plan file may have 1,000 runs
def _build_adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what validates the fields of a type of recipe."""
    return TypeAdapter(kind)


def choose_recipe(case: Case, name: str | None, *, world: str, real_data: bool) -> str:
    """Return the name of the recipe to run.

    Without a name, it is the first recipe on generated data. If the user gives data and the case
    has a standard recipe, or if no recipe is on generated data, it is the standard recipe.

    A recipe called ``name`` is taken, else ``NAME-WORLD``, which was written for this world.

    Args:
        name: as the user wrote it; None: none.
        world: numbers of nodes and of ranks on each, for example ``1x8``.
        real_data: whether the user gives a folder of data.

    Raises:
        UsageError: no such recipe.
    """
    # Standard recipes are called `standard`, or `standard-1x8` if they are for one world.
    has_standard = any(key.split("-")[0] == "standard" for key in case.recipes)
    if name is None and not (real_data and has_standard):
        for key, recipe in case.recipes.items():
            if recipe.data == "generated":
                return key
    base_name = name or "standard"
    for candidate in (base_name, f"{base_name}-{world}"):
        if candidate in case.recipes:
            return candidate
    problem = f"case {case.name} has no recipe {base_name!r}"
    family = sorted(key for key in case.recipes if key.startswith(f"{base_name}-"))
    if family:
        raise UsageError(
            f"{problem} for {world} ranks (nodes x devices per node)",
            where="--recipe",
            fix=f"choose one of {', '.join(family)}",
        )
    raise UsageError(problem, where="--recipe", fix=suggest_nearest(base_name, case.recipes))


def apply_overrides(recipe: Recipe, overrides: Mapping[str, str]) -> Recipe:
    """Return ``recipe`` with ``overrides`` applied.

    Args:
        overrides: values as the user wrote them, by the name of a recipe field or its short name.

    Raises:
        UsageError: an unknown field, a value outside its type or range, or values that the recipe
            refuses together.
    """
    values = _read_overrides(recipe, overrides)
    # Any, for mypy. ``_build_adapter`` has ``@cache``, so its argument needs a hash. The instances
    # of this dataclass have none, and mypy takes the class itself to have none either.
    recipe_type: Any = type(recipe)
    try:
        changed_recipe: Recipe = _build_adapter(recipe_type).validate_python(
            {**asdict(recipe), **values}
        )
    except ValidationError as error:
        misfits = [describe_misfit(details) for details in error.errors(include_url=False)]
        # A misfit's key begins with the name of its field. It is empty if no single field is at
        # fault, but ``__post_init__`` of a case's own type of recipe refuses the fields together.
        name = misfits[0].key.partition(".")[0]
        if not name:
            settings = " ".join(f"{key}={text}" for key, text in overrides.items())
            raise UsageError(
                f"{settings} cannot be used with this recipe",
                where="recipe",
                rule=misfits[0].rule,
                fix="use the recipe's values for these fields",
            ) from None
        # A field that may have several types has a misfit for each; the rules of all are named.
        rules = [misfit.rule for misfit in misfits if misfit.key.partition(".")[0] == name]
        default = getattr(recipe, name)
        raise UsageError(
            f"{values.get(name)!r} is not valid",
            where=f"recipe field {name}",
            rule="; or ".join(dict.fromkeys(rules)),
            fix=f"use the recipe's value ({'none' if default is None else repr(default)})",
        ) from None
    return changed_recipe


def _read_overrides(recipe: Recipe, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return the overrides by the full names of their fields; ``none`` is None.

    Args:
        overrides: values as the user wrote them, by the name of a recipe field or its short name.

    Raises:
        UsageError: a field that is unknown, cannot be changed, or is given twice.
    """
    field_names = {item.name for item in fields(recipe)}
    fixed_names = list_fields_with_rule(type(recipe), "fixed")
    values: dict[str, Any] = {}
    for key, text in overrides.items():
        name = FIELD_ALIASES.get(key, key)
        where = f"{key}={text}"
        if name not in field_names:
            aliases = {alias for alias, field in FIELD_ALIASES.items() if field in field_names}
            raise UsageError(
                f"unknown recipe field {key!r}",
                where=where,
                fix=suggest_nearest(key, field_names | aliases),
            )
        if name in fixed_names:
            raise UsageError(
                f"{name} cannot be set directly",
                where=where,
                rule=f"the value of {name} follows from the recipe and from --data",
                fix="choose another --recipe, or add --data",
            )
        if name in values:
            raise UsageError(f"{name} is given twice", where=where, fix=f"set {name} only once")
        # Precisions have other names too, which only that field takes.
        value_aliases = PRECISION_ALIASES if name == "precision" else {}
        values[name] = None if text.lower() == "none" else value_aliases.get(text, text)
    return values


def find_standard_recipe(case: Case, recipe_name: str, *, world: str) -> str:
    """Return the name of the recipe that a run of ``recipe_name`` is compared with.

    It is the case's standard recipe for ``world``; if there is none, the one for the world that
    ``recipe_name`` was written for; else the one with the nearest number of ranks. A recipe on
    generated data that was written for no world (``tiny``) is compared with itself, and so is
    every recipe of a case without a standard one.
    """
    recipe = case.recipes[recipe_name]
    # Names of the standard recipes by their world. One without a world counts as one for ``world``.
    standards = {
        item.world or world: name
        for name, item in case.recipes.items()
        if name in ("standard", f"standard-{item.world}")
    }
    if not standards or (recipe.world is None and recipe.data == "generated"):
        return recipe_name
    for candidate in (world, recipe.world):
        if candidate in standards:
            return standards[candidate]
    num_ranks = _count_ranks(world)

    def measure_distance(other_world: str) -> tuple[float, str]:
        """Return the ratio of the numbers of ranks as a logarithm; the name decides a tie."""
        return abs(math.log2(_count_ranks(other_world) / num_ranks)), other_world

    return standards[min(standards, key=measure_distance)]


def _count_ranks(world: str) -> int:
    """Return the number of ranks of a world such as ``2x8``."""
    nnodes, nproc = world.split("x")
    return int(nnodes) * int(nproc)


class RecipeChanges(NamedTuple):
    """What a recipe changes of its standard one, by field name.

    Args:
        allowed: changes that the closed rules allow, ``fix_hp`` of a plan.
        other_work: changes that make it other work, ``extra`` of a plan; with any of them, only the
            open rules apply.
    """

    allowed: dict[str, Any]
    other_work: dict[str, Any]


def compare_with_standard(resolved: Recipe, *, named: Recipe, standard: Recipe) -> RecipeChanges:
    """Return what ``resolved`` changes of ``standard``.

    Each recipe field declares a rule. Fields with the rules ``free`` and ``closed`` may change;
    another value of other fields makes it other work, which only the open division accepts.

    Args:
        resolved: the recipe of the run, with the user's changes.
        named: the shipped recipe that was chosen.
        standard: the recipe that is compared with it, see ``find_standard_recipe``.
    """
    changes = RecipeChanges(allowed={}, other_work={})
    for item in fields(resolved):
        rule = item.metadata.get("rule", "open")
        value = getattr(resolved, item.name)
        # A free field leaves the work the same, and the user cannot change a fixed one.
        if rule in ("free", "fixed") or value == getattr(standard, item.name):
            continue
        # A field with the rule ``scope`` says how much is trained and evaluated. What the chosen
        # recipe itself sets there is no change.
        if rule == "scope" and value == getattr(named, item.name):
            continue
        if rule == "closed":  # the closed rules allow a change of this field
            changes.allowed[item.name] = value
        else:  # ``open``, or ``scope`` with a value of the user's
            changes.other_work[item.name] = value
    return changes


def get_ranks_per_model(recipe: Mapping[str, Any]) -> int:
    """Return the number of ranks that share one model by tensor parallelism; 1: no ranks do.

    Args:
        recipe: its fields by name; only the recipes of some cases have ``tensor_parallel``.
    """
    ranks_per_model: int = recipe.get("tensor_parallel", 1)
    return ranks_per_model


def compute_step_samples(recipe: Mapping[str, Any], world_size: int) -> int:
    """Return the number of samples of a full optimizer step on all ranks.

    The ranks that share one model by tensor parallelism train the same samples, which count once.

    Args:
        recipe: its fields by name.
        world_size: number of ranks of the run.
    """
    num_models = world_size // get_ranks_per_model(recipe)
    num_samples: int = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * num_models
    return num_samples


def format_fix_hp(values: Mapping[str, Any]) -> str:
    """Return changed recipe fields as one text, ``bs=96,lr=0.00015``; empty if none is changed.

    Published tables have this text in their column ``fix_hp``.
    """
    parts = [
        f"{SHORT_NAMES.get(name, name)}={format_setting(value)}" for name, value in values.items()
    ]
    return ",".join(parts)


def format_setting(value: Any) -> str:
    """Return the value of a recipe field as ``KEY=VALUE`` takes it: ``0.00015``, ``none``."""
    if isinstance(value, float) and math.isfinite(value):
        text = format(Decimal(repr(value)), "f")  # all digits, without an exponent
        return text.rstrip("0").rstrip(".") if "." in text else text
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_assignments(words: Sequence[str], example: str = "bs=96") -> dict[str, str]:
    """Return the values of ``KEY=VALUE`` words by their keys.

    Args:
        example: a valid word, for the error about one that is not.

    Raises:
        UsageError: a word without ``=``, or a key given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{word!r} is not of the form KEY=VALUE",
                where="KEY=VALUE",
                fix=f"use, for example, {example}",
            )
        if name in values:
            raise UsageError(f"{name} is given twice", where=word, fix=f"set {name} only once")
        values[name] = text
    return values
