"""Series that charts draw: exact, and reduced with extremes kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.fakes import GOLDEN, S, launch_event, make_event, rank_events, write_events, write_run
from support.telemetry_files import (
    GIB,
    TIMES_S,
    make_busy_device,
    make_device_lines,
    make_devices_line,
    make_end_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.events import series
from trainmark.record import reduce

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.events.series import SeriesLine


def read_series(folder: Path) -> list[SeriesLine]:
    """Return the series over time of a run's record, made from its events and telemetry."""
    return reduce.reduce(folder).series


def select_points(
    series: list[SeriesLine], quantity: str, subject: str, *, of_host: bool = False
) -> Any:
    """Return the points of the series of ``quantity`` for a device, by index, or for the host.

    A point is a pair: seconds after the launch, and the value.

    Args:
        series: all series of a run.
        quantity: such as "power_w".
        subject: the rank that uses the device, the number of the host, or one of the lines for many
            devices, such as "lowest".
        of_host: whether ``subject`` is a host; a host and a device may have the same quantity.
    """
    (matching_points,) = (
        x.points for x in series if (x.quantity, x.of, x.of_host) == (quantity, subject, of_host)
    )
    return matching_points


def test_devices_and_host_have_series_over_time(tmp_path: Path) -> None:
    # The host reports two values at 2 s and 4 s; ``GIB`` is a GiB in bytes.
    values = {"utilization_percent": 25.0, "memory_used_bytes": 8 * GIB}
    # ``make_start_line`` names the devices that are read, 0 and 1; the index 2:4 below is that of
    # the readings at 4 s and 6 s. Device 1 holds 10 + 1 GiB while it trains.
    lines = [
        make_start_line(0, 1),
        *make_device_lines(0, 1),
        *(make_host_line(t_s, **values) for t_s in (2.0, 4.0)),
        make_end_line(),
    ]
    series = read_series(write_sampled_run(tmp_path / "run", lines))
    # ``make_device_lines`` reads at ``TIMES_S``. The temperature starts at 50 degrees and rises by
    # one each second.
    assert select_points(series, "temperature_c", "1") == [(t_s, 50.0 + t_s) for t_s in TIMES_S]
    # The device holds 1 GiB until training begins at 6 s, then 11 GiB.
    assert select_points(series, "memory_used_bytes", "1")[2:4] == [(4.0, GIB), (6.0, 11 * GIB)]
    assert select_points(series, "utilization_percent", "0", of_host=True) == [
        (2.0, 25.0),
        (4.0, 25.0),
    ]
    # The host has series of the two quantities that were read, and no others.
    assert {(x.quantity, x.of) for x in series if x.of_host} == {
        ("utilization_percent", "0"),
        ("memory_used_bytes", "0"),
    }


def test_long_series_keep_their_extremes(tmp_path: Path) -> None:
    """A line of a chart has fewer points than were read, but the highest and lowest ones.

    1,200 readings, one each 10 ms, become at most 200 points (``MAX_LINE_POINTS``).
    ``make_busy_device`` is the reading of a device, ``write_sampled_run`` writes a run with these
    readings.

    The temperature is 50 degrees but for 99 at 3.33 s and 11 at 7.77 s, of device 0, the only one.
    """
    times = [number / 100 for number in range(1200)]
    lines = [
        make_devices_line(
            t_s,
            # A peak and a dip in an even series.
            make_busy_device(t_s, 0, temperature_c={3.33: 99.0, 7.77: 11.0}.get(t_s, 50.0)),
        )
        for t_s in times
    ]
    drawn = read_series(
        write_sampled_run(
            tmp_path / "run",
            [make_start_line(0), *lines, make_end_line()],
            ranks=make_ranks_with_devices(1),
        )
    )
    points = select_points(drawn, "temperature_c", "0")
    assert len(points) <= series.MAX_LINE_POINTS
    assert (3.33, 99.0) in points
    assert (7.77, 11.0) in points


def test_many_devices_share_one_series(tmp_path: Path) -> None:
    """Of more than eight devices, three lines are drawn in place of one for each.

    ``MAX_LINES`` is 8, so that there are nine devices; ``TIMES_S`` are the seconds of the readings.
    """
    world = series.MAX_LINES + 1
    lines = [
        make_devices_line(
            t_s,
            *(make_busy_device(t_s, index, temperature_c=40.0 + index) for index in range(world)),
        )
        for t_s in TIMES_S
    ]
    drawn = read_series(
        write_sampled_run(
            tmp_path / "run",
            [make_start_line(*range(world)), *lines, make_end_line()],
            ranks=make_ranks_with_devices(world),
        )
    )
    # Nine devices at 40 to 48 degrees.
    for subject, value in (("lowest", 40.0), ("median", 44.0), ("highest", 48.0)):
        points = select_points(drawn, "temperature_c", subject)
        assert [value_at_time for _, value_at_time in points] == [value] * len(TIMES_S)
        assert [t_s for t_s, _ in points] == list(TIMES_S)


def shift_event(event: dict[str, Any], by_s: float) -> dict[str, Any]:
    """Return an event with all times later by ``by_s``."""
    return {
        name: value + round(by_s * S) if name in ("t_ns", "start_ns", "end_ns") else value
        for name, value in event.items()
    }


def write_run_of_two_nodes(tmp_path: Path) -> Path:
    """Write a run of two nodes with a rank each; the clock of node 1 shows 1,000 s more."""
    # ``GOLDEN`` is the folder with a plan of a run on one node, ``rank_events`` the usual events of
    # a rank (1 s to 12 s), ``S`` a second in ns. Cards draw 100 W and 101 W by their node's number.
    folder = write_run(tmp_path / "run", [launch_event()])
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    plan |= {"nnodes": 2, "nproc": 1, "launcher": "slurm", "sample_every_s": 1.0}
    (folder / "plan.json").write_text(json.dumps(plan))
    for node in range(2):
        events_of_rank = rank_events()
        # Both ranks report ``synced`` at the same moment, by which their clocks are compared.
        events_of_rank.insert(2, make_event("synced", 3 * S, unix_ns=3 * S))
        for rank_event in events_of_rank:
            if rank_event["event"] == "window":  # a step has the samples of both ranks
                rank_event["step_samples"] = [2 * samples for samples in rank_event["samples"]]
        end_event = make_event("ranks_ended", 12 * S, failures=[])
        events_of_node = [launch_event(node=node), end_event, make_event("finished", 13 * S)]
        samples = [make_start_line(0), *make_device_lines(0, power_w=100.0 + node), make_end_line()]
        for file, events in (
            (f"events.rank{node}.jsonl", events_of_rank),
            (f"events.node{node}.jsonl", events_of_node),
            (f"telemetry.node{node}.jsonl", samples),
        ):
            write_events(folder / file, [shift_event(event, 1000 * node) for event in events])
    return folder


def test_series_of_several_machines_share_one_clock(tmp_path: Path) -> None:
    """Readings of node 1, whose clock shows 1,000 s more, have times of the first clock.

    In ``write_run_of_two_nodes`` the card of rank 0 draws 100 W and that of rank 1 draws 101 W at
    each of ``TIMES_S``, the seconds after the launch at which devices are read.
    """
    series = read_series(write_run_of_two_nodes(tmp_path))
    for rank in ("0", "1"):
        assert select_points(series, "power_w", rank) == [
            (t_s, 100.0 + int(rank)) for t_s in TIMES_S
        ]
