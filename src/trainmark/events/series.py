"""Readings taken now and then: means over time, rises of counters, and lines that charts draw.

Readings are arrays: seconds, ascending, and values, NaN if a reading has none. Knows nothing of
devices. Owns the rule by which series are thinned: a line has at most ``MAX_LINE_POINTS`` points,
the least and the greatest reading of each stretch of time; more than ``MAX_LINES`` devices are
three lines, the lowest, median and highest of each stretch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainmark.documents import Frozen
from trainmark.events.values import Amount, Count, Number
from trainmark.spec import Message, message

Array = NDArray[np.float64]
Columns = dict[str, dict[str, Array]]  # readings by name
Interval = tuple[Number, Number]  # start and end in seconds; the end is later
# Share of an interval: what lies between the readings around its edges is interpolated.
MAX_UNSEEN = 0.1
MAX_POINTS = 1000
MAX_LINE_POINTS = 200  # of a line over time
MAX_LINES = 8
SUMMARY_LINES = ("lowest", "median", "highest")  # of lines that stand for many series
DrawnName = Literal["memory_used_bytes", "utilization_percent", "power_w", "temperature_c"]


class SeriesLine(Frozen):
    """A quantity over time, thinned."""

    quantity: DrawnName
    of_host: bool
    of: str = Field(
        description="ranks of the device, as 0-3; number of the host; of many devices together "
        "lowest, median or highest"
    )
    points: list[tuple[Number, Number]] = Field(description="seconds from the launch, value")


def draw_lines(devices: Columns, hosts: Columns) -> Iterator[SeriesLine]:
    """Yield the lines of what was read of devices and hosts, by what they are called."""
    for of_host, members in ((False, devices), (True, hosts)):
        for quantity in get_args(DrawnName):
            is_known = {of: ~np.isnan(columns[quantity]) for of, columns in members.items()}
            series = {
                of: (members[of]["time_s"][known], members[of][quantity][known])
                for of, known in is_known.items()
                if known.any()
            }
            drawn = _together(series) if len(series) > MAX_LINES else _each(series)
            for of, points in drawn:
                shown = [(round(float(s), 3), float(f"{value:.12g}")) for s, value in points]
                yield SeriesLine(quantity=quantity, of_host=of_host, of=of, points=shown)


_Columns = dict[str, tuple[Array, Array]]  # seconds and values
_Drawn = Iterator[tuple[str, Iterable[tuple[float, float]]]]


def _each(series: _Columns) -> _Drawn:
    """Yield a line of each device, with the least and the greatest of neighbouring readings."""
    for of, (times_s, values) in series.items():
        yield (
            of,
            [
                (times_s[place], value)
                for place, value in thin_values(values, max_points=MAX_LINE_POINTS)
            ],
        )


def _together(series: _Columns) -> _Drawn:
    """Yield lines of the lowest, median and highest reading of all in each stretch of time."""
    times_s, values = (np.concatenate(columns) for columns in zip(*series.values(), strict=True))
    max_points = max(
        len(own_s) for own_s, _ in series.values()
    )  # about one of each device in a stretch
    parts = np.array_split(np.argsort(times_s, kind="stable"), min(MAX_LINE_POINTS, max_points))
    middles_s = [times_s[part].mean() for part in parts]
    for of, share in zip(SUMMARY_LINES, (0, 50, 100), strict=True):
        drawn = (np.percentile(values[part], share, method="lower") for part in parts)
        yield of, zip(middles_s, drawn, strict=True)


def compute_bucket_size(steps: int, *, max_points: int = MAX_POINTS) -> int:
    """Return how many steps a bucket holds: 1 where every step is drawn."""
    return 1 if steps <= max_points else math.ceil(steps / max(max_points // 2, 1))


def thin_values(
    values: NDArray[np.float64], *, max_points: int = MAX_POINTS
) -> list[tuple[int, float]]:
    """Return at most ``max_points`` pairs of index and value, in order.

    Each bucket gives its least and its greatest finite value; a bucket without one gives a
    single NaN, so that a gap stays a gap.
    """
    size = compute_bucket_size(len(values), max_points=max_points)
    if size == 1:
        return list(enumerate(values.tolist()))
    points: list[tuple[int, float]] = []
    for start in range(0, len(values), size):
        bucket = np.where(
            np.isfinite(values[start : start + size]), values[start : start + size], np.nan
        )
        if np.isnan(bucket).all():
            points.append((start, math.nan))
        else:
            places = sorted({int(np.nanargmin(bucket)), int(np.nanargmax(bucket))})
            points += [(start + place, float(bucket[place])) for place in places]
    return points


class Quantity(Frozen):
    """One quantity over an interval; the mean is weighted by time."""

    readings: Count
    longest_gap_s: Amount = Field(description="without a reading, up to the interval's edges")
    mean: Number
    lowest: Number
    highest: Number


class Energy(Frozen):
    """Difference of a counter over an interval; never computed from power."""

    joules: Amount | None = None
    between_s: Amount | None = Field(
        default=None,
        description="between the readings around the edges, where the counter is interpolated",
    )
    reason: Message | None = None


def summarize_quantity(times_s: Array, values: Array, interval: Interval) -> Quantity | None:
    """Return the mean and the extremes of a quantity; None if no reading tells it.

    Args:
        times_s: of readings in the interval.
    """
    known = ~np.isnan(values)
    times_s, values = times_s[known], values[known]
    if not len(values):
        return None
    start_s, end_s = interval
    # For how many seconds of the interval each reading is the nearest.
    middles_s = (times_s[1:] + times_s[:-1]) / 2
    weights_s = np.diff(middles_s, prepend=start_s, append=end_s)
    return Quantity(
        readings=len(values),
        longest_gap_s=np.diff(times_s, prepend=start_s, append=end_s).max(),
        mean=float(values @ weights_s) / (end_s - start_s),
        lowest=values.min(),
        highest=values.max(),
    )


def measure_energy(times_s: Array, joules: Array, interval: Interval) -> Energy:
    """Return how far a counter rose in an interval; at each edge on a line between two readings.

    Args:
        times_s: of all readings, also of those before and after the interval.
    """
    known = ~np.isnan(joules)
    times_s, joules = times_s[known], joules[known]
    start_s, end_s = interval
    first, last = np.searchsorted(times_s, start_s, "right") - 1, np.searchsorted(times_s, end_s)
    if not len(joules):
        return Energy(reason=message("counter_untold"))
    if first < 0 or last == len(joules):
        return Energy(reason=message("counter_not_around"))
    times_s, joules = times_s[first : last + 1], joules[first : last + 1]
    gaps_s = np.diff(times_s)[[0, -1]]  # around the start and around the end
    between_s = float(gaps_s @ [times_s[0] < start_s, times_s[-1] > end_s])
    (rise,) = np.diff(np.interp(interval, times_s, joules))
    if rise <= 0 or (np.diff(joules) < 0).any():
        return Energy(reason=message("counter_wrong"))
    if between_s > MAX_UNSEEN * (end_s - start_s):
        seldom = message("counter_read_seldom", between_s=between_s, interval_s=end_s - start_s)
        return Energy(between_s=between_s, reason=seldom)
    return Energy(joules=rise, between_s=between_s)
