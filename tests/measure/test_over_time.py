"""Means over time and differences of counters against plain references."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.measure.over_time import CounterDifference, Weighted
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMES = st.lists(st.integers(-50, 150), min_size=1, max_size=20, unique=True).map(sorted)
VALUES = st.lists(st.integers(-1000, 1000), min_size=20, max_size=20)


def weighted(interval: tuple[int, int], readings: Sequence[tuple[int, float]]) -> Weighted:
    found = Weighted(interval)
    for t_ns, value in readings:
        found.add(t_ns, {"": value})
    return found


def nearest_mean(interval: tuple[int, int], inside: Sequence[tuple[int, int]]) -> float:
    """Return the mean in which each reading stands for the moments that are nearest to it."""
    start, end = interval
    total = Fraction(0)
    for place, (t_ns, value) in enumerate(inside):
        left = Fraction(inside[place - 1][0] + t_ns, 2) if place else Fraction(start)
        right = (
            Fraction(t_ns + inside[place + 1][0], 2) if place + 1 < len(inside) else Fraction(end)
        )
        total += value * (right - left)
    return float(total / (end - start))


@given(times=TIMES, values=VALUES, interval=st.tuples(st.integers(0, 40), st.integers(41, 100)))
def test_a_mean_gives_each_moment_the_value_of_the_nearest_reading(
    times: list[int], values: list[int], interval: tuple[int, int]
) -> None:
    readings = list(zip(times, values, strict=False))
    inside = [(t, value) for t, value in readings if interval[0] <= t <= interval[1]]
    found = weighted(interval, readings)
    means = found.means()
    assert found.readings == len(inside)
    if not inside:
        assert means == {}
        return
    assert means[""] == pytest.approx(nearest_mean(interval, inside), rel=1e-12, abs=1e-12)
    assert found.lowest == min(value for _, value in inside)
    assert found.highest == max(value for _, value in inside)
    edges = [interval[0], *(t for t, _ in inside), interval[1]]
    assert found.gap_ns == max(b - a for a, b in pairwise(edges))


def test_uneven_readings_weigh_by_time_not_by_number() -> None:
    # 10 until 4, halfway to the next reading; 20 until 9; 30 until 10.
    found = weighted((0, 10), [(0, 10.0), (8, 20.0), (10, 30.0)])
    assert found.means() == {"": (10 * 4 + 20 * 5 + 30 * 1) / 10}
    assert found.gap_ns == 8


def test_a_single_reading_stands_for_the_whole_interval() -> None:
    assert weighted((0, 10), [(7, 3.0)]).means() == {"": 3.0}


def test_a_reading_out_of_order_or_outside_changes_nothing() -> None:
    found = weighted((0, 10), [(-1, 99.0), (2, 1.0), (2, 99.0), (1, 99.0), (11, 99.0)])
    assert (found.means(), found.readings, found.highest) == ({"": 1.0}, 1, 1.0)


def test_a_name_that_a_reading_lacks_is_0_there() -> None:
    found = Weighted((0, 10))
    for t_ns, reasons in ((1, []), (4, ["cap"]), (6, ["cap", "heat"]), (9, [])):
        found.add(t_ns, {"": float(bool(reasons)), **dict.fromkeys(reasons, 1.0)})
    # "cap" from 2.5 to 7.5, "heat" from 5 to 7.5.
    assert found.means() == {"": 0.5, "cap": 0.5, "heat": 0.25}


def test_names_are_bounded() -> None:
    found = Weighted((0, 1000))
    for t_ns in range(1000):
        found.add(t_ns, {str(t_ns): 1.0})
    assert len(found.means()) == 65


def counter(interval: tuple[int, int], readings: Sequence[tuple[int, float]]) -> CounterDifference:
    found = CounterDifference(interval)
    for t_ns, value in readings:
        found.add(t_ns, value)
    return found


@given(
    times=TIMES,
    steps=st.lists(st.integers(1, 50), min_size=20, max_size=20),
    edges=st.tuples(st.integers(0, 40), st.integers(41, 100)),
)
def test_a_counter_is_interpolated_at_both_edges(
    times: list[int], steps: list[int], edges: tuple[int, int]
) -> None:
    values = np.cumsum(steps)[: len(times)].tolist()
    found = counter(edges, list(zip(times, values, strict=True)))
    rose, reason = found.difference()
    if times[0] > edges[0] or times[-1] < edges[1]:
        assert (rose, reason) == (None, message("counter_not_around"))
        return
    around = [
        next(b - a for a, b in pairwise(times) if a < edge < b)
        for edge in edges
        if edge not in times
    ]
    assert found.between_ns == sum(around)
    if sum(around) > 0.1 * (edges[1] - edges[0]):
        assert rose is None
        assert reason is not None
        assert reason.code == "counter_read_seldom"
        return
    first, last = np.interp(edges, times, values)
    assert rose == pytest.approx(last - first)
    assert reason is None


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([], "counter_untold"),
        ([(0, 1.0)], "counter_not_around"),
        ([(0, 1.0), (9, 5.0)], "counter_not_around"),
        ([(1, 1.0), (10, 5.0)], "counter_not_around"),
        ([(0, 1.0), (5, 0.5), (10, 9.0)], "counter_fell"),
        ([(-5, 7.0), (5, 0.5), (10, 9.0)], "counter_fell"),
        ([(0, 1.0), (9, 5.0), (12, 0.0)], "counter_fell"),
        ([(0, 1.0), (5, 1.0), (10, 1.0)], "counter_still"),
        ([(-1, 0.0), (1, 1.0), (10, 5.0)], "counter_read_seldom"),
    ],
)
def test_a_difference_that_is_not_known_is_none_with_its_reason(
    readings: list[tuple[int, float]], reason: str
) -> None:
    rose, why = counter((0, 10), readings).difference()
    assert rose is None
    assert why is not None
    assert why.code == reason


def test_a_counter_that_began_anew_before_or_after_counts() -> None:
    readings = [(-9, 7.0), (-4, 1.0), (0, 2.0), (10, 6.0), (15, 0.0)]
    assert counter((0, 10), readings).difference() == (4.0, None)
