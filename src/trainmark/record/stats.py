"""Compute statistics over step times and launches.

No value is left out as an outlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


STEADY_DRIFT = 0.05  # relative change of step times from begin to end, up to which a run is steady
_STEADY_MIN_STEPS = 12  # from which a drift is measured
INTERVAL_MIN_LAUNCHES = 5  # from which a mean has an interval
_MIN_NOISE = 1e-4  # relative deviation that real step times have at least
_MAX_COPY_DIFFERENCE = _MIN_NOISE / 10  # relative, of step times that are copied
_NUM_ANGLES = 20_001  # at which the density of Student's distribution is computed
_TREND_LEVEL = 0.99  # confidence that a trend is not 0


def summarize_step_times(step_ns: NDArray[np.int64]) -> dict[str, float | None] | None:
    """Return percentiles, median absolute deviation and coefficient of variation of step times.

    Args:
        step_ns: time of each step in nanoseconds, ``(steps,)``.

    Returns:
        ``p50``, ``p90``, ``p99`` and ``mad`` in seconds; ``cv`` is the sample standard deviation
        (n - 1) as a share of the mean, None for one step. None if there are no steps.
    """
    if len(step_ns) == 0:
        return None
    seconds = step_ns / 1e9
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
    mad = float(np.median(np.abs(seconds - p50)))
    return {"p50": p50, "p90": p90, "p99": p99, "mad": mad, "cv": _compute_cv(seconds)}


def _compute_cv(values: NDArray[np.float64]) -> float | None:
    """Return the sample standard deviation over the mean; None for one value or a mean of 0."""
    mean = float(values.mean())
    if len(values) < 2 or mean == 0:
        return None
    return float(values.std(ddof=1)) / mean


def measure_drift(step_ns: NDArray[np.int64]) -> float | None:
    """Return how much longer the median step of the last third took than that of the first third.

    It is a share of the first third's median, below zero if steps became faster. None if there are
    fewer than 12 steps, or if the first third's median is 0.
    """
    if len(step_ns) < _STEADY_MIN_STEPS:
        return None
    third = len(step_ns) // 3
    first = float(np.median(step_ns[:third]))
    last = float(np.median(step_ns[-third:]))
    if first <= 0:
        return None
    return last / first - 1


@dataclass(frozen=True, slots=True)
class LaunchSummary:
    """A figure over several launches.

    Args:
        mean: geometric mean; the arithmetic mean if a value is zero or below.
        low: lower end of the mean's 95% interval, by Student's t on the logarithms; of fewer than
            five launches the smallest value.
        high: upper end of that interval; of fewer than five launches the largest value.
        cv: sample standard deviation divided by the arithmetic mean; None: there is one launch.
        launches: number of launches.
    """

    mean: float
    low: float
    high: float
    cv: float | None
    launches: int

    @property
    def is_range(self) -> bool:
        """Tell whether ``low`` and ``high`` are the lowest and highest value, not an interval.

        They are if there are too few launches for an interval.
        """
        return self.launches < INTERVAL_MIN_LAUNCHES


def summarize_launches(values: Sequence[float]) -> LaunchSummary:
    """Return the mean of one value or more, with its 95% interval or the range of the values.

    Of values above zero the mean is the geometric one. Fewer than ``INTERVAL_MIN_LAUNCHES`` values
    give no interval: then their lowest and highest value stand for it.
    """
    data = np.asarray(values, np.float64)
    are_positive = bool((data > 0).all())
    # The mean of logarithms is the logarithm of the geometric mean.
    data_to_average = np.log(data) if are_positive else data
    mean = float(data_to_average.mean())
    half_width = 0.0
    if len(data) >= INTERVAL_MIN_LAUNCHES:
        half_width = _compute_half_width(data_to_average)
    low = mean - half_width
    high = mean + half_width
    if are_positive:
        mean = exp(mean)
        low = exp(low)
        high = exp(high)
    if data.min() == data.max():  # exp(log(x)) may differ from x in the last digit
        mean = low = high = float(data[0])
    if len(data) < INTERVAL_MIN_LAUNCHES:
        low = float(data.min())
        high = float(data.max())
    return LaunchSummary(mean, low, high, _compute_cv(data), len(data))


class RatioEstimate(NamedTuple):
    """The ratio of a figure on two sides, with both ends of its 95% interval.

    The ends are None if a side has fewer than five launches.
    """

    ratio: float
    low: float | None
    high: float | None


def estimate_ratio(
    a: Sequence[float], b: Sequence[float], *, paired: bool = False
) -> RatioEstimate:
    """Return the geometric mean of ``b`` divided by that of ``a``, with its 95% interval.

    The interval is computed on logarithms: if the values are paired, by Student's t from the
    differences of the pairs; else by Welch's t. With fewer than five values on a side, it is None.

    Args:
        a: values above zero, one of each launch.
        b: the same of the other side; as many as ``a`` if they are paired.
        paired: launch k of ``b`` was done right after or right before launch k of ``a``.
    """
    logs_a, logs_b = np.log(a), np.log(b)
    difference = float(logs_b.mean() - logs_a.mean())
    if min(len(a), len(b)) < INTERVAL_MIN_LAUNCHES:
        return RatioEstimate(exp(difference), None, None)
    if paired:
        # ``difference`` is also the mean of these differences, and so the middle of their interval.
        half_width = _compute_half_width(logs_b - logs_a)
    else:
        half_width = _compute_half_width_by_welch(logs_a, logs_b)
    return RatioEstimate(
        exp(difference), exp(difference - half_width), exp(difference + half_width)
    )


def _compute_half_width(data: NDArray[np.float64]) -> float:
    """Return half the width of the 95% interval of the mean of ``data``, by Student's t."""
    deviation = float(data.std(ddof=1))
    quantile = compute_student_quantile(len(data) - 1, level=0.95)
    half_width: float = quantile * deviation / len(data) ** 0.5
    return half_width


def _compute_half_width_by_welch(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return half the width of the 95% interval of the difference of two means, by Welch's t."""
    variance_a = a.var(ddof=1) / len(a)  # of the mean of ``a``
    variance_b = b.var(ddof=1) / len(b)
    variance = variance_a + variance_b  # of the difference of the means
    # The degrees of freedom are those of Welch and Satterthwaite.
    denominator = variance_a**2 / (len(a) - 1) + variance_b**2 / (len(b) - 1)
    if not denominator:  # all values of each side are equal
        return 0.0
    degrees_of_freedom = float(variance**2 / denominator)
    quantile = compute_student_quantile(degrees_of_freedom, level=0.95)
    half_width: float = quantile * float(variance) ** 0.5
    return half_width


@lru_cache(maxsize=256)
def compute_student_quantile(degrees_of_freedom: float, level: float = 0.95) -> float:
    """Return the t for which Student's distribution has the mass ``level`` from -t to t.

    It is exact to five digits up to 10,000 degrees of freedom and a level of 0.9999. Beyond, it is
    somewhat too large: by 0.4% for two degrees of freedom and a level of 1 - 1e-7.

    The distribution is integrated numerically. For n degrees of freedom and ``t = sqrt(n)
    tan(angle)``, its density over the angle is proportional to ``cos(angle)**(n - 1)``.

    Args:
        degrees_of_freedom: 1 or more.
        level: from 0 to 1.
    """
    # The distribution is symmetric, so that its upper half, t from 0 to infinity, is enough.
    angles = np.linspace(0, np.pi / 2, _NUM_ANGLES)
    density = np.cos(angles) ** (degrees_of_freedom - 1)
    # The mass from 0 to each angle, by the trapezoidal rule and up to a constant factor.
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    # The angle at which the mass is the share ``level`` of the whole; the factor cancels out.
    angle = np.interp(level * mass[-1], mass, angles)
    return float(degrees_of_freedom**0.5 * np.tan(angle))


def estimate_trend(*sides: Sequence[float]) -> float | None:
    """Return the relative change of values from launch to launch; None: chance explains it.

    A line is fitted to the logarithms over the order of the launches, and its slope is returned,
    if it differs from 0 with 99% confidence.

    Args:
        sides: one or more series of launches, such as A and B of a comparison: each has three
            values or more, above zero and in the order of its launches. The lines of all share one
            slope; the level of each is its own.
    """
    # Order and logarithms are relative to their mean in each side, so that the line goes through
    # the origin.
    order = np.concatenate([np.arange(len(side)) - (len(side) - 1) / 2 for side in sides])
    logs = np.concatenate([np.log(side) - np.log(side).mean() for side in sides])
    degrees_of_freedom = len(order) - len(sides) - 1  # a level of each side, and the slope
    sum_squares = float(order @ order)
    slope = float(order @ logs) / sum_squares
    residuals = logs - slope * order
    slope_error = float(residuals @ residuals / degrees_of_freedom / sum_squares) ** 0.5
    max_chance_slope = compute_student_quantile(degrees_of_freedom, _TREND_LEVEL) * slope_error
    return slope if abs(slope) > max_chance_slope else None


def is_proportional(a: Sequence[int], b: Sequence[int]) -> bool:
    """Tell whether the step times of one launch are those of the other times a factor.

    Those of two real launches never are. False if there are too few times to decide, or if the two
    lists differ but the times of ``a`` hardly vary.
    """
    if len(a) != len(b) or len(a) < _STEADY_MIN_STEPS:
        return False
    if a == b:  # the same to the nanosecond: a copy, even if the times hardly vary
        return True
    relative_a = _divide_by_mean(a)
    relative_b = _divide_by_mean(b)
    # Two launches whose times hardly vary have similar times, although none is a copy.
    has_noise = np.median(np.abs(relative_a - np.median(relative_a))) > _MIN_NOISE
    are_close = np.abs(relative_a - relative_b).max() < _MAX_COPY_DIFFERENCE
    return bool(has_noise and are_close)


def _divide_by_mean(values: Sequence[int]) -> NDArray[np.float64]:
    """Return step times relative to their mean."""
    # At least 1 ns, because it is a divisor.
    return np.asarray(values, np.float64) / max(1.0, float(np.mean(values)))
