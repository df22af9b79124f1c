"""Decide how a run ended and why, from events alone."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.spec import Message, message

if TYPE_CHECKING:
    from trainmark.measure.timeline import RunTimeline
    from trainmark.spec import Target

Status = Literal["passed", "target_missed", "failed", "timed_out", "oom", "diverged", "interrupted"]
_STATUS_OF_KIND: dict[str, Status] = {"oom": "oom", "diverged": "diverged"}
# A rank that dies takes its peers with it within this time: among failures this close the
# one that says most is the cause, not the one whose clock read first.
_SAME_MOMENT_S = 3


@dataclass(frozen=True, slots=True)
class Ending:
    """Status and cause of a run; no cause when it passed."""

    status: Status
    cause: dict[str, Any] | None = None


def _signal_name(exit_code: int) -> str:
    """Return the name of the signal that a negative exit code stands for."""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"  # a real-time signal has no name of its own


def _cause(kind: str, said: Message, *, rank: int | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "message": said.as_dict(), "rank": rank, **more}


def find(timeline: RunTimeline, target: Target | None) -> Ending:
    """Return the ending. What stopped the run from outside comes before what ranks say."""
    launcher = {event["event"]: event for event in timeline.launcher}
    stop = launcher.get("stop")
    agent = launcher.get("agent_exit")
    if stop is not None:
        return _stopped(stop, timeline)
    errors = _failures(timeline, agent, launcher.get("oom_kills"))
    if errors:
        return _of_failure(errors)
    if agent is None or agent["exit_code"] != 0:
        return _of_agent(agent)
    lost = _lost_events(timeline)
    if lost is not None:
        return Ending("failed", lost)
    if target is not None and target.required and not timeline.ranks[0].target_reached:
        return _missed(timeline, target)
    return Ending("passed")


def _lost_events(timeline: RunTimeline) -> dict[str, Any] | None:
    """Return a cause when events are missing: figures from the rest would not be the run's."""
    if timeline.launcher_malformed_lines:
        lines = timeline.launcher_malformed_lines
        return _cause("events_incomplete", message("launcher_events_malformed", lines=lines))
    for rank in timeline.ranks:
        taken, number = rank.trained_steps, rank.rank
        if rank.end_ns is None or taken is None:
            said = message("rank_unfinished", rank=number)
        elif rank.malformed_lines or taken != rank.steps:
            said = message(
                "steps_lost",
                rank=number,
                lines=rank.malformed_lines,
                steps=rank.steps,
                trained=taken,
            )
        elif rank.trained_samples not in (None, rank.counts.samples):
            said = message(
                "samples_altered",
                rank=number,
                samples=rank.counts.samples,
                trained=rank.trained_samples,
            )
        elif rank.trained_evaluations not in (None, len(rank.evaluations)):
            said = message(
                "evaluations_lost",
                rank=number,
                evaluations=len(rank.evaluations),
                made=rank.trained_evaluations,
            )
        elif rank.trained_samples is not None and not (rank.facts and rank.result):
            said = message("facts_lost", rank=number)
        else:
            continue
        return _cause("events_incomplete", said, rank=number)
    return None


def _stopped(stop: dict[str, Any], timeline: RunTimeline) -> Ending:
    steps = max((rank.steps for rank in timeline.ranks), default=0)
    if stop["reason"] == "timeout":
        said = message("timed_out", limit_s=stop["timeout_s"], steps=steps)
        return Ending("timed_out", _cause("timeout", said, stacks=stop.get("stacks", [])))
    if stop["reason"] == "launcher_killed":
        said = message("launcher_killed", steps=steps)
        return Ending("interrupted", _cause("launcher_killed", said))
    if stop["reason"] == "files_lost":
        said = message("run_files_lost", files=", ".join(stop["files"]), steps=steps)
        return Ending("failed", _cause("files_lost", said))
    if stop["reason"] == "launcher_error":
        return Ending(
            "failed", _cause("launcher", message("launcher_failed", text=stop["message"]))
        )
    said = message("stopped_by_signal", signal=stop["signal"], steps=steps)
    return Ending("interrupted", _cause("signal", said, signal=stop["signal"]))


def _failures(
    timeline: RunTimeline, agent: dict[str, Any] | None, oom_kills: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Return one entry a failed rank, the agent's news joined with the ranks' own words."""
    by_rank: dict[int, dict[str, Any]] = {}
    for failure in (agent or {}).get("failures", []):
        rank, code = failure["rank"], failure["exit_code"]
        report = failure.get("report")
        entry = {"rank": rank, "exit_code": code, "time_s": failure["time_s"]}
        if report:
            entry |= report
        elif code < 0:
            name = _signal_name(code)
            killed = name == "SIGKILL" and bool(oom_kills and oom_kills["count"])
            said = message(
                "rank_killed_out_of_memory" if killed else "rank_killed", rank=rank, signal=name
            )
            kind = "oom" if killed else "signal"
            entry |= {"kind": kind, "signal": name, "message": said.as_dict()}
        else:
            said = message("rank_exited", rank=rank, exit_code=code)
            entry |= {"kind": "exit", "message": said.as_dict()}
        by_rank[rank] = entry
    for rank_timeline in timeline.ranks:
        error = rank_timeline.error
        if error is not None:
            told = {k: error[k] for k in ("kind", "type", "message", "place", "traceback")}
            entry = by_rank.setdefault(
                rank_timeline.rank, {"rank": rank_timeline.rank, "exit_code": 1}
            )
            entry |= told
            # To the nanosecond, where the agent knows whole seconds: a peer's broken
            # connection comes after what broke it, often within the same second.
            entry["time_s"] = (error["t_ns"] - timeline.launch_ns + timeline.launch_unix_ns) / 1e9
            entry.pop("signal", None)  # ended by the agent while it was saying its own
    return list(by_rank.values())


def _of_failure(failures: list[dict[str, Any]]) -> Ending:
    # The agent ends the other ranks with SIGTERM: those are consequences while others exist.
    own = [entry for entry in failures if entry.get("signal") != "SIGTERM"] or failures
    first = min(entry["time_s"] for entry in own)
    close = [entry for entry in own if entry["time_s"] - first <= _SAME_MOMENT_S]

    def telling(entry: dict[str, Any]) -> tuple[int, float]:
        order = {"signal": 1, "error": 2, "exit": 3}  # what has a kind of its own says more
        return order.get(entry["kind"], 0), entry["time_s"]

    chosen: dict[str, Any] = dict(sorted(close, key=telling)[0])
    del chosen["time_s"]
    return Ending(_STATUS_OF_KIND.get(chosen["kind"], "failed"), chosen)


def _of_agent(agent: dict[str, Any] | None) -> Ending:
    if agent is None:
        return Ending("failed", _cause("launcher", message("ranks_end_unknown")))
    code = agent["exit_code"]
    if code < 0:
        said = message("agent_killed", signal=_signal_name(code))
    else:
        said = message("agent_exited", exit_code=code)
    return Ending("failed", _cause("launcher", said, exit_code=code))


def _missed(timeline: RunTimeline, target: Target) -> Ending:
    rank = timeline.ranks[0]
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
