"""Judge runs against baseline runs, figure by figure.

Owns the rule of each verdict against a baseline and its tolerances, which docs/compare.md states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.errors import RecordError, UsageError
from trainmark.judge.comparison.gate import (
    FIGURES,
    MIN_BETTER,
    MIN_WORSE,
    GateVerdict,
    Judgement,
    describe_work_briefly,
    fail_unusable,
    get_sign,
    is_usable,
    make_judgement,
    read_unit,
    read_values,
    reject_unknown_names,
)
from trainmark.record.stats import LaunchSummary, estimate_ratio, summarize_launches
from trainmark.record.trust import is_refuted
from trainmark.record.work import describe_work, find_differences, group_by_work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

# A larger default tolerance would hide regressions: figures within it are ``noisy``.
_MAX_TOLERANCE = 0.1
_NUM_SIGMAS = 3.0  # by which launches may differ from each other without a regression


def compute_tolerance(cv: float | None, num_launches: int) -> float:
    """Return the relative change by which a launch may be worse than the mean of earlier ones.

    It is three coefficients of variation, times 1 + 2 / (n - 1) for n launches, because the
    coefficient of few launches is uncertain. It is at least ``MIN_WORSE`` and at most 1.

    Args:
        cv: coefficient of variation of the earlier launches; None: there is only one launch.
        num_launches: number of earlier launches.
    """
    if cv is None:
        return MIN_WORSE
    factor = _NUM_SIGMAS * (1 + 2 / (num_launches - 1))
    tolerance = round(factor * cv, 3)  # to a tenth of a percent
    # At most 1: a time that more than doubles has regressed, however much launches scatter.
    return min(1.0, max(MIN_WORSE, tolerance))


def judge_against_baseline(
    records: Sequence[Record],
    baseline: Sequence[Record],
    names: Sequence[str],
    *,
    worse_by: float | None = None,
) -> list[Judgement]:
    """Judge each figure by the launches of ``baseline`` with the same work.

    Args:
        records: launches to judge; those of the same work are judged together.
        baseline: launches that passed; those that are also in ``records`` do not count.
        names: figures to judge; empty: those of ``FIGURES`` that the baseline has.
        worse_by: relative change by which a figure may be worse; None: it follows from the scatter
            of the baseline.

    Raises:
        RecordError: a record of the baseline did not pass, or its evidence contradicts it.
        UsageError: there is no baseline, a run is its own baseline, or one of ``names`` is no
            figure.
    """
    if not baseline:
        raise UsageError(
            "the baseline contains no runs",
            where="--baseline",
            fix="choose at least one run that passed",
        )
    for record in baseline:
        if not is_usable(record):
            what = f"the run ended with status {record.status}"
            if is_refuted(record.trust):
                what = "the record does not match its raw events"
            rule = "the baseline must consist of runs that passed and match their raw events"
            raise RecordError(what, where=record.run_id, rule=rule)
    works = group_by_work(records)
    for launches in works:
        reject_unknown_names(launches[0], names)
    baseline = _exclude_judged_runs(baseline, records)
    judgements: list[Judgement] = []
    for launches in works:
        judgements += _judge_work_against_baseline(launches, baseline, names, worse_by)
    return judgements


def _judge_work_against_baseline(
    launches: Sequence[Record],
    baseline: Sequence[Record],
    names: Sequence[str],
    worse_by: float | None,
) -> list[Judgement]:
    """Judge the launches of one work by the launches of the baseline with the same work.

    Args:
        names: figures to judge; empty: those of ``FIGURES`` that the baseline has.
        worse_by: relative change by which a figure may be worse; None: it follows from the scatter
            of the baseline.
    """
    work = describe_work(launches[0])
    # A recipe field that a record does not have counts as None.
    same_work = [record for record in baseline if not find_differences(describe_work(record), work)]
    if not same_work:
        return [_fail_other_work(launches[0], baseline)]
    judgements = fail_unusable(launches)
    usable = [record for record in launches if is_usable(record)]
    if not usable:
        return judgements
    if not names:  # the figures that all launches of the baseline have
        names = [name for name in FIGURES if len(read_values(same_work, name)) == len(same_work)]
    judgements += [_judge_by_baseline(usable, same_work, name, worse_by) for name in names]
    return judgements


def _exclude_judged_runs(baseline: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """Return the baseline without the runs to judge, which may be in the same folder.

    Raises:
        UsageError: the baseline has no other run.
    """
    judged_ids = {record.run_id for record in records}
    others = [record for record in baseline if record.run_id not in judged_ids]
    if not others:
        raise UsageError(
            "the run is its own baseline",
            where=baseline[0].run_id,
            rule="a run must be compared with other runs; compared with itself, it always passes",
            fix="set --baseline to earlier runs",
        )
    return others


def _fail_other_work(record: Record, baseline: Sequence[Record]) -> Judgement:
    """Return the failure of work that the baseline lacks; it names the most similar work there."""
    work = describe_work(record)

    def count_differences(candidate: Record) -> int:
        """Return in how many keys the work of a launch differs."""
        return len(find_differences(describe_work(candidate), work))

    closest = min(baseline, key=count_differences)
    closest_work = describe_work(closest)
    differing_keys = find_differences(closest_work, work)
    first_key = differing_keys[0]
    has_one_difference = len(differing_keys) == 1
    reason = message(
        "gate_other_work_in_one_key" if has_one_difference else "gate_other_work",
        key=first_key,
        entry=describe_work_briefly(closest),
        known=str(closest_work.get(first_key)),
        found=str(work.get(first_key)),
        others=len(differing_keys) - 1,
    )
    brief_work = describe_work_briefly(record)
    return Judgement(brief_work, figure="work", verdict="other_work", message=reason)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Changes of a figure, relative to the baseline's mean, beyond which the verdict changes.

    Args:
        worse_by: a figure that is worse by more than this has regressed.
        better_by: a figure that is better by more than this has improved.
        is_baseline_noisy: the baseline's launches differ too much to judge others by them.
    """

    worse_by: float
    better_by: float
    is_baseline_noisy: bool


def _compute_limits(baseline: LaunchSummary, worse_by: float | None) -> _Limits:
    """Return the limits of a change, computed from the scatter of the baseline.

    Args:
        worse_by: the user's tolerance, which replaces the computed one; None: the user set none.
    """
    tolerance = compute_tolerance(baseline.cv, baseline.launches)
    # Twice the tolerance: an improvement must be clear, because somebody must find its reason.
    # At most 1: a rate that more than doubles has improved, however much launches scatter.
    better_by = min(1.0, max(MIN_BETTER, 2 * tolerance))
    if worse_by is None:
        return _Limits(tolerance, better_by, is_baseline_noisy=tolerance > _MAX_TOLERANCE)
    # Whoever sets ``worse_by`` has decided what is allowed, whatever the baseline's scatter.
    return _Limits(worse_by, better_by, is_baseline_noisy=False)


def _choose_verdict(low: float, high: float, limits: _Limits) -> GateVerdict:
    """Return the verdict on a change by the ends of its interval; above 0 is better."""
    if high < -limits.worse_by:
        return "regressed"  # all of the interval is worse than allowed
    if low > limits.better_by:
        return "improved"
    if low < -limits.worse_by or limits.is_baseline_noisy:
        # A part of the interval is worse than allowed, or the baseline is too noisy to tell.
        return "noisy"
    return "passed"


def _judge_by_baseline(
    launches: Sequence[Record], baseline: Sequence[Record], name: str, worse_by: float | None
) -> Judgement:
    """Judge one figure by the interval of its change from the baseline's mean.

    The interval is that of 95% confidence. If one side has fewer than five launches, it is the
    range of the launches to judge.

    Args:
        worse_by: relative change by which the figure may be worse; None: it is computed from the
            scatter of the baseline.
    """
    unit = read_unit(baseline[0], name)
    # A launch with another unit lacks the figure: numbers in two units are never compared.
    values = read_values(launches, name, unit)
    baseline_values = read_values(baseline, name, unit)
    if len(values) < len(launches) or not baseline_values:
        return make_judgement(launches, name, "missing", unit=unit)
    expected = summarize_launches(baseline_values)
    limits = _compute_limits(expected, worse_by)
    # The geometric mean of ``values`` divided by that of ``baseline_values``, and its interval.
    estimate = estimate_ratio(baseline_values, values)
    low_ratio, high_ratio = estimate.low, estimate.high
    if low_ratio is None or high_ratio is None:  # too few launches: their range
        low_ratio = min(values) / expected.mean
        high_ratio = max(values) / expected.mean
    sign = get_sign(launches[0], name)  # 1 if higher values are better, else -1
    # Sorted, because the sign exchanges the ends if lower values are better.
    low, high = sorted([sign * (low_ratio - 1), sign * (high_ratio - 1)])
    verdict = _choose_verdict(low, high, limits)
    # More launches to judge do not help against a noisy baseline.
    is_due_to_baseline = verdict == "noisy" and limits.is_baseline_noisy
    return make_judgement(
        launches,
        name,
        verdict,
        code="noisy_baseline" if is_due_to_baseline else None,
        unit=unit,
        expected=expected.mean,
        # The geometric mean of ``values``, because ``expected.mean`` is that of the baseline.
        value=estimate.ratio * expected.mean,
        change=sign * (estimate.ratio - 1) + 0.0,  # adding 0.0 turns -0.0 into 0.0
        low=low,
        high=high,
        worse_by=limits.worse_by,
        better_by=limits.better_by,
        baseline_launches=expected.launches,
        max_worse_by=_MAX_TOLERANCE,
    )
