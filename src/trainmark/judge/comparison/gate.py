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
)
from trainmark.judge.comparison import history
from trainmark.judge.comparison.sides import reject_unknown_figures
from trainmark.plan.recipes import format_fix_hp
from trainmark.record.figures import list_specs
from trainmark.record.stats import (
    INTERVAL_MIN_LAUNCHES,
    LaunchSummary,
    estimate_ratio,
    summarize_launches,
)
from trainmark.record.trust import is_refuted
from trainmark.record.work import describe_work, find_differences, group_by_work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.record.record import Record

GateVerdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
# All other verdicts have ``EXIT_FAILED``.
_EXIT_CODES = {
    "passed": EXIT_PASSED,
    "improved": EXIT_PASSED,
    "noisy": EXIT_NOISY,
    "no_history": EXIT_NOISY,
    "other_work": EXIT_USAGE,
}
# Ends of the codes of messages about a value that is judged by the noise of the history.
_CODES_WITHOUT_STEP: dict[GateVerdict, str] = {
    "passed": "usual_passed",
    "improved": "usual_improved",
    "regressed": "usual_regressed",
    "noisy": "usual_noisy",
}
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# Codes of trust reasons for which the cause of a regression may be something else than the program.
_DISTURBANCES = {"machine_busy", "device_shared"}
QUALITY = "quality"  # the metric of the case, whatever its name there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
# Relative changes; smaller ones are neither a regression nor an improvement.
MIN_WORSE = 0.03
MIN_BETTER = 0.1
# A larger default tolerance would hide regressions: figures within it are ``noisy``.
_MAX_TOLERANCE = 0.1
_NUM_SIGMAS = 3.0  # by which launches may differ from each other without a regression


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a figure of a piece of work, with its numbers in ``message``.

    If no figure can be judged, ``figure`` names what is at fault: ``record``, ``status`` or
    ``work``.
    """

    work: str
    figure: str
    verdict: GateVerdict
    message: Message

    @property
    def exit_code(self) -> int:
        """The exit code of this verdict alone."""
        # ``regressed``, ``failed`` and ``missing`` are not in ``_EXIT_CODES``.
        return _EXIT_CODES.get(self.verdict, EXIT_FAILED)


def fail_unreadable(error: RecordError) -> Judgement:
    """Return the failure of a run whose record cannot be read."""
    reason = message("gate_unreadable", error=error.what)
    place = error.where or ""  # stands for the work, which is unknown without a record
    return Judgement(place, figure="record", verdict="failed", message=reason)


def combine_exit_codes(judgements: Sequence[Judgement]) -> int:
    """Return the worst exit code; that of too little data if nothing was judged.

    The worst is that of a failure or regression (1). Next is that of other work (2), then that of
    too much noise or too little data (3), and last that of success (0).
    """
    codes = {judgement.exit_code for judgement in judgements}
    for code in _WORST_FIRST:
        if code in codes:
            return code
    return EXIT_NOISY


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
        raise UsageError("no runs found", where="--baseline", fix="choose runs that passed")
    for record in baseline:
        if not _is_usable(record):
            what = f"the run ended with status {record.status}"
            if is_refuted(record.trust):
                what = "the record does not match its raw events"
            rule = "the baseline must consist of runs that passed and match their raw events"
            raise RecordError(what, where=record.run_id, rule=rule)
    works = group_by_work(records)
    for launches in works:
        _reject_unknown_names(launches[0], names)
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
    same_work = [record for record in baseline if describe_work(record) == work]
    if not same_work:
        return [_fail_other_work(launches[0], baseline)]
    judgements = _fail_unusable(launches)
    usable = [record for record in launches if _is_usable(record)]
    if not usable:
        return judgements
    if not names:  # the figures that all launches of the baseline have
        names = [name for name in FIGURES if len(_read_values(same_work, name)) == len(same_work)]
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


def _reject_unknown_names(record: Record, names: Sequence[str]) -> None:
    """Raise a UsageError for the first name that is no figure of the record's case."""
    reject_unknown_figures(names, (QUALITY, *list_specs(record.plan.about.page)))


def judge_against_history(
    records: Sequence[Record], earlier: Sequence[Record], names: Sequence[str]
) -> list[Judgement]:
    """Judge each figure by the runs of the same work before ``records``.

    The launches of one run count as their mean. If no figure has enough runs, one judgement says
    so.

    Args:
        records: launches to judge; those of the same work are judged together.
        earlier: launches of the history. Those of other work, those that failed and those that did
            not begin before ``records`` do not count.
        names: figures to judge; empty: those of ``FIGURES`` that are known.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    judgements = []
    for launches in group_by_work(records):
        _reject_unknown_names(launches[0], names)
        judgements += _fail_unusable(launches)
        usable = [record for record in launches if _is_usable(record)]
        if usable:
            past = _select_past_launches(launches, earlier)
            judgements += _judge_work_by_history(usable, past, names or FIGURES)
    return judgements


def _select_past_launches(launches: Sequence[Record], earlier: Sequence[Record]) -> list[Record]:
    """Return the usable launches of the same work that began before all of ``launches``."""
    first_start = min(record.started for record in launches)
    work = describe_work(launches[0])
    return [
        record
        for record in earlier
        if _is_usable(record) and record.started < first_start and describe_work(record) == work
    ]


def _judge_work_by_history(
    launches: Sequence[Record], past: Sequence[Record], names: Sequence[str]
) -> list[Judgement]:
    """Judge the figures that enough past runs have; if none has enough, say so once."""
    means_of_figures = {name: _compute_run_means(past, name) for name in names}
    num_runs = max(len(run_means) for run_means in means_of_figures.values())
    if num_runs < history.MIN_RUNS:
        reason = message("gate_no_history", runs=num_runs, least=history.MIN_RUNS)
        work = _describe_work_briefly(launches[0])
        all_names = ", ".join(means_of_figures)
        return [Judgement(work, figure=all_names, verdict="no_history", message=reason)]
    return [
        _judge_by_history(launches, name, run_means)
        for name, run_means in means_of_figures.items()
        if len(run_means) >= history.MIN_RUNS
    ]


def _compute_run_means(past: Sequence[Record], name: str) -> dict[str, float]:
    """Return the mean of a figure over the launches of each run.

    Returns:
        means by run id, the oldest run first; only the last ``history.MAX_RUNS`` runs.
    """
    values_of_runs: dict[str, list[float]] = {}
    for record in sorted(past, key=lambda record: record.started):
        # Launches of one run differ in the end of their id: `...-r1`, `...-r2`.
        run_id = record.run_id.removesuffix(f"-r{record.plan.repeat_index}")
        values_of_runs.setdefault(run_id, []).extend(_read_values([record], name))
    means = [
        (run_id, summarize_launches(values).mean)
        for run_id, values in values_of_runs.items()
        if values
    ]
    return dict(means[-history.MAX_RUNS :])


def _is_usable(record: Record) -> bool:
    """Tell whether a launch passed, and its evidence does not contradict it."""
    return record.passed and not is_refuted(record.trust)


def _fail_unusable(launches: Sequence[Record]) -> list[Judgement]:
    """Return a failure for each launch that cannot be judged."""
    failures = []
    for record in launches:
        if not _is_usable(record):
            code = "gate_refuted" if is_refuted(record.trust) else "gate_status"
            reason = message(code, run=record.run_id, status=record.status)
            work = _describe_work_briefly(record)
            failures.append(Judgement(work, figure="status", verdict="failed", message=reason))
    return failures


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
        entry=_describe_work_briefly(closest),
        known=str(closest_work.get(first_key)),
        found=str(work.get(first_key)),
        others=len(differing_keys) - 1,
    )
    brief_work = _describe_work_briefly(record)
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
    unit = _read_unit(baseline[0], name)
    # A launch with another unit lacks the figure: numbers in two units are never compared.
    values = _read_values(launches, name, unit)
    baseline_values = _read_values(baseline, name, unit)
    if len(values) < len(launches) or not baseline_values:
        return _make_judgement(launches, name, "missing", unit=unit)
    expected = summarize_launches(baseline_values)
    limits = _compute_limits(expected, worse_by)
    # The geometric mean of ``values`` divided by that of ``baseline_values``, and its interval.
    estimate = estimate_ratio(baseline_values, values)
    low_ratio, high_ratio = estimate.low, estimate.high
    if low_ratio is None or high_ratio is None:  # too few launches: their range
        low_ratio = min(values) / expected.mean
        high_ratio = max(values) / expected.mean
    sign = _get_sign(launches[0], name)  # 1 if higher values are better, else -1
    # Sorted, because the sign exchanges the ends if lower values are better.
    low, high = sorted([sign * (low_ratio - 1), sign * (high_ratio - 1)])
    verdict = _choose_verdict(low, high, limits)
    # More launches to judge do not help against a noisy baseline.
    is_due_to_baseline = verdict == "noisy" and limits.is_baseline_noisy
    return _make_judgement(
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


def _judge_by_history(
    launches: Sequence[Record], name: str, run_means: Mapping[str, float]
) -> Judgement:
    """Judge one figure by the steps, the drift and the noise in the history of earlier runs.

    A step is a lasting change of the figure's level. The earlier runs are of the same work by the
    same version of Trainmark, so that all values have one unit.

    Args:
        run_means: mean of the figure in each earlier run by the run's id, the oldest first.
    """
    values = _read_values(launches, name)
    unit = _read_unit(launches[0], name)
    if not values:
        return _make_judgement(launches, name, "missing", unit=unit)
    values_of_runs = [*run_means.values(), summarize_launches(values).mean]
    # After a recent step, ``expected`` and ``value`` are the levels before and after it, and
    # ``noise`` is 0. Without one, they are the usual level and the mean of this run. ``noise`` and
    # ``drift`` are relative.
    assessment = history.assess_newest(values_of_runs)
    sign = _get_sign(launches[0], name)
    change = sign * (assessment.value / assessment.expected - 1)
    worse_by = max(MIN_WORSE, assessment.noise)
    args: dict[str, Any] = {
        "expected": assessment.expected,
        "value": assessment.value,
        "unit": unit,
        "change": change + 0.0,  # adding 0.0 turns -0.0 into 0.0
        "worse_by": worse_by,
    }
    # The newest value is that of the run to judge, behind those of the earlier runs.
    run_ids = [*run_means, launches[0].run_id]
    step_run_id = None if assessment.step_index is None else run_ids[assessment.step_index]
    verdict: GateVerdict = "passed"
    if change > max(MIN_BETTER, assessment.noise):
        verdict = "improved"
    elif change < -worse_by:
        # A regression fails the gate, so it must be sure; an improvement passes like no change. A
        # step is confirmed by several runs. Without one, only the mean of several launches is sure
        # enough.
        is_unconfirmed = step_run_id is None and len(values) < INTERVAL_MIN_LAUNCHES
        verdict = "noisy" if is_unconfirmed else "regressed"
    # Only a drift to the worse counts, and only if the newest value alone says nothing. Of a drift,
    # the sentence says how much it is, over how many runs, and the newest value.
    elif assessment.drift is not None and sign * assessment.drift < 0:
        args["change"] = sign * assessment.drift
        args["runs"] = history.DRIFT_RUNS
        return _make_judgement(launches, name, "regressed", code="drift", **args)
    # Only the sentence of a step says since which run; the others do not use ``since``.
    is_step = step_run_id is not None and verdict != "passed"
    code = "step" if is_step else _CODES_WITHOUT_STEP[verdict]
    return _make_judgement(launches, name, verdict, code=code, since=step_run_id, **args)


def _read_unit(record: Record, name: str) -> str:
    """Return the unit of a figure, or the name of the quality's metric; empty: it is missing."""
    if name == QUALITY:
        return record.quality.metric
    entry = record.figures.get(name)
    return "" if entry is None else entry.unit


def _read_value(record: Record, name: str) -> float | None:
    """Return a figure or the quality; None if it is not known."""
    if name == QUALITY:
        return record.quality.value
    entry = record.figures.get(name)
    return None if entry is None else entry.value


def _read_values(launches: Sequence[Record], name: str, unit: str | None = None) -> list[float]:
    """Return the value of a figure in each launch that has one above zero.

    Only such values have a ratio and a logarithm, by which they are compared.

    Args:
        unit: only launches with this unit count; None: all do.
    """
    values = []
    for record in launches:
        value = _read_value(record, name)
        has_unit = unit is None or unit == _read_unit(record, name)
        if value is not None and value > 0 and has_unit:
            values.append(value)
    return values


def _describe_work_briefly(record: Record) -> str:
    """Return a name of a record's work for people.

    It has the case with its framework, hardware and world, then the recipe and its changes.
    """
    # The fields that differ from the standard recipe: ``fix_hp`` has the changes that the closed
    # rules allow, ``extra`` has all others.
    changes = format_fix_hp(record.plan.fix_hp | record.plan.extra)
    return f"{record.plan.case_key} {record.plan.recipe_name} {changes}".rstrip()


def _get_sign(record: Record, name: str) -> int:
    """Return 1 if higher values are better, else -1.

    A figure without a direction counts as one that should not rise.
    """
    about = record.plan.about
    if name == QUALITY:  # of the trained model, which is not among the figures
        return 1 if about.higher_is_better else -1
    # Declarations by name of the figures that every case has, and of those that only this case has:
    # ``about.page`` declares what pages show of the case in addition.
    spec = list_specs(about.page).get(name)
    return 1 if spec is not None and spec.better == "higher" else -1


def _make_judgement(
    launches: Sequence[Record],
    name: str,
    verdict: GateVerdict,
    *,
    code: str | None = None,
    **args: Any,
) -> Judgement:
    """Return a judgement on a figure; a regression on a machine in use counts as noise only.

    Args:
        name: name of the figure.
        code: end of the message's code: ``step`` stands for ``gate_step``; None: the verdict.
        args: further arguments of the message.
    """
    doubts = {reason.code for record in launches for reason in record.trust.reasons}
    # Other programs used the machine, for instance, so that the run may be slow because of them.
    if verdict == "regressed" and doubts & _DISTURBANCES:
        verdict = "noisy"
        code = "disturbed"
    reason = message(f"gate_{code or verdict}", figure=name, launches=len(launches), **args)
    return Judgement(_describe_work_briefly(launches[0]), name, verdict, reason)
