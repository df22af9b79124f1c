"""The rules of a case's closed and open divisions, from the ``rules.toml`` beside its ``case.py``.

Which recipe fields may change is said by ``recipe_field(rule=…)``; a file can only narrow the
values of a field that the closed rules let change. What a file leaves out is as in the
``rules.toml`` beside this module, which also holds for a case without a file.
"""

from __future__ import annotations

import tomllib
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt

from trainmark import cases
from trainmark.data.json_documents import Frozen
from trainmark.errors import UsageError
from trainmark.recipe import fields_under

if TYPE_CHECKING:
    from trainmark.spec import Case

RULES_FILE = "rules.toml"
DivisionName = Literal["closed", "open"]
_DataFact = Literal["origin", "train_samples", "eval_samples", "content_id"]


class Range(Frozen):
    """Numbers from ``least`` to ``most``, both included."""

    least: float = -inf
    most: float = inf


class Division(Frozen):
    """What the launches of one result must have in common and must show.

    Args:
        scope: amount of work, warm-up and evaluation: the standard recipe's, or any.
        launches: at least.
        seeds: over the launches.
        target: quality of each launch.
        data: accepted values by name; what is not named may be any.
        warmup_steps: first steps left out of figures, at least.
        evidence: files of each launch.
    """

    scope: Literal["standard", "any"]
    launches: PositiveInt
    seeds: Literal["distinct", "fixed", "any"]
    target: Literal["reached", "evaluated", "any"]
    data: dict[_DataFact, list[str | int]]
    warmup_steps: PositiveInt
    evidence: list[Literal["plan", "events", "telemetry"]]


class Rules(Frozen):
    """Both divisions of a case; ``values`` narrows fields that the closed rules let change."""

    values: dict[str, list[str | int | float | bool] | Range] = Field({})
    closed: Division
    open: Division

    def allows(self, field: str, value: object) -> bool:
        """Tell whether the closed rules allow ``value`` in a field that they let change."""
        values = self.values.get(field)
        if isinstance(values, Range):
            return isinstance(value, int | float) and values.least <= value <= values.most
        return values is None or value in values


def of_case(case: Case | None) -> Rules:
    """Return the rules of ``case``; the general ones for None and where it has no file.

    Raises:
        UsageError: the file is not TOML, has an unknown key or value, narrows a field that the
            closed rules do not let change, or forbids a value of a shipped recipe.
    """
    general = tomllib.loads(Path(__file__).with_name(RULES_FILE).read_text(encoding="utf-8"))
    own: dict[str, Any] = {}
    try:
        if case and (path := cases.folder(case.name) / RULES_FILE).is_file():
            own = tomllib.loads(path.read_text(encoding="utf-8"))
        merged = {name: part | own.get(name, {}) for name, part in general.items()}
        rules = Rules.model_validate(own | merged, strict=True)
        for field, recipe in product(rules.values, case.recipes.values() if case else ()):
            if field not in fields_under(type(recipe), "closed"):
                raise ValueError(f"values.{field}: the closed rules do not let this field change")
            if not rules.allows(field, getattr(recipe, field)):
                raise ValueError(f"values.{field} forbids a value of a shipped recipe")
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"cannot be read: {' '.join(str(error).split()[:40])}",
            where=f"{case.name if case else 'general'}/{RULES_FILE}",
            rule=f"a division has {', '.join(Division.model_fields)}",
            remedy="docs/audit.md describes the file",
        ) from None
    return rules
