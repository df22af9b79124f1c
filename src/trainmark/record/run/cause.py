"""Decide how a run ended and why, from events alone.

A run that reached its end fails if what ranks did contradicts the data, the recipe or each other.
"""

from __future__ import annotations

import errno
import os
import signal
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.devices.cores import compact, parse_cores
from trainmark.rank.events import HangGroup
from trainmark.rank.failure import DISK_FULL_EXIT, error_report
from trainmark.rank.parameters import NAMED
from trainmark.record.record import Cause
from trainmark.record.run.evaluations import (
    MIN_TRAINED_ROWS,
    MIN_TRAINED_SHARE,
    MIN_WEIGHT,
    over_ranks,
    same_quality,
)
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.errors import CaseError
    from trainmark.plan.plan import Plan
    from trainmark.rank.events import Evaluate, FailedRank, Stop
    from trainmark.record.record import FigureEntry, Status
    from trainmark.record.run.evaluations import ScoredByAll
    from trainmark.record.run.timeline import RankTimeline, RunTimeline
    from trainmark.spec import Message, Target

# By the code of a cause's message or by its kind; any other run that did not pass failed.
_STATUS: dict[str, Status] = {
    "launcher_killed": "interrupted", "job_lost": "interrupted", "stopped_by_signal": "interrupted",
    "oom": "oom", "diverged": "diverged", "timeout": "timed_out", "target_missed": "target_missed",
}  # fmt: skip
# A rank that fails makes its peers fail within this time: among failures this close, the most
# specific one is the cause, not the earliest one.
_SAME_MOMENT_NS = 3_000_000_000
_LEAST_TELLING = {"signal": 1, "error": 2, "exit": 3}  # any other kind is more specific
_LATE_WINDOW = 1.5  # times the longest window so far: from then on a window is late
# A run counts as training for this long after its last step if its time limit is minutes.
_SOON_S = 10.0
# An adapter's first matrix has a zero gradient until its second one is not 0: one step later.
_UPDATES_TO_REACH_ALL = 2
FIGURES_PLACE = "figures"  # of the error of a case that cannot compute its own figures


def status_of(cause: Cause | None) -> Status:
    """Return the status of a run that ended with this cause."""
    if cause is None:
        return "passed"
    return _STATUS.get(cause.message.code) or _STATUS.get(cause.kind, "failed")


def find(run: RunTimeline, target: Target | None) -> Cause | None:
    """Return why a run did not pass. A stop from outside comes before the reports of ranks."""
    rules = (_refused, _job_ended, _stopped, _ranks_failed, _events_lost)
    found = next((cause for rule in rules if (cause := rule(run)) is not None), None)
    return found or _target_missed(run, target)


def _refused(run: RunTimeline) -> Cause | None:
    """Return why a node did not start its ranks."""
    refused = [node.events["refused"] for node in run.nodes if "refused" in node.events]
    return Cause(kind="node_refused", message=refused[0].message) if refused else None


def _job_ended(run: RunTimeline) -> Cause | None:
    """Return how the engine ended the job, where it did; not that the job failed by itself."""
    job, stop, nodes = run.launcher.job, run.launcher.stop, run.nodes
    by_us = stop is not None and stop.node is None  # then the stop has the reason
    if job is None or by_us or job.phase in ("waiting", "running"):
        return None
    args: dict[str, Any] = {"said": job.said, "steps": run.steps}
    if not any(node.events for node in nodes):
        return Cause(kind="job", message=message("job_failed", said=job.said))
    # Those that did not report their end: the ranks of other nodes failed because of it.
    lost = [node for node in nodes if not node.finished]
    timed_out = stop is not None and stop.reason == "timeout"
    if lost and (job.phase == "lost" or not timed_out):
        ranks = compact(rank for node in lost for rank in node.ranks)
        args |= {"nodes": compact(node.number for node in lost), "ranks": ranks}
        return Cause(kind="node_lost", message=message("node_lost", **args))
    return Cause(kind="job", message=message("job_lost", **args)) if job.phase == "lost" else None


def _stopped(run: RunTimeline) -> Cause | None:
    stop, steps = run.launcher.stop, run.steps
    if stop is None:
        return None
    match stop.reason:
        case "timeout":
            return _timed_out(run, stop)
        case "launcher_killed":
            text = message("launcher_killed", steps=steps)
            return Cause(kind="launcher_killed", message=text)
        case "launcher_error":
            return Cause(kind="launcher", message=message("launcher_failed", text=stop.message))
        case "case_error":
            text = message("exception", text=stop.message, fix=stop.fix)
            return Cause(
                kind="error", message=text, type=stop.type, place=stop.place,
                traceback=stop.traceback,
            )  # fmt: skip
    text = message("stopped_by_signal", signal=stop.signal, steps=steps)
    return Cause(kind="signal", message=text, signal=stop.signal)


def _timed_out(run: RunTimeline, stop: Stop) -> Cause:
    """Return which ranks waited in which call, and which were missing there, as stacks tell."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for found in stop.hang:  # a node's ranks at one place
        at = found["state"], found["call"], found["where"]
        places.setdefault(at, []).extend(parse_cores(found["ranks"]))
    groups = [
        HangGroup(ranks=compact(ranks), state=state, call=call, where=where)
        for (state, call, where), ranks in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    # Where ranks are in a collective, one in a backward pass may compute.
    waits = "collective" if any(x["state"] == "collective" for x in groups) else "waits"
    waiting = [group for group in groups if group["state"] == waits]
    missing = [group["ranks"] for group in groups if group["state"] != waits]
    ends_ns = [end_ns - x.launch_ns for x in run.ranks for _, end_ns in x.edges_ns.values()]
    quiet_s = (stop.t_ns - run.launch_ns - max(ends_ns, default=0)) / 1e9
    phases = [phase for rank in run.ranks for phase in rank.phases.values() if phase.steps]
    usual_s = max((x.windows_ns / x.steps / 1e9 for x in phases), default=0.0)
    window_s = max((rank.longest_window_ns / 1e9 for rank in run.ranks), default=0.0)
    # A window is reported at its end: for as long as one takes, nothing is heard of a run.
    heard_s = max(3 * usual_s, _LATE_WINDOW * window_s, min(_SOON_S, 0.05 * (stop.timeout_s or 0)))
    code, args = "timed_out", dict[str, Any](limit_s=stop.timeout_s, steps=run.steps)
    if phases and quiet_s < heard_s:
        code, args = "timed_out_training", args | {"quiet_s": quiet_s}
    elif waiting and missing:
        code, args = (
            "timed_out_missing",
            args
            | {
                "quiet_s": quiet_s,
                "waiting": ",".join(group["ranks"] for group in waiting),
                "missing": ",".join(missing),
                "call": ", ".join(dict.fromkeys(str(group["call"]) for group in waiting)),
            },
        )
    text = message(code, **args)
    return Cause(kind="timeout", message=text, stacks=stop.stacks, hang=groups)


def _ranks_failed(run: RunTimeline) -> Cause | None:
    """Return the most specific of the first failures: as a rank reports it, else by exit code."""
    ended = run.launcher.ranks_ended
    failures = {failure.rank: failure for failure in (ended.failures if ended else [])}
    found = [(one.t_ns - run.launch_ns, _of_exit_code(one, run)) for one in failures.values()]
    for rank in run.ranks:
        report = rank.error
        if report is not None:
            exit_code = failures[rank.rank].exit_code if rank.rank in failures else None
            names = ("kind", "type", "message", "place", "traceback")
            fields = {name: getattr(report, name) for name in names}
            cause = Cause(rank=rank.rank, exit_code=exit_code, **fields)
            # To the nanosecond: a peer's broken connection comes after what broke it.
            found = [item for item in found if item[1].rank != rank.rank]
            found.append((report.t_ns - rank.launch_ns, cause))
    if not found:
        return None
    first_ns = min(t_ns for t_ns, _ in found)
    close = [item for item in found if item[0] - first_ns <= _SAME_MOMENT_NS]
    return min(close, key=lambda item: (_LEAST_TELLING.get(item[1].kind, 0), item[0]))[1]


def _of_exit_code(failure: FailedRank, run: RunTimeline) -> Cause:
    rank, exit_code, name = failure.rank, failure.exit_code, None
    if exit_code == DISK_FULL_EXIT:
        kind, text = "disk_full", message("exception", text=os.strerror(errno.ENOSPC))
    elif exit_code >= 0:
        kind, text = "exit", message("rank_exited", rank=rank, exit_code=exit_code)
    else:
        # A real-time signal has no name.
        names = (one.name for one in signal.Signals if one == -exit_code)
        name = next(names, f"signal {-exit_code}")
        of_memory = name == "SIGKILL" and run.launcher.oom_kills > 0
        code = "rank_killed_out_of_memory" if of_memory else "rank_killed"
        kind, text = "oom" if of_memory else "signal", message(code, rank=rank, signal=name)
    return Cause(kind=kind, message=text, rank=rank, signal=name, exit_code=exit_code)


def _events_lost(run: RunTimeline) -> Cause | None:
    """Return a cause if events are missing: figures from the rest would be wrong."""
    if run.launcher.ranks_ended is None:
        return Cause(kind="launcher", message=message("ranks_end_unknown"))
    silent = [x.number for x in run.nodes if not x.events.keys() >= {"launch", "ranks_ended"}]
    losses = ((found, one.rank) for one in run.ranks if (found := _lost_of(one)))
    lost, rank = next(losses, (None, None))
    if silent:
        lost, rank = message("node_events_lost", nodes=compact(silent)), None
    return None if lost is None else Cause(kind="events_incomplete", message=lost, rank=rank)


def _lost_of(rank: RankTimeline) -> Message | None:
    """Compare what a rank reports to have trained with the events in its file."""
    number, lines, steps, trained = rank.rank, rank.malformed_lines, rank.steps, rank.trained
    if not rank.finished or trained is None:
        return message("rank_unfinished", rank=number)
    if lines or trained.steps != steps:
        return message("steps_lost", rank=number, lines=lines, steps=steps, trained=trained.steps)
    return None


def _target_missed(run: RunTimeline, target: Target | None) -> Cause | None:
    rank = run.ranks[0]
    if target is None or not target.required or rank.target_reached:
        return None
    values = [event.value for event in rank.evaluations]
    text = message(
        "target_missed" if values else "target_missed_without_evaluation",
        metric=target.metric, target=target.value, epochs=rank.epochs, steps=rank.steps,
        value=values[-1] if values else None,
    )  # fmt: skip
    return Cause(kind="target_missed", message=text)


def of_case_error(error: CaseError) -> Cause:
    """Return the cause of a run of which the case cannot compute its own figures."""
    assert error.__cause__ is not None, "a case error has its cause"
    report = error_report(error.__cause__, error.place)
    text = message("exception", text=report["message"]["args"]["text"], fix=error.fix)
    return Cause(
        kind="error", message=text, type=report["type"], place=report["place"],
        traceback=report["traceback"],
    )  # fmt: skip


def broken(plan: Plan, run: RunTimeline, figures: dict[str, FigureEntry]) -> Cause | None:
    """Return the first rule that a finished run breaks."""
    rules = (
        ("impossible_figure", _steps(plan, run)),
        ("impossible_figure", _whole(plan, run)),
        ("wrong_evaluation", _evaluations(plan, run)),
        ("not_trained", _training(run)),
        ("ranks_differ", _replicas(plan, run)),
        ("changed_precision", _precision(run)),
    )
    for kind, fault in ((kind, fault) for kind, faults in rules for fault in faults):
        return Cause(kind=kind, message=fault)
    if (mfu := figures["MFU"].value or 0.0) > 100:
        return Cause(kind="impossible_figure", message=message("mfu_above_one", share=mfu / 100))
    return None


def _steps(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare the steps of all ranks with each other and with the global batch."""
    series, steps = run.series, [rank.steps for rank in run.ranks]
    if min(steps) != max(steps):
        yield message("steps_differ_over_ranks", least=min(steps), most=max(steps))
    for step in np.flatnonzero(series.samples != series.announced)[:1].tolist():
        samples, announced = int(series.samples[step]), int(series.announced[step])
        if announced < 0:
            yield message("step_samples_differ_over_ranks", step=step + 1)
        else:
            yield message("samples_of_step", step=step + 1, samples=samples, step_samples=announced)
    recipe = plan.recipe
    most = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * len(run.ranks)
    for step in np.flatnonzero(series.samples > most)[:1].tolist():
        yield message("samples_above_global_batch", step=step + 1, most=most,
                      samples=int(series.samples[step]))  # fmt: skip


def _whole(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare epochs with the data, and tokens with the length of a sequence."""
    whole = min(rank.trained.whole_epochs if rank.trained else 0 for rank in run.ranks)
    own = run.ranks[0].facts.samples_per_epoch
    expected = plan.data.train_samples if own is None else own
    for epoch in sorted({epoch for rank in run.ranks for epoch in rank.samples_of_epochs}):
        samples = sum(rank.samples_of_epochs[epoch] for rank in run.ranks)
        if samples > expected or (epoch < whole and samples != expected):
            yield message("samples_of_epoch", epoch=epoch + 1, samples=samples, expected=expected)
    length, counts = plan.recipe.get("seq_length"), run.counts
    tokens, sequences = counts.tokens_padded, counts.sequences
    if length and tokens > sequences * length:
        yield message("tokens_above_length", tokens=tokens, sequences=sequences, length=length)


def _evaluations(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Compare what ranks scored with each other, with the validation data and with training."""
    for number, of_ranks in enumerate(zip_longest(*(rank.evaluations for rank in run.ranks)), 1):
        first = next(one for one in of_ranks if one is not None)
        for rank, one in enumerate(of_ranks):
            if one is None:
                continue
            if not same_quality(one.value, first.value) or one.samples != first.samples:
                yield message(
                    "evaluation_differs_over_ranks", rank=rank, value=one.value,
                    first=first.value, samples=one.samples, samples_first=first.samples,
                )  # fmt: skip
        scored = over_ranks([None if one is None else one.scores for one in of_ranks])
        if scored is not None:
            yield from _scores(plan, scored, first, number)


def _scores(plan: Plan, scored: ScoredByAll, first: Evaluate, number: int) -> Iterator[Message]:
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
    if scored.mean is not None and not same_quality(claimed, scored.mean):
        name = scored.of or plan.about.metric
        yield message(
            "evaluation_not_the_mean", number=number, name=name, value=claimed, mean=scored.mean
        )
    expected = MIN_TRAINED_SHARE * scored.expected_of_training(data.train_samples)
    if scored.trained >= max(MIN_TRAINED_ROWS, expected):
        yield message(
            "evaluation_of_training_rows", number=number, rows=scored.trained, known=scored.known
        )


def _replicas(plan: Plan, run: RunTimeline) -> Iterator[Message]:
    """Yield parameters that ranks hold whole and that differ: their gradients were not reduced."""
    reports = {rank.rank: rank.parameters.sums for rank in run.ranks if rank.parameters}
    if len(reports) < 2 or plan.recipe.get("tensor_parallel", 1) > 1:
        return  # plain shards of one name differ
    first: dict[str, int] = {}
    unlike: dict[str, int] = {}
    for rank, sums in reports.items():
        for name, value in sums.items():
            if first.setdefault(name, value) != value:
                unlike.setdefault(name, rank)
    if unlike:
        names = ", ".join(list(unlike)[:NAMED])
        yield message("parameters_differ", names=names, number=len(unlike), parameters=len(first),
                      rank=min(unlike.values()))  # fmt: skip


def _precision(run: RunTimeline) -> Iterator[Message]:
    """Yield the flags of precision that a job changed after they were set."""
    for rank in run.ranks:
        if rank.result.precision_changed:
            yield message("changed_precision", rank=rank.rank,
                          changes=", ".join(rank.result.precision_changed))  # fmt: skip


def _training(run: RunTimeline) -> Iterator[Message]:
    """Yield parameters that were not trained: by their gradients, or because no bit changed."""
    reports = [rank.parameters for rank in run.ranks if rank.parameters is not None]
    # A rank may hold rows of a table that no sample uses, so all ranks are judged together.
    changed = _of_any(report.changed for report in reports)
    if not changed:
        yield message("no_trained_parameters")
    if not any(rank.phases["train"].steps for rank in run.ranks):
        return  # too short for a figure
    updates = max((report.updates for report in reports), default=0)
    if updates == 0:
        yield message("never_updated")
    if updates < _UPDATES_TO_REACH_ALL:
        return
    gradients = _of_any(report.gradients for report in reports)
    if zero := [name for name, some in gradients.items() if not some]:
        names = ", ".join(zero[:NAMED])
        yield message("gradients_zero", names=names, number=len(zero), parameters=len(gradients))
    if never := [name for name, some in changed.items() if not some]:
        yield message("parameters_never_changed", names=", ".join(never[:NAMED]),
                      number=len(never), parameters=len(changed), updates=updates)  # fmt: skip


def _of_any(reports: Iterable[dict[str, bool]]) -> dict[str, bool]:
    """Return what is true of a parameter on any rank, by name."""
    return dict(sorted((item for report in reports for item in report.items()), key=itemgetter(1)))
