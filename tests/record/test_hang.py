"""The cause of a hang in a record, from events written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import launch_event, make_event, make_window, write_events, write_run
from trainmark.events.timeline import read_run
from trainmark.record.cause import decide_status, find_failure
from trainmark.record.messages import find_fix
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
STEP = "mine/job.py:12 step"


def make_rank(steps: int, launched_s: int = 0) -> list[dict[str, Any]]:
    """Return the events of a rank that reported a window for each of ``steps`` steps, then nothing.

    A window is a step of a second (``S`` ns). The first one begins two seconds after the launch,
    which is at ``launched_s``.
    """
    first_window_s = launched_s + 2
    return [
        make_event("start", (launched_s + 1) * S, pid=1),
        *(
            make_window(
                (first_window_s + number) * S,
                (first_window_s + number + 1) * S,
                first_step=number,
                step_ns=[S],
                samples=[4],
            )
            for number in range(steps)
        ),
    ]


def make_group(
    ranks: str, state: str, call: str | None = None, where: str = STEP
) -> dict[str, Any]:
    """Return ranks that hang at one place.

    Args:
        ranks: as ``0-1``.
        state: ``collective``; ``waits``, such as in a backward pass; or ``elsewhere``.
        call: the collective, or what the ranks wait in; None: neither.
        where: file, line and function of the program's own code; by default any (``STEP``).
    """
    return {"ranks": ranks, "state": state, "call": call, "where": where}


@pytest.fixture
def find_cause(tmp_path: Path) -> Any:
    """Return a function that finds the failure of a hanging run, whose time limit is 59 s."""

    def call(*groups: dict[str, Any], steps: tuple[int, ...] = (3, 3, 2), stop_s: int = 60) -> Any:
        """Return the failure of a run that was stopped at its time limit.

        Args:
            groups: ranks that hang in the same place.
            steps: that each rank has taken.
            stop_s: second at which the launcher stopped the run.
        """
        stop = make_event(
            "stop", stop_s * S, reason="timeout", timeout_s=59.0, stacks=[], hang=list(groups)
        )
        run_dir = write_run(tmp_path / "run", [launch_event(), stop], *map(make_rank, steps))
        failure = find_failure(read_run(run_dir, len(steps)), target=None)
        assert decide_status(failure) == "timed_out"
        return failure

    return call


def test_the_rank_that_is_missing_from_a_collective_is_named(find_cause: Any) -> None:
    # Ranks 0 and 1 wait in an all-reduce, which rank 2 has not entered: it is in another line of
    # the program, "a.py:5 f".
    failure = find_cause(
        make_group("0-1", "collective", call="all_reduce"),
        make_group("2", "elsewhere", call=None, where="a.py:5 f"),
    )
    assert (failure.kind, failure.message.code) == ("timeout", "timed_out_missing")
    assert failure.message.args == {
        "limit_s": 59.0,  # as ``find_cause`` sets it
        "steps": 3,  # by default ranks have taken 3, 3 and 2: the most
        "quiet_s": 55.0,  # from the last window's end at 5 s to the stop at 60 s
        "waiting": "0-1",
        "call": "all_reduce",
        "missing": "2",
    }
    assert failure.hang == [
        make_group("0-1", "collective", call="all_reduce"),
        make_group("2", "elsewhere", call=None, where="a.py:5 f"),
    ]
    assert find_fix(failure).code == "fix.timed_out_missing"


def test_a_backward_pass_waits_unless_others_are_in_a_collective(find_cause: Any) -> None:
    # A group: its ranks, their state, what they wait in, and the place in the program. The result
    # names the ranks that wait, and those that are missing, for which they wait.
    backward = make_group("0-1", "waits", call="backward")
    # Rank 2 is in neither: the backward pass waits for it.
    assert find_cause(backward, make_group("2", "elsewhere")).message.args["waiting"] == "0-1"
    # Rank 2 is in a collective: it waits for those that are still in the backward pass.
    failure = find_cause(backward, make_group("2", "collective", call="barrier", where="b.py:1 g"))
    assert failure.message.args["waiting"] == "2"
    assert failure.message.args["missing"] == "0-1"


def test_no_rank_is_missing_if_all_wait_or_none_does(find_cause: Any) -> None:
    in_collectives = (  # not in the same one
        make_group("0-1", "collective", call="barrier"),
        make_group("2", "collective", call="all_reduce"),
    )
    in_none = (
        make_group("0-1", "elsewhere", where="a.py:5 f"),
        make_group("2", "elsewhere", where="b.py:1 g"),
    )
    for groups in (in_collectives, in_none):
        failure = find_cause(*groups)
        # As of any time-out, without a missing rank; ``find_cause`` sets limit and steps.
        assert failure.message == message("timed_out", limit_s=59.0, steps=3)
        assert find_fix(failure).code == "fix.timeout"


@pytest.mark.parametrize(("stop_s", "code"), [(7, "timed_out_training"), (8, "timed_out_missing")])
def test_run_that_still_trained_is_not_a_hang(find_cause: Any, stop_s: int, code: str) -> None:
    """The last window ended at 5 s; ranks may report nothing for 5% of the 59 s, that is 2.95 s."""
    groups = make_group("0-1", "collective", call="barrier"), make_group("2", "elsewhere")
    assert find_cause(*groups, stop_s=stop_s).message.code == code


def test_rank_groups_of_all_nodes_are_merged(tmp_path: Path) -> None:
    """Node 1's clock counts from another moment; the nodes saved stacks a second apart.

    All ranks are quiet from 5 s after the launch on; node 0 stops 60 s after it.
    """
    # Four ranks with three windows of a second each; ranks 2 and 3 are those of node 1, whose clock
    # shows 500 s at the launch. The last window ends 5 s after it: 60 - 5 s are quiet.
    ranks = [make_rank(3), make_rank(3), make_rank(3, launched_s=500), make_rank(3, launched_s=500)]
    run_dir = write_run(tmp_path / "run", [launch_event(argv=["trainmark"])], *ranks)
    node_groups = (
        make_group("0-1", "collective", call="barrier"),
        make_group("2", "collective", call="barrier"),
    )
    for node, (groups, begun_s) in enumerate(
        [
            ([node_groups[0]], 0),
            ([node_groups[1], make_group("3", "elsewhere", call=None, where="a.py:5 f")], 500),
        ]
    ):
        stop_ns = (begun_s + 60 + node) * S
        stop = make_event("stop", stop_ns, reason="timeout", timeout_s=59.0, stacks=[], hang=groups)
        launch = launch_event(begun_s * S, node=node)
        end_event = make_event("ranks_ended", stop_ns, failures=[])
        write_events(run_dir / f"events.node{node}.jsonl", [launch, stop, end_event])
    failure = find_failure(read_run(run_dir, world_size=4, nodes=2), target=None)
    assert failure is not None
    assert [(item["ranks"], item["state"], item["call"]) for item in failure.hang] == [
        ("0-2", "collective", "barrier"),
        ("3", "elsewhere", None),
    ]
    args = failure.message.args
    assert (args["waiting"], args["missing"], args["quiet_s"]) == ("0-2", "3", 55.0)


def test_a_window_that_takes_long_is_not_a_hang(tmp_path: Path) -> None:
    """Windows of ten steps are reported every 10 s; the last one ended at 12 s.

    The next one may take half as long again, until 27 s.
    """
    long_window = make_window(2 * S, 12 * S, first_step=0, step_ns=[S] * 10, samples=[4] * 10)
    for stop_s, code in ((26, "timed_out_training"), (28, "timed_out")):
        stop = make_event("stop", stop_s * S, reason="timeout", timeout_s=25.0, stacks=[], hang=[])
        events = [make_event("start", S, pid=1), long_window]
        run_dir = write_run(tmp_path / f"run{stop_s}", [launch_event(), stop], events)
        failure = find_failure(read_run(run_dir, world_size=1), target=None)
        assert failure is not None
        assert failure.message.code == code
