"""Judge runs against baseline runs or against their own history, figure by figure.

Owns the verdicts, the rule of each, its default tolerances and its exit code, which docs/compare.md
states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import (
    EXIT_FAILED,
    EXIT_NOISY,
    EXIT_PASSED,
    EXIT_USAGE,
    RecordError,
    UsageError,
    nearest,
)
from trainmark.judge.comparison import history
from trainmark.plan.overrides import fix_hp_text
from trainmark.record.figures import specs
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, over_launches, ratio
from trainmark.record.trust import MAX_CV, refuted
from trainmark.record.work import differing, groups, work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from trainmark.record.record import Record

Verdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
_EXITS = {"passed": EXIT_PASSED, "improved": EXIT_PASSED, "noisy": EXIT_NOISY,
          "no_history": EXIT_NOISY, "other_work": EXIT_USAGE}  # fmt: skip
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# By what is not the program that is measured.
_DISTURBED = {"machine_busy", "device_shared"}
QUALITY = "quality"  # what the case measures, whatever it is called there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
LEAST_WORSE, LEAST_BETTER = 0.03, 0.1
_DEVIATIONS = 3.0  # of launches from each other, that are no regression


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a figure of a piece of work, with its numbers in ``message``."""

    work: str
    figure: str
    verdict: Verdict
    message: Message

    @property
    def exit_code(self) -> int:
        """The exit code that this verdict alone leads to."""
        return _EXITS.get(self.verdict, EXIT_FAILED)


def unreadable(error: RecordError) -> Judgement:
    """Return the failure of a run whose record cannot be read."""
    return Judgement(
        error.where or "", "record", "failed", message("gate_unreadable", error=error.what)
    )


def exit_code(judgements: Sequence[Judgement]) -> int:
    """Return the exit code over all: 1 before 2 before 3; 3 if nothing was judged."""
    codes = (one.exit_code for one in judgements)
    return min(codes, key=_WORST_FIRST.index, default=EXIT_NOISY)


def _told(record: Record, name: str) -> tuple[float, str]:
    """Return a figure, or the quality, with its unit; 0 where it is not told or not above zero."""
    found = record.figures.get(name)
    value, unit = (found.value, found.unit) if found else (None, "")
    if name == QUALITY:
        value, unit = record.quality.value, record.quality.metric
    return max(value or 0.0, 0.0), unit


def _values(launches: Sequence[Record], name: str, unit: str | None = None) -> list[float]:
    """Return a figure of the launches that tell it, in ``unit`` where one is asked for."""
    told = [_told(one, name) for one in launches]
    return [value for value, of in told if value and unit in (None, of)]


def _title(record: Record) -> str:
    """Return a name of a record's work for people."""
    changed = fix_hp_text(record.plan.fix_hp | record.plan.extra)
    return f"{record.plan.case_key} {record.plan.recipe_name} {changed}".rstrip()


def tolerance(cv: float | None, launches: int) -> float:
    """Return the share by which a later launch may be worse than the mean of ``launches``.

    Three coefficients of variation, more for few launches, which tell their scatter badly.
    """
    factor = _DEVIATIONS * (1 + 2 / max(1, launches - 1))
    return min(1.0, max(LEAST_WORSE, round(factor * (cv or 0.0), 3)))


def against_baseline(
    records: Sequence[Record],
    baseline: Sequence[Record],
    names: Sequence[str],
    *,
    worse_by: float | None = None,
) -> Iterator[Judgement]:
    """Yield a judgement for each figure by the launches of ``baseline`` with the same work.

    Args:
        baseline: runs of ``records`` among them do not count.
        names: figures to judge; none: those of ``FIGURES`` that the baseline has.
        worse_by: share by which a figure may be worse; None: by the baseline's own scatter.

    Raises:
        RecordError: a record of the baseline that did not pass, or that its evidence contradicts.
        UsageError: there is none, a run is its own baseline, or one of ``names`` is no figure.
    """
    if not baseline:
        raise UsageError("no run there", where="--baseline", fix="name runs that passed")
    for one in baseline:
        if refuted(one.trust) or not one.passed:
            rule = "a baseline is of runs that passed and match their raw events"
            raise RecordError(f"status {one.status}", where=one.run_id, rule=rule)
    works = groups(records)
    for launches in works:
        _refuse_unknown(launches[0], names)
    baseline = _without(baseline, records)
    for launches in works:
        key = work(launches[0])
        known = [one for one in baseline if work(one) == key]
        if not known:
            near = min(baseline, key=lambda one: len(differing(work(one), key)))
            first, *others = differing(work(near), key)
            sides = {"known": str(work(near).get(first)), "found": str(key.get(first))}
            reason = message("gate_other_work", key=first, entry=_title(near), **sides,
                             others=len(others))  # fmt: skip
            yield Judgement(_title(launches[0]), "work", "other_work", reason)
            continue
        usable = yield from _usable(launches)
        told = [name for name in FIGURES if len(_values(known, name)) == len(known)]
        for name in (names or told) if usable else ():
            yield _by_baseline(usable, known, name, worse_by)


def _without(baseline: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """Return the baseline without the runs to judge, which a folder may hold too.

    Raises:
        UsageError: nothing is left.
    """
    judged = {one.run_id for one in records}
    others = [one for one in baseline if one.run_id not in judged]
    if not others:
        raise UsageError(
            "the run is its own baseline", where=baseline[0].run_id,
            rule="a run is judged by other runs: against itself it always passes",
            fix="name earlier runs with --baseline",
        )  # fmt: skip
    return others


def _refuse_unknown(record: Record, names: Sequence[str]) -> None:
    possible = (QUALITY, *specs(record.plan.about.page))
    for name in names:
        if name not in possible:
            fix = nearest(name, possible)
            raise UsageError(f"no figure {name!r}", where="--figure", fix=fix)


def against_history(
    records: Sequence[Record], earlier: Sequence[Record], names: Sequence[str]
) -> Iterator[Judgement]:
    """Yield a judgement for each figure by the runs of the same work before ``records``.

    The launches of one run count as their mean; where no figure has enough runs, one judgement
    says so.

    Args:
        names: figures to judge; none: those of ``FIGURES`` that are known.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    for launches in groups(records):
        _refuse_unknown(launches[0], names)
        usable = yield from _usable(launches)
        begun, key = min(record.started for record in launches), work(launches[0])
        past = [one for one in earlier if one.passed and not refuted(one.trust)]
        past = [one for one in past if one.started < begun and work(one) == key]
        told = {name: _runs(past, name) for name in names or FIGURES}
        least, most = history.LEAST_RUNS, max(map(len, told.values()))
        if usable and most < least:
            reason = message("gate_no_history", runs=most, least=least)
            yield Judgement(_title(launches[0]), ", ".join(told), "no_history", reason)
        for name, runs in told.items() if usable else ():
            if len(runs) >= least:
                yield _by_history(usable, name, runs)


def _runs(past: Sequence[Record], name: str) -> dict[str, float]:
    """Return the mean of each of the last runs by its id, the oldest first."""
    runs: dict[str, list[float]] = {}
    for one in sorted(past, key=lambda one: one.started):
        run = one.run_id.removesuffix(f"-r{one.plan.repeat_index}")
        runs.setdefault(run, []).extend(_values([one], name))
    means = [(run, over_launches(found).mean) for run, found in runs.items() if found]
    return dict(means[-history.MOST_RUNS :])


def _usable(launches: Sequence[Record]) -> Generator[Judgement, None, list[Record]]:
    """Yield a failure for each launch that cannot be judged, and return the others."""
    good = [one for one in launches if one.passed and not refuted(one.trust)]
    for one in launches:
        if one not in good:
            code = "gate_refuted" if refuted(one.trust) else "gate_status"
            reason = message(code, run=one.run_id, status=one.status)
            yield Judgement(_title(one), "status", "failed", reason)
    return good


def _by_baseline(
    launches: Sequence[Record], baseline: Sequence[Record], name: str, worse_by: float | None
) -> Judgement:
    """Judge by the interval of the change; of fewer than five launches by their range."""
    unit = _told(baseline[0], name)[1]
    values, known = _values(launches, name, unit), _values(baseline, name, unit)
    if len(values) < len(launches) or not known:
        return _judged(launches, name, "missing", "missing", unit=unit)
    of_known = over_launches(known)
    middle, worse = of_known.mean, tolerance(of_known.cv, len(known))
    better = min(1.0, max(LEAST_BETTER, 2 * worse))
    worse = worse if worse_by is None else worse_by
    now, *ends = ratio(known, values)
    if None in ends:
        ends = [min(values) / middle, max(values) / middle]
    sign = _sign(launches[0], name)
    low, high = sorted(sign * ((end or 0.0) - 1) for end in ends)
    verdict: Verdict = (
        "regressed" if high < -worse
        else "improved" if low > better
        else "noisy" if low < -worse or (worse > MAX_CV and worse_by is None)
        else "passed"
    )  # fmt: skip
    return _judged(launches, name, verdict, verdict, unit=unit, expected=middle,
                   value=now * middle, change=sign * (now - 1) + 0.0, low=low, high=high,
                   worse_by=worse, better_by=better)  # fmt: skip


def _by_history(launches: Sequence[Record], name: str, runs: Mapping[str, float]) -> Judgement:
    """Judge one figure by the steps, the drift and the noise in the runs before, by their ids."""
    values, unit = _values(launches, name), _told(launches[0], name)[1]
    if not values:
        return _judged(launches, name, "missing", "missing", unit=unit)
    seen = history.outlook([*runs.values(), over_launches(values).mean])
    sign = _sign(launches[0], name)
    change, worse = sign * (seen.value / seen.expected - 1), max(LEAST_WORSE, seen.noise)
    args: dict[str, Any] = {"expected": seen.expected, "value": seen.value, "unit": unit,
                            "change": change + 0.0, "worse_by": worse}  # fmt: skip
    since = None if seen.began is None else [*runs, launches[0].run_id][seen.began]
    verdict: Verdict = "passed"
    if change > max(LEAST_BETTER, seen.noise):
        verdict = "improved"
    elif change < -worse:
        alone = since is None and len(values) < INTERVAL_MIN_LAUNCHES
        verdict = "noisy" if alone else "regressed"
    elif seen.drift and sign * seen.drift < 0:
        args |= {"change": sign * seen.drift, "runs": history.RAMP}
        return _judged(launches, name, "regressed", "drift", **args)
    code = "step" if since and verdict != "passed" else f"usual_{verdict}"
    return _judged(launches, name, verdict, code, since=since, **args)


def _sign(record: Record, name: str) -> int:
    """Return 1 where more is better; what has no direction, power for instance, should not rise."""
    about = record.plan.about
    spec = specs(about.page).get(name)
    higher = about.higher_is_better if name == QUALITY else spec and spec.better == "higher"
    return 1 if higher else -1


def _judged(
    launches: Sequence[Record], name: str, verdict: Verdict, code: str, **args: Any
) -> Judgement:
    doubts = {found.code for one in launches for found in one.trust.reasons}
    if verdict == "regressed" and doubts & _DISTURBED:
        verdict, code = "noisy", "disturbed"
    reason = message(f"gate_{code}", figure=name, launches=len(launches), **args)
    return Judgement(_title(launches[0]), name, verdict, reason)
