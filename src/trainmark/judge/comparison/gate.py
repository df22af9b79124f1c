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
from trainmark.plan.overrides import format_fix_hp
from trainmark.record.figures import list_specs
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, estimate_ratio, summarize_launches
from trainmark.record.trust import MAX_CV, is_refuted
from trainmark.record.work import describe_work, find_differences, group_by_work
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.record.record import Record

GateVerdict = Literal[
    "passed", "improved", "regressed", "failed", "missing", "other_work", "noisy", "no_history"
]
_EXIT_CODES = {
    "passed": EXIT_PASSED,
    "improved": EXIT_PASSED,
    "noisy": EXIT_NOISY,
    "no_history": EXIT_NOISY,
    "other_work": EXIT_USAGE,
}
_WORST_FIRST = (EXIT_FAILED, EXIT_USAGE, EXIT_NOISY, EXIT_PASSED)
# Reasons of a grade for which something else than the measured program may have been slower.
_DISTURBANCES = {"machine_busy", "device_shared"}
QUALITY = "quality"  # the metric of the case, whatever its name there
FIGURES = ("final_result", "p_train", "e2e_time", "mem")
MIN_WORSE, MIN_BETTER = 0.03, 0.1
_NUM_SIGMAS = 3.0  # by which launches may differ from each other without a regression


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a figure of a piece of work, with its numbers in ``message``."""

    work: str
    figure: str
    verdict: GateVerdict
    message: Message

    @property
    def exit_code(self) -> int:
        """The exit code of this verdict alone."""
        return _EXIT_CODES.get(self.verdict, EXIT_FAILED)


def fail_unreadable(error: RecordError) -> Judgement:
    """Return the failure of a run whose record cannot be read."""
    reason = message("gate_unreadable", error=error.what)
    return Judgement(error.where or "", "record", "failed", reason)


def combine_exit_codes(judgements: Sequence[Judgement]) -> int:
    """Return the worst exit code: 1, then 2, then 3, then 0; 3 if nothing was judged."""
    codes = (judgement.exit_code for judgement in judgements)
    return min(codes, key=_WORST_FIRST.index, default=EXIT_NOISY)


def compute_tolerance(cv: float | None, num_launches: int) -> float:
    """Return the share by which a later launch may be worse than the mean of earlier ones.

    It is three coefficients of variation, and more for few launches, because their coefficient is
    uncertain.
    """
    factor = _NUM_SIGMAS * (1 + 2 / max(1, num_launches - 1))
    return min(1.0, max(MIN_WORSE, round(factor * (cv or 0.0), 3)))


def judge_against_baseline(
    records: Sequence[Record],
    baseline: Sequence[Record],
    names: Sequence[str],
    *,
    worse_by: float | None = None,
) -> list[Judgement]:
    """Judge each figure by the launches of ``baseline`` with the same work.

    Args:
        baseline: runs of ``records`` among them do not count.
        names: figures to judge; empty: those of ``FIGURES`` that the baseline has.
        worse_by: share by which a figure may be worse; None: by the baseline's own scatter.

    Raises:
        RecordError: a record of the baseline did not pass, or its evidence contradicts it.
        UsageError: there is no baseline, a run is its own baseline, or one of ``names`` is no
            figure.
    """
    if not baseline:
        raise UsageError("no run there", where="--baseline", fix="name runs that passed")
    for record in baseline:
        if not _is_usable(record):
            rule = "a baseline is of runs that passed and match their raw events"
            raise RecordError(f"status {record.status}", where=record.run_id, rule=rule)
    works = group_by_work(records)
    for launches in works:
        _reject_unknown(launches[0], names)
    baseline = _exclude_judged_runs(baseline, records)
    return [
        judgement
        for launches in works
        for judgement in _judge_work_against_baseline(launches, baseline, names, worse_by)
    ]


def _judge_work_against_baseline(
    launches: Sequence[Record],
    baseline: Sequence[Record],
    names: Sequence[str],
    worse_by: float | None,
) -> list[Judgement]:
    key = describe_work(launches[0])
    same_work = [record for record in baseline if describe_work(record) == key]
    if not same_work:
        return [_fail_other_work(launches[0], baseline)]
    judgements = _fail_unusable(launches)
    usable = [record for record in launches if _is_usable(record)]
    if usable:
        complete = [
            name for name in FIGURES if len(_read_values(same_work, name)) == len(same_work)
        ]
        judgements += [
            _judge_by_baseline(usable, same_work, name, worse_by) for name in names or complete
        ]
    return judgements


def _exclude_judged_runs(baseline: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """Return the baseline without the runs to judge, which may be in the same folder.

    Raises:
        UsageError: no other run remains.
    """
    judged_ids = {record.run_id for record in records}
    others = [record for record in baseline if record.run_id not in judged_ids]
    if not others:
        raise UsageError(
            "the run is its own baseline",
            where=baseline[0].run_id,
            rule="a run is judged by other runs: against itself it always passes",
            fix="name earlier runs with --baseline",
        )
    return others


def _reject_unknown(record: Record, names: Sequence[str]) -> None:
    reject_unknown_figures(names, (QUALITY, *list_specs(record.plan.about.page)))


def judge_against_history(
    records: Sequence[Record], earlier: Sequence[Record], names: Sequence[str]
) -> list[Judgement]:
    """Judge each figure by the runs of the same work before ``records``.

    The launches of one run count as their mean. If no figure has enough runs, one judgement says
    so.

    Args:
        names: figures to judge; empty: those of ``FIGURES`` that are known.

    Raises:
        UsageError: one of ``names`` is no figure.
    """
    judgements = []
    for launches in group_by_work(records):
        _reject_unknown(launches[0], names)
        judgements += _fail_unusable(launches)
        usable = [record for record in launches if _is_usable(record)]
        if usable:
            past = _select_past(launches, earlier)
            judgements += _judge_work_by_history(usable, past, names or FIGURES)
    return judgements


def _select_past(launches: Sequence[Record], earlier: Sequence[Record]) -> list[Record]:
    """Return the usable launches of the same work that began before all of ``launches``."""
    began, key = min(record.started for record in launches), describe_work(launches[0])
    return [
        record
        for record in earlier
        if _is_usable(record) and record.started < began and describe_work(record) == key
    ]


def _judge_work_by_history(
    launches: Sequence[Record], past: Sequence[Record], names: Sequence[str]
) -> list[Judgement]:
    run_means = {name: _mean_by_run(past, name) for name in names}
    longest = max(map(len, run_means.values()))
    if longest < history.MIN_RUNS:
        reason = message("gate_no_history", runs=longest, least=history.MIN_RUNS)
        return [Judgement(_title(launches[0]), ", ".join(run_means), "no_history", reason)]
    return [
        _judge_by_history(launches, name, means)
        for name, means in run_means.items()
        if len(means) >= history.MIN_RUNS
    ]


def _mean_by_run(past: Sequence[Record], name: str) -> dict[str, float]:
    """Return the mean of each of the last runs by its id, the oldest first."""
    values: dict[str, list[float]] = {}
    for record in sorted(past, key=lambda record: record.started):
        run_id = record.run_id.removesuffix(f"-r{record.plan.repeat_index}")
        values.setdefault(run_id, []).extend(_read_values([record], name))
    means = [(run_id, summarize_launches(rates).mean) for run_id, rates in values.items() if rates]
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
            failures.append(Judgement(_title(record), "status", "failed", reason))
    return failures


def _fail_other_work(record: Record, baseline: Sequence[Record]) -> Judgement:
    """Return the failure of work that the baseline lacks; it names the most similar work there."""
    key = describe_work(record)
    closest = min(
        baseline, key=lambda candidate: len(find_differences(describe_work(candidate), key))
    )
    first, *others = find_differences(describe_work(closest), key)
    reason = message(
        "gate_other_work",
        key=first,
        entry=_title(closest),
        known=str(describe_work(closest).get(first)),
        found=str(key.get(first)),
        others=len(others),
    )
    return Judgement(_title(record), "work", "other_work", reason)


def _judge_by_baseline(
    launches: Sequence[Record], baseline: Sequence[Record], name: str, worse_by: float | None
) -> Judgement:
    """Judge by the interval of the change; of fewer than five launches by their range."""
    _, unit = _read_figure(baseline[0], name)
    values, expected = _read_values(launches, name, unit), _read_values(baseline, name, unit)
    if len(values) < len(launches) or not expected:
        return _judge(launches, name, "missing", "missing", unit=unit)
    statistics = summarize_launches(expected)
    mean = statistics.mean
    by_scatter = compute_tolerance(statistics.cv, len(expected))
    better_by = min(1.0, max(MIN_BETTER, 2 * by_scatter))
    is_too_wide = worse_by is None and by_scatter > MAX_CV
    if worse_by is None:
        worse_by = by_scatter

    change, *interval = estimate_ratio(expected, values)
    if None in interval:
        interval = [min(values) / mean, max(values) / mean]
    sign = _sign(launches[0], name)
    low, high = sorted(sign * ((end or 0.0) - 1) for end in interval)
    verdict: GateVerdict = "passed"
    if high < -worse_by:
        verdict = "regressed"
    elif low > better_by:
        verdict = "improved"
    elif low < -worse_by or is_too_wide:
        verdict = "noisy"
    return _judge(
        launches,
        name,
        verdict,
        verdict,
        unit=unit,
        expected=mean,
        value=change * mean,
        change=sign * (change - 1) + 0.0,
        low=low,
        high=high,
        worse_by=worse_by,
        better_by=better_by,
    )


def _judge_by_history(
    launches: Sequence[Record], name: str, run_means: Mapping[str, float]
) -> Judgement:
    """Judge one figure by the steps, the drift and the noise of the runs before, by their ids."""
    values = _read_values(launches, name)
    _, unit = _read_figure(launches[0], name)
    if not values:
        return _judge(launches, name, "missing", "missing", unit=unit)
    newest = history.assess_newest([*run_means.values(), summarize_launches(values).mean])
    sign = _sign(launches[0], name)
    change = sign * (newest.value / newest.expected - 1)
    worse_by = max(MIN_WORSE, newest.noise)
    args: dict[str, Any] = {
        "expected": newest.expected,
        "value": newest.value,
        "unit": unit,
        "change": change + 0.0,
        "worse_by": worse_by,
    }
    since = None
    if newest.step_index is not None:
        since = [*run_means, launches[0].run_id][newest.step_index]
    verdict: GateVerdict = "passed"
    if change > max(MIN_BETTER, newest.noise):
        verdict = "improved"
    elif change < -worse_by:
        is_single_value = since is None and len(values) < INTERVAL_MIN_LAUNCHES
        verdict = "noisy" if is_single_value else "regressed"
    elif newest.drift and sign * newest.drift < 0:
        args |= {"change": sign * newest.drift, "runs": history.DRIFT_RUNS}
        return _judge(launches, name, "regressed", "drift", **args)
    code = "step" if since and verdict != "passed" else f"usual_{verdict}"
    return _judge(launches, name, verdict, code, since=since, **args)


def _read_figure(record: Record, name: str) -> tuple[float, str]:
    """Return a figure, or the quality, with its unit; 0 if it is not known or not above zero."""
    if name == QUALITY:
        return max(record.quality.value or 0.0, 0.0), record.quality.metric
    entry = record.figures.get(name)
    if entry is None:
        return 0.0, ""
    return max(entry.value or 0.0, 0.0), entry.unit


def _read_values(launches: Sequence[Record], name: str, unit: str | None = None) -> list[float]:
    """Return a figure of the launches that have it, in ``unit`` only if one is given."""
    readings = (_read_figure(record, name) for record in launches)
    return [value for value, value_unit in readings if value and unit in (None, value_unit)]


def _title(record: Record) -> str:
    """Return a name of a record's work for people."""
    changes = format_fix_hp(record.plan.fix_hp | record.plan.extra)
    return f"{record.plan.case_key} {record.plan.recipe_name} {changes}".rstrip()


def _sign(record: Record, name: str) -> int:
    """Return 1 if higher is better, else -1: a figure without a direction should not rise."""
    about = record.plan.about
    if name == QUALITY:
        return 1 if about.higher_is_better else -1
    spec = list_specs(about.page).get(name)
    return 1 if spec is not None and spec.better == "higher" else -1


def _judge(
    launches: Sequence[Record], name: str, verdict: GateVerdict, code: str, **args: Any
) -> Judgement:
    """Return a judgement; a regression on a machine in use is only noise."""
    doubts = {reason.code for record in launches for reason in record.trust.reasons}
    if verdict == "regressed" and doubts & _DISTURBANCES:
        verdict, code = "noisy", "disturbed"
    reason = message(f"gate_{code}", figure=name, launches=len(launches), **args)
    return Judgement(_title(launches[0]), name, verdict, reason)
