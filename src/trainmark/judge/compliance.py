"""Check the launches of a result against the rules of the division that they claim.

Owns how records are held to a rule; ``plan.overrides`` has what it asks. Whether evidence verifies
is in the trust of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import RecordError
from trainmark.plan import overrides
from trainmark.plan.overrides import fix_hp_text
from trainmark.recipe import fields_under
from trainmark.record.trust import graded
from trainmark.record.work import differing, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.plan.overrides import Division, DivisionName
    from trainmark.record.record import Record
    from trainmark.spec import Case

# Reasons of a grade that a rule of their own judges.
_JUDGED_APART = ("trust_not_passed", "trust_generated_data")


@dataclass(frozen=True, slots=True)
class Judged:
    """One rule: whether it is kept; ``found`` says what it asks and what the records have."""

    rule: str
    kept: bool
    found: Message


@dataclass(frozen=True, slots=True)
class Compliance:
    """The launches of a result against the division that they claim."""

    case: str
    run_ids: list[str]
    division: DivisionName
    rules: list[Judged]

    @property
    def compliant(self) -> bool:
        """Tell whether all rules are kept."""
        return all(judged.kept for judged in self.rules)


def check(records: Sequence[Record]) -> Compliance:
    """Return how the launches of one result comply: with the open rules if one claims these.

    Args:
        records: read with their evidence, as ``library.selection.select`` does.

    Raises:
        RecordError: there is none.
        UsageError: the case's ``rules.toml`` is malformed.
    """
    if not records:
        raise RecordError("no record to check", fix="name the launches of a result")
    name = records[0].plan.case
    case = cases.load(name) if name in cases.names() else None
    claimed: DivisionName = "open" if any(x.plan.rules == "open" for x in records) else "closed"
    asked: Division = getattr(overrides.rules_of(case), claimed)
    judged = [*_of_launches(records, asked)]
    if claimed == "closed":
        judged += _of_closed(records, case)
    return Compliance(name, [record.run_id for record in records], claimed, judged)


def _passes_if_empty(rule: str, violations: Iterable[str], **args: Any) -> Judged:
    """Return a rule that is kept if there is no violation; each is listed once."""
    words = sorted(set(violations))
    if words:
        return Judged(rule, False, message(f"rule_broken.{rule}", found=", ".join(words), **args))
    return Judged(rule, True, message(f"rule.{rule}", **args))


def _of_closed(records: Sequence[Record], case: Case | None) -> Iterator[Judged]:
    """Yield what the closed division alone asks: the standard recipe but for allowed changes."""
    plans = [record.plan for record in records]
    extra = (f"{name}={value}" for plan in plans for name, value in plan.extra.items())
    changes = _passes_if_empty("changes", extra)
    if changes.kept and (fix_hp := {k: v for plan in plans for k, v in plan.fix_hp.items()}):
        allowed = message("rule.changes_allowed", fix_hp=fix_hp_text(fix_hp))
        changes = replace(changes, found=allowed)
    yield changes
    if case is None:  # what it asks is not known
        yield _passes_if_empty("scope", [f"case={plans[0].case}"])
        return
    standards = ((plan.recipe, case.recipes.get(plan.compared_with)) for plan in plans)
    yield _passes_if_empty("scope", (
        f"{name}={recipe.get(name)}"
        for recipe, standard in standards
        for name in fields_under(case.recipe_type, "scope")
        if standard is None or recipe.get(name) != getattr(standard, name)
    ))  # fmt: skip


def _of_launches(records: Sequence[Record], of: Division) -> Iterator[Judged]:
    """Yield the rules about how often and on what was trained, and what there is to show."""
    first, *others = map(work, records)
    count, qualities = len(records), [record.quality for record in records]
    differences = (key for other in others for key in differing(first, other))
    yield _passes_if_empty("same_work", differences)
    yield _passes_if_empty("passed", (record.run_id for record in records if not record.passed))
    found = message("rule.launches", launches=count, least=of.launches)
    yield Judged("launches", count >= of.launches, found)
    seeds = [str(record.plan.recipe.get("seed")) for record in records]
    if of.seeds != "any":
        wanted = count if of.seeds == "distinct" else 1
        found = message(f"rule.seeds_{of.seeds}", seeds=", ".join(seeds))
        yield Judged("seeds", len({*seeds}) == wanted, found)
    if of.target != "any":
        kept = [x.reached if of.target == "reached" else x.value is not None for x in qualities]
        values = ", ".join("–" if x.value is None else f"{x.value:.4f}" for x in qualities)
        told = {"metric": qualities[0].metric, "target": qualities[0].target, "values": values}
        yield Judged("target", all(kept), message(f"rule.target_{of.target}", **told))
    data = [(name, getattr(record.plan.data, name)) for record in records for name in of.data]
    unlike = (f"{name}={value}" for name, value in data if value not in of.data[name])
    asked = ", ".join(f"{name}={'|'.join(map(str, v))}" for name, v in of.data.items())
    yield _passes_if_empty("data", unlike, asked=asked)
    reasons = (reason for record in records for reason in record.trust.reasons)
    grave = (one.code for one in reasons if graded([one]).grade == "do_not_quote")
    yield _passes_if_empty("doubts", (code for code in grave if code not in _JUDGED_APART))
