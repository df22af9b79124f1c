"""Series from a run's own files: exact, reduced with extremes kept, and safe on hostile files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fakes import GOLDEN, S, event, launch_event, rank_events, write_events, write_run
from telemetry_files import (
    GIB,
    TIMES_S,
    busy,
    cards,
    devices,
    end,
    host,
    readings,
    sampled_run,
    start,
)
from trainmark.pages import evidence
from trainmark.pages.evidence import STRETCHES, read, step_times
from trainmark.record import building
from trainmark.record.evidence import evidence as digests
from trainmark.spec import message

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.pages.evidence import Seen
    from trainmark.record.record import Record


def seen(folder: Path) -> tuple[Seen, Record]:
    record = building.build(folder)
    found = read(folder, record)
    assert found is not None
    return found, record


def line(found: Seen, quantity: str, of: str, *, of_host: bool = False) -> tuple[Any, ...]:
    (one,) = (
        x.points for x in found.lines if (x.quantity, x.of, x.of_host) == (quantity, of, of_host)
    )
    return one


def ns(*times: int) -> np.ndarray:
    return np.array(times, np.int64)


def test_devices_and_host_over_time(tmp_path: Path) -> None:
    told = {"cpu_percent": 25.0, "memory_used_bytes": 8 * GIB}
    lines = [start(0, 1), *readings(0, 1), *(host(t_s, **told) for t_s in (2.0, 4.0)), end()]
    found, _ = seen(sampled_run(tmp_path / "run", lines))
    assert line(found, "temperature_c", "1") == tuple((t_s, 50.0 + t_s) for t_s in TIMES_S)
    assert line(found, "memory_used_bytes", "1")[2:4] == ((4.0, GIB), (6.0, 11 * GIB))
    assert line(found, "utilization_percent", "0", of_host=True) == ((2.0, 25.0), (4.0, 25.0))
    assert {(x.quantity, x.of) for x in found.lines if x.of_host} == {
        ("utilization_percent", "0"), ("memory_used_bytes", "0"),
    }  # fmt: skip
    power = next(x for x in found.told if (x.quantity, x.of) == ("power_w", "0"))
    assert (power.readings, power.lowest, power.highest, power.highest_s) == (11, 100.0, 400.0, 6.0)
    assert found.no_samples == found.no_steps == ()


def test_only_clocks_lowered_beyond_set_limits_are_marked(tmp_path: Path) -> None:
    hot = [devices(9.0, busy(9.0, 0, throttle_reasons=["power_cap", "thermal"]))]
    lines = [start(0), *readings(0, times_s=(8.0,)), *hot, *readings(0, times_s=(9.625,)), end()]
    found, _ = seen(sampled_run(tmp_path / "run", lines, ranks=cards(1)))
    power = next(x for x in found.told if x.quantity == "power_w")
    assert (power.lowered, power.lowered_readings) == (((9.0, 400.0, "thermal"),), 1)


def test_long_series_keep_their_extremes(tmp_path: Path) -> None:
    times = [n / 100 for n in range(1200)]
    lines = [
        devices(t_s, busy(t_s, 0, temperature_c={3.33: 99.0, 7.77: 11.0}.get(t_s, 50.0)))
        for t_s in times
    ]
    found, _ = seen(sampled_run(tmp_path / "run", [start(0), *lines, end()], ranks=cards(1)))
    points = line(found, "temperature_c", "0")
    assert len(points) <= evidence.POINTS
    assert (3.33, 99.0) in points
    assert (7.77, 11.0) in points


def test_many_devices_are_drawn_together(tmp_path: Path) -> None:
    world = evidence.MOST_LINES + 1
    lines = [
        devices(t_s, *(busy(t_s, n, temperature_c=40.0 + n) for n in range(world)))
        for t_s in TIMES_S
    ]
    found, _ = seen(sampled_run(tmp_path / "run", [start(*range(world)), *lines, end()],
                                ranks=cards(world)))  # fmt: skip
    for of, value in (("lowest", 40.0), ("median", 44.0), ("highest", 48.0)):
        points = line(found, "temperature_c", of)
        assert [told for _, told in points] == [value] * len(TIMES_S)
        assert points[0][0] == pytest.approx(0.03)  # the middle of the first of 200 stretches
    assert [x.highest for x in found.told if x.quantity == "temperature_c"] == [
        40.0 + n for n in range(world)
    ]


def later(one: dict[str, Any], by_s: float) -> dict[str, Any]:
    """Return an event of a machine whose clock shows more."""
    return {
        name: value + round(by_s * S) if name in ("t_ns", "start_ns", "end_ns") else value
        for name, value in one.items()
    }


def two_machines(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", [launch_event()])
    plan = json.loads((GOLDEN / "plan_toy.json").read_text(encoding="utf-8"))
    plan |= {"nnodes": 2, "nproc": 1, "launcher": "slurm", "labels": [], "sample_every_s": 1.0}
    (folder / "plan.json").write_text(json.dumps(plan))
    for node in range(2):
        ranks = rank_events()
        ranks.insert(2, event("synced", 3 * S, unix_ns=3 * S))
        for one in (one for one in ranks if one["event"] == "window"):
            one["step_samples"] = [2 * samples for samples in one["samples"]]
        ended = event("agent_exit", 12 * S, exit_code=0, failures=[])
        own = [launch_event(node=node), ended, event("finished", 13 * S)]
        samples = [start(0), *readings(0, power_w=100.0 + node), end()]
        files = {f"rank{node}": ranks, f"node{node}": own, "telemetry": samples}
        for name, events in files.items():
            file = f"telemetry.node{node}.jsonl" if name == "telemetry" else f"events.{name}.jsonl"
            write_events(folder / file, [later(one, 1000 * node) for one in events])
    return folder


def test_several_machines_are_on_one_clock(tmp_path: Path) -> None:
    found, _ = seen(two_machines(tmp_path))
    for rank in ("0", "1"):
        assert line(found, "power_w", rank) == tuple((t_s, 100.0 + int(rank)) for t_s in TIMES_S)
    assert found.steps is not None
    assert found.steps.ranks == (0, 1)


def test_of_very_large_samples_the_first_machines_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_machines(tmp_path)
    sizes = [(folder / f"telemetry.node{node}.jsonl").stat().st_size for node in (0, 1)]
    clocks = sum(
        (folder / f"events.{x}.jsonl").stat().st_size for x in ("launcher", "node0", "node1")
    )
    monkeypatch.setattr(evidence, "MOST_BYTES", sizes[0] + max(clocks, sizes[1] - 1))
    assert clocks < sizes[1]
    found, _ = seen(folder)
    assert {one.of for one in found.lines} == {"0"}
    assert found.no_samples == (message("seen_in_part", machines=1, of=2),)


def test_step_times_against_the_lower_median() -> None:
    found = step_times([ns(10, 10, 10), ns(10, 12, 10), ns(20, 11, 10)])
    assert found is not None
    assert (found.ranks, found.edges) == ((0, 1, 2), (0, 1, 2, 3))
    assert found.share[:, 1].tolist() == pytest.approx([10 / 11, 12 / 11, 1.0])
    assert found.share[:, 0].tolist() == [1.0, 1.0, 2.0]
    assert found.longest == (2, 1, 2.0)
    two = step_times([ns(10), ns(15)])
    assert two is not None
    assert two.share.tolist() == [[1.0], [1.5]]


def test_stretches_sum_steps_and_keep_the_longest_step() -> None:
    steps = 10 * STRETCHES
    slow, fast = np.full(steps, 110), np.full(steps, 100)
    fast[1234] = 10_000
    found = step_times([fast, np.full(steps, 100), slow])
    assert found is not None
    assert found.share.shape == (3, STRETCHES)
    assert found.edges[:3] == (0, 10, 20)
    assert found.share[2, 0] == pytest.approx(1.1)
    assert found.longest == (0, 1235, pytest.approx(10_000 / 110))
    assert found.share[0, 123] == pytest.approx((9 * 100 + 10_000) / (9 * 100 + 110))


def test_ranks_that_ended_early_or_never_began() -> None:
    found = step_times([ns(10, 10), ns(), ns(30)])
    assert found is not None
    assert found.ranks == (0, 2)
    assert found.share.tolist() == [[1.0, 1.0], [3.0, pytest.approx(np.nan, nan_ok=True)]]
    assert step_times([ns(10), ns()]) is None
    nothing = step_times([ns(0), ns(0)])
    assert nothing is not None
    assert np.isnan(nothing.share).all()
    assert nothing.longest == (0, 1, 0.0)


def test_blocks_of_any_width_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    steps = [rng.integers(90, 110, size=count) for count in (1000, 990, 1000)]
    whole = step_times(steps)
    monkeypatch.setattr(evidence, "_CELLS_AT_ONCE", 6)
    narrow = step_times(steps)
    assert whole is not None
    assert narrow is not None
    assert np.array_equal(whole.share, narrow.share, equal_nan=True)
    assert whole.longest == narrow.longest


def test_ranks_of_a_run(tmp_path: Path) -> None:
    found, _ = seen(sampled_run(tmp_path / "run", None))
    assert found.steps is not None
    assert found.steps.ranks == (0, 1)
    assert found.steps.edges[-1] == 16
    assert np.all(found.steps.share == 1.0)
    assert found.lines == ()


def test_one_rank_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [launch_event()], rank_events())
    found, _ = seen(sampled_run(folder, None, ranks=[rank_events()]))
    assert found.steps is None
    assert found.no_samples == found.no_steps == ()


def test_a_folder_without_evidence(tmp_path: Path) -> None:
    record = building.build(sampled_run(tmp_path / "run", None))
    assert read(tmp_path, record) is None


def test_altered_missing_and_large_files_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sampled_run(tmp_path / "run", [start(0, 1), *readings(0, 1), end()])
    record = building.build(folder)
    samples = folder / "telemetry.jsonl"
    samples.write_bytes(samples.read_bytes().replace(b"400.0", b"500.0"))
    (folder / "events.rank1.jsonl").unlink()
    found = read(folder, record)
    assert found is not None
    assert (found.lines, found.told, found.steps) == ((), (), None)
    assert found.no_samples == (message("seen_altered", file="telemetry.jsonl"),)
    assert found.no_steps == (message("seen_altered", file="events.rank1.jsonl"),)
    monkeypatch.setattr(evidence, "MOST_BYTES", 100)
    found = read(folder, record)
    assert found is not None
    assert [one.code for one in found.no_samples + found.no_steps] == ["seen_too_large"] * 2


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff", b"[1]\n", b'{"event":"window"}\n', b'{"event":"devices","t_ns":1e400}\n',
     b'{"event":"start","t_ns":0,"interval_s":NaN}\n', b"[" * 100_000, b'{"event":"host","t_'],
)  # fmt: skip
def test_hostile_files_break_nothing(tmp_path: Path, content: bytes) -> None:
    folder = sampled_run(tmp_path / "run", [start(0, 1), *readings(0, 1), end()])
    record = building.build(folder)
    for name in ("telemetry.jsonl", "events.rank0.jsonl", "events.rank1.jsonl"):
        (folder / name).write_bytes(content)
    found = read(folder, record.model_copy(update={"evidence": digests(folder)}))
    assert found is not None
    assert (found.lines, found.steps) == ((), None)


def test_a_launcher_without_launch_is_said(tmp_path: Path) -> None:
    folder = sampled_run(tmp_path / "run", [start(0, 1), *readings(0, 1), end()])
    record = building.build(folder)
    (folder / "events.launcher.jsonl").write_text("{}\n")
    found = read(folder, record.model_copy(update={"evidence": digests(folder)}))
    assert found is not None
    assert found.no_samples == (
        message("seen_unreadable", file="telemetry.jsonl", error="KeyError: 'launch'"),
    )
    assert found.steps is not None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = sampled_run(tmp_path / "run", None)
    record = building.build(folder)
    (folder / "events.rank0.jsonl").unlink()
    os.mkfifo(folder / "events.rank0.jsonl")
    found = read(folder, record)
    assert found is not None
    assert found.no_steps == (message("seen_altered", file="events.rank0.jsonl"),)
