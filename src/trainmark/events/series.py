"""Summarize readings: means over time, rises of counters, and lines that charts draw.

Readings are arrays: times in seconds, ascending, and values, NaN if a reading has none. Knows
nothing of devices. Owns the rule by which series are thinned: a line has at most
``MAX_LINE_POINTS`` points, the smallest and the largest reading of each stretch of time; more than
``MAX_LINES`` devices are drawn as three lines, the lowest, median and highest of each stretch.
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
Columns = dict[str, dict[str, Array]]  # by the name of a device or host, then of the quantity
Interval = tuple[Number, Number]  # start and end in seconds; the end is later
# Largest share of an interval that may lie between two readings, where values are interpolated.
MAX_UNSEEN_SHARE = 0.1
MAX_POINTS = 1000  # of a line over steps
MAX_LINE_POINTS = 200  # of a line over time
MAX_LINES = 8  # of one quantity in a chart
_TIME_DECIMALS = 3  # of seconds in a line
_VALUE_DIGITS = 12  # significant digits of a value in a line
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
    """Yield the lines that charts show of each quantity that was read of devices and hosts.

    Args:
        devices: readings of each device by its name, as arrays: ``time_s``, in seconds from the
            launch, and one by the name of each quantity; NaN: it was not read.
        hosts: the same of each machine.
    """
    yield from _draw_lines_of(devices, of_host=False)
    yield from _draw_lines_of(hosts, of_host=True)


def _draw_lines_of(members: Columns, *, of_host: bool) -> Iterator[SeriesLine]:
    """Yield the lines of each quantity that was read of some devices, or of some hosts.

    Each device or host has a line of its own. More than ``MAX_LINES`` would hide each other, so
    that three lines stand for all of them: the lowest, median and highest reading.

    Args:
        members: readings of each device, or of each host, by its name, as arrays: ``time_s``, and
            one by the name of each quantity; NaN: it was not read.
        of_host: they are hosts.
    """
    for quantity in get_args(DrawnName):  # the quantities of charts: power, temperature ...
        series = {}  # times and values of the readings, by the name of the device or host
        for name, columns in members.items():
            is_known = ~np.isnan(columns[quantity])
            if is_known.any():
                series[name] = (columns["time_s"][is_known], columns[quantity][is_known])
        lines = _draw_summary(series) if len(series) > MAX_LINES else _draw_each(series)
        for name, points in lines:
            # Rounded, because all digits of a binary fraction would only make the record larger.
            rounded_points = [
                (round(float(time_s), _TIME_DECIMALS), float(f"{value:.{_VALUE_DIGITS}g}"))
                for time_s, value in points
            ]
            yield SeriesLine(quantity=quantity, of_host=of_host, of=name, points=rounded_points)


_Series = dict[str, tuple[Array, Array]]  # times and values by the name of a device or host
_Lines = Iterator[tuple[str, Iterable[tuple[float, float]]]]  # name of a line, and its points


def _draw_each(series: _Series) -> _Lines:
    """Yield a line of each device or host: its name, and points of time in seconds and value.

    A line has all readings of its device or host. If these are more than ``MAX_LINE_POINTS``, it
    has only the smallest and the largest of each few neighbouring ones.

    Args:
        series: times and values of the readings, by the name of the device or host.
    """
    for name, (times_s, values) in series.items():
        thinned = thin_values(values, max_points=MAX_LINE_POINTS)
        yield name, [(times_s[index], value) for index, value in thinned]


def _draw_summary(series: _Series) -> _Lines:
    """Yield lines of the lowest, median and highest reading of all devices, or of all hosts.

    Each line is its name and its points of time in seconds and value: one point for each stretch of
    time, at the mean time of the readings in it.

    Args:
        series: times and values of the readings, by the name of the device or host.
    """
    times_s = np.concatenate([times for times, _ in series.values()])
    values = np.concatenate([readings for _, readings in series.values()])
    # With as many stretches as a device has readings, a stretch has about one of each device.
    most_readings = max(len(times) for times, _ in series.values())
    num_stretches = min(MAX_LINE_POINTS, most_readings)
    order = np.argsort(times_s, kind="stable")
    # The indices of the readings in each stretch: about equally many, so that none is empty.
    stretches = np.array_split(order, num_stretches)
    mean_times_s = [times_s[indices].mean() for indices in stretches]
    for name, percentile in zip(SUMMARY_LINES, (0, 50, 100), strict=True):
        # "lower": a value that was read, not one between two readings.
        summary = [
            np.percentile(values[indices], percentile, method="lower") for indices in stretches
        ]
        yield name, zip(mean_times_s, summary, strict=True)


def compute_bucket_size(steps: int, *, max_points: int = MAX_POINTS) -> int:
    """Return how many steps are drawn as one bucket; 1: every step is drawn.

    Args:
        steps: number of steps of the line.
        max_points: how many points the line may have at most.
    """
    if steps <= max_points:
        return 1
    # Two points are drawn of each bucket. Not 0, by which the next line would divide.
    max_buckets = max(1, max_points // 2)
    return math.ceil(steps / max_buckets)


def thin_values(
    values: NDArray[np.float64], *, max_points: int = MAX_POINTS
) -> list[tuple[int, float]]:
    """Return at most ``max_points`` pairs of index and value, in order.

    Of each bucket of neighbouring values, the smallest and the largest finite value are kept; a
    bucket without a finite value gives a single NaN, so that a line has a gap there.
    """
    size = compute_bucket_size(len(values), max_points=max_points)
    if size == 1:
        return list(enumerate(values.tolist()))
    points: list[tuple[int, float]] = []
    for start in range(0, len(values), size):
        bucket = values[start : start + size]
        bucket = np.where(np.isfinite(bucket), bucket, np.nan)
        if np.isnan(bucket).all():
            points.append((start, math.nan))
        else:
            # A set: both are the same index if all values are equal.
            extremes = {int(np.nanargmin(bucket)), int(np.nanargmax(bucket))}
            points += [(start + index, float(bucket[index])) for index in sorted(extremes)]
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
    """Return the mean and the extremes of a quantity; None if no reading has it.

    Args:
        times_s: of readings in the interval, ascending, ``(n,)``.
        values: ``(n,)``; NaN: the reading does not have it.
        interval: its start and its later end, in seconds on the same clock as ``times_s``.
    """
    is_known = ~np.isnan(values)
    times_s = times_s[is_known]
    values = values[is_known]
    if len(values) == 0:
        return None
    start_s, end_s = interval
    # A reading weighs the seconds of the interval for which it is the nearest one: they end in the
    # middle between two readings.
    middles_s = (times_s[1:] + times_s[:-1]) / 2
    weights_s = np.diff(middles_s, prepend=start_s, append=end_s)
    return Quantity(
        readings=len(values),
        # Between two readings, or between a reading and an edge of the interval.
        longest_gap_s=np.diff(times_s, prepend=start_s, append=end_s).max(),
        mean=float(values @ weights_s) / (end_s - start_s),
        lowest=values.min(),
        highest=values.max(),
    )


def measure_energy(times_s: Array, joules: Array, interval: Interval) -> Energy:
    """Return how far a counter of energy rose in an interval, or the reason why it is not known.

    At both edges of the interval the counter is interpolated linearly between two readings.

    Args:
        times_s: of all readings, also of those before and after the interval, ascending, ``(n,)``.
        joules: readings of the counter, ``(n,)``; NaN: the reading does not have it.
        interval: its start and its later end, in seconds on the same clock as ``times_s``.
    """
    is_known = ~np.isnan(joules)
    times_s = times_s[is_known]
    joules = joules[is_known]
    start_s, end_s = interval
    if len(joules) == 0:
        return Energy(reason=message("counter_untold"))
    # Indices of the last reading at or before the start, and of the first one at or after the end.
    first = np.searchsorted(times_s, start_s, "right") - 1
    last = np.searchsorted(times_s, end_s)
    if first < 0 or last == len(joules):  # no reading before the start or after the end
        return Energy(reason=message("counter_not_around"))
    times_s = times_s[first : last + 1]
    joules = joules[first : last + 1]
    gaps_s = np.diff(times_s)
    gaps_with_edge: set[int] = set()  # a set: one gap may contain both edges
    if times_s[0] < start_s:
        gaps_with_edge.add(0)  # the start is between the first two readings
    if times_s[-1] > end_s:
        gaps_with_edge.add(len(gaps_s) - 1)  # the end is between the last two
    # Time between the readings around both edges; 0 if a reading is at each edge.
    between_s = float(sum(gaps_s[gap] for gap in gaps_with_edge))
    start_joules, end_joules = np.interp(interval, times_s, joules)
    rise = end_joules - start_joules
    has_fallen = (np.diff(joules) < 0).any()  # it was reset, or overflowed
    if rise <= 0 or has_fallen:  # a device that is on always uses energy
        return Energy(reason=message("counter_wrong"))
    # Too much of the interval is interpolated: the rise may be of the time before or after it.
    if between_s > MAX_UNSEEN_SHARE * (end_s - start_s):
        reason = message("counter_read_seldom", between_s=between_s, interval_s=end_s - start_s)
        return Energy(between_s=between_s, reason=reason)
    return Energy(joules=rise, between_s=between_s)
