"""The two sides of a comparison: which launches count, and in what the sides differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError, nearest
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.stats import is_proportional
from trainmark.record.trust import combine_verifications, grade_repeats, is_refuted
from trainmark.record.work import describe_work, reject_duplicates
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.record.record import Record, Trust, Verification
    from trainmark.spec import Message

_COMPLETE = ("passed", "target_missed")  # a launch that crashed has not missed its target
_REPORTED_BY_RANKS = {"parameters", "device_products"}
NEVER_ALLOWED = ("case", "data", "content_id", "parameters", "bound")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A launch that does not count, and why."""

    name: str
    reason: Message


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that differs between the sides, with the values of each in order of appearance."""

    name: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Args:
        names: run id of each launch that counts.
        judged: number of launches of which it is known whether they reached their target.
        verification: of all its launches together.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    trust: Trust
    reached: int
    judged: int
    verification: Verification


def _reason_left_out(record: Record) -> Message | None:
    """Return why a launch does not count; None: it counts."""
    if is_refuted(record.trust):
        return message("compare_refuted")
    return None if record.passed else message("compare_not_passed", status=record.status)


def reject_unknown_figures(names: Iterable[str], known: Collection[str]) -> None:
    """Raise a UsageError for the first name that is no figure."""
    for name in names:
        if name not in known:
            raise UsageError(f"no figure {name!r}", where="--figure", fix=nearest(name, known))


def select_counted(a: Sequence[Record], b: Sequence[Record]) -> tuple[list[list[Record]], bool]:
    """Return the launches of both sides that count, and whether they are compared in pairs.

    A launch that did not pass, or that its evidence contradicts, does not count. The number of a
    launch in its series is its round. Launches are compared in pairs if those of both sides
    alternated: each round ended before the next one began; then only the rounds that both sides
    have count.
    """
    counted = [[record for record in side if _reason_left_out(record) is None] for side in (a, b)]
    rounds_a, rounds_b = ({x.plan.repeat_index: x for x in side} for side in counted)
    shared = sorted(rounds_a.keys() & rounds_b.keys())
    starts = [sorted((rounds_a[n].started, rounds_b[n].started)) for n in shared]
    alternated = all(earlier[1] <= later[0] for earlier, later in pairwise(starts))
    has_repeated_rounds = len(rounds_a) + len(rounds_b) < sum(map(len, counted))
    if len(shared) < 2 or not alternated or has_repeated_rounds:
        return counted, False
    return [[rounds_a[n] for n in shared], [rounds_b[n] for n in shared]], True


def describe_side(given: Sequence[Record], counted: Sequence[Record]) -> Side:
    """Return a side without its figures.

    Args:
        given: all launches of the side.
        counted: the launches among them that count.
    """
    names = tuple(record.run_id for record in counted)
    left_out = tuple(
        LeftOut(record.run_id, _reason_left_out(record) or message("compare_alone_in_round"))
        for record in given
        if record.run_id not in names
    )
    judged = [
        record.quality.reached
        for record in given
        if record.status in _COMPLETE
        and not is_refuted(record.trust)
        and record.quality.reached is not None
    ]
    return Side(
        names=names,
        left_out=left_out,
        trust=grade_repeats(counted or given),
        reached=sum(judged),
        judged=len(judged),
        verification=combine_verifications(given),
    )


def find_work_differences(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str]
) -> tuple[list[Difference], list[Difference]]:
    """Return the differences of the work that are allowed, and those that are not.

    Raises:
        UsageError: a run is given twice or is a copy, or ``allow`` has an unknown key.
    """
    records = [*a, *b]
    _reject_copies(records)
    works = [_known_work(record) for record in records]
    known = dict.fromkeys(name for facts in works for name in facts)
    # A field that a recipe does not have is None. A fact that ranks did not report stays unknown.
    recipe_fields = [name for name in known if name not in _REPORTED_BY_RANKS]
    works = [dict.fromkeys(recipe_fields) | facts for facts in works]
    allow = [FIELD_ALIASES.get(key, key) for key in allow]
    for key in allow:
        if key not in known:
            what = f"no key {key!r} of the work"
            raise UsageError(what, where="--allow", fix=nearest(key, known))
    allowed, refused = [], []
    for fact in _pair_facts(works[: len(a)], works[len(a) :]):
        if len({*map(repr, (*fact.a, *fact.b))}) == 1:
            continue
        if fact.name in allow and fact.name not in NEVER_ALLOWED:
            allowed.append(fact)
        else:
            refused.append(fact)
    return allowed, refused


def _reject_copies(records: Sequence[Record]) -> None:
    reject_duplicates(record.run_id for record in records)
    for record, other in combinations(records, 2):
        if is_proportional(record.steps.time_ns, other.steps.time_ns):
            what = f"step times of {record.run_id} and {other.run_id} are the same or proportional"
            raise UsageError(what, rule="launches are measured, not copied")


def make_other_work_error(refused: Sequence[Difference]) -> UsageError:
    """Return the error of sides whose work differs, with the first key and two of its values."""
    never_allowed = [fact for fact in refused if fact.name in NEVER_ALLOWED]
    first = (never_allowed or refused)[0]
    values = dict.fromkeys(map(repr, (*first.a, *first.b)))
    what = f"{first.name} is {' and '.join([*values][:2])}"
    where = "the work of A and B"
    if never_allowed:
        rule = "another case, model or data set, or a bound and a training, are never compared"
        return UsageError(what, where=where, rule=rule)
    names = [fact.name for fact in refused]
    rule = f"only the same work compares; differing: {', '.join(names)}"
    fix = " ".join(f"--allow {name}" for name in names)
    return UsageError(what, where=where, rule=rule, fix=fix)


def _known_work(record: Record) -> dict[str, Any]:
    """Return the work of a launch with the size of its model, without facts it did not report.

    A launch that failed early has reported neither its devices nor the parameters of its model.
    """
    job = record.environment.get("job") or {}
    facts = describe_work(record) | {"parameters": job.get("parameters")}
    return {name: x for name, x in facts.items() if name not in _REPORTED_BY_RANKS or x}


def _pair_facts(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Yield the distinct values of each fact on both sides."""
    for name in dict.fromkeys(key for facts in (*a, *b) for key in facts):
        yield Difference(name, _distinct_values(a, name), _distinct_values(b, name))


def _distinct_values(side: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, ...]:
    return tuple({repr(facts[name]): facts[name] for facts in side if name in facts}.values())


def read_environment(record: Record) -> dict[str, str]:
    """Return the facts of machine and software in a record that are texts or whole numbers."""
    facts = {"suite": record.suite.version, **record.environment}
    facts |= record.environment.get("packages", {})
    facts |= record.environment.get("variables", {})
    return {name: str(fact) for name, fact in facts.items() if isinstance(fact, str | int)}


def find_environment_differences(
    a: Sequence[Record], b: Sequence[Record]
) -> tuple[Difference, ...]:
    """Return the facts of machine and software that differ, or that only one side has."""
    facts = _pair_facts([*map(read_environment, a)], [*map(read_environment, b)])
    return tuple(fact for fact in facts if {*fact.a} != {*fact.b})
