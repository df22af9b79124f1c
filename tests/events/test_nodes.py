"""Clocks of nodes, and their events as those of one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.fakes import S, launch_event, make_event, rank_events, write_events, write_run
from trainmark.events.schema import FailedRank, RanksEnded
from trainmark.events.timeline import read_run
from trainmark.record.cause import find_failure
from trainmark.spec import message
from trainmark.telemetry.summary import find_intervals

if TYPE_CHECKING:
    from pathlib import Path

UNIX = 1_000_000_000_000_000_000


def make_rank(offset_ns: int, skew_ns: int = 0, *, synced: bool = True) -> list[dict[str, Any]]:
    """Return a rank's events on a clock that shows ``offset_ns`` more.

    ``rank_events`` are those of a rank that starts at 1 s and ends at 12 s; ``S`` is a second in
    ns. ``UNIX`` is the wall clock's time when the run is launched, at 0 s: a round number.

    Args:
        skew_ns: how much the node's wall clock is ahead.
        synced: whether there is the event that all ranks emit at the same moment.
    """
    events = rank_events()
    if synced:  # after the rank's start at 1 s and its first span, which ends at 3 s
        events.insert(2, make_event("synced", 3 * S, unix_ns=UNIX + 3 * S + skew_ns))
    moved = []
    for entry in events:
        times = {
            key: entry[key] + offset_ns for key in ("t_ns", "start_ns", "end_ns") if key in entry
        }
        moved.append(entry | times)
    return moved


def make_node_events(
    number: int, *more: dict[str, Any], offset_ns: int = 0, skew_ns: int = 0
) -> list[Any]:
    """Return the events of a node: its launch, ``more`` events, and its end.

    ``UNIX`` is the wall clock's time at the launch, a round number; ``S`` is a second in ns.

    Args:
        offset_ns: how much more the node's monotonic clock shows.
        skew_ns: how much the node's wall clock is ahead.
    """
    launch = launch_event(
        offset_ns, node=number, unix_ns=UNIX + skew_ns, environment={"cpu": f"CPU {number}"}
    )
    return [launch, *more, make_event("finished", 13 * S + offset_ns)]


def make_exit(t_ns: int, **fields: Any) -> dict[str, Any]:
    """Return the event by which a node reports that its ranks have ended, without a failure.

    ``fields`` replace or add fields of the event.
    """
    return make_event("ranks_ended", t_ns, **{"failures": []} | fields)


def test_node_times_are_converted_to_the_clock_of_the_first_node(tmp_path: Path) -> None:
    """Clocks are compared at the event that all ranks emit at the same moment, at 3 s.

    ``S`` is a second in ns. ``make_rank`` and ``make_node_events`` return the usual events of a
    rank (start 1 s, end 12 s) and of a node on a clock that shows ``offset`` more. ``make_exit``:
    the node's ranks have ended.
    """
    offset, skew = 5_000 * S, 7 * S  # a clock of another machine, its wall clock 7 s ahead
    # The run was submitted from a third machine, whose clock shows 99 s at the launch.
    run = write_run(tmp_path / "run", [launch_event(99 * S)], make_rank(0), make_rank(offset, skew))
    write_events(run / "events.node0.jsonl", make_node_events(0, make_exit(12 * S)))
    write_events(
        run / "events.node1.jsonl",
        make_node_events(1, make_exit(12 * S + offset), offset_ns=offset, skew_ns=skew),
    )
    timeline = read_run(run, world_size=2, nodes=2)
    assert [node.shift_ns for node in timeline.nodes] == [0, -offset]
    # The same run on one clock has the same times.
    single_node = read_run(write_run(tmp_path / "one", [launch_event(0)], rank_events()), 1)
    for rank in timeline.ranks:
        assert rank.wall_ns == single_node.ranks[0].wall_ns
        assert rank.spans_ns == single_node.ranks[0].spans_ns
    assert find_intervals(timeline)["to_target"] == find_intervals(single_node)["to_target"]
    assert timeline.launch_ns == 0  # of the first node, not of the submitting machine
    assert timeline.launcher.launch.environment["cpu"] == "CPU 0"
    assert timeline.launcher.ranks_ended.failures == []


def test_launch_is_that_of_the_node_that_began_first(tmp_path: Path) -> None:
    """Node 0 begins 60 s after node 1; ``make_rank`` and both files of events are on one clock.

    ``S`` is a second in ns. ``UNIX`` is the wall time at 0 s of that clock.
    """
    delay = 60 * S
    run = write_run(tmp_path / "run", [launch_event()], make_rank(delay), make_rank(delay))
    for number, start_ns in ((0, delay), (1, 0)):
        launch = launch_event(start_ns, node=number, unix_ns=UNIX + start_ns)
        write_events(run / f"events.node{number}.jsonl", [launch])
    timeline = read_run(run, world_size=2, nodes=2)
    launch = timeline.launcher.launch
    assert (timeline.launch_ns, launch.unix_ns) == (0, UNIX)
    # Ranks start at 1 s and end at 12 s after ``delay``: none has a part of negative length.
    for rank in timeline.ranks:
        assert rank.wall_ns == delay + 12 * S
        assert min(rank.spans_ns.values()) >= 0


def test_without_a_shared_event_wall_clocks_are_used(tmp_path: Path) -> None:
    """Without the event of all ranks, clocks are compared by the wall time of the launch.

    ``UNIX`` is the wall time at which node 0 was launched, at 0 s of its clock; ``S`` is a second
    in ns. ``make_rank`` returns the events of a rank on a clock that shows ``offset`` more.
    """
    offset = 5_000 * S
    run = write_run(
        tmp_path / "run",
        [launch_event()],
        make_rank(0, synced=False),
        make_rank(offset, synced=False),
    )
    write_events(run / "events.node0.jsonl", make_node_events(0))
    # Node 1 began 2 s later by its wall clock, and its events end there.
    late = [launch_event(offset + 2 * S, node=1, unix_ns=UNIX + 2 * S)]
    write_events(run / "events.node1.jsonl", late)
    timeline = read_run(run, world_size=2, nodes=2)
    # Node 1 shows ``offset`` + 2 s when the wall clock shows 2 s more: its clock is ``offset``
    # ahead, which is subtracted.
    assert [node.shift_ns for node in timeline.nodes] == [0, -offset]
    assert [node.finished for node in timeline.nodes] == [True, False]


def test_failures_of_all_nodes_belong_to_the_launch(tmp_path: Path) -> None:
    # ``S`` is a second in ns. ``make_exit`` is the event by which a node reports that its ranks
    # have ended, ``make_node_events`` that of its launch, these events, and that of its end.
    # ``others_cpu_share``: the share of the processor that other programs took meanwhile.
    run = write_run(tmp_path / "run", [launch_event()], make_rank(0), make_rank(0))
    failure = {"rank": 1, "exit_code": -9, "t_ns": 10 * S}
    signal_stop = make_event("stop", 9 * S, reason="signal", signal="SIGTERM")
    timeout_stop = make_event(
        "stop", 10 * S, reason="timeout", timeout_s=9.0, stacks=["stacks.rank1.txt"]
    )
    write_events(run / "events.node0.jsonl", make_node_events(0, signal_stop, make_exit(12 * S)))
    end_event = make_exit(11 * S, failures=[failure], others_cpu_share=0.25)
    write_events(
        run / "events.node1.jsonl",
        make_node_events(1, timeout_stop, end_event, make_event("oom_kills", S, count=2)),
    )
    launcher = read_run(run, world_size=2, nodes=2).launcher
    # At the end of the last node's ranks, with the failure that only node 1 reports.
    assert launcher.ranks_ended == RanksEnded(
        t_ns=12 * S, failures=[FailedRank(**failure)], others_cpu_share=0.25
    )
    # A stop for a reason of the run is preferred to a signal, which may be its consequence.
    assert (launcher.stop.reason, launcher.stop.node) == ("timeout", 1)
    assert launcher.stop.stacks == ["stacks.rank1.txt"]
    assert launcher.oom_kills == 2
    write_events(run / "events.node1.jsonl", make_node_events(1, end_event))
    # Without the timeout: the signal of node 0 is a consequence of the failure on node 1.
    assert read_run(run, world_size=2, nodes=2).launcher.stop is None
    write_events(run / "events.node1.jsonl", make_node_events(1, make_exit(11 * S)))
    # Without a failure, the signal is what ended the run.
    assert read_run(run, world_size=2, nodes=2).launcher.stop.reason == "signal"


def test_node_with_lost_events_is_named_and_shifts_no_clock(tmp_path: Path) -> None:
    offset = 5_000 * S  # of the second node; the clock of the launcher differs from both
    # Only node 1 has a file of events.
    # ``S`` is a second in ns. ``make_rank`` returns the events of a rank (start 1 s, end 12 s) and
    # ``make_node_events`` those of a node, on a clock that shows ``offset`` more; ``make_exit`` is
    # the end of the node's ranks. The launcher's clock shows 10 ** 18 ns more.
    run = write_run(tmp_path / "run", [launch_event(10**18)], make_rank(0), make_rank(offset))
    write_events(
        run / "events.node1.jsonl",
        make_node_events(1, make_exit(12 * S + offset), offset_ns=offset),
    )
    timeline = read_run(run, world_size=2, nodes=2)
    # Node 1 was launched at ``offset`` of its clock, which is 0 of node 0's.
    assert timeline.launch_ns == 0
    failure = find_failure(timeline, target=None)
    assert failure is not None
    assert failure.kind == "events_incomplete"
    assert failure.message == message("node_events_lost", nodes="0")
    # Without any node's events, the launch begins with the first rank.
    (run / "events.node1.jsonl").unlink()
    timeline = read_run(run, world_size=2, nodes=2)
    assert timeline.launch_ns == min(rank.start_ns or 0 for rank in timeline.ranks) > 0


def test_stop_of_the_launcher_is_not_compared_across_clocks(tmp_path: Path) -> None:
    # The launcher stopped a run none of whose nodes wrote an event; its clock shows 10 ** 18 more.
    # ``S`` is a second in ns. ``rank_events`` are the usual events of a rank; the last one is its
    # end.
    stop = make_event("stop", 10**18 + 9 * S, reason="timeout", timeout_s=9.0, stacks=[])
    unfinished = rank_events()[:-1]  # without its end
    run = write_run(tmp_path / "run", [launch_event(10**18), stop], unfinished, unfinished)
    timeline = read_run(run, world_size=2, nodes=2)
    # The launcher's time cannot be placed on the nodes' clocks: the stop is moved to the launch.
    assert timeline.launcher.stop.t_ns == timeline.launch_ns
    # When the nodes saw the end is not known, so no time is added to that of the ranks' events.
    # ``unfinished_ns`` is the time from a rank's last event until its end was seen.
    assert [rank.unfinished_ns for rank in timeline.ranks] == [0, 0]
