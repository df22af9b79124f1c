"""What stands on each side of a comparison, what was left out, and in what the sides differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError, nearest
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.record import Record
from trainmark.record.rows import Row
from trainmark.record.trust import of_repeats, refuted
from trainmark.record.work import each_once, printed_work, with_all_names, work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.plan.reference import EvidenceLevel
    from trainmark.record.record import Trust
    from trainmark.spec import Message

Result = Record | Row
# What differs between any two launches of one machine.
_PASSING = ("others_cpu_share", "device_users", "skew_s", "finished", "artifacts", "skipped_steps")
_TELLING = ("case", "ran_world", "precision")
_ENDED = ("passed", "target_missed")  # what crashed before its target has not missed it
_CLOCK_STEP_MHZ = 50  # in which mean clocks are told: launches of one machine differ a little


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


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Args:
        names: run id of each launch that figures are over, or place of each published row.
        evidence: of rows, how far others can check them; None: launches of ours.
        untold: keys of the work that one of the rows does not tell, and that may differ.
        judged: launches of which it is known whether they reached their target.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    trust: Trust | None
    evidence: EvidenceLevel | None
    untold: tuple[str, ...]
    reached: int
    judged: int


def side(given: Sequence[Result], kept: Sequence[Result], left_out: Sequence[LeftOut]) -> Side:
    """Return the side of ``given``, whose figures are over ``kept``."""
    records = [one for one in given if isinstance(one, Record)]
    ended = [one for one in records if one.status in _ENDED and not refuted(one.trust)]
    judged = [one.quality.reached for one in ended if one.quality.reached is not None]
    trusted = [one for one in kept if isinstance(one, Record)] or records
    rows = [one for one in kept if isinstance(one, Row)]
    return Side(
        names=tuple(map(name_of, kept)), left_out=tuple(left_out),
        trust=of_repeats(trusted) if trusted else None,
        evidence=max((one.evidence for one in rows), default=None),
        untold=tuple(x for x in _TELLING if any(x not in printed_work(row) for row in rows)),
        reached=sum(judged), judged=len(judged),
    )  # fmt: skip


def name_of(result: Result) -> str:
    """Return the run id of a launch, or the place of a row."""
    return result.run_id if isinstance(result, Record) else f"{result.file}:{result.line}"


def chosen(
    given: Sequence[Result], others: Sequence[Result], allow: Collection[str]
) -> tuple[list[Result], list[LeftOut]]:
    """Return what figures are over, and what is left out.

    What did not pass, or is contradicted by its evidence, is left out. Where the other
    side is launches, only the rows nearest to their work count: a page has rows of several worlds.

    Raises:
        UsageError: nothing is there, or both records and rows.
    """
    if len({type(one) for one in given}) != 1:
        what = "records and published rows on one side" if given else "a side without results"
        rule = "a side is launches of ours, or rows that others published"
        remedy = "name them apart" if given else "name at least one on each side"
        raise UsageError(what, rule=rule, remedy=remedy)
    if isinstance(given[0], Record):
        reasons = [_not_counted(one) for one in given if isinstance(one, Record)]
    else:
        reasons = _farther([one for one in given if isinstance(one, Row)], others, allow)
    kept = [one for one, why in zip(given, reasons, strict=True) if why is None]
    pairs = zip(given, reasons, strict=True)
    return kept, [LeftOut(name_of(one), why) for one, why in pairs if why is not None]


def _not_counted(record: Record) -> Message | None:
    if refuted(record.trust):
        return message("compare_refuted")
    return None if record.passed else message("compare_not_passed", status=record.status)


def _farther(
    rows: Sequence[Row], others: Sequence[Result], allow: Collection[str]
) -> list[Message | None]:
    """Return for each row why it does not count: it failed, or another is nearer to the work."""
    wanted = next((printed_work(one) for one in others if isinstance(one, Record)), {})
    told = [printed_work(one) for one in rows]
    unlike = [[key for key in one if key in wanted and one[key] != wanted[key]] for one in told]
    silent = [[key for key in wanted if key not in one] for one in told]
    # Rates of several worlds have no mean, so that another world weighs more than another field.
    distance = [
        (len({*keys} - {*allow}), "ran_world" in keys, len(keys), len(untold))
        for keys, untold in zip(unlike, silent, strict=True)
    ]
    passed = [far for far, row in zip(distance, rows, strict=True) if row.failure is None]
    reasons = []
    for row, keys, untold, far in zip(rows, unlike, silent, distance, strict=True):
        code, key = ("other", keys[0]) if keys else ("silent", ", ".join(untold))
        farther = far != min(passed, default=None)
        reasons.append(
            row.failure or (message(f"compare_{code}_row", key=key) if farther else None)
        )
    return reasons


def rounds(a: Sequence[Result], b: Sequence[Result]) -> list[list[Record]] | None:
    """Return both sides' launches of each round that both have; None: not done in turns.

    The number of a launch in its series is its round: all of a round began before the next did.
    """
    sides = [
        {one.plan.repeat_index: one for one in found if isinstance(one, Record)} for found in (a, b)
    ]
    shared = sorted(sides[0].keys() & sides[1].keys())
    starts = [sorted(one[number].started for one in sides) for number in shared]
    in_turns = all(last[1] <= following[0] for last, following in pairwise(starts))
    if len(shared) < 2 or not in_turns or sum(map(len, sides)) < len(a) + len(b):
        return None
    return [[one[number] for number in shared] for one in sides]


def allowed_work(
    a: Sequence[Result], b: Sequence[Result], allow: Collection[str]
) -> tuple[Difference, ...]:
    """Return in what the work differs, all of it allowed.

    Raises:
        UsageError: a run given twice, an unknown key to allow, or work that differs in another
            key, with both values.
    """
    everything = [*a, *b]
    each_once(map(name_of, everything))
    ours = [work(one) for one in everything if isinstance(one, Record)]
    whole = len(ours) == len(everything)  # only a row may be silent
    facts = with_all_names(ours) if whole else [printed_work(one) for one in everything]
    return refuse_other_work(facts[: len(a)], facts[len(a) :], allow)


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
    refused = [one for one in found if one.name not in allow]
    if refused:
        first, *others = _distinct([*refused[0].a, *refused[0].b])
        raise UsageError(
            f"{refused[0].name} is {first!r} and {others[0]!r}",
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
    told = surroundings([*a, *b])
    both = (one for one in _facts(told[: len(a)], told[len(a) :]) if one.a and one.b)
    return tuple(one for one in both if set(one.a) != set(one.b))


def surroundings(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the facts of machine and software of each result by name, as far as it tells them."""
    told = [_surroundings(one) for one in results]
    for name in sorted({key for facts in told for key in facts if key.startswith("variables.")}):
        for facts in told:
            if "suite" in facts:  # a record: what it does not list was not set
                facts.setdefault(name, "unset")
    return told


def _surroundings(result: Result) -> dict[str, Any]:
    """Return the facts of machine and software by name; of several devices, what they share."""
    if isinstance(result, Row):
        return dict(_flat("", {"devices": {"name": result.device}, "vendor": result.vendor}))
    facts: dict[str, Any] = {}
    told = {"suite": result.suite.version, "vendor": result.plan.device.vendor}
    devices = result.telemetry.devices if result.telemetry else ()
    measured = [one.over["measured"].quantities for one in devices if "measured" in one.over]
    if clocks := [one["clock_mhz"].mean for one in measured if "clock_mhz" in one]:
        told["clock_mhz"] = f"{round(mean(clocks) / _CLOCK_STEP_MHZ) * _CLOCK_STEP_MHZ}"
    for name, value in _flat("", told | dict(result.environment)):
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
