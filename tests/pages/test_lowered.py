"""Steps under lowered clocks: readings hold for the time nearest to them, steps are not lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fakes import S, event, write_events
from telemetry_files import busy, cards, devices, end, readings, sampled_run, start
from trainmark.pages import evidence, lowered
from trainmark.record import building
from trainmark.record.telemetry.summary import Readings

if TYPE_CHECKING:
    from pathlib import Path

HOT = ["power_cap", "thermal"]


def steps(tmp_path: Path, *times_s: float, hot_s: float) -> tuple[tuple[int, int], ...]:
    """Return the steps of the fake run whose device was hot in one of its readings."""
    lines = [
        devices(t_s, busy(t_s, 0, throttle_reasons=HOT if t_s == hot_s else ["power_cap"]))
        for t_s in times_s
    ]
    folder = sampled_run(tmp_path / "run", [start(0), *lines, end()], ranks=cards(1))
    found = evidence.read(folder, building.build(folder))
    assert found is not None
    assert found.no_samples == ()
    return found.lowered


def test_the_steps_nearest_to_a_reading_with_lowered_clocks(tmp_path: Path) -> None:
    # It holds from 8.5 to 9.3125 s; step 8 begins at 8.5, step 14 at 9.25, of 0.125 s each.
    assert steps(tmp_path, 8.0, 9.0, 9.625, hot_s=9.0) == ((8, 14),)


def test_clocks_lowered_while_nothing_was_trained_mark_no_step(tmp_path: Path) -> None:
    assert steps(tmp_path, 8.0, 9.8, 10.0, 11.0, hot_s=10.0) == ()


def test_set_limits_mark_no_step(tmp_path: Path) -> None:
    assert steps(tmp_path, 8.0, 9.0, 9.625, hot_s=-1.0) == ()


def test_altered_events_mark_no_step_and_say_so(tmp_path: Path) -> None:
    hot = [devices(9.0, busy(9.0, 0, throttle_reasons=HOT))]
    lines = [start(0), *readings(0, times_s=(8.0,)), *hot, end()]
    folder = sampled_run(tmp_path / "run", lines, ranks=cards(1))
    record = building.build(folder)
    with (folder / "events.rank0.jsonl").open("a") as file:
        file.write("\n")
    found = evidence.read(folder, record)
    assert found is not None
    assert found.lowered == ()
    assert [one.code for one in found.no_samples] == ["seen_altered"]


def test_of_many_steps_stretches_are_marked(tmp_path: Path) -> None:
    card = Readings("temperature_c")
    for t_s in range(0, 101, 10):
        card.add(float(t_s), (50.0, None), ("thermal",) if t_s == 50 else ())
    window = event("window", 100 * S, phase="train", epoch=0, first_step=0, start_ns=0,
                   end_ns=100 * S, step_ns=[S // 100] * 10_000, wait_ns=[0] * 10_000,
                   loss=[1.0] * 10_000, samples=[1] * 10_000, step_samples=[1] * 10_000,
                   sequences=10_000, tokens=10_000, tokens_padded=10_000, micro_batches=10_000,
                   model_flops=None, used_bytes=None)  # fmt: skip
    path = tmp_path / "events.rank0.jsonl"
    write_events(path, [window])
    # 45 to 55 s are steps 4,501 to 5,500; a stretch has 25.
    assert lowered.lowered_steps(path, 0, [card]) == ((4501, 5500),)
    assert lowered.lowered_steps(path, 45 * S, [card]) == ((9001, 10_000),)
