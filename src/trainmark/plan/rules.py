"""The rules of a case's closed and open divisions, in which results are compared.

The closed division has runs of the standard work, of which only hyper-parameters may change; the
open one also has runs of other work.

The ``rules.toml`` in this folder has the general rules; the ``rules.toml`` of a case overrides
parts of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt  # noqa: TC002 - pydantic reads it at run time

from trainmark import cases
from trainmark.documents import Frozen
from trainmark.errors import UsageError
from trainmark.toml_file import read_toml
from trainmark.validation import describe_error

if TYPE_CHECKING:
    from trainmark.spec import Case

RULES_FILE = "rules.toml"
DivisionName = Literal["closed", "open"]
_DataFact = Literal["origin", "train_samples", "eval_samples"]


class Division(Frozen):
    """The requirements on the launches of one result.

    Args:
        launches: minimum number of launches.
        seeds: whether the seeds of the launches differ.
        target: what each launch must have done about its quality.
        data: accepted values by name; a name that is absent accepts any value.
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
    """Return the rules by which results of ``case`` are compared, in each division.

    The closed division has runs of the standard work, the open one also runs of other work. Without
    a case, and for a case that has no ``rules.toml``, these are the general rules.

    Raises:
        UsageError: the file is not TOML, or has an unknown key or value.
    """
    general = read_toml(Path(__file__).with_name(RULES_FILE))
    case_rules: dict[str, Any] = {}
    try:
        path = None if case is None else cases.get_folder(case.name) / RULES_FILE
        if path is not None and path.is_file():
            case_rules = read_toml(path)
        merged = {
            division: rules | case_rules.get(division, {}) for division, rules in general.items()
        }
        # ``merged`` has only the divisions of the general rules. The rest of the case's file is
        # added, so that the validation sees its unknown keys and refuses them.
        return Rules.model_validate(case_rules | merged, strict=True)
    except (OSError, ValueError, TypeError) as error:  # TypeError: a division is not a table
        raise UsageError(
            f"cannot be read: {describe_error(error)}",
            where=f"{case.name if case else 'general'}/{RULES_FILE}",
            rule=f"a division must have {', '.join(Division.model_fields)}",
            fix="see docs/audit.md for the format of the file",
        ) from None
