"""Decide how a run ended and why, from events alone."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.devices.numa import compact
from trainmark.record import hang
from trainmark.record.record import Cause
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.record.record import Status
    from trainmark.record.timeline import RankTimeline, RunTimeline
    from trainmark.spec import Target

_STATUS_OF_KIND: dict[str, Status] = {"oom": "oom", "diverged": "diverged"}
# A rank that fails makes its peers fail within this time: among failures this close, the most
# specific one is the cause, not the earliest one.
_SAME_MOMENT_S = 3
_LEAST_TELLING = {"signal": 1, "error": 2, "exit": 3}  # any other kind is more specific


class Ending(NamedTuple):
    """Status and cause of a run; no cause when it passed."""

    status: Status
    cause: Cause | None = None


class _Run(NamedTuple):
    """Input of the rules: the launcher's last event of each name, the ranks, the target."""

    events: dict[str, dict[str, Any]]
    timeline: RunTimeline
    target: Target | None


def find(timeline: RunTimeline, target: Target | None) -> Ending:
    """Return the ending. A stop from outside takes precedence over the reports of ranks."""
    run = _Run(timeline.launcher, timeline, target)
    for rule in (
        _refused, _job_ended, _stopped, _ranks_failed, _agent_failed, _events_lost, _target_missed,
    ):  # fmt: skip
        ending = rule(run)
        if ending is not None:
            return ending
    return Ending("passed")


def _cause(kind: str, said: Message, **more: Any) -> Cause:
    return Cause(kind=kind, message=said, **more)


def _signal_name(exit_code: int) -> str:
    """Return the name of the signal that a negative exit code denotes."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"  # a real-time signal has no name


def _refused(run: _Run) -> Ending | None:
    """Return why a node did not start its ranks."""
    for node in run.timeline.nodes:
        refused = node.events.get("refused")
        if refused is not None:
            return Ending("failed", _cause("node_refused", Message(**refused["message"])))
    return None


def _job_ended(run: _Run) -> Ending | None:
    """Return what the engine says where it ended the job; not that the job failed by itself."""
    job = run.events.get("job")
    by_us = "stop" in run.events and "node" not in run.events["stop"]
    if job is None or job["phase"] != "ended" or by_us:
        return None  # where we ended it, its stop tells why
    said, ending = job["said"], job["ending"]
    steps = max((rank.steps for rank in run.timeline.ranks), default=0)
    if ending == "out_of_memory" and not _failures(run):
        return Ending("oom", _cause("oom", message("job_out_of_memory", said=said, steps=steps)))
    if ending in ("failed", "unknown") and not any(node.events for node in run.timeline.nodes):
        return Ending("failed", _cause("job", message("job_failed", said=said)))
    began = any(node.events and not node.finished for node in run.timeline.nodes)
    if ending in ("failed", "unknown") and began and not _timed_out(run):
        ending = "node_lost"  # the ranks of other nodes failed because of it
    lost, every = _lost_nodes(run), run.timeline.nodes
    nodes = compact(lost) or "?"
    ranks = compact(rank for node in every if node.number in lost for rank in node.ranks) or "?"
    found: dict[str, tuple[Status, str, Message]] = {
        "timed_out": ("timed_out", "job", message("job_timed_out", said=said, steps=steps)),
        "preempted": ("interrupted", "job", message("job_preempted", said=said, steps=steps)),
        "cancelled": ("interrupted", "job", message("job_cancelled", said=said, steps=steps)),
        "refused": ("failed", "job", message("job_refused", said=said)),
        "node_lost": (
            "failed", "node_lost",
            message("node_lost", nodes=nodes, ranks=ranks, said=said, steps=steps),
        ),
    }  # fmt: skip
    if ending not in found:
        return None
    status, kind, text = found[ending]
    return Ending(status, _cause(kind, text))


def _timed_out(run: _Run) -> bool:
    return run.events.get("stop", {}).get("reason") == "timeout"


def _lost_nodes(run: _Run) -> set[int]:
    """Return the nodes that the engine calls lost, else those that did not report their end."""
    silent = {node.number for node in run.timeline.nodes if not node.finished}
    return set(run.events["job"]["lost"]) or silent


def _stopped(run: _Run) -> Ending | None:
    stop = run.events.get("stop")
    if stop is None:
        return None
    steps = max((rank.steps for rank in run.timeline.ranks), default=0)
    match stop["reason"]:
        case "timeout":
            groups = hang.groups(run.timeline)
            said = hang.said(run.timeline, groups)
            found = _cause("timeout", said, stacks=stop.get("stacks", []), hang=groups)
            return Ending("timed_out", found)
        case "launcher_killed":
            said = message("launcher_killed", steps=steps)
            return Ending("interrupted", _cause("launcher_killed", said))
        case "files_lost":
            said = message("run_files_lost", files=", ".join(stop["files"]), steps=steps)
            return Ending("failed", _cause("files_lost", said))
        case "launcher_error":
            said = message("launcher_failed", text=stop["message"])
            return Ending("failed", _cause("launcher", said))
    said = message("stopped_by_signal", signal=stop["signal"], steps=steps)
    return Ending("interrupted", _cause("signal", said, signal=stop["signal"]))


def _ranks_failed(run: _Run) -> Ending | None:
    """Return the most specific of the first failures."""
    failures = _failures(run)
    if not failures:
        return None
    # The agent ends the other ranks with SIGTERM: those are consequences while others exist.
    own = [item for item in failures if item[1].signal != "SIGTERM"] or failures
    first = min(time_s for time_s, _ in own)
    close = [item for item in own if item[0] - first <= _SAME_MOMENT_S]
    _, cause = min(close, key=lambda item: (_LEAST_TELLING.get(item[1].kind, 0), item[0]))
    return Ending(_STATUS_OF_KIND.get(cause.kind, "failed"), cause)


def _failures(run: _Run) -> list[tuple[float, Cause]]:
    """Return time and cause of each failed rank: from its own report, else from its exit code."""
    found: dict[int, tuple[float, Cause]] = {}
    for failure in run.events.get("agent_exit", {}).get("failures", []):
        found[failure["rank"]] = failure["time_s"], _as_the_agent_says(failure, run)
    for rank in run.timeline.ranks:
        error = rank.error
        if error is not None:
            known = found.get(rank.rank)
            exit_code = 1 if known is None else known[1].exit_code
            # To the nanosecond, where the launcher knows it less exactly: a peer's broken
            # connection comes after what broke it, often within the same second.
            launch = run.events["launch"]
            time_ns = error["t_ns"] - launch["t_ns"] + launch["unix_ns"]
            found[rank.rank] = time_ns / 1e9, _reported(error, rank.rank, exit_code)
    return list(found.values())


def _as_the_agent_says(failure: dict[str, Any], run: _Run) -> Cause:
    rank, exit_code = failure["rank"], failure["exit_code"]
    if failure.get("report"):
        return _reported(failure["report"], rank, exit_code)
    if exit_code >= 0:
        said = message("rank_exited", rank=rank, exit_code=exit_code)
        return _cause("exit", said, rank=rank, exit_code=exit_code)
    name = _signal_name(exit_code)
    out_of_memory = name == "SIGKILL" and run.events.get("oom_kills", {}).get("count", 0) > 0
    said = message(
        "rank_killed_out_of_memory" if out_of_memory else "rank_killed", rank=rank, signal=name
    )
    kind = "oom" if out_of_memory else "signal"
    return _cause(kind, said, rank=rank, signal=name, exit_code=exit_code)


def _reported(report: dict[str, Any], rank: int, exit_code: int | None) -> Cause:
    told = {key: report[key] for key in ("kind", "type", "message", "place", "traceback")}
    return Cause(rank=rank, exit_code=exit_code, **told)


def _agent_failed(run: _Run) -> Ending | None:
    agent = run.events.get("agent_exit")
    if agent is None:
        return Ending("failed", _cause("launcher", message("ranks_end_unknown")))
    code = agent["exit_code"]
    if code == 0:
        return None
    if code < 0:
        said = message("agent_killed", signal=_signal_name(code))
    else:
        said = message("agent_exited", exit_code=code)
    return Ending("failed", _cause("launcher", said, exit_code=code))


def _events_lost(run: _Run) -> Ending | None:
    """Return a cause if events are missing: figures from the rest would be wrong."""
    lines = run.timeline.launcher_malformed_lines
    if lines:
        said = message("launcher_events_malformed", lines=lines)
        return Ending("failed", _cause("events_incomplete", said))
    nodes = run.timeline.nodes
    silent = [node.number for node in nodes if not node.events.keys() >= {"launch", "agent_exit"}]
    if silent:
        said = message("node_events_lost", nodes=compact(silent))
        return Ending("failed", _cause("events_incomplete", said))
    for rank in run.timeline.ranks:
        lost = _lost_of(rank)
        if lost is not None:
            return Ending("failed", _cause("events_incomplete", lost, rank=rank.rank))
    return None


def _lost_of(rank: RankTimeline) -> Message | None:
    """Compare what a rank reports to have trained with the events in its file."""
    number, lines, steps = rank.rank, rank.malformed_lines, rank.steps
    samples, evaluations = rank.counts.samples, len(rank.evaluations)
    if rank.end_ns is None or not rank.trained:
        return message("rank_unfinished", rank=number)
    trained = rank.trained["steps"]
    if lines or trained != steps:
        return message("steps_lost", rank=number, lines=lines, steps=steps, trained=trained)
    trained = rank.trained.get("samples")  # absent in events of earlier versions
    if trained not in (None, samples):
        return message("samples_altered", rank=number, samples=samples, trained=trained)
    made = rank.trained.get("evaluations")
    if made not in (None, evaluations):
        return message("evaluations_lost", rank=number, evaluations=evaluations, made=made)
    if trained is not None and not (rank.facts and rank.result):
        return message("facts_lost", rank=number)
    return None


def _target_missed(run: _Run) -> Ending | None:
    target, rank = run.target, run.timeline.ranks[0]
    if target is None or not target.required or rank.target_reached:
        return None
    values = [event["value"] for event in rank.evaluations]
    said = message(
        "target_missed" if values else "target_missed_without_evaluation",
        metric=target.metric,
        target=target.value,
        epochs=rank.epochs,
        steps=rank.steps,
        value=values[-1] if values else None,
    )
    return Ending("target_missed", _cause("target_missed", said))
