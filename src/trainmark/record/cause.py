"""Decide how a run ended and why, from events alone.

A rank reports its training in windows, each of some steps that are timed together.
``broken_rules`` checks the runs that reached their end.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark.events.schema import HangGroup
from trainmark.ranges import format_ranges, parse_ranges
from trainmark.rank.failure import DISK_FULL_EXIT, describe_failure
from trainmark.record.broken_rules import find_broken_rule
from trainmark.record.record import Cause
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmark.errors import CaseError
    from trainmark.events.schema import FailedRank, Stop
    from trainmark.events.timeline import RankTimeline, RunTimeline
    from trainmark.plan.plan import Plan
    from trainmark.record.record import FigureEntry, Status
    from trainmark.spec import Message, Target

# By the code of a cause's message or by its kind; any other run that did not pass failed.
_STATUS: dict[str, Status] = {
    "launcher_killed": "interrupted",
    "job_lost": "interrupted",
    "stopped_by_signal": "interrupted",
    "oom": "oom",
    "diverged": "diverged",
    "timeout": "timed_out",
    "target_missed": "target_missed",
}
# A rank that fails makes its peers fail within this time: among failures this close, the most
# specific one is the cause, not the earliest one.
_SAME_MOMENT_NS = 3_000_000_000
# How little a cause of this kind says: 3 says least. Any other kind is specific and has 0.
_VAGUENESS = {"signal": 1, "error": 2, "exit": 3}
# Of a user's own program: the rank ended without a step.
_CODES_WITHOUT_TRAINING = ("witness_no_torch", "witness_no_backward")
_LATE_WINDOW_RATIO = 1.5  # a window that takes this many times the longest one is late
_LATE_STEP_RATIO = 3.0  # a step that takes this many times the mean step is late
# However fast its steps are, a run may report nothing for this part of its time limit, but not for
# longer than these seconds.
_ALWAYS_ALLOWED_SHARE = 0.05
_MAX_ALWAYS_ALLOWED_S = 10.0


def decide_status(cause: Cause | None) -> Status:
    """Return the status of a run that ended with this cause."""
    if cause is None:
        return "passed"
    # The code of the message comes first, because it tells more than the kind: after a signal to
    # the launcher the run was interrupted, after a signal to a rank it failed. Both are of the kind
    # ``signal``.
    return _STATUS.get(cause.message.code) or _STATUS.get(cause.kind, "failed")


def find_cause(
    plan: Plan,
    run: RunTimeline,
    figures: Mapping[str, FigureEntry],
    case_error: CaseError | None = None,
) -> Cause | None:
    """Return why a run did not pass; None: it passed.

    Args:
        case_error: why the case could not compute its own figures; None: it could, or has none.
    """
    # A plan with ``witness`` is of a user's own program, which the ranks ran.
    cause = find_failure(run, plan.target, is_witnessed=plan.witness is not None)
    if cause is None and case_error is not None:
        cause = _describe_case_error(case_error)
    # The rules are for a run that trained to its end. It may have missed its target, but a broken
    # rule is the more serious cause.
    if cause is None or cause.kind == "target_missed":
        return find_broken_rule(plan, run, figures) or cause
    return cause


def find_failure(
    run: RunTimeline, target: Target | None, *, is_witnessed: bool = False
) -> Cause | None:
    """Return what ended a run early, else that it missed its target; None: neither.

    The order is that of cause and effect. If a node refuses to start its ranks, those of the other
    nodes wait for them until they fail or are stopped, so that a refusal comes first. The end of a
    cluster's job, or a stop of the ranks from outside, makes ranks fail, so that it comes before
    the ranks' own failures. A rank that fails does not report its end, so that its failure comes
    before lost events. The target comes last: only a run that reached its end can have missed it.

    Args:
        target: quality that the run must reach; None: it has none.
        is_witnessed: the ranks run a user's own program.
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
    """Return why a node did not start its ranks; None: no node refused to."""
    for node in run.nodes:
        refusal = node.events.get("refused")
        if refusal is not None:
            return Cause(kind="node_refused", message=refusal.message)
    return None


def _find_end_of_job(run: RunTimeline) -> Cause | None:
    """Return how a run ended with its job in a cluster's engine, such as Slurm or Kubernetes.

    The job ended before any node began, nodes did not report their end, or the engine took the job
    away. None: none of these, so that what nodes and ranks report is the cause; or there is no
    engine.
    """
    # The last state of the job. Its ``phase`` is ``waiting``, ``running``, ``ended`` (by itself) or
    # ``lost``: the engine refused the job or took its nodes away. ``text``: the engine's own words.
    job = run.launcher.job
    # Why ranks were stopped from outside: by a process on a node, whose number is ``stop.node``, or
    # by the launcher, if this is None. ``_find_stop`` returns the reason of the launcher's stop.
    stop = run.launcher.stop
    is_stopped_by_launcher = stop is not None and stop.node is None
    if job is None or is_stopped_by_launcher or job.phase in ("waiting", "running"):
        return None
    # The job ended before any node wrote an event.
    if not any(node.events for node in run.nodes):
        return Cause(kind="job", message=message("job_failed", text=job.text))
    # Nodes that did not report their end. They are the cause even if ranks of other nodes report
    # failures: these ranks fail because they wait for the lost ones.
    lost_nodes = [node for node in run.nodes if not node.finished]
    is_timed_out = stop is not None and stop.reason == "timeout"
    # If a node stopped its ranks at the time limit, other nodes may be unfinished for this reason.
    # If the engine lost the job, they are lost in any case.
    if lost_nodes and (job.phase == "lost" or not is_timed_out):
        text = message(
            "node_lost",
            text=job.text,
            steps=run.steps,
            nodes=format_ranges(node.number for node in lost_nodes),
            ranks=format_ranges(rank for node in lost_nodes for rank in node.ranks),
        )
        return Cause(kind="node_lost", message=text)
    if job.phase == "lost":
        return Cause(kind="job", message=message("job_lost", text=job.text, steps=run.steps))
    return None


def _find_stop(run: RunTimeline) -> Cause | None:
    """Return why the ranks were stopped from outside; None: they were not."""
    stop = run.launcher.stop
    steps = run.steps
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
        case "case_error":  # code of the case failed outside the ranks
            return Cause(
                kind="error",
                message=message("exception", text=stop.message, fix=stop.fix),
                type=stop.type,
                place=stop.place,
                traceback=stop.traceback,
            )
    # The remaining reason is ``signal``.
    text = message("stopped_by_signal", signal=stop.signal, steps=steps)
    return Cause(kind="signal", message=text, signal=stop.signal)


def _describe_timeout(run: RunTimeline, stop: Stop) -> Cause:
    """Return what a run did when it was stopped at its time limit.

    If it still reported windows, it was training. Else the stacks of its ranks may show which of
    them waited in which call, and which ranks had not reached that call.

    Args:
        stop: the stop at the time limit. ``stacks``: names of the files with the ranks' stacks at
            that moment; ``hang``: groups of ranks whose stacks were at the same place.
    """
    groups = _merge_groups(stop.hang)
    # The state of ranks: in a collective, waiting in another call (``waits``), neither of these
    # (``elsewhere``), or unknown, because they saved no stack (``silent``). If any is in a
    # collective, only such ranks count as waiting: a rank in any other call may still compute, and
    # is the one that they wait for.
    is_in_collective = any(group["state"] == "collective" for group in groups)
    waiting_state = "collective" if is_in_collective else "waits"
    waiting = [group for group in groups if group["state"] == waiting_state]
    missing = [group for group in groups if group["state"] != waiting_state]
    quiet_s = _measure_quiet_s(run, stop)
    # The run reported windows until the stop: nothing hung, the time limit was too short.
    if _has_steps(run) and quiet_s < _compute_max_quiet_s(run, stop):
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


def _merge_groups(groups_of_nodes: Iterable[HangGroup]) -> list[HangGroup]:
    """Return one group of ranks for each place in the code, the largest group first.

    Args:
        groups_of_nodes: the groups of all nodes, each with ranks of one node; groups of several
            nodes may be at the same place.
    """
    # A place is what the ranks do (``state``), the call that they wait in, and the line of code.
    ranks_by_place: dict[tuple[Any, ...], list[int]] = {}
    for group in groups_of_nodes:
        place = (group["state"], group["call"], group["where"])
        ranks_by_place.setdefault(place, []).extend(parse_ranges(group["ranks"]))
    largest_first = sorted(ranks_by_place.items(), key=lambda item: -len(item[1]))
    return [
        HangGroup(ranks=format_ranges(ranks), state=state, call=call, where=where)
        for (state, call, where), ranks in largest_first
    ]


def _measure_quiet_s(run: RunTimeline, stop: Stop) -> float:
    """Return the seconds from the last window of any rank to the stop."""
    # ``edges_ns``: by phase, the start of its first window and the end of its last one. Times are
    # from the launch, because the clocks of machines count from different moments.
    ends_ns = [
        end_ns - rank.launch_ns for rank in run.ranks for _, end_ns in rank.edges_ns.values()
    ]
    # Without any window, the run was quiet since the launch.
    last_end_ns = max(ends_ns, default=0)
    stop_ns = stop.t_ns - run.launch_ns
    return (stop_ns - last_end_ns) / 1e9


def _has_steps(run: RunTimeline) -> bool:
    """Tell whether any rank trained a step."""
    return any(phase.steps for rank in run.ranks for phase in rank.phases.values())


def _compute_max_quiet_s(run: RunTimeline, stop: Stop) -> float:
    """Return for how many seconds a run may report nothing; after more, it hangs.

    A window, some steps that are timed together, is reported at its end. While it lasts, ranks
    write no event.

    Args:
        stop: how the run was stopped at its time limit.
    """
    mean_steps_s = [
        phase.windows_ns / phase.steps / 1e9
        for rank in run.ranks
        for phase in rank.phases.values()
        if phase.steps
    ]
    longest_windows_s = [rank.longest_window_ns / 1e9 for rank in run.ranks]
    late_step_s = _LATE_STEP_RATIO * max(mean_steps_s, default=0.0)
    late_window_s = _LATE_WINDOW_RATIO * max(longest_windows_s, default=0.0)
    # ``timeout_s`` is the time limit of the whole run. A part of it is allowed however fast the
    # steps are: with steps of milliseconds, ``late_step_s`` and ``late_window_s`` are so short that
    # any pause would count as a hang.
    always_allowed_s = min(_MAX_ALWAYS_ALLOWED_S, _ALWAYS_ALLOWED_SHARE * stop.timeout_s)
    return max(late_step_s, late_window_s, always_allowed_s)


def _find_failed_rank(run: RunTimeline) -> Cause | None:
    """Return the most specific of the first failures: as a rank reports it, else by exit code.

    A rank that fails makes its peers fail within a few seconds: failures that are this close are
    the first ones. Of equally specific failures the earliest counts: a broken connection of another
    rank comes after the failure that broke it.
    """
    failures = _list_failures(run)
    if not failures:
        return None
    first_ns = min(failure.time_ns for failure in failures)
    first_failures = [x for x in failures if x.time_ns - first_ns <= _SAME_MOMENT_NS]
    earliest_first = sorted(first_failures, key=lambda failure: failure.time_ns)
    # Of equals, ``min`` returns the first: the earliest failure.
    most_specific = min(earliest_first, key=lambda failure: _VAGUENESS.get(failure.cause.kind, 0))
    return most_specific.cause


class _RankFailure(NamedTuple):
    """The failure of a rank, and its time in nanoseconds from the launch."""

    time_ns: int
    cause: Cause


def _list_failures(run: RunTimeline) -> list[_RankFailure]:
    """Return the failure of each rank that failed: as it reports it, else by its exit code.

    The launcher and each rank write times on the clock of their own machine. So a failure has its
    time since the launch, which can be compared between machines.
    """
    exits: dict[int, FailedRank] = {}  # by rank
    if run.launcher.ranks_ended is not None:
        exits = {failed.rank: failed for failed in run.launcher.ranks_ended.failures}
    # If a user's own program fails before it trains, its rank reports only that there was no
    # training to measure. Its exit code tells more, so that the report is left out.
    reporting_ranks = {
        rank.rank
        for rank in run.ranks
        if rank.error is not None
        and not (rank.rank in exits and rank.error.message.code in _CODES_WITHOUT_TRAINING)
    }
    failures = [
        _RankFailure(failed.t_ns - run.launch_ns, _describe_exit_code(failed, run))
        for failed in exits.values()
        if failed.rank not in reporting_ranks
    ]
    for rank in run.ranks:
        report = rank.error
        if report is not None and rank.rank in reporting_ranks:
            rank_exit = exits.get(rank.rank)
            cause = Cause(
                rank=rank.rank,
                exit_code=None if rank_exit is None else rank_exit.exit_code,
                kind=report.kind,
                type=report.type,
                message=report.message,
                place=report.place,
                traceback=report.traceback,
            )
            failures.append(_RankFailure(report.t_ns - rank.launch_ns, cause))
    return failures


def _describe_exit_code(failure: FailedRank, run: RunTimeline) -> Cause:
    """Return the cause of a failed rank of which only the exit code counts, not a report."""
    rank = failure.rank
    exit_code = failure.exit_code
    # A rank ends with this code if it cannot write its report, because the disk is full.
    if exit_code == DISK_FULL_EXIT:
        text = message("exception", text=os.strerror(errno.ENOSPC))
        return Cause(kind="disk_full", message=text, rank=rank, exit_code=exit_code)
    if exit_code >= 0:
        text = message("rank_exited", rank=rank, exit_code=exit_code)
        return Cause(kind="exit", message=text, rank=rank, exit_code=exit_code)
    # An exit code below 0 is the number of the signal that ended the rank, with a minus.
    signal_name = _name_signal(-exit_code)
    # The kernel's out-of-memory killer sends SIGKILL. ``oom_kills``: number of processes that it
    # ended during the launch.
    is_out_of_memory = signal_name == "SIGKILL" and run.launcher.oom_kills > 0
    kind = "oom" if is_out_of_memory else "signal"
    code = "rank_killed_out_of_memory" if is_out_of_memory else "rank_killed"
    text = message(code, rank=rank, signal=signal_name)
    return Cause(kind=kind, message=text, rank=rank, signal=signal_name, exit_code=exit_code)


def _name_signal(number: int) -> str:
    """Return the name of a signal; ``signal 35`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _find_lost_events(run: RunTimeline, *, is_witnessed: bool) -> Cause | None:
    """Return that events are missing, without which figures would be wrong; None: all are there."""
    if run.launcher.ranks_ended is None:  # the launcher did not write how the ranks ended
        return Cause(kind="launcher", message=message("ranks_end_unknown"))
    # Nodes whose process did not report that it began (``launch``) or how its ranks ended.
    silent_nodes = [
        node.number for node in run.nodes if not node.events.keys() >= {"launch", "ranks_ended"}
    ]
    if silent_nodes:
        text = message("node_events_lost", nodes=format_ranges(silent_nodes))
        return Cause(kind="events_incomplete", message=text)
    for rank in run.ranks:
        # A rank of a user's own program without any event: the probe saw no training there.
        if is_witnessed and rank.start_ns is None:
            text = message("witness_no_rank", rank=rank.rank)
            return Cause(kind="witness", message=text, rank=rank.rank)
        text_of_rank = _describe_lost_events(rank)
        if text_of_rank is not None:
            return Cause(kind="events_incomplete", message=text_of_rank, rank=rank.rank)
    return None


def _describe_lost_events(rank: RankTimeline) -> Message | None:
    """Return that a rank did not report its end, or that events are missing in its file.

    None: the rank reports its end, its file has as many steps as it says that it trained, and no
    line is malformed.
    """
    if not rank.finished or rank.trained is None:
        return message("rank_unfinished", rank=rank.rank)
    # A malformed line cannot be read, or is no event of a rank. Even if no step is missing, it may
    # have been another event, such as an evaluation.
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
    """Return that a run did not reach its target; None: it did, or it did not have to."""
    rank0 = run.ranks[0]  # stands for all ranks, which report the same evaluations
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
    """Return the cause of a run whose case has figures of its own and failed to compute them.

    Args:
        error: its ``__cause__`` is the exception that the case's code raised, ``place`` the part of
            the case that raised it, and ``fix`` a sentence on what to do.
    """
    assert error.__cause__ is not None, "a case error is raised from the exception of the case"
    report = describe_failure(error.__cause__, error.place)
    return Cause(
        kind="error",
        # The same text as in the report's message, and the fix in addition.
        message=message("exception", text=report["message"]["args"]["text"], fix=error.fix),
        type=report["type"],
        place=report["place"],
        traceback=report["traceback"],
    )
