"""Means over time and rises of counters, from readings taken now and then in an interval.

Readings are arrays: seconds, ascending, and values, NaN where a reading does not tell one. Knows
nothing of devices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainmark.data.documents import Frozen
from trainmark.record.shapes import Amount, Count, Number
from trainmark.spec import Message, message

Array = NDArray[np.float64]
Interval = tuple[Number, Number]  # start and end in seconds; the end is later
# Share of an interval: what lies between the readings around its edges is interpolated.
MOST_UNSEEN = 0.1


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


def nearest_s(times_s: Array, interval: Interval) -> Array:
    """Return for how many seconds of the interval each of the readings in it is the nearest."""
    start_s, end_s = interval
    return np.diff(np.concatenate(([start_s], (times_s[1:] + times_s[:-1]) / 2, [end_s])))


def quantity(times_s: Array, values: Array, interval: Interval) -> Quantity | None:
    """Return the mean and the extremes of a quantity; None if no reading tells it.

    Args:
        times_s: of readings in the interval.
    """
    known = ~np.isnan(values)
    times_s, values = times_s[known], values[known]
    if not len(values):
        return None
    start_s, end_s = interval
    return Quantity(
        readings=len(values),
        longest_gap_s=np.diff(times_s, prepend=start_s, append=end_s).max(),
        mean=float(values @ nearest_s(times_s, interval)) / (end_s - start_s),
        lowest=values.min(),
        highest=values.max(),
    )


def energy(times_s: Array, joules: Array, interval: Interval) -> Energy:
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
    if (np.diff(joules) < 0).any():
        return Energy(reason=message("counter_wrong"))
    gaps_s = np.diff(times_s)[[0, -1]]  # around the start and around the end
    between_s = float(gaps_s @ [times_s[0] < start_s, times_s[-1] > end_s])
    if between_s > MOST_UNSEEN * (end_s - start_s):
        seldom = message("counter_read_seldom", between_s=between_s, interval_s=end_s - start_s)
        return Energy(between_s=between_s, reason=seldom)
    (rise,) = np.diff(np.interp(interval, times_s, joules))
    if rise <= 0:
        return Energy(between_s=between_s, reason=message("counter_wrong"))
    return Energy(joules=rise, between_s=between_s)
