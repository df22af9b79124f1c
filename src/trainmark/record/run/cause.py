"""Decide how a run ended and why, from events alone."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.devices.cores import compact, parse_cores
from trainmark.rank.failure import DISK_FULL_EXIT
from trainmark.record.record import Cause
from trainmark.record.shapes import HangGroup
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.rank.events import Error, FailedRank, Stop
    from trainmark.record.record import Status
    from trainmark.record.run.timeline import RankTimeline, RunTimeline
    from trainmark.spec import Message, Target

_STATUS_OF_KIND: dict[str, Status] = {"oom": "oom", "diverged": "diverged"}
# A rank that fails makes its peers fail within this time: among failures this close, the most
# specific one is the cause, not the earliest one.
_SAME_MOMENT_S = 3
_LEAST_TELLING = {"signal": 1, "error": 2, "exit": 3}  # any other kind is more specific


class Ending(NamedTuple):
    """Status and cause of a run; no cause when it passed."""

    status: Status
    cause: Cause | None = None


def find(timeline: RunTimeline, target: Target | None) -> Ending:
    """Return the ending. A stop from outside takes precedence over the reports of ranks."""
    rules = (_refused, _job_ended, _stopped, _ranks_failed, _end_unknown, _events_lost)
    for rule in rules:
        ending = rule(timeline)
        if ending is not None:
            return ending
    return _target_missed(timeline, target) or Ending("passed")


def _cause(kind: str, text: Message, **more: Any) -> Cause:
    return Cause(kind=kind, message=text, **more)


def _signal_name(exit_code: int) -> str:
    """Return the name of the signal that a negative exit code denotes."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"  # a real-time signal has no name


def _refused(run: RunTimeline) -> Ending | None:
    """Return why a node did not start its ranks."""
    for node in run.nodes:
        refused = node.events.get("refused")
        if refused is not None:
            return Ending("failed", _cause("node_refused", refused.message))
    return None


def _job_ended(run: RunTimeline) -> Ending | None:
    """Return how the engine ended the job, where it did; not that the job failed by itself."""
    job, stop, nodes = run.launcher.job, run.launcher.stop, run.nodes
    by_us = stop is not None and stop.node is None  # then the stop has the reason
    if job is None or by_us or job.phase in ("waiting", "running") or job.exit_code == 0:
        return None
    args: dict[str, Any] = {"said": job.said, "steps": run.steps}
    if not any(node.events for node in nodes):
        return Ending("failed", _cause("job", message("job_failed", said=job.said)))
    timed_out = stop is not None and stop.reason == "timeout"
    if any(not node.finished for node in nodes) and (job.phase == "lost" or not timed_out):
        # Those that did not report their end: the ranks of other nodes failed because of it.
        lost = {node.number for node in nodes if not node.finished}
        ranks = compact(rank for node in nodes if node.number in lost for rank in node.ranks)
        where = {"nodes": compact(lost), "ranks": ranks}
        return Ending("failed", _cause("node_lost", message("node_lost", **where, **args)))
    if job.phase == "lost":
        return Ending("interrupted", _cause("job", message("job_lost", **args)))
    return None


def _stopped(run: RunTimeline) -> Ending | None:
    stop, steps = run.launcher.stop, run.steps
    if stop is None:
        return None
    match stop.reason:
        case "timeout":
            return _timed_out(run, stop)
        case "launcher_killed":
            text = message("launcher_killed", steps=steps)
            return Ending("interrupted", _cause("launcher_killed", text))
        case "launcher_error":
            text = message("launcher_failed", text=stop.message)
            return Ending("failed", _cause("launcher", text))
    text = message("stopped_by_signal", signal=stop.signal, steps=steps)
    return Ending("interrupted", _cause("signal", text, signal=stop.signal))


def _timed_out(run: RunTimeline, stop: Stop) -> Ending:
    """Return which ranks waited in which call, and which were missing there, as stacks tell."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for found in stop.hang:  # a node's ranks at one place
        at = found.state, found.call, found.where
        places.setdefault(at, []).extend(parse_cores(found.ranks))
    # Where ranks are in a collective, one in a backward pass may compute.
    states = {state for state, _, _ in places}
    waits = "collective" if "collective" in states else "waits"
    waiting = [rank for at, ranks in places.items() if at[0] == waits for rank in ranks]
    missing = [rank for at, ranks in places.items() if at[0] != waits for rank in ranks]
    args: dict[str, Any] = {"limit_s": stop.timeout_s, "steps": run.steps}
    text = message("timed_out", **args)
    if waiting and missing:
        ends_ns = [end_ns for rank in run.ranks for _, end_ns in rank.edges_ns.values()]
        text = message(
            "timed_out_missing",
            **args,
            quiet_s=(stop.t_ns - max(ends_ns, default=run.launch_ns)) / 1e9,
            waiting=compact(waiting),
            missing=compact(missing),
            call=", ".join(dict.fromkeys(call for state, call, _ in places if state == waits)),
        )
    groups = [
        HangGroup(ranks=compact(ranks), state=state, call=call, where=where)
        for (state, call, where), ranks in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    return Ending("timed_out", _cause("timeout", text, stacks=stop.stacks, hang=groups))


def _ranks_failed(run: RunTimeline) -> Ending | None:
    """Return the most specific of the first failures."""
    failures = _failures(run)
    if not failures:
        return None
    first = min(time_s for time_s, _ in failures)
    close = [item for item in failures if item[0] - first <= _SAME_MOMENT_S]
    _, cause = min(close, key=lambda item: (_LEAST_TELLING.get(item[1].kind, 0), item[0]))
    return Ending(_STATUS_OF_KIND.get(cause.kind, "failed"), cause)


def _failures(run: RunTimeline) -> list[tuple[float, Cause]]:
    """Return time and cause of each failed rank: from its own report, else from its exit code."""
    found: dict[int, tuple[float, Cause]] = {}
    ended, launch = run.launcher.ranks_ended, run.launcher.launch
    for failure in [] if ended is None else ended.failures:
        found[failure.rank] = failure.time_s, _of_exit_code(failure, run)
    for rank in run.ranks:
        error = rank.error
        if error is not None:
            known = found.get(rank.rank)
            exit_code = None if known is None else known[1].exit_code
            # To the nanosecond, where the launcher knows it less exactly: a peer's broken
            # connection comes after what broke it, often within the same second.
            time_ns = error.t_ns - launch.t_ns + launch.unix_ns
            found[rank.rank] = time_ns / 1e9, _reported(error, rank.rank, exit_code)
    return list(found.values())


def _of_exit_code(failure: FailedRank, run: RunTimeline) -> Cause:
    rank, exit_code = failure.rank, failure.exit_code
    if exit_code == DISK_FULL_EXIT:
        text = message("exception", text=os.strerror(errno.ENOSPC))
        return _cause("disk_full", text, rank=rank, exit_code=exit_code)
    if exit_code >= 0:
        text = message("rank_exited", rank=rank, exit_code=exit_code)
        return _cause("exit", text, rank=rank, exit_code=exit_code)
    name = _signal_name(exit_code)
    out_of_memory = name == "SIGKILL" and run.launcher.oom_kills > 0
    text = message(
        "rank_killed_out_of_memory" if out_of_memory else "rank_killed", rank=rank, signal=name
    )
    kind = "oom" if out_of_memory else "signal"
    return _cause(kind, text, rank=rank, signal=name, exit_code=exit_code)


def _reported(report: Error, rank: int, exit_code: int | None) -> Cause:
    names = ("kind", "type", "message", "place", "traceback")
    return Cause(rank=rank, exit_code=exit_code, **{name: getattr(report, name) for name in names})


def _end_unknown(run: RunTimeline) -> Ending | None:
    if run.launcher.ranks_ended is not None:
        return None
    return Ending("failed", _cause("launcher", message("ranks_end_unknown")))


def _events_lost(run: RunTimeline) -> Ending | None:
    """Return a cause if events are missing: figures from the rest would be wrong."""
    lines, nodes, lost = run.launcher_malformed_lines, run.nodes, None
    rank = None
    silent = [node.number for node in nodes if not node.events.keys() >= {"launch", "ranks_ended"}]
    if lines:
        lost = message("launcher_events_malformed", lines=lines)
    elif silent:
        lost = message("node_events_lost", nodes=compact(silent))
    else:
        losses = ((_lost_of(one), one.rank) for one in run.ranks)
        lost, rank = next((one for one in losses if one[0] is not None), (None, None))
    return None if lost is None else Ending("failed", _cause("events_incomplete", lost, rank=rank))


def _lost_of(rank: RankTimeline) -> Message | None:
    """Compare what a rank reports to have trained with the events in its file."""
    number, lines, steps, trained = rank.rank, rank.malformed_lines, rank.steps, rank.trained
    if rank.end_ns is None or trained is None:
        return message("rank_unfinished", rank=number)
    if lines or trained.steps != steps:
        return message("steps_lost", rank=number, lines=lines, steps=steps, trained=trained.steps)
    return None


def _target_missed(run: RunTimeline, target: Target | None) -> Ending | None:
    rank = run.ranks[0]
    if target is None or not target.required or rank.target_reached:
        return None
    values = [event.value for event in rank.evaluations]
    text = message(
        "target_missed" if values else "target_missed_without_evaluation",
        metric=target.metric,
        target=target.value,
        epochs=rank.epochs,
        steps=rank.steps,
        value=values[-1] if values else None,
    )
    return Ending("target_missed", _cause("target_missed", text))
