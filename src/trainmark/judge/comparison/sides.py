"""The two sides of a comparison: which launches count, and in what the sides differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError, suggest_nearest
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.stats import is_proportional
from trainmark.record.trust import combine_verifications, grade_repeats, is_refuted
from trainmark.record.work import describe_work, reject_duplicates
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trainmark.record.record import Record, Trust, Verification
    from trainmark.spec import Message

_COMPLETE_STATUSES = ("passed", "target_missed")  # a launch that crashed has not missed its target
_REPORTED_BY_RANKS = {"parameters", "device_products"}
# Keys that ``allow`` cannot excuse: another case, model or dataset, and a bound on the speed
# instead of a training.
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
        left_out: launches that do not count.
        reached: number of launches that reached their target.
        judged: number of launches of which it is known whether they reached their target.
        verification: of all its launches together.
        is_witnessed: it is a program of a user's own, measured from inside it.
    """

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    trust: Trust
    reached: int
    judged: int
    verification: Verification
    is_witnessed: bool


@dataclass(frozen=True, slots=True)
class CountedLaunches:
    """The launches of both sides that count.

    Args:
        paired: launch k of ``a`` and launch k of ``b`` are compared with each other.
        num_excluded_a: number of launches of A that do not count.
        num_excluded_b: number of launches of B that do not count.
    """

    a: list[Record]
    b: list[Record]
    paired: bool
    num_excluded_a: int
    num_excluded_b: int


@dataclass(frozen=True, slots=True)
class WorkDifferences:
    """The keys in which the work of both sides differs.

    Args:
        allowed: keys that the user allows to differ.
        not_allowed: all others, for which the caller may refuse the comparison.
    """

    allowed: tuple[Difference, ...]
    not_allowed: tuple[Difference, ...]


def _find_reason_to_leave_out(record: Record) -> Message | None:
    """Return why a launch does not count; None: it counts."""
    if is_refuted(record.trust):
        return message("compare_refuted")
    if not record.passed:
        return message("compare_not_passed", status=record.status)
    return None


def reject_unknown_figures(names: Iterable[str], known: Collection[str]) -> None:
    """Raise a UsageError for the first name that is no figure."""
    for name in names:
        if name not in known:
            raise UsageError(
                f"no figure named {name!r}", where="--figure", fix=suggest_nearest(name, known)
            )


def select_counted(a: Sequence[Record], b: Sequence[Record]) -> CountedLaunches:
    """Return the launches of both sides that count, and whether they are compared in pairs.

    A launch that did not pass, or that its evidence contradicts, does not count. The number of a
    launch in its series is its round. Launches are compared in pairs if those of both sides
    alternated: both launches of a round began before those of the next round; then only the rounds
    that both sides have count.
    """
    counted_a = [record for record in a if _find_reason_to_leave_out(record) is None]
    counted_b = [record for record in b if _find_reason_to_leave_out(record) is None]
    rounds_a = {record.plan.repeat_index: record for record in counted_a}
    rounds_b = {record.plan.repeat_index: record for record in counted_b}
    common_rounds = sorted(rounds_a.keys() & rounds_b.keys())
    pairs = [(rounds_a[number], rounds_b[number]) for number in common_rounds]
    # Of each round, the start of its earlier launch and of its later one.
    starts = [sorted((launch_a.started, launch_b.started)) for launch_a, launch_b in pairs]
    have_alternated = all(earlier[1] <= later[0] for earlier, later in pairwise(starts))
    # Launches of several series have the same numbers, so a number does not name one round.
    has_repeated_rounds = len(rounds_a) < len(counted_a) or len(rounds_b) < len(counted_b)
    paired = len(pairs) >= 2 and have_alternated and not has_repeated_rounds
    if paired:
        counted_a = [launch_a for launch_a, _ in pairs]
        counted_b = [launch_b for _, launch_b in pairs]
    return CountedLaunches(
        counted_a,
        counted_b,
        paired=paired,
        num_excluded_a=len(a) - len(counted_a),
        num_excluded_b=len(b) - len(counted_b),
    )


def describe_side(launches: Sequence[Record], counted: Sequence[Record]) -> Side:
    """Return what is known of a side besides its figures.

    Args:
        launches: all launches of the side.
        counted: the launches among them that count.
    """
    names = tuple(record.run_id for record in counted)
    left_out = []
    for record in launches:
        if record.run_id not in names:
            # A launch without a reason of its own is left out of a comparison in pairs: the other
            # side has no launch that counts with the same number.
            reason = _find_reason_to_leave_out(record) or message("compare_alone_in_round")
            left_out.append(LeftOut(record.run_id, reason))
    # Of all launches, not only of those that count: one that missed its target did not pass.
    judged = [
        record.quality.reached
        for record in launches
        if record.status in _COMPLETE_STATUSES
        and not is_refuted(record.trust)
        and record.quality.reached is not None
    ]
    return Side(
        names=names,
        left_out=tuple(left_out),
        trust=grade_repeats(counted or launches),  # if none counts, the reasons of all say why
        reached=sum(judged),
        judged=len(judged),
        verification=combine_verifications(launches),
        # A user's own program trained, watched by a probe, instead of a case.
        is_witnessed=any(record.plan.witness is not None for record in launches),
    )


def find_work_differences(
    a: Sequence[Record], b: Sequence[Record], allow: Collection[str]
) -> WorkDifferences:
    """Return the keys in which the work of the sides differs.

    Args:
        allow: keys that may differ, except for those in ``NEVER_ALLOWED``.

    Raises:
        UsageError: a run is given twice or is a copy, or ``allow`` has an unknown key.
    """
    records = [*a, *b]
    _reject_copies(records)
    works = [_describe_reported_work(record) for record in records]
    known_keys = dict.fromkeys(name for work in works for name in work)
    # A field that a recipe does not have is None, which differs from all other values. A fact that
    # the ranks of a launch did not report stays absent, and is no difference to other launches.
    recipe_fields = [name for name in known_keys if name not in _REPORTED_BY_RANKS]
    works = [dict.fromkeys(recipe_fields) | work for work in works]
    allowed_keys = [FIELD_ALIASES.get(key, key) for key in allow]
    for key in allowed_keys:
        if key not in known_keys:
            what = f"the work of A and B has no setting {key!r}"
            raise UsageError(what, where="--allow", fix=suggest_nearest(key, known_keys))
    allowed = []
    not_allowed = []
    for fact in _pair_facts(works[: len(a)], works[len(a) :]):
        distinct_values = {repr(value) for value in (*fact.a, *fact.b)}
        if len(distinct_values) == 1:
            continue
        if fact.name in allowed_keys and fact.name not in NEVER_ALLOWED:
            allowed.append(fact)
        else:
            not_allowed.append(fact)
    return WorkDifferences(tuple(allowed), tuple(not_allowed))


def _reject_copies(records: Sequence[Record]) -> None:
    """Raise a UsageError if a run is given twice, or has the step times of another run.

    Proportional step times count as copied too, because those of two real launches never are.
    """
    reject_duplicates(record.run_id for record in records)
    for record, other in combinations(records, 2):
        if is_proportional(record.steps.time_ns, other.steps.time_ns):
            runs = f"{record.run_id} and {other.run_id}"
            what = f"the step times of {runs} are the same or proportional"
            raise UsageError(what, rule="each launch must be a separate measurement")


def make_other_work_error(not_allowed: Sequence[Difference]) -> UsageError:
    """Return the error of sides whose work differs, with the first key and two of its values.

    In a balanced run, each expert of a mixture of experts gets the same number of tokens, whatever
    the router would choose. Its speed is an upper bound on that of training.

    Args:
        not_allowed: the keys that differ and may not, at least one.
    """
    never_allowed = [fact for fact in not_allowed if fact.name in NEVER_ALLOWED]
    first = never_allowed[0] if never_allowed else not_allowed[0]
    # A recipe field that is not set is None.
    values = ["none" if value is None else repr(value) for value in (*first.a, *first.b)]
    distinct_values = list(dict.fromkeys(values))
    what = f"{first.name} differs: {' and '.join(distinct_values[:2])}"
    where = "the work of A and B differs"
    if never_allowed:
        rule = "runs of different cases, models or datasets are never compared"
        if first.name == "bound":
            rule = (
                "a balanced run, which gives a bound on the speed, is never compared with a "
                "training run"
            )
        return UsageError(what, where=where, rule=rule)
    names = [fact.name for fact in not_allowed]
    rule = "only the same work can be compared"
    fix = "add " + " ".join(f"--allow {name}" for name in names)
    return UsageError(what, where=where, rule=rule, fix=fix)


def _describe_reported_work(record: Record) -> dict[str, Any]:
    """Return the work of a launch with the size of its model, without facts it did not report.

    A launch that failed early has reported neither its devices nor the parameters of its model.
    """
    job = record.environment.get("job") or {}
    facts = describe_work(record) | {"parameters": job.get("parameters")}
    # A fact of the ranks that is None or empty was not reported.
    return {name: fact for name, fact in facts.items() if fact or name not in _REPORTED_BY_RANKS}


def _pair_facts(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:
    """Yield the distinct values of each fact on both sides, which may be the same."""
    for name in dict.fromkeys(key for facts in (*a, *b) for key in facts):
        yield Difference(name, _list_distinct_values(a, name), _list_distinct_values(b, name))


def _list_distinct_values(side: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, ...]:
    """Return the values of a fact in order of appearance, each only once."""
    # Values may be lists, which are not hashable; therefore their texts are compared.
    values_by_text = {repr(facts[name]): facts[name] for facts in side if name in facts}
    return tuple(values_by_text.values())


def read_environment(record: Record) -> dict[str, str]:
    """Return the facts of machine and software in a record that are texts or whole numbers.

    The only other number, ``others_cpu_share``, is measured and differs between any two launches.
    Of the tables in the environment, each entry of ``packages`` and ``variables`` is a fact; other
    tables are left out.
    """
    facts = {"suite": record.suite.version, **record.environment}
    facts |= record.environment.get("packages", {})
    facts |= record.environment.get("variables", {})
    return {name: str(fact) for name, fact in facts.items() if isinstance(fact, str | int)}


def find_environment_differences(
    a: Sequence[Record], b: Sequence[Record]
) -> tuple[Difference, ...]:
    """Return the facts of machine and software that differ, or that only one side has.

    Args:
        a: the launches of side A that count.
        b: those of side B. If a side has none, there is nothing to compare.
    """
    if not a or not b:
        return ()
    environments_a = [read_environment(record) for record in a]
    environments_b = [read_environment(record) for record in b]
    facts = _pair_facts(environments_a, environments_b)
    return tuple(fact for fact in facts if set(fact.a) != set(fact.b))
