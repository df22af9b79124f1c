"""Points that a follower exports: names, numbers and values, however the files grow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import (
    EVALUATION,
    MEASURED_WINDOW,
    TICK,
    WARMUP_WINDOW,
    S,
    launch_event,
    make_event,
    rank_events,
    write_events,
    write_run,
)
from support.telemetry_files import (
    GIB,
    make_devices_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.export.followers.rank_reading import format_name
from trainmark.export.followers.reading import RunReader
from trainmark.plan.plan import read_plan
from trainmark.record import record, reduce

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.export.followers.points import Point

UNIX_NS = 1_000_000_000_000_000_000  # of the launch of ``fakes.launch_event``, whose clock is at 0


def read_points(run_dir: Path) -> list[Point]:
    """Return all points of a run that has ended.

    A point has the values of a step, an evaluation or a reading (the point's ``axis``), its
    ``number`` on this axis, and its time.
    """
    reader = RunReader(read_plan(run_dir), run_dir)
    return [point for points in reader.iterate_new() for point in points] + reader.take_rest()


def select_points(points: list[Point], axis: str) -> list[Point]:
    """Return the points on an axis, such as ``train/step``."""
    return [point for point in points if point.axis == axis]


def change_plan(run_dir: Path, **changes: Any) -> None:
    """Replace or add fields of the plan of a run."""
    path = run_dir / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_exported_steps_equal_those_of_the_record(tmp_path: Path) -> None:
    # ``WARMUP_WINDOW`` and ``MEASURED_WINDOW`` are the indexes of the windows of 2 and of 13 steps
    # in the events of a rank. ``S`` is a second in ns, ``TICK`` an eighth of it, the time of a
    # measured step. ``UNIX_NS`` is the time of the launch, at 0 s. Each step has 64 samples on each
    # of two ranks.
    ranks = make_ranks_with_devices(2)
    # 16 steps on each rank; rank 1 differs in a step's time and in 13 losses.
    ranks[1][WARMUP_WINDOW]["step_ns"] = [S // 4, S // 2]
    ranks[1][MEASURED_WINDOW]["loss"] = [0.5] * 13
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    steps = select_points(read_points(run_dir), "train/step")
    expected = reduce.reduce(run_dir).steps
    assert [step.number for step in steps] == list(range(1, 17))
    assert [step.values["train/loss"] for step in steps] == expected.loss
    times = [step.values["perf/step_time_seconds"] for step in steps]
    assert times == [time_ns / 1e9 for time_ns in expected.time_ns]
    assert steps[-1].values["train/samples"] == sum(expected.samples) == 16 * 64 * 2
    # A step ends when the slowest rank ends it, counted back from the end of its window. The
    # windows end at 7 s, 8 s and 13 ticks later.
    assert [steps[0].unix_ns, steps[1].unix_ns] == [UNIX_NS + 7 * S, UNIX_NS + 7 * S + S // 2]
    assert steps[-1].unix_ns == UNIX_NS + 8 * S + 13 * TICK


def test_values_of_a_window_are_at_its_last_step(tmp_path: Path) -> None:
    ranks = make_ranks_with_devices(2)
    # ``MEASURED_WINDOW`` is the index of the last window in the events of a rank.
    # A window of 13 steps of ``TICK``, 1/8 s, on each of two ranks: speeds are sums over the ranks,
    # or means of devices. Loss, samples and epoch are those of ``make_ranks_with_devices``.
    for rank in ranks:
        rank[MEASURED_WINDOW] |= {
            "tokens": 13_000,
            "model_flops": 13e9,
            "wait_ns": [TICK // 8] * 13,
        }
    ranks[1][MEASURED_WINDOW]["used_bytes"] = 3 * GIB
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    change_plan(run_dir, peak_tflops=0.032)  # of a device, for the MFU
    steps = select_points(read_points(run_dir), "train/step")
    # The windows have 1, 2 and 13 steps.
    assert [step.number for step in steps if "perf/tokens_per_second" in step.values] == [1, 3, 16]
    assert steps[-1].values == {
        "train/loss": 0.25,
        "train/samples": 2048.0,  # 16 steps of 64 samples on each rank
        "train/epoch": 0.25,  # 16 of the 64 steps of an epoch
        "perf/step_time_seconds": 0.125,
        "perf/samples_per_second": 1024.0,  # 2 x 64 in 0.125 s
        "perf/tokens_per_second": 16_000.0,  # 2 x 13,000 in 13 x 0.125 s
        "perf/tokens_per_second_per_device": 8_000.0,
        "perf/model_tflops_per_second_per_device": 0.008,  # 13e9 in 13 x 0.125 s
        "perf/mfu": 25.0,  # 0.008 of 0.032 TFLOP/s
        "perf/data_wait_percent": 12.5,  # an eighth of each step
        "memory/used_gib": 3.0,  # of the rank that uses most
    }


def test_memory_of_processes_is_added(tmp_path: Path) -> None:
    # ``MEASURED_WINDOW`` is the index of the last window in ``rank_events``, the events of a rank;
    # ``GIB`` is a GiB in bytes.
    # Ranks that report the memory of their process, not of a device.
    ranks = [rank_events(), rank_events()]
    ranks[0][MEASURED_WINDOW]["used_bytes"], ranks[1][MEASURED_WINDOW]["used_bytes"] = GIB, 2 * GIB
    # The last window says 1 GiB on one rank and 2 GiB on the other: 3 GiB in all, in the last
    # step's values.
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    assert select_points(read_points(run_dir), "train/step")[-1].values["memory/used_gib"] == 3.0


def test_unknown_values_have_no_series(tmp_path: Path) -> None:
    # ``MEASURED_WINDOW`` is the index of the last window in the events of a rank.
    ranks = make_ranks_with_devices(1)
    # No tokens (0: the case has none), FLOPs and memory.
    ranks[0][MEASURED_WINDOW] |= {"tokens": 0, "model_flops": None, "used_bytes": None}
    # ``read_points`` returns the points of the run, ``select_points`` those of steps; a point has
    # values by the name of the series. Without these three facts there are no series of tokens, of
    # FLOPs (with MFU) and of memory.
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    last = select_points(read_points(run_dir), "train/step")[-1]
    assert last.values.keys() == {
        "train/loss",
        "train/samples",
        "train/epoch",
        "perf/step_time_seconds",
        "perf/samples_per_second",
        "perf/data_wait_percent",
    }


def test_nan_loss_is_exported(tmp_path: Path) -> None:
    # ``MEASURED_WINDOW`` is the index of the last window, of 13 steps, in the events of a rank.
    ranks = make_ranks_with_devices(1)
    ranks[0][MEASURED_WINDOW]["loss"] = [0.25] * 12 + [None]  # events cannot hold NaN
    # ``read_points`` returns the points of the run, ``select_points`` those of steps. None stands
    # for a loss that is not a number.
    last = select_points(
        read_points(write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)), "train/step"
    )[-1]
    assert str(last.values["train/loss"]) == "nan"


def test_evaluations_have_the_case_metric_details_and_parts(tmp_path: Path) -> None:
    # ``EVALUATION`` is the index of the evaluation in the events of a rank: from 10 to 11 s, with
    # 1,000 samples and the accuracy 0.9375. ``UNIX_NS`` is the time of the launch, ``S`` a second
    # in ns.
    ranks = make_ranks_with_devices(2)
    for rank in ranks:
        rank[EVALUATION] |= {
            "detail": {"loss": 0.5, "F1 score": 0.75, "none": None},  # None has no series
            "parts": {"subject": {"law": 0.25}},
        }
    (point,) = select_points(
        read_points(write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)), "eval/step"
    )
    # After step 16, the last one; the evaluation ended at 11 s.
    assert (point.number, point.unix_ns) == (16, UNIX_NS + 11 * S)
    assert point.values == {
        "eval/acc": 0.9375,
        "eval/loss": 0.5,
        "eval/F1_score": 0.75,
        "eval/subject_law": 0.25,
        "eval/samples": 1000.0,
        "eval/time_seconds": 1.0,
    }


def test_quality_names_become_parts_of_series_names() -> None:
    """Other characters than ASCII letters, digits, dots, _ and - are replaced by _.

    None is left at an end. A name of which nothing remains is ``value``.
    """
    assert format_name("MMLU (5-shot) %") == "MMLU_5-shot"
    assert format_name("准确率") == "value"


def test_readings_have_standard_names(tmp_path: Path) -> None:
    card = {
        "index": 1,
        "power_w": 400.0,
        "temperature_c": 60.0,
        "utilization_percent": 90.0,
        "clock_mhz": 1500.0,
        "memory_used_bytes": 8 * GIB,
        "memory_total_bytes": 16 * GIB,
        "energy_j": 7.0,
        "throttle_reasons": ["too_hot"],
    }
    lines = [
        make_start_line(1),
        make_host_line(
            1.0, utilization_percent=50.0, memory_used_bytes=4 * GIB, power_w=900.0, energy_j=3.0
        ),
        make_devices_line(1.0, card, took_ns=2_000),
        make_devices_line(2.0, {"index": 1, "throttle_reasons": []}, {"index": 2, "power_w": 5.0}),
        make_event("fault", 3 * S, source="monitor", kind="hung", text="no answer"),  # no reading
        make_host_line(3.0, utilization_percent=25.0),
    ]
    # ``GIB`` is a GiB in bytes, ``S`` a second in ns, ``UNIX_NS`` the time of the launch. The first
    # argument of a reading is its time in seconds; ``read_points`` and ``select_points`` return the
    # readings of the host and of cards, each counted from 1.
    points = read_points(write_sampled_run(tmp_path / "run", lines))
    hosts = select_points(points, "sys/reading")
    # The host was read in seconds 1 and 3; the fault between them is no reading.
    assert [(point.number, point.unix_ns) for point in hosts] == [
        (1, UNIX_NS + S),
        (2, UNIX_NS + 3 * S),
    ]
    assert hosts[0].values == {
        "sys/cpu/utilization_percent": 50.0,
        "sys/memory/used_gib": 4.0,
        "sys/power_watts": 900.0,
        "sys/cpu/energy_joules": 3.0,
    }
    cards_read = select_points(points, "sys/gpu/reading")
    # A reading that took 2,000 ns is dated to its middle.
    assert cards_read[0].unix_ns == UNIX_NS + S - 1_000
    assert cards_read[0].values == {
        "sys/gpu1/power_watts": 400.0,
        "sys/gpu1/temperature_celsius": 60.0,
        "sys/gpu1/utilization_percent": 90.0,
        "sys/gpu1/clock_mhz": 1500.0,
        "sys/gpu1/memory_used_gib": 8.0,
        "sys/gpu1/memory_total_gib": 16.0,
        "sys/gpu1/energy_joules": 7.0,
        "sys/gpu1/throttled": 1.0,
    }
    assert cards_read[1].values == {"sys/gpu1/throttled": 0.0, "sys/gpu2/power_watts": 5.0}


def test_nodes_have_their_own_clocks_and_prefixes(tmp_path: Path) -> None:
    """Two nodes with a rank and a device each; ``S`` is a second in ns.

    ``UNIX_NS`` is the wall-clock time of a launch. A point has an axis, which names what was read,
    a time, and values by name. ``make_start_line(0)`` begins a telemetry file in which device 0 is
    read; ``make_devices_line(2.0, …)`` is a reading of it when the clock of its node shows 2 s.
    """
    launcher = [launch_event(9 * S, unix_ns=5 * S)]  # of another machine
    run_dir = write_run(tmp_path / "run", launcher, *make_ranks_with_devices(2))
    source = write_sampled_run(tmp_path / "other", telemetry=None)
    (run_dir / "plan.json").write_bytes((source / "plan.json").read_bytes())
    change_plan(run_dir, nnodes=2, nproc=1, launcher="slurm")
    # Both nodes' own clocks show 1 s at the launch, but node 1 began a second later. So a reading
    # at 2 s is a second after its node's launch.
    for node in range(2):
        begin = launch_event(S, node=node, unix_ns=UNIX_NS + node * S)
        write_events(run_dir / f"events.node{node}.jsonl", [begin])
        lines = [make_start_line(0), make_devices_line(2.0, {"index": 0, "power_w": 100.0 + node})]
        write_events(run_dir / f"telemetry.node{node}.jsonl", lines)
    reader = RunReader(read_plan(run_dir), run_dir)
    points = [point for part in reader.iterate_new() for point in part]
    assert [
        (point.axis, point.unix_ns, point.values) for point in points if "gpu" in point.axis
    ] == [
        ("sys/node0/gpu/reading", UNIX_NS + S, {"sys/node0/gpu0/power_watts": 100.0}),
        ("sys/node1/gpu/reading", UNIX_NS + 2 * S, {"sys/node1/gpu0/power_watts": 101.0}),
    ]
    # By the first node's clock: the first step ends at 7 s, 6 s after the launch.
    assert select_points(points, "train/step")[0].unix_ns == UNIX_NS + 6 * S
    assert reader.waits_for_nodes  # as neither node has finished
    for node in range(2):
        path = run_dir / f"events.node{node}.jsonl"
        path.write_text(path.read_text() + json.dumps(make_event("finished", 13 * S)) + "\n")
    assert list(reader.iterate_new()) == []
    assert not reader.waits_for_nodes


def test_steps_have_the_time_of_the_lowest_rank(tmp_path: Path) -> None:
    """``UNIX_NS`` is the wall-clock time of the launch in ns, and ``S`` a second in ns.

    ``ranks`` has the events of ranks 0 and 1, each of which goes to its file
    ``events.rankN.jsonl``. A ``window`` is an event about several steps; ``end_ns`` is when they
    ended.
    """
    ranks = make_ranks_with_devices(2)
    # The machine of rank 1 has another clock: its windows end 100 s later.
    for event in ranks[1]:
        if event["event"] == "window":
            event["end_ns"] += 100 * S
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    write_events(run_dir / "events.rank0.jsonl", [])  # rank 1 is read first
    reader = RunReader(read_plan(run_dir), run_dir)
    assert list(reader.iterate_new()) == []  # a step is exported once both ranks reported it
    write_events(run_dir / "events.rank0.jsonl", ranks[0])
    (points,) = reader.iterate_new()
    # The first step of rank 0 ends 7 s after the launch; of rank 1 it would be 107 s.
    assert select_points(points, "train/step")[0].unix_ns == UNIX_NS + 7 * S


def test_points_do_not_depend_on_how_files_grow(tmp_path: Path) -> None:
    """``read_points`` reads a whole run; here its files grow while they are read.

    The telemetry has readings of device 0 at 1, 2 and 3 s. Each call of ``iterate_new`` yields the
    points that are complete since the last one; ``take_rest`` returns those that are not when the
    run ends. A point has an axis, such as ``train/step``, and its number on this axis.
    """
    lines = [
        make_start_line(0),
        *(make_devices_line(t, {"index": 0, "power_w": t}) for t in (1.0, 2.0, 3.0)),
    ]
    whole_run = write_sampled_run(tmp_path / "whole", lines)
    expected = read_points(whole_run)
    growing = tmp_path / "growing"
    growing.mkdir()
    (growing / "plan.json").write_bytes((whole_run / "plan.json").read_bytes())
    reader = RunReader(read_plan(growing), growing)
    names = ("events.launcher.jsonl", "events.rank0.jsonl", "events.rank1.jsonl", "telemetry.jsonl")
    texts = {name: (whole_run / name).read_bytes() for name in names}
    points: list[Point] = []
    # All files grow in steps of 300 bytes, which cut lines anywhere.
    for end in range(0, max(map(len, texts.values())) + 300, 300):
        for name, text in texts.items():
            (growing / name).write_bytes(text[:end])
        points += [point for part in reader.iterate_new() for point in part]
    assert reader.take_rest() == []  # all points were complete

    for axis in ("train/step", "eval/step", "sys/gpu/reading"):
        assert select_points(points, axis) == select_points(expected, axis) != []
        numbers = [point.number for point in select_points(points, axis)]
        assert numbers == sorted(set(numbers))  # in order, none twice


def test_step_is_exported_once_the_slowest_rank_reported_it(tmp_path: Path) -> None:
    """Each rank trains 16 steps: 3 of warm-up, and 13 in its last window, with a loss of 0.25.

    ``MEASURED_WINDOW`` is the index of that last window in the events of a rank.
    """
    ranks = make_ranks_with_devices(2)
    ranks[1] = ranks[1][:MEASURED_WINDOW]  # it stopped after the warm-up
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None, ranks=ranks)
    reader = RunReader(read_plan(run_dir), run_dir)
    complete = [point for part in reader.iterate_new() for point in part]
    assert [point.number for point in select_points(complete, "train/step")] == [1, 2, 3]
    # At the end of the run, steps that only the other rank reported follow.
    remaining_points = reader.take_rest()
    # Steps 4 to 16 are the 13 of the last window.
    assert [point.number for point in remaining_points] == list(range(4, 17))
    assert [point.values["train/loss"] for point in remaining_points] == [0.25] * 13
    expected = reduce.reduce(run_dir).steps
    assert [point.values["train/loss"] for point in remaining_points] == expected.loss[3:]


def test_steps_of_a_resumed_training_continue(tmp_path: Path) -> None:
    """A training of 100 steps, an epoch of 64 and 36 more, is resumed by a run of 16 steps."""
    progress = {"steps": 100, "epoch": 1, "steps_of_epoch": 36, "samples": 6_400}
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None)
    resumed = {"runs": ["a"], "checkpoint": "step-100", "progress": progress}
    change_plan(run_dir, resumed=resumed)
    points = read_points(run_dir)
    first, last = select_points(points, "train/step")[0], select_points(points, "train/step")[-1]
    # Two ranks with 64 samples each take 128 a step; before were 100 steps of 64 samples.
    assert (first.number, first.values["train/samples"]) == (101, 6_400 + 128)
    # The run takes 16 steps more; an epoch has 64 steps, as the events of the ranks say.
    assert (last.number, last.values["train/epoch"]) == (116, 116 / 64)
    assert select_points(points, "eval/step")[0].number == 116


def test_result_has_the_known_figures_under_the_names_of_csv_columns(tmp_path: Path) -> None:
    """``UNIX_NS`` is the wall-clock time of the launch in ns, and ``S`` a second in ns.

    Of the figures of a record, those without a value are left out of the exported result.
    """
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None)
    reader = RunReader(read_plan(run_dir), run_dir)
    list(reader.iterate_new())  # the result is numbered by the last step that was read
    assert reader.read_result() is None  # there is no record yet
    built = reduce.reduce(run_dir)
    record.write_record(built, run_dir)
    result = reader.read_result()
    assert result is not None
    assert (result.status, result.trust, result.num_steps) == (built.status, built.trust.grade, 16)
    assert result.unix_ns == UNIX_NS + 12 * S  # the end of the run: its last event is at 12 s
    assert result.figures["final/p_core_samples_per_s"] == built.figure("p_core")
    figures_with_value = [name for name, entry in built.figures.items() if entry.value is not None]
    assert len(result.figures) == len(figures_with_value) < len(built.figures)


def test_exported_settings_contain_no_folder(tmp_path: Path) -> None:
    """The settings of a run come from its plan; a folder there would name its user.

    The plan is that of the golden run of the case toy: fp32, 64 samples a micro-batch.
    ``change_plan`` replaces fields of it. ``UNIX_NS`` is the wall-clock time of its launch in ns.
    """
    run_dir = write_sampled_run(tmp_path / "run", telemetry=None)
    plan = json.loads((run_dir / "plan.json").read_text())
    change_plan(run_dir, recipe=plan["recipe"] | {"model_folder": "/home/someone/model"})
    reader = RunReader(read_plan(run_dir), run_dir)
    list(reader.iterate_new())  # the start is known from the launch event
    described = reader.describe_run()
    assert described.started_unix_ns == UNIX_NS
    assert described.settings["precision"] == "fp32"
    assert described.settings["micro_batch_size"] == 64
    assert "model_folder" not in described.settings
    assert "/" not in "".join(map(str, described.settings.values()))


@pytest.mark.parametrize("file_name", ["events.rank0.jsonl", "telemetry.jsonl"])
def test_lines_that_are_not_events_are_skipped(tmp_path: Path, file_name: str) -> None:
    """Bad lines in the file of a rank, or of the telemetry, change no exported point.

    ``read_points`` returns all points of a run. The telemetry reads device 0 once, at 1 s.
    """
    lines = [make_start_line(0), make_devices_line(1.0, {"index": 0, "power_w": 1.0})]
    run_dir = write_sampled_run(tmp_path / "run", lines)
    expected = read_points(run_dir)
    path = run_dir / file_name
    # Neither JSON, nor a known event, nor complete.
    path.write_bytes(b'not json\n{"event":"unknown","t_ns":1}\n' + path.read_bytes() + b'{"event"')
    assert read_points(run_dir) == expected
