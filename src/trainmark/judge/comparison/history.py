"""Find steps and drift in a figure's history, and tell what its newest value is against them.

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

SHORTEST = 5  # values of a segment: its median outvotes two outliers
LEAST_RUNS, MOST_RUNS = 2 * SHORTEST, 120  # of a history
RAMP = 30  # newest values that a drift is looked for in
_PENALTY = 4.0  # of a segment, in variances of noise times log n; tests state the false alarms
_BAND = 3  # values on each side of the running median; and its half width in noise deviations
_LAG = 5  # values further apart are nearly independent of each other
_MOST_CORRELATED = 0.9  # values, one with the next
LEAST_STEP, _LEAST_DRIFT = 0.03, 0.01
_RECENT = 14  # values since a step; one that is longer ago is what is expected
_CERTAIN = 4.0  # deviations: of an outlier, of a drift
_LEAST_NOISE = 1e-3  # of the median: figures that repeat to the last digit have steps too


@dataclass(frozen=True, slots=True)
class Change:
    """A step in a series: where it begins, and the medians of the segments beside it."""

    index: int
    time: Any
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a series says of its newest value.

    Args:
        expected: the level before a recent step; without one, the level that the series has.
        value: the level after the step; without one, the newest value.
        noise: share of ``expected`` by which single values differ from it by chance.
        began: index at which the step began; None: there is none.
        drift: share by which the level moved over the ramp; None: chance explains it.
    """

    expected: float
    value: float
    noise: float
    began: int | None
    drift: float | None


def change_points(times: Sequence[Any], values: ArrayLike) -> list[Change]:
    """Return the steps of one series in order of time; none in fewer than ten values.

    Args:
        times: of the values, ascending; they only name the steps.
    """
    data = np.asarray(values, np.float64)
    edges = bounds(starts(data)) if len(data) >= LEAST_RUNS else []
    medians = [float(np.median(data[first:end])) for first, end in pairwise(edges)]
    steps = zip(edges[1:-1], pairwise(medians), strict=True)
    return [Change(at, times[at], *beside) for at, beside in steps]


def outlook(values: Sequence[float], edges: Sequence[int] | None = None) -> Outlook:
    """Return what to hold the newest of a series' values against.

    Args:
        edges: ``bounds`` of the series, where they are known.
    """
    data = np.asarray(values, np.float64)
    edges = bounds(starts(data)) if edges is None else edges
    segments = [data[first:end] for first, end in pairwise(edges)]
    levels = [float(np.median(found)) for found in segments]
    now, level = values[-1], levels[-1]
    if len(segments) > 1 and len(segments[-1]) <= _RECENT:
        before = levels[-2]
        # Of a step that counts while runs stay at its level; afterwards it is over.
        if abs(level / before - 1) > LEAST_STEP and abs(now - level) < abs(now - before):
            return Outlook(before, level, 0.0, edges[-2], None)
    usual = float(np.median(segments[-1][:-1]))
    noise = deviation(np.concatenate([x - y for x, y in zip(segments, levels, strict=True)]))
    steps = [at for at, (x, y) in zip(edges[1:-1], pairwise(levels), strict=True)
             if abs(y / x - 1) > LEAST_STEP]  # fmt: skip
    moved = _drift(data[steps[-1] if steps else 0 :])
    return Outlook(usual, now, float(_CERTAIN * noise[0] / usual), None, moved)


def _drift(data: NDArray[np.float64]) -> float | None:
    """Return by what share the level moved over the last values; None: chance explains it."""
    count = len(data)
    if count < RAMP / 2:
        return None
    ramp = np.maximum(np.arange(count) - (count - 1 - RAMP), 0.0)
    ramp = ramp - ramp.mean()
    logs = np.log(data) - np.log(data).mean()
    rest = logs - ramp * (ramp @ logs) / (ramp @ ramp)
    most = _CERTAIN * deviation(rest)  # of outliers
    slope = float(ramp @ (logs - rest + np.clip(rest, -most, most))) / float(ramp @ ramp)
    rest = np.clip(logs - slope * ramp, -most, most)
    again = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-300)
    # A fitted line takes correlation away: by Kendall, "Note on bias in the estimation of
    # autocorrelation", Biometrika 41, 1954, extended to a slope.
    again = min(max((count * again + 2) / (count - 4), 0.0), _MOST_CORRELATED)
    powers = again ** np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    variance = float(ramp @ powers @ ramp) / float(ramp @ ramp) ** 2
    error = (float(rest @ rest) / (count - 2) * variance) ** 0.5
    moved = slope * min(RAMP, count)
    return moved if abs(slope) > _CERTAIN * error and abs(moved) > _LEAST_DRIFT else None


def bounds(found: NDArray[np.int64]) -> list[int]:
    """Return where the segments of one series begin, and its length, from what ``starts`` found."""
    edges = [len(found) - 1]
    while edges[0] > 0:
        edges.insert(0, int(found[edges[0]]))
    return edges


def deviation(distances: ArrayLike) -> Any:
    """Return the standard deviation of normal noise with these distances from its middle."""
    return 1.4826 * np.median(np.abs(distances), axis=-1, keepdims=True)


def starts(values: ArrayLike) -> NDArray[np.int64]:
    """Return for each length t the index at which the last segment of the first t values begins.

    Args:
        values: series of ten or more along the last axis; all are segmented at once.
    """
    data = np.asarray(values, np.float64)
    *leading, length = data.shape
    median = np.median(data, axis=-1, keepdims=True)
    # Differences, so that neither steps nor drift count as noise; of neighbours they are smaller
    # where noise is correlated.
    near = deviation(np.diff(data)) / np.sqrt(2)
    far = deviation(data[..., _LAG:] - data[..., :-_LAG]) / np.sqrt(2)
    noise = np.maximum(np.maximum(near, far), _LEAST_NOISE * np.abs(median))
    again = np.clip(1 - (near / noise) ** 2, 0, _MOST_CORRELATED)
    of_level = noise**2 * (1 + again) / (1 - again)
    padded = np.pad(data, [(0, 0)] * len(leading) + [(_BAND, _BAND)], mode="reflect")
    running = np.median(sliding_window_view(padded, 2 * _BAND + 1, axis=-1), axis=-1)
    kept = np.clip(data, running - _BAND * noise, running + _BAND * noise) - median
    sums, squares = np.zeros((2, *leading, length + 1))
    sums[..., 1:], squares[..., 1:] = np.cumsum(kept, axis=-1), np.cumsum(kept**2, axis=-1)
    least, found = np.full(sums.shape, np.inf), np.zeros(sums.shape, np.int64)
    least[..., 0] = 0.0
    for end in range(SHORTEST, length + 1):
        begin = slice(0, end - SHORTEST + 1)
        counts = np.arange(end, SHORTEST - 1, -1)
        cost = squares[..., end, None] - squares[..., begin]
        cost -= (sums[..., end, None] - sums[..., begin]) ** 2 / counts
        cost += least[..., begin] + _PENALTY * np.log(length) * of_level
        found[..., end], least[..., end] = np.argmin(cost, axis=-1), np.min(cost, axis=-1)
    return found
