"""What stands on each side of a comparison, what was left out, and in what the sides differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import UsageError, nearest
from trainmark.recipe import FIELD_ALIASES, fields_under
from trainmark.record.record import Record
from trainmark.record.rows import Row
from trainmark.record.stats import proportional
from trainmark.record.trust import of_repeats, refuted, verification_of
from trainmark.record.work import each_once, printed_work, with_all_names, work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.plan.reference import EvidenceLevel
    from trainmark.record.record import Trust, Verification
    from trainmark.spec import Message

Result = Record | Row
# What differs between any two launches of one machine.
_PASSING = ("others_cpu_share", "device_users", "skew_s", "finished", "artifacts", "skipped_steps")
_ENDED = ("passed", "target_missed")  # what crashed before its target has not missed it
NEVER_ALLOWED = ("case", "data", "content_id")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A launch or row that no figure is over, and why."""

    name: str
    reason: Message


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same on both sides: each side's values, in order of appearance."""

    name: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]


@dataclass(slots=True)
class Side:
    """One side of a comparison.

    Args:
        names: run id of each launch that figures are over, or place of each published row.
        evidence: of rows, how far others can check them; None: launches of ours.
        judged: launches of which it is known whether they reached their target.
        verification: of all its launches together.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    trust: Trust | None
    evidence: EvidenceLevel | None
    reached: int
    judged: int
    verification: Verification


@dataclass(slots=True)
class Chosen:
    """The results of a side: those whose work must be the same, and those that figures are over."""

    checked: list[Result]
    kept: list[Result]
    side: Side

    def keep(self, kept: list[Result], left_out: Iterable[LeftOut]) -> None:
        """Leave out further results."""
        self.kept, self.side.names = kept, tuple(map(name_of, kept))
        self.side.left_out += tuple(left_out)


def name_of(result: Result) -> str:
    """Return the run id of a launch, or the place of a row."""
    return result.run_id if isinstance(result, Record) else f"{result.file}:{result.line}"


def chosen(given: Sequence[Result], others: Sequence[Result], allow: Collection[str]) -> Chosen:
    """Return what figures are over, and what is left out.

    What did not pass, or is contradicted by its evidence, is left out. Where the other
    side is launches, only the rows nearest to their work count: a page has rows of several worlds.

    Raises:
        UsageError: nothing is there, or both records and rows.
    """
    if len({type(one) for one in given}) != 1:
        what = "records and published rows on one side" if given else "a side without results"
        raise UsageError(what, rule="a side is launches of ours, or rows that others published")
    records = [one for one in given if isinstance(one, Record)]
    rows = [one for one in given if isinstance(one, Row)]
    reasons = [*map(_not_counted, records)] if records else _farther(rows, others, allow)
    pairs = list(zip(given, reasons, strict=True))
    kept = [one for one, why in pairs if why is None]
    ended = [one for one in records if one.status in _ENDED and not refuted(one.trust)]
    judged = [one.quality.reached for one in ended if one.quality.reached is not None]
    trusted = [one for one in kept if isinstance(one, Record)] or records
    side = Side(
        names=tuple(map(name_of, kept)),
        left_out=tuple(LeftOut(name_of(one), why) for one, why in pairs if why is not None),
        trust=of_repeats(trusted) if trusted else None,
        evidence=max((one.evidence for one in kept if isinstance(one, Row)), default=None),
        reached=sum(judged), judged=len(judged), verification=verification_of(records),
    )  # fmt: skip
    return Chosen([*records] or kept, kept, side)


def _not_counted(record: Record) -> Message | None:
    if refuted(record.trust):
        return message("compare_refuted")
    return None if record.passed else message("compare_not_passed", status=record.status)


def _farther(
    rows: Sequence[Row], others: Sequence[Result], allow: Collection[str]
) -> list[Message | None]:
    """Return for each row why it does not count: it failed, or another is nearer to the work."""
    wanted = next((printed_work(one) for one in others if isinstance(one, Record)), {})
    unlike = [
        [key for key, value in wanted.items() if told.get(key) != value]
        for told in map(printed_work, rows)
    ]
    # Rates of several worlds have no mean, so that another world weighs more than another field.
    far = [("ran_world" in keys, len({*keys} - {*allow}), len(keys)) for keys in unlike]
    least = min((x for x, row in zip(far, rows, strict=True) if row.failure is None), default=None)
    return [
        row.failure or (message("compare_other_row", key=keys[0]) if x != least else None)
        for row, keys, x in zip(rows, unlike, far, strict=True)
    ]


def in_turns(a: Chosen, b: Chosen) -> bool:
    """Tell whether launches were done in turns; then only rounds that both sides have are kept.

    The number of a launch in its series is its round: all of a round began before the next did.
    """
    rounds = [
        {one.plan.repeat_index: one for one in side.kept if isinstance(one, Record)}
        for side in (a, b)
    ]
    shared = sorted(rounds[0].keys() & rounds[1].keys())
    starts = [sorted(one[number].started for one in rounds) for number in shared]
    paired = all(last[1] <= following[0] for last, following in pairwise(starts))
    if len(shared) < 2 or not paired or sum(map(len, rounds)) < len(a.kept) + len(b.kept):
        return False
    reason = message("compare_alone_in_round")
    for side, found in zip((a, b), rounds, strict=True):
        alone = (LeftOut(found[x].run_id, reason) for x in found if x not in shared)
        side.keep([found[number] for number in shared], alone)
    return True


def allowed_work(
    a: Sequence[Result], b: Sequence[Result], allow: Collection[str]
) -> tuple[Difference, ...]:
    """Return in what the work differs, all of it allowed.

    Raises:
        UsageError: a run given twice or copied, an unknown key to allow, or work that differs in
            another key, with both values.
    """
    everything = [*a, *b]
    each_once(map(name_of, everything))
    records = [one for one in everything if isinstance(one, Record)]
    for one, other in combinations(records, 2):
        if proportional(one.steps.time_ns, other.steps.time_ns):
            what = f"step times of {one.run_id} and {other.run_id} are the same or proportional"
            raise UsageError(what, rule="launches are measured, not copied")
    if len(records) == len(everything):
        facts = with_all_names([work(one) for one in records])
    else:  # only a row may be silent
        for record in records:
            _refuse_other_model(record)
        facts = [printed_work(one) for one in everything]
    return refuse_other_work(facts[: len(a)], facts[len(a) :], allow)


def _refuse_other_model(record: Record) -> None:
    """Refuse a launch whose changes go beyond the amount of work: rows are of published models."""
    case = cases.load(record.plan.case) if record.plan.case in cases.names() else None
    scope = fields_under(case.recipe_type, "scope") if case else frozenset[str]()
    changed = [name for name in record.plan.extra if name not in scope]
    if changed:
        what = f"another model or data than the published: it changes {', '.join(changed)}"
        raise UsageError(what, where=record.run_id)


def refuse_other_work(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], allow: Collection[str]
) -> tuple[Difference, ...]:
    """Return in what pieces of work differ, all of it allowed.

    Raises:
        UsageError: as ``allowed_work``.
    """
    allow = [FIELD_ALIASES.get(key, key) for key in allow]
    known = {name for facts in (*a, *b) for name in facts}
    unknown = next((key for key in allow if key not in known), None)
    if unknown is not None:
        what = f"no key {unknown!r} of the work"
        raise UsageError(what, where="--allow", remedy=nearest(unknown, known))
    found = [one for one in _facts(a, b) if len(_distinct([*one.a, *one.b])) > 1]
    other = [one for one in found if one.name in NEVER_ALLOWED]
    refused = other or [one for one in found if one.name not in allow]
    if refused:
        first, *others = _distinct([*refused[0].a, *refused[0].b])
        what = f"{refused[0].name} is {first!r} and {others[0]!r}"
        if other:
            raise UsageError(
                f"{what}: another case, model or data set is never compared",
                remedy="name runs of one case; `trainmark results` lists them",
            )
        raise UsageError(
            what,
            where="the work of A and B" if refused[0].a != refused[0].b else "the work of a side",
            rule=f"only the same work compares; differing: {', '.join(x.name for x in refused)}",
            remedy=" ".join(f"--allow {one.name}" for one in refused),
        )
    return tuple(found)


def _facts(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yield the values of each fact on both sides, each once."""
    for name in dict.fromkeys(key for facts in (*a, *b) for key in facts):
        yield Difference(name, *(_distinct(x[name] for x in one if name in x) for one in (a, b)))


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    known = list(values)
    return tuple(value for place, value in enumerate(known) if value not in known[:place])


def environment(a: Sequence[Result], b: Sequence[Result]) -> tuple[Difference, ...]:
    """Return in what machines and software of the sides differ, as far as both tell it."""
    told = [[_surroundings(one) for one in side] for side in (a, b)]
    set_ = {key for side in told for facts in side for key in facts if key.startswith("variables.")}
    for facts in (facts for side in told for facts in side if "suite" in facts):
        facts |= {name: facts.get(name, "unset") for name in sorted(set_)}
    both = (one for one in _facts(*told) if one.a and one.b)
    return tuple(one for one in both if set(one.a) != set(one.b))


def _surroundings(result: Result) -> dict[str, str]:
    """Return the facts of machine and software by name; of several devices, what they share."""
    told: dict[str, Any] = {"devices": {"name": result.device}} if isinstance(result, Row) else {
        "suite": result.suite.version, "vendor": result.plan.device.vendor, **result.environment,
    }  # fmt: skip
    facts: dict[str, str] = {}
    for name, value in _flat("", told):
        if str(value) not in facts.setdefault(name, str(value)).split(", "):
            facts[name] += f", {value}"
    return facts


def _flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested facts, those of all members of a list under one name."""
    if isinstance(value, dict):
        for name in [name for name in value if name not in _PASSING]:
            yield from _flat(f"{place}.{name}" if place else name, value[name])
    elif isinstance(value, list):
        for below in value:
            yield from _flat(place, below)
    elif value is not None:
        yield place, value
