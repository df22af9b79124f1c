"""Means over time and differences of counters against plain references."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.events.series import Energy, Quantity, measure_energy, summarize_quantity
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMES = st.lists(st.integers(-50, 150), min_size=1, max_size=20, unique=True).map(sorted)
VALUES = st.lists(st.integers(-1000, 1000), min_size=20, max_size=20)


def summarize_readings(
    interval: tuple[float, float], readings: Sequence[tuple[float, float | None]]
) -> Quantity | None:
    """Return the mean of a quantity over the interval, and its extremes, from the readings in it.

    Args:
        interval: its start and end, in the unit of the readings' times; both belong to it.
        readings: pairs of time and value; None: this reading did not have the quantity.
    """
    inside = [(t, value) for t, value in readings if interval[0] <= t <= interval[1]]
    times, values = np.array(inside, dtype=float).reshape(-1, 2).T
    return summarize_quantity(times, values, interval)


def compute_nearest_mean(interval: tuple[int, int], inside: Sequence[tuple[int, int]]) -> float:
    """Return the mean that gives each moment the value of its nearest reading.

    Args:
        interval: its start and end, in the unit of the readings' times.
        inside: the readings in the interval, in the order of their times: pairs of time and value.
    """
    start, end = interval
    total = Fraction(0)
    for index, (t_ns, value) in enumerate(inside):
        # A reading holds from half-way to the one before until half-way to the next one.
        holds_from, holds_until = Fraction(start), Fraction(end)
        if index > 0:
            holds_from = Fraction(inside[index - 1][0] + t_ns, 2)
        if index + 1 < len(inside):
            holds_until = Fraction(t_ns + inside[index + 1][0], 2)
        total += value * (holds_until - holds_from)
    return float(total / (end - start))


@given(times=TIMES, values=VALUES, interval=st.tuples(st.integers(0, 40), st.integers(41, 100)))
def test_mean_weighs_each_moment_by_its_nearest_reading(
    times: list[int], values: list[int], interval: tuple[int, int]
) -> None:
    """``times`` are sorted and different; some may be outside of the interval.

    ``TIMES`` are 1 to 20 integers from -50 to 150, ``VALUES`` 20 integers. ``compute_nearest_mean``
    is the same mean in exact fractions.
    """
    readings = list(zip(times, values, strict=False))  # there are more values than times
    inside = [(t, value) for t, value in readings if interval[0] <= t <= interval[1]]
    computed_mean = summarize_readings(interval, readings)
    if not inside:
        assert computed_mean is None
        return
    assert computed_mean is not None
    assert computed_mean.readings == len(inside)
    assert computed_mean.mean == pytest.approx(
        compute_nearest_mean(interval, inside), rel=1e-12, abs=1e-12
    )
    assert computed_mean.lowest == min(value for _, value in inside)
    assert computed_mean.highest == max(value for _, value in inside)
    # The longest time without a reading, also at the ends of the interval.
    edges = [interval[0], *(t for t, _ in inside), interval[1]]
    assert computed_mean.longest_gap_s == max(b - a for a, b in pairwise(edges))


def test_reading_without_the_quantity_changes_no_mean() -> None:
    # ``summarize_readings`` returns mean, extremes and number of the readings from 0 to 10 s,
    # ``interpolate_counter`` how much a counter rose then. Readings are pairs of time and value;
    # without a value (None) they must count as if they were not there.
    without_value = [(-1, None), (1, None), (5, None)]
    assert summarize_readings((0, 10), without_value) is None
    readings = [(2, 1.0), (9, 3.0)]
    assert summarize_readings((0, 10), sorted(without_value + readings)) == summarize_readings(
        (0, 10), readings
    )
    # The same for a counter, which is read before, within and at the end of the interval.
    counted = [(-4, 1.0), (0, 2.0), (10, 6.0)]
    assert interpolate_counter((0, 10), sorted(without_value + counted)) == interpolate_counter(
        (0, 10), counted
    )


def interpolate_counter(
    interval: tuple[float, float], readings: Sequence[tuple[float, float | None]]
) -> Energy:
    """Return the energy of the interval from readings of a counter.

    Args:
        interval: its begin and its end in seconds.
        readings: pairs of time in seconds and the counter's value in joules, also outside the
            interval; None: this reading did not have the counter.
    """
    # Without readings, too, the array has two columns; None becomes NaN.
    times, values = np.array(readings, dtype=float).reshape(-1, 2).T
    return measure_energy(times, values, interval)


@given(
    times=TIMES,
    increments=st.lists(st.integers(1, 50), min_size=20, max_size=20),
    edges=st.tuples(st.integers(0, 40), st.integers(41, 100)),
)
def test_a_counter_is_interpolated_at_both_edges(
    times: list[int], increments: list[int], edges: tuple[int, int]
) -> None:
    """``times`` are sorted; at each the counter is higher by an increment. ``edges``: interval.

    ``TIMES`` are 1 to 20 integers from -50 to 150, in seconds; of the 20 increments, those without
    a time are not used. More than a tenth of the interval
    may not be interpolated: the program then gives no energy.
    """
    values = np.cumsum(increments)[: len(times)].tolist()
    difference = interpolate_counter(edges, list(zip(times, values, strict=True)))
    if times[0] > edges[0] or times[-1] < edges[1]:  # no reading before or after the interval
        assert difference == Energy(reason=message("counter_not_around"))
        return
    # The gaps between readings that contain an edge; one gap may contain both.
    gaps = {
        next((a, b) for a, b in pairwise(times) if a < edge < b)
        for edge in edges
        if edge not in times
    }
    between_s = sum(b - a for a, b in gaps)
    assert difference.between_s == between_s
    # Interpolated over too much of the interval.
    if between_s > 0.1 * (edges[1] - edges[0]):
        assert difference.joules is None
        assert difference.reason is not None
        assert difference.reason.code == "counter_read_seldom"
        return
    first, last = np.interp(edges, times, values)
    assert difference.joules == pytest.approx(last - first)
    assert difference.reason is None


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([], "counter_untold"),
        ([(0, 1.0)], "counter_not_around"),  # not read at the end
        ([(1, 1.0), (10, 5.0)], "counter_not_around"),  # not read at the begin
        ([(0, 1.0), (5, 0.5), (10, 9.0)], "counter_wrong"),  # it falls
        ([(0, 1.0), (9, 5.0), (12, 0.0)], "counter_wrong"),  # it falls after the interval
        ([(0, 1.0), (5, 1.0), (10, 1.0)], "counter_wrong"),  # it stands still
        ([(-1, 0.0), (1, 1.0), (10, 5.0)], "counter_read_seldom"),  # not for 2 s around 0
    ],
)
def test_unknown_difference_is_none_with_a_reason(
    readings: list[tuple[int, float]], reason: str
) -> None:
    # ``readings`` are pairs of time in seconds and the counter's value; the interval is 0 to 10 s.
    # ``interpolate_counter`` returns the energy (``joules``) or a reason, by its code.
    # A counter must be read around the interval, and must rise. At an edge of the interval it may
    # be interpolated only over a tenth of the interval, here 1 s.
    difference = interpolate_counter((0, 10), readings)
    assert difference.joules is None
    assert difference.reason is not None
    assert difference.reason.code == reason


def test_a_gap_that_contains_both_edges_counts_once() -> None:
    # The counter was read only at -1 s and at 11 s, around the interval from 0 to 10 s.
    # ``between_s``: the length of the gaps between readings that contain an edge.
    difference = interpolate_counter((0, 10), [(-1, 1.0), (11, 5.0)])
    assert difference.between_s == 12.0
