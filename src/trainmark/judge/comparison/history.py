"""Find steps in a figure's history, and tell what its newest value is against them.

Segments of constant level are found exactly, by optimal partitioning: the sum of squared deviations
from the segments' means plus a penalty for each segment is minimal. Method: Jackson et al., "An
algorithm for optimal partitioning of data on an interval", IEEE Signal Processing Letters 12(2),
2005; the penalty is a multiple of the noise variance times log n, as in Killick, Fearnhead and
Eckley, "Optimal detection of changepoints with a linear computational cost", JASA 107, 2012.
Outliers are moved to the edge of a running median's band first (Hampel's identifier: Davies and
Gather, "The identification of multiple outliers", JASA 88, 1993), because a squared deviation
would make each of them a segment. Series may lie along leading axes: all are computed at once.
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
_PENALTY = 6.0  # of a segment, in noise variances times log n; tests state the rate of false alarms
_BAND = 3  # values on each side of the running median; and its half width in noise deviations
LEAST_STEP = 0.03
_RECENT = 14  # values since a step; one that is longer ago is what is expected
_OUTLIER = 4.0  # noise deviations
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
    """

    expected: float
    value: float
    noise: float
    began: int | None


def change_points(times: Sequence[Any], values: ArrayLike) -> list[Change]:
    """Return the steps of one series in order of time; none in fewer than ten values.

    Args:
        times: of the values, ascending; they only name the steps.
    """
    data = np.asarray(values, np.float64)
    edges = bounds(starts(data)) if len(data) >= 2 * SHORTEST else []
    medians = [float(np.median(data[first:end])) for first, end in pairwise(edges)]
    steps = zip(edges[1:-1], pairwise(medians), strict=True)
    return [Change(at, times[at], *beside) for at, beside in steps]


def outlook(values: Sequence[float], edges: Sequence[int]) -> Outlook:
    """Return what to hold the newest of a series' values against.

    Args:
        edges: ``bounds`` of the series.
    """
    segments = [np.asarray(values[first:end]) for first, end in pairwise(edges)]
    now, level = values[-1], float(np.median(segments[-1]))
    if len(segments) > 1 and len(segments[-1]) <= _RECENT:
        before = float(np.median(segments[-2]))
        # Of a step that counts while runs stay at its level; afterwards it is over.
        if abs(level / before - 1) > LEAST_STEP and abs(now - level) < abs(now - before):
            return Outlook(before, level, 0.0, edges[-2])
    usual = float(np.median(segments[-1][:-1]))
    noise = deviation(np.concatenate([found - np.median(found) for found in segments]))
    return Outlook(usual, now, float(_OUTLIER * noise[0] / usual), None)


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
        values: series of four or more along the last axis; all are segmented at once.
    """
    data = np.asarray(values, np.float64)
    *leading, length = data.shape
    median = np.median(data, axis=-1, keepdims=True)
    # Differences of neighbours, so that neither steps nor drift count as noise.
    noise = deviation(np.diff(data)) / np.sqrt(2)
    noise = np.maximum(noise, _LEAST_NOISE * np.abs(median))
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
        cost += least[..., begin] + _PENALTY * np.log(length) * noise**2
        found[..., end], least[..., end] = np.argmin(cost, axis=-1), np.min(cost, axis=-1)
    return found
