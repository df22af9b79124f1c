"""Ranks read in blocks and processes: bit for bit what one after another gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from fakes import event, launch_event, window, write_run
from trainmark.rank.events import rank_file, read_event
from trainmark.record.step_series import RankSteps, Series
from trainmark.record.timeline import read_run

if TYPE_CHECKING:
    from pathlib import Path


S = 1_000_000_000
_STEP = st.tuples(
    st.integers(0, 10**18), st.floats(-1e100, 1e100), st.integers(0, 10**12), st.integers(1, 2)
)
_RANKS = st.lists(st.lists(_STEP, max_size=5), min_size=1, max_size=6)


def series_of(steps: list[tuple[int, float, int, int]]) -> Series:
    rank = RankSteps()
    for step_ns, loss, samples, of_all in steps:
        taken = window(0, 1, step_ns=[step_ns], loss=[loss], samples=[samples],
                       step_samples=[of_all])  # fmt: skip
        rank.add(read_event(json.dumps(taken).encode()))
    return Series.of_rank(rank)


def merged(parts: list[Series]) -> Series:
    whole = Series.empty()
    for part in parts:
        whole.add(part)
    return whole


def bits(series: Series, *, losses: bool = True) -> list[Any]:
    named = ("step_ns", "samples", "announced", *(("loss_sum",) if losses else ()))
    return [series.disagreed, *(getattr(series, name).tobytes() for name in named)]


@given(ranks=_RANKS, data=st.data())
def test_a_series_is_the_same_for_any_split_into_blocks(
    ranks: list[list[Any]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(ranks)))
    blocks = [merged([series_of(rank) for rank in part]) for part in (ranks[:at], ranks[at:])]
    alone = merged([series_of(rank) for rank in ranks])
    assert bits(merged(blocks), losses=False) == bits(alone, losses=False)
    assert bits(merged(blocks[::-1]), losses=False) == bits(alone, losses=False)


def many(run_dir: Path, world: int) -> Path:
    """Write ranks of 3 steps whose losses are no binary fractions; some are damaged."""
    ranks = [
        [
            event("start", S, pid=1 + rank),
            window(2 * S, 3 * S, step_ns=[S // 3, S // 7, S // 9], samples=[3, 5, 7],
                   loss=[0.1 * rank, 1 / (rank + 3), 0.7]),
        ]
        for rank in range(world)
    ]  # fmt: skip
    write_run(run_dir, [launch_event()], *ranks)
    (run_dir / rank_file(1)).unlink()
    with (run_dir / rank_file(2)).open("ab") as file:
        file.write(b'{"event":"window","t_ns"')
    with (run_dir / rank_file(3)).open("ab") as file:
        file.write(b'{"event":"window","t_ns":5}\n')
    return run_dir


def test_ranks_of_one_machine_are_summed_one_after_another(tmp_path: Path) -> None:
    run_dir = many(tmp_path / "run", 64)
    total = 0.0
    for rank in read_run(run_dir, 64).ranks:
        if rank.pid is not None:
            total += 5 * (1 / (rank.rank + 3))
    assert read_run(run_dir, 64).series.loss_sum[1] == total
