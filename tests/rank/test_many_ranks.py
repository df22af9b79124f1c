"""Ranks read in blocks and processes: bit for bit what one after another gives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes import window
from trainmark.rank.events import read_event
from trainmark.record.stats import RankSteps, Series

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
