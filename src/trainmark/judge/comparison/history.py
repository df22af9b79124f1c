"""Find steps and drift in the history of a figure, and assess its newest value.

Segments of constant level are found exactly, by optimal partitioning: the sum of squared deviations
from the segments' means plus a penalty for each segment is minimal. Method: Jackson et al., "An
algorithm for optimal partitioning of data on an interval", IEEE Signal Processing Letters 12(2),
2005; the penalty is a multiple of the variance that a level has by noise, correlated from value to
value, times log n, as in Killick, Fearnhead and Eckley, "Optimal detection of changepoints with a
linear computational cost", JASA 107, 2012. Outliers are moved to the edge of a running median's
band first (Hampel's identifier: Davies and Gather, "The identification of multiple outliers", JASA
88, 1993), because a squared deviation would make each of them a segment. A drift is the slope of a
ramp over the newest values, with the variance that it has where noise is correlated. Series may lie
along leading axes: all are segmented at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

MIN_SEGMENT_RUNS = 5  # the median of five values outvotes two outliers
MIN_RUNS = 2 * MIN_SEGMENT_RUNS  # of a history
MAX_RUNS = 120  # of a history; earlier runs do not count
DRIFT_RUNS = 30  # newest values in which a drift is looked for
# Relative changes; smaller ones are not reported.
MIN_STEP = 0.03
MIN_DRIFT = 0.01
_PENALTY = 4.0  # of a segment, in variances of noise times log n; tests state the false alarms
_MEDIAN_HALF_WIDTH = 3  # values on each side over which a running median is taken
_CLIP_SIGMAS = 3  # distance from the running median beyond which a value is an outlier
_LAG = 5  # values that are this far apart are nearly independent of each other
_MAX_RHO1 = 0.9  # of the correlation of a value with the next one
_MAX_RECENT_RUNS = 14  # since a step; the level after an older step is the expected one
_NUM_SIGMAS = 4.0  # beyond which an outlier or a drift is not chance
_MIN_SIGMA = 1e-3  # relative to the median: figures that repeat to the last digit have steps too
_SIGMA_OVER_MAD = 1.4826  # of normal noise: standard deviation over median absolute value
_TINY = 1e-300  # divisor instead of a sum of squares that is 0


@dataclass(frozen=True, slots=True)
class Change:
    """A step in a series.

    Args:
        index: of the first value after the step.
        time: of this value.
        before: median of the segment before the step.
        after: median of the segment after the step.
    """

    index: int
    time: Any
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Assessment:
    """The newest value of a series, compared with the values before it.

    Args:
        expected: the level before a recent step; without one, the level of the last segment.
        value: the level after the step; without one, the newest value.
        noise: relative difference from ``expected`` that single values have by chance.
        step_index: index of the first value after the step; None: there is no recent step.
        drift: relative change of the level in the last ``DRIFT_RUNS`` values; None: chance explains
            it.
    """

    expected: float
    value: float
    noise: float
    step_index: int | None
    drift: float | None


def change_points(times: Sequence[Any], values: ArrayLike) -> list[Change]:
    """Return the steps of one series in order of time; none in fewer than ``MIN_RUNS`` values.

    A step is a lasting change of the level of a figure from run to run.

    Args:
        times: when each value was measured, ascending; they only say when each step happened.
        values: ``(n,)``; the figure in each run.
    """
    data = np.asarray(values, np.float64)
    if len(data) < MIN_RUNS:
        return []
    # The series is cut into segments of constant level: where each begins, and where the last ends.
    edges = trace_edges(find_last_starts(data))
    # Medians and not means, because ``data`` still has the outliers.
    medians = [float(np.median(data[first:end])) for first, end in pairwise(edges)]
    step_indexes = edges[1:-1]
    return [
        Change(index, times[index], before, after)
        for index, (before, after) in zip(step_indexes, pairwise(medians), strict=True)
    ]


def assess_newest(values: Sequence[float], edges: Sequence[int] | None = None) -> Assessment:
    """Compare the newest value of a series with the values before it.

    The series is cut into segments of constant level. A step is a change from one level to the
    next.

    Args:
        values: ``MIN_RUNS`` or more, all above 0, the oldest first.
        edges: index at which each segment begins, and the number of values; None: they are
            computed here.
    """
    data = np.asarray(values, np.float64)
    if edges is None:
        edges = trace_edges(find_last_starts(data))
    segments = [data[first:end] for first, end in pairwise(edges)]
    levels = [float(np.median(segment)) for segment in segments]
    newest = values[-1]
    # Only a recent step counts: after an older one, values are expected at the level since it.
    if len(segments) > 1 and len(segments[-1]) <= _MAX_RECENT_RUNS:
        before = levels[-2]
        after = levels[-1]
        # A step counts only while new values stay at its level.
        is_still_there = abs(newest - after) < abs(newest - before)
        if abs(after / before - 1) > MIN_STEP and is_still_there:
            # Both are levels of several values, so no noise of single values applies. The step
            # itself is reported, not a drift towards it.
            last_segment_start = edges[-2]
            return Assessment(before, after, noise=0.0, step_index=last_segment_start, drift=None)

    # No recent step counts: there is none, it is too small, or the newest value is nearer to the
    # level before it. In each case the newest value is compared with the others of its segment,
    # the last one, which has at least ``MIN_SEGMENT_RUNS`` values.
    expected = float(np.median(segments[-1][:-1]))
    residuals = [segment - median for segment, median in zip(segments, levels, strict=True)]
    sigma = estimate_sigma(np.concatenate(residuals))
    step_indexes = [
        index
        for index, (before, after) in zip(edges[1:-1], pairwise(levels), strict=True)
        if abs(after / before - 1) > MIN_STEP
    ]
    # Only values since the last step: the ramp that is fitted would take a step for a drift.
    since_step = data[step_indexes[-1] :] if step_indexes else data
    return Assessment(
        expected,
        newest,
        noise=float(_NUM_SIGMAS * sigma[0] / expected),  # `sigma` has the shape (1,)
        step_index=None,
        drift=_estimate_drift(since_step),
    )


def _estimate_drift(data: NDArray[np.float64]) -> float | None:
    """Return the relative change of the level in the last values; None: chance explains it.

    A ramp, which is flat until the last ``DRIFT_RUNS`` values and then rises by 1 a value, is
    fitted to the logarithms by least squares. The result is the difference of logarithms, which for
    small drifts is nearly the relative change.

    Args:
        data: values of a figure, above 0, since the last lasting change of its level, the oldest
            first.
    """
    count = len(data)
    # With fewer values, noise that is correlated from value to value passes for a slope too often.
    # Between half of ``DRIFT_RUNS`` and ``DRIFT_RUNS``, the ramp rises over all values.
    if count < DRIFT_RUNS / 2:
        return None
    ramp = np.maximum(np.arange(count) - (count - 1 - DRIFT_RUNS), 0.0)
    # Without their means, ramp and logarithms need no constant in the fit.
    ramp = ramp - ramp.mean()
    logs = np.log(data) - np.log(data).mean()
    # Fit once, move outliers to the largest residual that noise explains, and fit again.
    residuals = logs - ramp * (ramp @ logs) / (ramp @ ramp)
    max_residual = _NUM_SIGMAS * estimate_sigma(residuals)
    clipped = np.clip(residuals, -max_residual, max_residual)
    without_outliers = logs - residuals + clipped
    slope = float(ramp @ without_outliers) / float(ramp @ ramp)
    # Without outliers here too: they would count as noise, which hides a drift. The limit is that
    # of the first fit, because it estimates the noise of the same values.
    residuals = np.clip(logs - slope * ramp, -max_residual, max_residual)
    drift = slope * float(ramp[-1] - ramp[0])  # over all steps from value to value of the ramp
    max_chance_slope = _NUM_SIGMAS * _estimate_slope_sigma(ramp, residuals)
    is_significant = abs(slope) > max_chance_slope and abs(drift) > MIN_DRIFT
    return drift if is_significant else None


def _estimate_slope_sigma(ramp: NDArray[np.float64], residuals: NDArray[np.float64]) -> float:
    """Return the standard deviation of a fitted slope, for noise of the form AR(1).

    Args:
        ramp: ``(n,)``, with the mean 0.
        residuals: ``(n,)`` of the fit; more than 4, which ``_estimate_drift`` ensures.
    """
    count = len(residuals)
    sum_squares = float(residuals @ residuals)
    # The correlation of a value's noise with that of the next value.
    rho1 = float(residuals[1:] @ residuals[:-1]) / max(sum_squares, _TINY)
    # Residuals are less correlated than the noise itself: by (1 + 4 rho1) / n if only a mean was
    # fitted (Kendall, "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954),
    # and in simulations by about 1 / n more with a slope. Solved for rho1 of the noise, a bias of
    # -(2 + 4 rho1) / n gives:
    rho1 = min(max((count * rho1 + 2) / (count - 4), 0.0), _MAX_RHO1)
    correlation = rho1 ** np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    # The variance of a least-squares slope, divided by that of the noise.
    slope_factor = float(ramp @ correlation @ ramp) / float(ramp @ ramp) ** 2
    slope_sigma: float = (sum_squares / (count - 2) * slope_factor) ** 0.5
    return slope_sigma


def trace_edges(last_starts: NDArray[np.int64]) -> list[int]:
    """Return the index at which each segment of a series begins, and the length of the series.

    A segment is a part of the series with a constant level.

    Args:
        last_starts: ``(n + 1,)``; for each length t the index at which the last segment of the
            first t values begins.
    """
    # From the last segment to the first: where one begins, the one before it ends.
    edges = [len(last_starts) - 1]
    while edges[0] > 0:
        edges.insert(0, int(last_starts[edges[0]]))
    return edges


def estimate_sigma(residuals: ArrayLike) -> Any:
    """Return the standard deviation of normal noise from the median of its absolute values."""
    return _SIGMA_OVER_MAD * np.median(np.abs(residuals), axis=-1, keepdims=True)


def find_last_starts(values: ArrayLike) -> NDArray[np.int64]:
    """Return for each length t the index at which the last segment of the first t values begins.

    The segments minimize the sum of squared deviations from their means plus a penalty for each.

    Args:
        values: ``(..., n)`` with n >= ``MIN_RUNS``; all series are segmented at once.

    Returns:
        ``(..., n + 1)``
    """
    data = np.asarray(values, np.float64)
    *leading, length = data.shape
    # ``sigma`` is the standard deviation of a value, and ``level_variance`` that of the mean of a
    # long segment, squared and times its length. Correlated noise makes the two differ.
    noise = _estimate_noise(data)
    # So that a single outlier does not make a segment.
    clipped = _clip_outliers(data, noise.sigma)
    # Sums over the first t values, from which the deviations of each segment follow.
    cusum = np.zeros((*leading, length + 1))
    cusum_squares = np.zeros((*leading, length + 1))
    cusum[..., 1:] = np.cumsum(clipped, axis=-1)
    cusum_squares[..., 1:] = np.cumsum(clipped**2, axis=-1)
    # The cost of each segment besides its deviations. It grows with the noise, so that noise alone
    # rarely makes a segment.
    penalty = _PENALTY * np.log(length) * noise.level_variance
    min_costs = np.full(cusum.shape, np.inf)  # of the best segmentation of the first t values
    min_costs[..., 0] = 0.0  # lengths shorter than a segment stay infinite
    last_starts = np.zeros(cusum.shape, np.int64)
    for end in range(MIN_SEGMENT_RUNS, length + 1):
        # The cost of each possible start of the segment that ends here: the sum of squared
        # deviations from its mean, and the costs of the segments before it.
        starts = slice(0, end - MIN_SEGMENT_RUNS + 1)
        counts = np.arange(end, MIN_SEGMENT_RUNS - 1, -1)  # values in the segment, by its start
        costs = cusum_squares[..., end, None] - cusum_squares[..., starts]
        costs -= (cusum[..., end, None] - cusum[..., starts]) ** 2 / counts
        costs += min_costs[..., starts] + penalty
        last_starts[..., end] = np.argmin(costs, axis=-1)
        min_costs[..., end] = np.min(costs, axis=-1)
    return last_starts


@dataclass(frozen=True, slots=True)
class _Noise:
    """The noise of series.

    Args:
        sigma: ``(..., 1)`` standard deviation of a value.
        level_variance: ``(..., 1)`` variance that noise gives to the mean of a long segment, times
            the number of its values.
    """

    sigma: NDArray[np.float64]
    level_variance: NDArray[np.float64]


def _estimate_noise(data: NDArray[np.float64]) -> _Noise:
    """Estimate the noise of series, which may be correlated from value to value.

    It is estimated from differences of values, because changes of the level and drift hardly affect
    them.

    Args:
        data: ``(..., n)``
    """
    median = np.median(data, axis=-1, keepdims=True)
    # The variance of the difference of two neighbours is 2 sigma**2 (1 - rho1) if their correlation
    # is rho1. So ``sigma_lag1`` is smaller than sigma if noise is correlated.
    sigma_lag1 = estimate_sigma(np.diff(data)) / np.sqrt(2)
    # Values that are ``_LAG`` apart are nearly independent: their difference has 2 sigma**2.
    sigma_lag5 = estimate_sigma(data[..., _LAG:] - data[..., :-_LAG]) / np.sqrt(2)
    # At least a small part of the median, because equal values would have no noise at all.
    sigma = np.maximum(np.maximum(sigma_lag1, sigma_lag5), _MIN_SIGMA * np.abs(median))
    rho1 = np.clip(1 - (sigma_lag1 / sigma) ** 2, 0, _MAX_RHO1)
    # The variance of the mean of n values, times n, for noise of the form AR(1): x[t] = rho1 *
    # x[t - 1] + independent noise.
    level_variance = sigma**2 * (1 + rho1) / (1 - rho1)
    return _Noise(sigma, level_variance)


def _clip_outliers(data: NDArray[np.float64], sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return series minus their medians, with outliers moved to the edge of a band.

    The band is around a running median (Hampel's identifier).

    Args:
        data: ``(..., n)``; each series is along the last axis.
        sigma: ``(..., 1)``; standard deviation of the noise of each series.

    Returns:
        ``(..., n)``
    """
    num_leading = data.ndim - 1
    padding = [(0, 0)] * num_leading + [(_MEDIAN_HALF_WIDTH, _MEDIAN_HALF_WIDTH)]
    padded = np.pad(data, padding, mode="reflect")
    windows = sliding_window_view(padded, 2 * _MEDIAN_HALF_WIDTH + 1, axis=-1)
    running_median = np.median(windows, axis=-1)
    max_distance = _CLIP_SIGMAS * sigma
    clipped: NDArray[np.float64] = np.clip(
        data, running_median - max_distance, running_median + max_distance
    )
    # Segments do not depend on the level; without it, sums of squares lose fewer digits.
    return clipped - np.median(data, axis=-1, keepdims=True)
