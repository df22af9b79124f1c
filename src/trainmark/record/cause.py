"""Decide how a run ended and why, from events alone.

A run that reached its end fails if what ranks did contradicts the data, the recipe or each other.
"""

from __future__ import annotations

import errno
import os
import signal
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.events.schema import HangGroup
from trainmark.ranges import format_ranges, parse_ranges
from trainmark.rank.failure import DISK_FULL_EXIT, error_report
from trainmark.rank.parameters import NAMED
from trainmark.record.evaluations import (
    MIN_TRAINED_ROWS,
    MIN_TRAINED_SHARE,
    MIN_WEIGHT,
    combine_scores,
    is_same_quality,
)
from trainmark.record.record import Cause
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trainmark.errors import CaseError
    from trainmark.events.schema import Evaluate, FailedRank, Stop
    from trainmark.events.timeline import RankTimeline, RunTimeline
    from trainmark.plan.plan import Plan
    from trainmark.record.evaluations import CombinedScores
    from trainmark.record.record import FigureEntry, Status
    from trainmark.spec import Message, Target

# By the code of a cause's message or by its kind; any other run that did not pass failed.
_STATUS: dict[str, Status] = {
    "launcher_killed": "interrupted", "job_lost": "interrupted", "stopped_by_signal": "interrupted",
    "oom": "oom", "diverged": "diverged", "timeout": "timed_out", "target_missed": "target_missed",
}  # fmt: skip
# A rank that fails makes its peers fail within this time: among failures this close, the most
# specific one is the cause, not the earliest one.
_SAME_MOMENT_NS = 3_000_000_000
_VAGUENESS = {"signal": 1, "error": 2, "exit": 3}  # by kind; any other is more specific
_LATE_WINDOW = 1.5  # times the longest window so far: from then on a window is late
# A run counts as training for this long after its last step if its time limit is minutes.
_MAX_QUIET_S = 10.0
# An adapter's first matrix has a zero gradient until its second one is not 0: one step later.
_UPDATES_TO_REACH_ALL = 2


def decide_status(cause: Cause | None) -> Status:
    """Return the status of a run that ended with this cause."""
    if cause is None:
        return "passed"
    return _STATUS.get(cause.message.code) or _STATUS.get(cause.kind, "failed")


def find_cause(
    plan: Plan,
    run: RunTimeline,
    figures: Mapping[str, FigureEntry],
    case_error: CaseError | None = None,
) -> Cause | None:
    """Return why a run did not pass; None: it passed.

    Args:
        case_error: why the case could not compute its own figures.
    """
    cause = find_failure(run, plan.target, is_witnessed=plan.witness is not None)
    if cause is None and case_error is not None:
        cause = _describe_case_error(case_error)
    if cause is None or cause.kind == "target_missed":
        return find_broken_rule(plan, run, figures) or cause
    return cause


def find_failure(
    run: RunTimeline, target: Target | None, *, is_witnessed: bool = False
) -> Cause | None:
    """Return what ended a run early, else that it missed its target.

    A stop from outside comes before the reports of ranks.

    Args:
        is_witnessed: the ranks are those of a program of the user's own.
    """
    return (
        _find_refusal(run)
        or _find_end_of_job(run)
        or _find_stop(run)
        or _find_failed_rank(run)
        or _find_lost_events(run, is_witnessed=is_witnessed)
        or _find_missed_target(run, target)
    )


def _find_refusal(run: RunTimeline) -> Cause | None:
    """Return why a node did not start its ranks."""
    for node in run.nodes:
        if "refused" in node.events:
            return Cause(kind="node_refused", message=node.events["refused"].message)
    return None


def _find_end_of_job(run: RunTimeline) -> Cause | None:
    """Return how the engine ended the job, if it did; not that the job failed by itself."""
    job = run.launcher.job
    stop = run.launcher.stop
    is_stopped_by_launcher = stop is not None and stop.node is None  # then the stop has the reason
    if job is None or is_stopped_by_launcher or job.phase in ("waiting", "running"):
        return None
    if not any(node.events for node in run.nodes):
        return Cause(kind="job", message=message("job_failed", said=job.said))
    # The ranks of other nodes failed because of nodes that did not report their end.
    lost_nodes = [node for node in run.nodes if not node.finished]
    is_timed_out = stop is not None and stop.reason == "timeout"
    if lost_nodes and (job.phase == "lost" or not is_timed_out):
        text = message(
            "node_lost",
            said=job.said,
            steps=run.steps,
            nodes=format_ranges(node.number for node in lost_nodes),
            ranks=format_ranges(rank for node in lost_nodes for rank in node.ranks),
        )
        return Cause(kind="node_lost", message=text)
    if job.phase == "lost":
        return Cause(kind="job", message=message("job_lost", said=job.said, steps=run.steps))
    return None


def _find_stop(run: RunTimeline) -> Cause | None:
    """Return why the ranks were stopped from outside."""
    stop, steps = run.launcher.stop, run.steps
    if stop is None:
        return None
    match stop.reason:
        case "timeout":
            return _describe_timeout(run, stop)
        case "launcher_killed":
            text = message("launcher_killed", steps=steps)
            return Cause(kind="launcher_killed", message=text)
        case "launcher_error":
            return Cause(kind="launcher", message=message("launcher_failed", text=stop.message))
        case "case_error":
            return Cause(
                kind="error",
                message=message("exception", text=stop.message, fix=stop.fix),
                type=stop.type,
                place=stop.place,
                traceback=stop.traceback,
            )
    text = message("stopped_by_signal", signal=stop.signal, steps=steps)
    return Cause(kind="signal", message=text, signal=stop.signal)


def _describe_timeout(run: RunTimeline, stop: Stop) -> Cause:
    """Return which ranks waited in which call, and which were missing there, as stacks tell."""
    groups = _merge_groups(stop.hang)
    # If ranks are in a collective, one in a backward pass may compute.
    is_in_collective = any(group["state"] == "collective" for group in groups)
    waiting_state = "collective" if is_in_collective else "waits"
    waiting = [group for group in groups if group["state"] == waiting_state]
    missing = [group for group in groups if group["state"] != waiting_state]
    quiet_s = _measure_quiet_s(run, stop)
    if _has_steps(run) and quiet_s < _find_max_quiet_s(run, stop):
        text = message(
            "timed_out_training", limit_s=stop.timeout_s, steps=run.steps, quiet_s=quiet_s
        )
    elif waiting and missing:
        text = message(
            "timed_out_missing",
            limit_s=stop.timeout_s,
            steps=run.steps,
            quiet_s=quiet_s,
            waiting=",".join(group["ranks"] for group in waiting),
            missing=",".join(group["ranks"] for group in missing),
            call=", ".join(dict.fromkeys(str(group["call"]) for group in waiting)),
        )
    else:
        text = message("timed_out", limit_s=stop.timeout_s, steps=run.steps)
    return Cause(kind="timeout", message=text, stacks=stop.stacks, hang=groups)


def _merge_groups(hang: Iterable[HangGroup]) -> list[HangGroup]:
    """Return the ranks at each place over all nodes, the largest group first.

    Args:
        hang: of each node, the ranks at each place.
    """
    ranks_by_place: dict[tuple[Any, ...], list[int]] = {}
    for group in hang:
        place = (group["state"], group["call"], group["where"])
        ranks_by_place.setdefault(place, []).extend(parse_ranges(group["ranks"]))
    largest_first = sorted(ranks_by_place.items(), key=lambda item: -len(item[1]))
    return [
        HangGroup(ranks=format_ranges(ranks), state=state, call=call, where=where)
        for (state, call, where), ranks in largest_first
    ]


def _measure_quiet_s(run: RunTimeline, stop: Stop) -> float:
    """Return the time from the last window of any rank to the stop."""
    ends_ns = [
        end_ns - rank.launch_ns for rank in run.ranks for _, end_ns in rank.edges_ns.values()
    ]
    return (stop.t_ns - run.launch_ns - max(ends_ns, default=0)) / 1e9


def _has_steps(run: RunTimeline) -> bool:
    return any(phase.steps for rank in run.ranks for phase in rank.phases.values())


def _find_max_quiet_s(run: RunTimeline, stop: Stop) -> float:
    """Return for how long a run that still trains may report nothing.

    A window is reported at its end: for as long as one takes, ranks write no event.
    """
    steps_s = [
        phase.windows_ns / phase.steps / 1e9
        for rank in run.ranks
        for phase in rank.phases.values()
        if phase.steps
    ]
    windows_s = [rank.longest_window_ns / 1e9 for rank in run.ranks]
    return max(
        3 * max(steps_s, default=0.0),
        _LATE_WINDOW * max(windows_s, default=0.0),
        min(_MAX_QUIET_S, 0.05 * (stop.timeout_s or 0)),
    )


def _find_failed_rank(run: RunTimeline) -> Cause | None:
    """Return the most specific of the first failures: as a rank reports it, else by exit code."""
    ended = run.launcher.ranks_ended
    failures = {failure.rank: failure for failure in (ended.failures if ended else [])}
    reporting_ranks = {rank.rank for rank in run.ranks if rank.error is not None}
    causes = [
        (failure.t_ns - run.launch_ns, _describe_exit_code(failure, run))
        for failure in failures.values()
        if failure.rank not in reporting_ranks
    ]
    for rank in run.ranks:
        report = rank.error
        if report is not None:
            failure = failures.get(rank.rank)
            cause = Cause(
                rank=rank.rank,
                exit_code=None if failure is None else failure.exit_code,
                kind=report.kind,
                type=report.type,
                message=report.message,
                place=report.place,
                traceback=report.traceback,
            )
            # To the nanosecond: a peer's broken connection comes after what broke it.
            causes.append((report.t_ns - rank.launch_ns, cause))
    if not causes:
        return None
    first_ns = min(t_ns for t_ns, _ in causes)
    close = [(t_ns, cause) for t_ns, cause in causes if t_ns - first_ns <= _SAME_MOMENT_NS]
    _, cause = min(close, key=lambda item: (_VAGUENESS.get(item[1].kind, 0), item[0]))
    return cause


def _describe_exit_code(failure: FailedRank, run: RunTimeline) -> Cause:
    """Return the cause of a rank that ended without a report."""
    rank, exit_code = failure.rank, failure.exit_code
    if exit_code == DISK_FULL_EXIT:
        text = message("exception", text=os.strerror(errno.ENOSPC))
        return Cause(kind="disk_full", message=text, rank=rank, exit_code=exit_code)
    if exit_code >= 0:
        text = message("rank_exited", rank=rank, exit_code=exit_code)
        return Cause(kind="exit", message=text, rank=rank, exit_code=exit_code)
    name = _name_signal(-exit_code)
    if name == "SIGKILL" and run.launcher.oom_kills > 0:
        kind, code = "oom", "rank_killed_out_of_memory"
    else:
        kind, code = "signal", "rank_killed"
    text = message(code, rank=rank, signal=name)
    return Cause(kind=kind, message=text, rank=rank, signal=name, exit_code=exit_code)


def _name_signal(number: int) -> str:
    """Return the name of a signal; a real-time signal has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _find_lost_events(run: RunTimeline, *, is_witnessed: bool) -> Cause | None:
    """Return a cause if events are missing: figures from the rest would be wrong."""
    if run.launcher.ranks_ended is None:
        return Cause(kind="launcher", message=message("ranks_end_unknown"))
    silent_nodes = [
        node.number for node in run.nodes if not node.events.keys() >= {"launch", "ranks_ended"}
    ]
    if silent_nodes:
        text = message("node_events_lost", nodes=format_ranges(silent_nodes))
        return Cause(kind="events_incomplete", message=text)
    for rank in run.ranks:
        if is_witnessed and rank.start_ns is None:
            text = message("witness_no_rank", rank=rank.rank)
            return Cause(kind="witness", message=text, rank=rank.rank)
        text_of_rank = _describe_lost_events(rank)
        if text_of_rank is not None:
            return Cause(kind="events_incomplete", message=text_of_rank, rank=rank.rank)
    return None


def _describe_lost_events(rank: RankTimeline) -> Message | None:
    """Compare what a rank reports to have trained with the events in its file."""
    if not rank.finished or rank.trained is None:
        return message("rank_unfinished", rank=rank.rank)
    if rank.malformed_lines or rank.trained.steps != rank.steps:
        return message(
            "steps_lost",
            rank=rank.rank,
            lines=rank.malformed_lines,
            steps=rank.steps,
            trained=rank.trained.steps,
        )
    return None


def _find_missed_target(run: RunTimeline, target: Target | None) -> Cause | None:
    """Return that a run did not reach a target that it was to reach."""
    rank0 = run.ranks[0]
    if target is None or not target.required or rank0.target_reached:
        return None
    last = rank0.evaluations[-1] if rank0.evaluations else None
    text = message(
        "target_missed_without_evaluation" if last is None else "target_missed",
        metric=target.metric,
        target=target.value,
        epochs=rank0.epochs,
        steps=rank0.steps,
        value=None if last is None else last.value,
    )
    return Cause(kind="target_missed", message=text)


def _describe_case_error(error: CaseError) -> Cause:
    """Return the cause of a run of which the case cannot compute its own figures."""
    assert error.__cause__ is not None, "a case error has its cause"
    report = error_report(error.__cause__, error.place)
    return Cause(
        kind="error",
        message=message("exception", text=report["message"]["args"]["text"], fix=error.fix),
        type=report["type"],
        place=report["place"],
        traceback=report["traceback"],
    )


def find_broken_rule(
    plan: Plan, run: RunTimeline, figures: Mapping[str, FigureEntry]
) -> Cause | None:
    """Return the first rule that a finished run breaks.

    A program of the user's own breaks none but that of the peak: ``witnessed`` has findings on it.
    """
    if plan.witness is not None:
        above_peak = next(_check_mfu(figures), None)
        if above_peak is None:
            return None
        return Cause(kind="impossible_figure", message=above_peak)
    rules = (
        ("impossible_figure", _check_steps(plan, run)),
        ("impossible_figure", _check_epochs(plan, run)),
        ("impossible_figure", _check_tokens(plan, run)),
        ("wrong_evaluation", _check_evaluations(plan, run)),
        ("not_trained", _check_training(run)),
        ("ranks_differ", _check_replicas(plan, run)),
        ("changed_precision", _check_precision(run)),
        ("impossible_figure", _check_mfu(figures)),
    )
    for kind, violations in rules:
        violation = next(violations, None)
        if violation is not None:
            return Cause(kind=kind, message=violation)
    return None


def _check_steps(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the steps of all ranks with each other and with the global batch."""
    series = run.series
    steps = [rank.steps for rank in run.ranks]
    if min(steps) != max(steps):
        yield message("steps_differ_over_ranks", least=min(steps), most=max(steps))
    unlike_steps = np.flatnonzero(series.samples != series.announced)
    if len(unlike_steps):
        step = int(unlike_steps[0])
        samples, announced = int(series.samples[step]), int(series.announced[step])
        if announced < 0:
            yield message("step_samples_differ_over_ranks", step=step + 1)
        else:
            yield message("samples_of_step", step=step + 1, samples=samples, step_samples=announced)
    recipe = plan.recipe
    max_samples = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * len(run.ranks)
    large_steps = np.flatnonzero(series.samples > max_samples)
    if len(large_steps):
        step = int(large_steps[0])
        samples = int(series.samples[step])
        yield message(
            "samples_above_global_batch", step=step + 1, most=max_samples, samples=samples
        )


def _check_epochs(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the samples of epochs with the data."""
    num_whole = min(rank.trained.whole_epochs if rank.trained else 0 for rank in run.ranks)
    reported = run.ranks[0].facts.samples_per_epoch
    expected = plan.data.train_samples if reported is None else reported
    epochs = {epoch for rank in run.ranks for epoch in rank.samples_of_epochs}
    for epoch in sorted(epochs):
        samples = sum(rank.samples_of_epochs[epoch] for rank in run.ranks)
        if samples > expected or (epoch < num_whole and samples != expected):
            yield message("samples_of_epoch", epoch=epoch + 1, samples=samples, expected=expected)


def _check_tokens(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare tokens with the length of a sequence."""
    length = plan.recipe.get("seq_length")
    counts = run.counts
    tokens, sequences = counts.tokens_padded, counts.sequences
    if length and tokens > sequences * length:
        yield message("tokens_above_length", tokens=tokens, sequences=sequences, length=length)


def _check_evaluations(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare what ranks scored with each other, with the validation data and with training."""
    rounds = zip_longest(*(rank.evaluations for rank in run.ranks))
    for number, reports in enumerate(rounds, 1):
        first = next(report for report in reports if report is not None)
        for rank, report in enumerate(reports):
            if report is None:
                continue
            if not is_same_quality(report.value, first.value) or report.samples != first.samples:
                yield message(
                    "evaluation_differs_over_ranks",
                    rank=rank,
                    value=report.value,
                    first=first.value,
                    samples=report.samples,
                    samples_first=first.samples,
                )
        scored = combine_scores([None if report is None else report.scores for report in reports])
        if scored is not None:
            yield from _check_scores(plan, scored, first, number)


def _check_scores(
    plan: Plan, scored: CombinedScores, first: Evaluate, number: int
) -> Iterator[Message]:
    """Compare the rows that ranks scored with the data, and the quality with their scores.

    Args:
        first: the evaluation as the first rank reports it.
        number: of the evaluation, from 1.
    """
    data = plan.data
    claimed = first.detail.get(scored.of) if scored.of else first.value
    for rows in (scored.rows, first.samples):
        if rows != data.eval_samples:
            yield message("evaluation_rows", number=number, rows=rows, expected=data.eval_samples)
    if scored.weight is not None and scored.weight < MIN_WEIGHT * scored.rows:
        yield message("evaluation_weights", number=number, weight=scored.weight, rows=scored.rows)
    if scored.mean is not None and not is_same_quality(claimed, scored.mean):
        name = scored.of or plan.about.metric
        yield message(
            "evaluation_not_the_mean", number=number, name=name, value=claimed, mean=scored.mean
        )
    expected = MIN_TRAINED_SHARE * scored.expected_of_training(data.train_samples)
    if scored.trained >= max(MIN_TRAINED_ROWS, expected):
        yield message(
            "evaluation_of_training_rows", number=number, rows=scored.trained, known=scored.known
        )


def _check_training(run: RunTimeline) -> Iterator[Message]:
    """Yield parameters that were not trained: by their gradients, or because no bit changed."""
    reports = [rank.parameters for rank in run.ranks if rank.parameters is not None]
    # A rank may hold rows of a table that no sample uses, so all ranks are judged together.
    changed = _merge_flags([report.changed for report in reports])
    if not changed:
        yield message("no_trained_parameters")
    if not any(rank.phases["train"].steps for rank in run.ranks):
        return  # too short for a figure
    updates = max((report.updates for report in reports), default=0)
    if updates == 0:
        yield message("never_updated")
    if updates < _UPDATES_TO_REACH_ALL:
        return
    has_gradient = _merge_flags([report.gradients for report in reports])
    zero = [name for name, is_nonzero in has_gradient.items() if not is_nonzero]
    if zero:
        yield message(
            "gradients_zero",
            names=", ".join(zero[:NAMED]),
            number=len(zero),
            parameters=len(has_gradient),
        )
    unchanged = [name for name, is_changed in changed.items() if not is_changed]
    if unchanged:
        yield message(
            "parameters_never_changed",
            names=", ".join(unchanged[:NAMED]),
            number=len(unchanged),
            parameters=len(changed),
            updates=updates,
        )


def _merge_flags(reports: Sequence[Mapping[str, bool]]) -> dict[str, bool]:
    """Return by name whether a flag of a parameter is true on any rank."""
    names = dict.fromkeys(name for report in reports for name in report)
    return {name: any(report.get(name, False) for report in reports) for name in names}


def _check_replicas(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Yield parameters that ranks hold whole and that differ: their gradients were not reduced."""
    sums_by_rank = {rank.rank: rank.parameters.sums for rank in run.ranks if rank.parameters}
    if len(sums_by_rank) < 2 or plan.recipe.get("tensor_parallel", 1) > 1:
        return  # plain shards of one name differ
    first: dict[str, int] = {}
    differing: dict[str, int] = {}
    for rank, sums in sums_by_rank.items():
        for name, value in sums.items():
            if first.setdefault(name, value) != value:
                differing.setdefault(name, rank)
    if differing:
        yield message(
            "parameters_differ",
            names=", ".join(list(differing)[:NAMED]),
            number=len(differing),
            parameters=len(first),
            rank=min(differing.values()),
        )


def _check_precision(run: RunTimeline) -> Iterator[Message]:
    """Yield the flags of precision that a job changed after they were set."""
    for rank in run.ranks:
        if rank.result.precision_changed:
            changes = ", ".join(rank.result.precision_changed)
            yield message("changed_precision", rank=rank.rank, changes=changes)


def _check_mfu(figures: Mapping[str, FigureEntry]) -> Iterator[Message]:
    """Yield that devices trained at more than their peak."""
    mfu = figures["MFU"].value
    if mfu is not None and mfu > 100:
        yield message("mfu_above_one", share=mfu / 100)
