"""The ending of a run and its cause, from events written by hand."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import launch_event, make_event, make_span, make_window, write_run
from trainmark.events.timeline import read_run
from trainmark.record.cause import decide_status, find_failure
from trainmark.spec import Target, message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.spec import Message

S = 1_000_000_000
TARGET = Target(metric="acc", value=0.9)
Events = list[dict[str, Any]]


def make_whole_rank(*, value: float = 0.95) -> Events:
    """Return the events of a rank that finished: 2 steps of 4 samples, and one evaluation.

    Each step takes a second; the second one ends at 4 s.

    Args:
        value: the accuracy; the target, 0.9, is reached from there on.
    """
    return [
        make_event("start", S, pid=1),
        make_span("init", S, 2 * S),
        make_window(2 * S, 3 * S, phase="compile", step_ns=[S], samples=[4]),
        make_window(3 * S, 4 * S, first_step=1, step_ns=[S], samples=[4]),
        make_event(
            "evaluate",
            5 * S,
            epoch=0,
            step=2,
            start_ns=4 * S,
            end_ns=5 * S,
            value=value,
            samples=10,
            detail={},
            target_reached=value >= 0.9,
        ),
        make_event("trained", 5 * S, start_ns=2 * S, end_ns=5 * S, steps=2, epochs=1),
        make_event("end", 6 * S),
    ]


def make_error_message(text: str) -> dict[str, Any]:
    """Return the message of an exception, as an event or a record has it."""
    return message("exception", text=text).as_dict()


def make_rank_without_end() -> Events:
    """Return the events of a rank that reported its first step at 3 s, then nothing."""
    return make_whole_rank()[:3]


def make_failed_rank(kind: str, t_s: float = 4, text: str = "why") -> Events:
    """Return the events of a rank that reported its first step at 3 s and an error at ``t_s``.

    Its other fields have any values: the error's type, the part of the run, and the traceback.

    Args:
        kind: of the error.
        t_s: seconds after the launch.
        text: of the exception.
    """
    report = {
        "kind": kind,
        "type": "T",
        "message": make_error_message(text),
        "place": "train",
        "traceback": "tb",
    }
    return [*make_rank_without_end(), make_event("error", int(t_s * S), **report)]


def make_failure(rank: int, exit_code: int, time_s: float) -> dict[str, Any]:
    """Return the report of the failure of a rank by the agent, which starts the ranks of a node.

    Args:
        exit_code: of the process; a negative one is the signal that ended it.
        time_s: seconds after the launch.
    """
    return {"rank": rank, "exit_code": exit_code, "t_ns": int(time_s * S)}


def make_ranks_ended(*failures: dict[str, Any]) -> dict[str, Any]:
    """Return the event with which a launcher says that all ranks ended, at 9 s."""
    return make_event("ranks_ended", 9 * S, failures=list(failures))


@pytest.fixture
def find_ending(tmp_path: Path) -> Any:
    """Return a function that writes a run's events and returns its status and its cause."""

    def call(launcher: Events, *ranks: Events, target: Target | None = TARGET) -> SimpleNamespace:
        """Return ``status`` and ``cause`` (None: it passed) of a run with these events.

        Args:
            launcher: its events after the launch.
            ranks: the events of each rank.
            target: by default an accuracy of 0.9.
        """
        run_dir = write_run(tmp_path / "run", [launch_event(), *launcher], *ranks)
        failure = find_failure(read_run(run_dir, world_size=max(len(ranks), 1)), target)
        cause = None if failure is None else failure.model_dump(exclude_defaults=True)
        return SimpleNamespace(status=decide_status(failure), cause=cause)

    return call


def test_missed_target_states_target_and_value(find_ending: Any) -> None:
    # The launcher reports that all ranks ended without a failure. The rank trained 2 steps in one
    # epoch and reached an accuracy of 0.8512; the target of ``find_ending`` is 0.9.
    result = find_ending([make_ranks_ended()], make_whole_rank(value=0.8512))
    assert result.status == "target_missed"
    assert result.cause["message"] == {
        "code": "target_missed",
        "args": {"metric": "acc", "target": 0.9, "epochs": 1, "steps": 2, "value": 0.8512},
    }


@pytest.mark.parametrize(
    ("kind", "status"),
    [("oom", "oom"), ("diverged", "diverged"), ("disk_full", "failed"), ("error", "failed")],
)
def test_reported_failure_of_a_rank_is_the_cause(find_ending: Any, kind: str, status: str) -> None:
    # The launcher's report: rank 0 ended with exit code 1 at 4 s. The rank's events: an error of
    # this ``kind`` at 4 s, with the values below. ``find_ending`` gives the run's status and cause.
    result = find_ending(
        [make_ranks_ended(make_failure(rank=0, exit_code=1, time_s=4))], make_failed_rank(kind)
    )
    assert result.status == status
    assert result.cause == {
        "kind": kind,
        "type": "T",
        "message": make_error_message("why"),
        "place": "train",
        "traceback": "tb",
        "rank": 0,
        "exit_code": 1,
    }


def test_of_two_errors_in_one_second_the_first_is_the_cause(find_ending: Any) -> None:
    """A broken connection of a peer follows its cause; the launcher knows only whole seconds."""
    # Rank 1 raised at 4.1 s; rank 0 noticed it at 4.9 s.
    broken, raised = (
        make_failed_rank("error", t_s=4.9, text="closed by peer"),
        make_failed_rank("error", t_s=4.1),
    )
    result = find_ending(
        [
            make_ranks_ended(
                make_failure(rank=0, exit_code=1, time_s=4),
                make_failure(rank=1, exit_code=1, time_s=4),
            )
        ],
        broken,
        raised,
    )
    assert (result.cause["rank"], result.cause["message"]) == (1, make_error_message("why"))


def test_exit_code_of_a_full_disk_is_the_cause(find_ending: Any) -> None:
    # A rank that finds the disk full exits with the number of that error. It cannot write an event
    # of it, so its events stop after its first step.
    failure = make_failure(rank=0, exit_code=errno.ENOSPC, time_s=4)
    result = find_ending([make_ranks_ended(failure)], make_rank_without_end())
    assert (result.status, result.cause["kind"]) == ("failed", "disk_full")


def test_a_killed_rank_is_named_with_its_signal(find_ending: Any) -> None:
    # Exit codes are negative signals: rank 1 was killed, then the launcher ended rank 0.
    launcher = [
        make_ranks_ended(
            make_failure(rank=0, exit_code=-15, time_s=4.5),
            make_failure(rank=1, exit_code=-9, time_s=4),
        )
    ]
    result = find_ending(launcher, make_rank_without_end(), make_rank_without_end())
    assert result.status == "failed"
    assert (result.cause["rank"], result.cause["signal"]) == (1, "SIGKILL")
    assert result.cause["message"]["code"] == "rank_killed"


def test_a_rank_that_was_ended_from_outside_precedes_the_errors_of_its_peers(
    find_ending: Any,
) -> None:
    # Rank 0 was ended (exit code -15, SIGTERM) at 4 s; rank 1 failed half a second later with
    # an error of its own and the exit code 1.
    launcher = [
        make_ranks_ended(
            make_failure(rank=0, exit_code=-15, time_s=4),
            make_failure(rank=1, exit_code=1, time_s=4.5),
        )
    ]
    result = find_ending(launcher, make_rank_without_end(), make_failed_rank("exit", t_s=4.5))
    assert (result.cause["rank"], result.cause["signal"]) == (0, "SIGTERM")


def test_unknown_exit_code_is_not_reported(find_ending: Any) -> None:
    result = find_ending([], make_failed_rank("error"))
    assert "exit_code" not in result.cause


def test_a_kill_counted_by_the_kernel_is_out_of_memory(find_ending: Any) -> None:
    # ``S`` is a second in ns. The launcher reports at 8 s that the kernel killed one process
    # (``count``); rank 1 ended at 4 s with exit code -9, which is SIGKILL. Both ranks' events just
    # stop.
    # SIGKILL, and the kernel says that it killed a process for lack of memory.
    launcher = [
        make_event("oom_kills", 8 * S, count=1),
        make_ranks_ended(make_failure(rank=1, exit_code=-9, time_s=4)),
    ]
    result = find_ending(launcher, make_rank_without_end(), make_rank_without_end())
    assert result.status == "oom"
    assert result.cause["message"] == (
        message("rank_killed_out_of_memory", rank=1, signal="SIGKILL").as_dict()
    )


def test_of_simultaneous_failures_the_most_specific_is_the_cause(find_ending: Any) -> None:
    # Rank 0 notices the broken connection first; rank 1 ran out of memory. Failures that are less
    # than 3 s apart count as simultaneous, as one makes the others fail.
    launcher = [
        make_ranks_ended(
            make_failure(rank=0, exit_code=1, time_s=4),
            make_failure(rank=1, exit_code=1, time_s=4.8),
        )
    ]
    result = find_ending(
        launcher,
        make_failed_rank("error", t_s=4, text="connection closed"),
        make_failed_rank("oom", t_s=4.8),
    )
    assert (result.status, result.cause["rank"]) == ("oom", 1)


def test_missing_launcher_event_is_failure(find_ending: Any) -> None:
    result = find_ending([], make_whole_rank())
    assert (result.status, result.cause["kind"]) == ("failed", "launcher")


@pytest.mark.parametrize(
    ("stop", "status", "expected"),
    [
        (
            {"reason": "timeout", "timeout_s": 120.0, "stacks": ["stacks.rank0.txt"]},
            "timed_out",
            message("timed_out_training", limit_s=120.0, steps=1, quiet_s=5.0),
        ),
        ({"reason": "launcher_killed"}, "interrupted", message("launcher_killed", steps=1)),
        (
            {"reason": "signal", "signal": "SIGINT"},
            "interrupted",
            message("stopped_by_signal", signal="SIGINT", steps=1),
        ),
        (
            {"reason": "launcher_error", "message": "OSError: x"},
            "failed",
            message("launcher_failed", text="OSError: x"),
        ),
    ],
)
def test_external_stop_takes_precedence_as_the_cause(
    find_ending: Any, stop: dict[str, Any], status: str, expected: Message
) -> None:
    # The rank reported its first and only step at 3 s. The launcher stopped the run with SIGTERM
    # (exit code -15) at 8 s, which made the rank fail. So the run was quiet for 5 s (``quiet_s``).
    failure = make_failure(rank=0, exit_code=-15, time_s=8)
    launcher = [make_event("stop", 8 * S, **stop), make_ranks_ended(failure)]
    result = find_ending(launcher, make_failed_rank("error"))
    assert (result.status, result.cause["message"]) == (status, expected.as_dict())


def test_rank_that_stopped_without_an_event_is_a_failure(find_ending: Any) -> None:
    # ``find_ending`` gets the launcher's events, here an end without failures, then those of ranks
    # 0 and 1.
    # The last event of rank 1 is missing.
    result = find_ending([make_ranks_ended()], make_whole_rank(), make_whole_rank()[:-1])
    assert result.status == "failed"
    assert result.cause["kind"] == "events_incomplete"
    assert result.cause["message"] == message("rank_unfinished", rank=1).as_dict()


def test_a_lost_window_is_a_failure(find_ending: Any) -> None:
    events = make_whole_rank()
    del events[3]  # the window of the second step
    result = find_ending([make_ranks_ended()], events)
    assert (result.status, result.cause["kind"]) == ("failed", "events_incomplete")
    # Lost lines, steps in windows, and steps that the rank says it trained.
    assert result.cause["message"]["args"] == {"rank": 0, "lines": 0, "steps": 1, "trained": 2}
