"""Judge runs against their own history, figure by figure.

Owns the rule of each verdict against a history, which docs/compare.md states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison import history
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
from trainmark.record.stats import INTERVAL_MIN_LAUNCHES, summarize_launches
from trainmark.record.work import describe_work, find_differences, group_by_work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.record.record import Record

# Ends of the codes of messages about a value that is judged by the noise of the history.
_CODES_WITHOUT_STEP: dict[GateVerdict, str] = {
    "passed": "usual_passed",
    "improved": "usual_improved",
    "regressed": "usual_regressed",
    "noisy": "usual_noisy",
}


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
        reject_unknown_names(launches[0], names)
        judgements += fail_unusable(launches)
        usable = [record for record in launches if is_usable(record)]
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
        if is_usable(record)
        and record.started < first_start
        and not find_differences(describe_work(record), work)
    ]


def _judge_work_by_history(
    launches: Sequence[Record], past: Sequence[Record], names: Sequence[str]
) -> list[Judgement]:
    """Judge the figures that enough past runs have; if none has enough, say so once."""
    means_of_figures = {name: _compute_run_means(past, name) for name in names}
    num_runs = max(len(run_means) for run_means in means_of_figures.values())
    if num_runs < history.MIN_RUNS:
        reason = message("gate_no_history", runs=num_runs, least=history.MIN_RUNS)
        work = describe_work_briefly(launches[0])
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
        values_of_runs.setdefault(run_id, []).extend(read_values([record], name))
    means = [
        (run_id, summarize_launches(values).mean)
        for run_id, values in values_of_runs.items()
        if values
    ]
    return dict(means[-history.MAX_RUNS :])


def _judge_by_history(
    launches: Sequence[Record], name: str, run_means: Mapping[str, float]
) -> Judgement:
    """Judge one figure by the steps, the drift and the noise in the history of earlier runs.

    A step is a lasting change of the figure's level. The earlier runs are of the same work by the
    same version of Trainmark, so that all values have one unit.

    Args:
        run_means: mean of the figure in each earlier run by the run's id, the oldest first.
    """
    values = read_values(launches, name)
    unit = read_unit(launches[0], name)
    if not values:
        return make_judgement(launches, name, "missing", unit=unit)
    values_of_runs = [*run_means.values(), summarize_launches(values).mean]
    # After a recent step, ``expected`` and ``value`` are the levels before and after it, and
    # ``noise`` is 0. Without one, they are the usual level and the mean of this run. ``noise`` and
    # ``drift`` are relative.
    assessment = history.assess_newest(values_of_runs)
    sign = get_sign(launches[0], name)
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
        return make_judgement(launches, name, "regressed", code="drift", **args)
    # Only the sentence of a step says since which run; the others do not use ``since``.
    is_step = step_run_id is not None and verdict != "passed"
    code = "step" if is_step else _CODES_WITHOUT_STEP[verdict]
    return make_judgement(launches, name, verdict, code=code, since=step_run_id, **args)
