"""The launches of both sides of a comparison: what is refused, left out, and what else differs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError, nearest
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.stats import proportional
from trainmark.record.trust import of_repeats, refuted, verification_of
from trainmark.record.work import each_once, work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.record.record import Record, Trust, Verification
    from trainmark.spec import Message

_ENDED = ("passed", "target_missed")  # what crashed before its target has not missed it
_TOLD_BY_RANKS = {"parameters", "device_products"}
NEVER_ALLOWED = ("case", "data", "content_id", "parameters")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A launch that no figure is over, and why."""

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
        names: run id of each launch that figures are over.
        judged: launches of which it is known whether they reached their target.
        verification: of all its launches together.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    trust: Trust
    reached: int
    judged: int
    verification: Verification


def _not_counted(record: Record) -> Message | None:
    if refuted(record.trust):
        return message("compare_refuted")
    return None if record.passed else message("compare_not_passed", status=record.status)


def counted(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[list[Record]], bool]:
    """Return the launches that figures are over, and whether they were done in turns.

    What did not pass, or is contradicted by its evidence, does not count. The number of a launch in
    its series is its round; in turns, all of a round began before the next did, and only rounds
    that both sides have count.
    """
    kept = [[one for one in side if _not_counted(one) is None] for side in (a, b)]
    rounds = [{one.plan.repeat_index: one for one in side} for side in kept]
    shared = sorted(rounds[0].keys() & rounds[1].keys())
    starts = [sorted(one[number].started for one in rounds) for number in shared]
    paired = all(last[1] <= following[0] for last, following in pairwise(starts))
    if len(shared) < 2 or not paired or sum(map(len, rounds)) < sum(map(len, kept)):
        return kept, False
    return [[found[number] for number in shared] for found in rounds], True


def side_of(given: Sequence[Record], kept: Sequence[Record]) -> Side:
    """Return what is known of a side beside its figures."""
    names = tuple(one.run_id for one in kept)
    ended = (one for one in given if one.status in _ENDED and not refuted(one.trust))
    judged = [one.quality.reached for one in ended if one.quality.reached is not None]
    return Side(
        names=names,
        left_out=tuple(
            LeftOut(one.run_id, _not_counted(one) or message("compare_alone_in_round"))
            for one in given
            if one.run_id not in names
        ),
        trust=of_repeats(kept or given),
        reached=sum(judged),
        judged=len(judged),
        verification=verification_of(given),
    )


def different_work(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str]
) -> tuple[list[Difference], list[Difference]]:
    """Return in what the work differs: what is allowed, and what is not.

    Raises:
        UsageError: a run given twice or copied, or an unknown key to allow.
    """
    records = [*a, *b]
    each_once(one.run_id for one in records)
    for one, other in combinations(records, 2):
        if proportional(one.steps.time_ns, other.steps.time_ns):
            what = f"step times of {one.run_id} and {other.run_id} are the same or proportional"
            raise UsageError(what, rule="launches are measured, not copied")
    facts = [_known_work(one) for one in records]
    known = dict.fromkeys(name for one in facts for name in one)
    # A field that a recipe does not have is None. What ranks did not tell stays unknown.
    always = [name for name in known if name not in _TOLD_BY_RANKS]
    facts = [dict.fromkeys(always) | one for one in facts]
    allow = [FIELD_ALIASES.get(key, key) for key in allow]
    for key in allow:
        if key not in known:
            what = f"no key {key!r} of the work"
            raise UsageError(what, where="--allow", fix=nearest(key, known))
    sides = _facts(facts[: len(a)], facts[len(a) :])
    found = [one for one in sides if len({*map(repr, (*one.a, *one.b))}) > 1]
    refused = [one for one in found if one.name in NEVER_ALLOWED or one.name not in allow]
    return [one for one in found if one not in refused], refused


def other_work(refused: Sequence[Difference]) -> UsageError:
    """Return the error of sides whose work differs, with the first key and both its values."""
    never = [one for one in refused if one.name in NEVER_ALLOWED]
    first, *_ = shown = never or refused
    values = dict.fromkeys(map(repr, (*first.a, *first.b)))
    what = f"{first.name} is {' and '.join([*values][:2])}"
    where = "the work of A and B"
    if never:
        rule = "another case, model or data set is never compared"
        return UsageError(what, where=where, rule=rule)
    names = [one.name for one in shown]
    rule = f"only the same work compares; differing: {', '.join(names)}"
    fix = " ".join(f"--allow {name}" for name in names)
    return UsageError(what, where=where, rule=rule, fix=fix)


def _known_work(record: Record) -> dict[str, Any]:
    """Return the work of a launch with the size of its model, without what it did not tell.

    A launch that failed early has told neither its devices nor the parameters of its model.
    """
    job = record.environment.get("job") or {}
    found = work(record) | {"parameters": job.get("parameters")}
    return {name: x for name, x in found.items() if name not in _TOLD_BY_RANKS or x}


def _facts(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yield the values of each fact on both sides, each once."""
    for name in dict.fromkeys(key for facts in (*a, *b) for key in facts):
        yield Difference(name, *(_distinct(x[name] for x in one if name in x) for one in (a, b)))


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple({repr(value): value for value in values}.values())


def environment(record: Record) -> dict[str, str]:
    """Return what a record tells of machine and software, each in a word or a whole number."""
    told = record.environment
    facts = {"suite": record.suite.version, **told}
    facts |= {**told.get("packages", {}), **told.get("variables", {})}
    return {name: str(fact) for name, fact in facts.items() if isinstance(fact, str | int)}


def unlike_environment(a: Sequence[Record], b: Sequence[Record]) -> tuple[Difference, ...]:
    """Return in what machines and software of the sides differ; what only one tells differs too."""
    facts = _facts([*map(environment, a)], [*map(environment, b)])
    return tuple(one for one in facts if {*one.a} != {*one.b})
