"""Files of samples, written by hand, into numbers; and any bytes into a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import TICK, S, measure, rank_events
from support.telemetry_files import (
    GIB,
    MONITOR,
    TIMES_S,
    make_device_lines,
    make_end_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.events.timeline import read_run
from trainmark.record import figures as figures_of
from trainmark.spec import Figure, message
from trainmark.telemetry import summary as telemetry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.telemetry.summary import Telemetry

# The training lasts from 6 s to 9.625 s; each moment counts with its nearest reading.
WEIGHTS_S = {6.0: 0.5, 7.0: 1.0, 8.0: 1.0, 9.0: 0.8125, 9.625: 0.3125}


def summarize_run(
    tmp_path: Path,
    lines: Sequence[dict[str, Any]] | bytes,
    *,
    ranks: Any = None,
    on_processor: bool = False,
) -> tuple[Telemetry, dict[str, Figure]]:
    """Return the summary of a run with these samples, and the run's figures.

    Args:
        lines: of the telemetry file.
        ranks: events of each rank; None: two ranks with a device each.
        on_processor: the run has one rank, on the processor; ``ranks`` is not used.
    """
    ranks = [rank_events()] if on_processor else ranks or make_ranks_with_devices()
    run_dir = write_sampled_run(tmp_path / "run", lines, ranks=ranks)
    timeline = read_run(run_dir, len(ranks))
    summary = telemetry.summarize_samples(telemetry.read_samples(run_dir, timeline), timeline)
    device = "cpu" if on_processor else "cuda"
    # Of the 16 steps of ``rank_events``, which are the usual events of a rank, 3 are warm-up.
    figures = figures_of.compute_figures(
        measure(timeline, telemetry=summary, device=device, warmup_steps=3)
    )
    return summary, figures


def read_values(figures: dict[str, Figure], *names: str) -> list[float | None]:
    """Return the values of the figures with these names; None: the figure is not known."""
    return [figures[name].value for name in names]


def list_codes(figures: dict[str, Figure], *names: str) -> list[str | None]:
    """Return the code of each figure's reason for having no value; None: it has a value."""
    reasons = [figures[name].reason for name in names]
    return [reason and reason.code for reason in reasons]


def test_readings_of_two_devices_give_an_exact_summary(tmp_path: Path) -> None:
    """Each device is idle until training begins at 6 s: 1 GiB of memory, 100 W.

    From then on it draws 400 W, and the device of rank 0, which is checked, uses 14 GiB. The
    training ends at 9.625 s, the evaluation that reaches the target at 11 s, the run at 12 s.
    Readings in the training are at 6, 7, 8, 9 and 9.625 s; ``WEIGHTS_S`` has the seconds of the
    training for which each counts: from halfway to the one before to halfway to the one after it.
    """
    # The monitor names the device of rank 0 by index 4, that of rank 1 by index 2.
    summary, _ = summarize_run(
        tmp_path, [make_start_line(4, 2), *make_device_lines(2, 4), make_end_line()]
    )
    assert summary.intervals_s == {
        "run": (0.0, 12.0),
        "train": (6.0, 9.625),
        "to_target": (6.0, 11.0),
        "measured": (8.0, 9.625),
    }
    assert [(device.ranks, device.index) for device in summary.devices] == [([0], 4), ([1], 2)]
    first = summary.devices[0]
    train = first.over["train"]
    memory, clock = train.quantities["memory_used_bytes"], train.quantities["clock_mhz"]
    assert (train.readings, memory.readings, memory.longest_gap_s) == (5, 5, 1.0)
    assert (memory.mean, memory.highest) == (14.0 * GIB, 14.0 * GIB)
    # The clock was lower in the readings at 9 s and at 9.625 s.
    slow_s = WEIGHTS_S[9.0] + WEIGHTS_S[9.625]  # seconds for which these readings count
    assert clock.mean == pytest.approx((1500 * (3.625 - slow_s) + 1200 * slow_s) / 3.625)
    assert (clock.lowest, clock.highest) == (1200.0, 1500.0)
    # Over the whole run idle readings count: up to 5 s, halfway between 4 and 6.
    whole_run = first.over["run"].quantities
    assert whole_run["power_w"].mean == pytest.approx((100 * 5 + 400 * 7) / 12)
    assert (whole_run["power_w"].lowest, whole_run["power_w"].highest) == (100.0, 400.0)
    assert whole_run["memory_used_bytes"].mean == pytest.approx((1 * 5 + 14 * 7) * GIB / 12)
    # Of ``run``, ``train`` and ``measured``: the seconds 0 to 12, 6 to 9.625 and 8 to 9.625.
    # Throttled at 9 s: the reading stands for the time from 8.5 s to 9.3125 s, which is halfway to
    # those before and after it.
    assert train.throttled == {"power_cap": pytest.approx(0.8125 / 3.625)}
    assert first.over["measured"].throttled == {"power_cap": pytest.approx(0.8125 / 1.625)}
    assert train.energy.joules == 400.0 * 3.625
    assert first.over["run"].energy.joules == 100.0 * 6 + 400.0 * 6
    assert (summary.monitor, summary.interval_s, summary.host_sources) == (MONITOR, 1.0, ["psutil"])


def test_readings_of_two_devices_give_exact_figures(tmp_path: Path) -> None:
    """Each device draws 400 W from 6 s, when training begins; it ends after 3.625 s.

    The target is reached 5 s after training began. ``make_busy_device`` has all readings: while it
    trains, a device is used to 90% and to 14 GiB (index 4) or 12 GiB (index 2), and each second is
    1 degree warmer. ``MONITOR`` is the name of the monitor.
    """
    _, figures = summarize_run(
        tmp_path, [make_start_line(4, 2), *make_device_lines(2, 4), make_end_line()]
    )
    # The temperature is the highest: 50 degrees and one for each second, at 9.625 s.
    assert read_values(figures, "utilization", "power", "temperature") == [90.0, 400.0, 59.625]
    # Readings of the training are those of 6, 7, 8, 9 and 9.625 s.
    assert figures["power"].note == message("over_devices", devices=2, readings=5)
    samples = 2 * 1024  # two ranks train 1,024 each
    assert read_values(figures, "energy_per_sample", "energy_to_target") == [
        2 * 400 * 3.625 / samples,
        2 * 400 * 5.0,
    ]
    assert figures["energy_per_sample"].note == message(
        "energy_of_devices", devices=2, monitor=MONITOR, between_s=0.0
    )
    assert not [name for name in figures if name.startswith("estimated")]
    assert (figures["mem"].value, figures["mem"].note) == (
        14.0 * GIB,
        message("device_memory_by_monitor"),
    )


def test_energy_is_interpolated_at_interval_edges(tmp_path: Path) -> None:
    # At 0 s, at 5.9375 s, and then each eighth of a second from 6.125 s on (``TICK / S``: 0.125 s).
    times = [0.0, 5.9375, *(6.0 + TICK / S * number for number in range(1, 60))]
    summary, figures = summarize_run(
        tmp_path,
        [make_start_line(0), *make_device_lines(0, times_s=times)],
        ranks=make_ranks_with_devices(1),
    )
    # The power is 100 W until the training begins at 6 s, then 400 W until it ends 3.625 s later.
    # The energy counter is read at 5.9375 s and at 6.125 s. Between these readings it grows by
    # 6.25 J + 50 J, which are spread evenly over the 0.1875 s. The third of it that falls before
    # 6 s (``before``) is not the energy of the training.
    before = (6.25 + 50) * (0.0625 / 0.1875)
    energy = summary.devices[0].over["train"].energy
    assert energy.joules == pytest.approx(6.25 + 400 * 3.625 - before)
    assert (energy.between_s, energy.reason) == (0.1875, None)
    note = figures["energy_per_sample"].note
    assert note is not None
    assert note.args["between_s"] == 0.1875


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"energy_j": None}, "counter_untold"),
        ({"energy_j": 7.0}, "counter_wrong"),  # it stands still although power is drawn
    ],
)
def test_energy_without_a_counter_is_estimated_under_another_name(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    lines = [
        make_start_line(0, 1),
        # A reading each 0.25 s of the run, which ends at 12 s.
        *make_device_lines(0, 1, times_s=[0.25 * number for number in range(48)], **changed),
    ]
    _, figures = summarize_run(tmp_path, lines)
    assert read_values(figures, "energy_per_sample", "energy_to_target") == [None, None]
    assert list_codes(figures, "energy_per_sample", "energy_to_target") == [reason, reason]
    # Two devices of 400 W, 3.625 s of training 2,048 samples, and 5 s to the target.
    assert read_values(figures, "estimated_energy_per_sample", "estimated_energy_to_target") == [
        pytest.approx(2 * 400 * 3.625 / 2048),
        pytest.approx(2 * 400 * 5.0),
    ]
    assert figures["estimated_energy_to_target"].note == message(
        "estimated_of_devices", devices=2, monitor=MONITOR, gap_s=0.25
    )


def test_unreported_values_are_none_with_a_reason(tmp_path: Path) -> None:
    lines = [
        make_start_line(0),
        *make_device_lines(0, utilization_percent=None, throttle_reasons=None),
    ]
    # A run of one rank, whose device does not report its use and why it is throttled.
    summary, figures = summarize_run(tmp_path, lines, ranks=make_ranks_with_devices(1))
    assert summary.devices[0].over["train"].throttled is None
    assert figures["utilization"] == Figure(
        None, message("quantity_untold", quantity="utilization_percent")
    )
    # What is reported, such as the 400 W during the training, is not affected.
    assert read_values(figures, "power") == [400.0]


def test_ranks_that_share_a_device_count_its_energy_once(tmp_path: Path) -> None:
    # Both ranks are on device 3: 400 W for the 5 s from the begin of training to the target.
    # Counted for each rank it would be twice as much.
    summary, figures = summarize_run(tmp_path, [make_start_line(3, 3), *make_device_lines(3)])
    assert [device.ranks for device in summary.devices] == [[0, 1]]
    assert read_values(figures, "energy_to_target") == [400 * 5.0]


def test_on_a_cpu_the_packages_count_as_the_device(tmp_path: Path) -> None:
    # ``psutil``: use of CPU and memory; ``rapl``: energy of the processors' packages, here 50 W;
    # ``ipmi``: power of the whole machine, 300 W. ``TIMES_S``: from 0 to 12 s, at each edge of the
    # run's intervals. The training lasts from 6 to 9.625 s.
    sources = ["psutil", "rapl", "ipmi"]
    lines = [
        make_start_line(monitor=None, host_sources=sources),
        *(
            make_host_line(
                time_s,
                utilization_percent=8 * time_s,
                memory_used_bytes=GIB,
                energy_j=50 * time_s,
                power_w=300.0,
            )
            for time_s in TIMES_S
        ),
    ]
    summary, figures = summarize_run(tmp_path, [*lines, make_end_line()], on_processor=True)
    cpu = summary.hosts[0]["train"].quantities["utilization_percent"]
    # ``WEIGHTS_S``: by the time of a reading, the seconds of the training for which it counts.
    expected = sum(8 * t * weight for t, weight in WEIGHTS_S.items()) / 3.625
    # The highest reading is that of 9.625 s: 8 x 9.625.
    assert (cpu.mean, cpu.highest) == (pytest.approx(expected), 77.0)
    # 3.625 s of training 1,024 samples, and 5 s to the target.
    assert read_values(figures, "energy_per_sample", "energy_to_target") == [
        pytest.approx(50 * 3.625 / 1024),
        pytest.approx(50 * 5.0),
    ]
    # 50 W of the packages, not the 300 W of the whole machine.
    assert figures["energy_to_target"].note == message("energy_of_packages", between_s=0.0)
    assert list_codes(figures, "utilization", "power") == ["devices_unmonitored"] * 2
    assert figures["mem"].note == message("resident_memory_sum")
