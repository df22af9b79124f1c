"""Check the launches of a result against the rules of the division that they claim.

Owns how records are held to a rule; ``plan.overrides`` has what it asks. Whether evidence verifies
is in the trust of the records.
"""

from __future__ import annotations

import fnmatch
from dataclasses import asdict, dataclass
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
_JUDGED_APART = ("trust_not_passed", "trust_generated_data", "evidence_")


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

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return asdict(self) | {"compliant": self.compliant}


def check(records: Sequence[Record]) -> Compliance:
    """Return how the launches of one result comply: with the open rules if one claims these.

    Args:
        records: read with their evidence, as ``library.selection.select`` does.

    Raises:
        RecordError: there is none.
        UsageError: the case's ``rules.toml`` is malformed.
    """
    if not records:
        raise RecordError("no record to check", remedy="name the launches of a result")
    name = records[0].plan.case
    case = cases.load(name) if name in cases.names() else None
    claimed: DivisionName = "open" if any(x.plan.rules == "open" for x in records) else "closed"
    asked: Division = getattr(overrides.rules_of(case), claimed)
    judged = [*_of_work(records, asked, case, claimed), *_of_launches(records, asked)]
    return Compliance(name, [record.run_id for record in records], claimed, judged)


def _rule(rule: str, kept: bool, variant: str = "", **args: Any) -> Judged:
    return Judged(rule, kept, message(f"rule.{rule}{variant}", **args))


def _nothing(rule: str, wanting: Iterable[str], **args: Any) -> Judged:
    """Return a rule that is kept where nothing is ``wanting``; each word is listed once."""
    words = sorted(set(wanting))
    return _rule(rule, not words, wanting=", ".join(words) or "/", **args)


def _of_work(
    records: Sequence[Record], asked: Division, case: Case | None, claimed: DivisionName
) -> Iterator[Judged]:
    """Yield the rules about what was trained, and how."""
    plans, (first, *others) = [record.plan for record in records], map(work, records)
    yield _nothing("same_work", (key for other in others for key in differing(first, other)))
    fix_hp = fix_hp_text({k: v for plan in plans for k, v in plan.fix_hp.items()})
    extra = fix_hp_text({k: v for plan in plans for k, v in plan.extra.items()})
    yield _rule(
        "changes", claimed == "open" or extra == "/", f"_{claimed}", fix_hp=fix_hp, extra=extra
    )
    if case is None:  # what it asks is not known
        yield _nothing("scope", [f"case={plans[0].case}"])
    elif asked.scope == "standard":
        standards = ((plan.recipe, case.recipes.get(plan.compared_with)) for plan in plans)
        yield _nothing("scope", (
            f"{name}={recipe.get(name)}"
            for recipe, standard in standards
            for name in fields_under(case.recipe_type, "scope")
            if standard is None or recipe.get(name) != getattr(standard, name)
        ))  # fmt: skip


def _of_launches(records: Sequence[Record], of: Division) -> Iterator[Judged]:
    """Yield the rules about how often and on what was trained, and what there is to show."""
    count, qualities = len(records), [record.quality for record in records]
    yield _nothing("passed", (record.run_id for record in records if not record.passed))
    yield _rule("launches", count >= of.launches, launches=count, least=of.launches)
    seeds = [str(record.plan.recipe.get("seed")) for record in records]
    if of.seeds != "any":
        wanted = count if of.seeds == "distinct" else 1
        yield _rule("seeds", len({*seeds}) == wanted, f"_{of.seeds}", seeds=", ".join(seeds))
    if of.target != "any":
        kept = [x.reached if of.target == "reached" else x.value is not None for x in qualities]
        values = ", ".join("/" if x.value is None else f"{x.value:.4f}" for x in qualities)
        target, metric = qualities[0].target, qualities[0].metric
        kind = "_none" if target is None and of.target == "reached" else f"_{of.target}"
        yield _rule("target", all(kept), kind, metric=metric, target=target, values=values)
    fewest = min(record.steps.warmup for record in records)
    yield _rule("warmup", fewest >= of.warmup_steps, steps=fewest, least=of.warmup_steps)
    data = [(name, getattr(record.plan.data, name)) for record in records for name in of.data]
    unlike = (f"{name}={value}" for name, value in data if value not in of.data[name])
    asked = ", ".join(f"{name}={'|'.join(map(str, v))}" for name, v in of.data.items())
    yield _nothing("data", unlike, asked=asked)
    reasons = {reason.code: reason for record in records for reason in record.trust.reasons}
    wanting = [file for record in records for file in _wanting(record, of.evidence)]
    wanting += [code for code in reasons if code.startswith("evidence_")]
    yield _nothing("evidence", wanting, kinds=", ".join(of.evidence))
    grave = (code for code, x in reasons.items() if graded([x]).grade == "do_not_quote")
    yield _nothing("doubts", (code for code in grave if not code.startswith(_JUDGED_APART)))


def _wanting(record: Record, kinds: Iterable[str]) -> Iterator[str]:
    """Yield the files that are missing of the evidence beside a record."""
    named = [entry.name for entry in record.evidence]
    for kind in kinds:
        least = 1 + record.plan.world_size if kind == "events" else 1  # the launcher has events too
        if len(fnmatch.filter(named, f"{kind}*.json*")) < least:
            yield f"{kind}*.json*"
