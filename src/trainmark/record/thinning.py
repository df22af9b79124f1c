"""Thin a series to the least and the greatest value of each bucket.

No spike is lost. Nothing here computes a figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_POINTS = 1000
TOGETHER = ("lowest", "median", "highest")  # of lines that stand for many series


def bucket_steps(steps: int, *, max_points: int = MAX_POINTS) -> int:
    """Return how many steps a bucket holds: 1 where every step is drawn."""
    return 1 if steps <= max_points else math.ceil(steps / max(max_points // 2, 1))


def thin(values: NDArray[np.float64], *, max_points: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return at most ``max_points`` pairs of index and value, in order.

    Each bucket gives its least and its greatest finite value; a bucket without one gives a
    single NaN, so that a gap stays a gap.
    """
    size = bucket_steps(len(values), max_points=max_points)
    if size == 1:
        return list(enumerate(values.tolist()))
    buckets = math.ceil(len(values) / size)
    padded = np.full(buckets * size, np.nan)
    padded[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    table = padded.reshape(buckets, size)
    empty = np.isnan(table).all(axis=1)
    least = np.where(np.isnan(table), np.inf, table).argmin(axis=1)
    greatest = np.where(np.isnan(table), -np.inf, table).argmax(axis=1)
    points = []
    for row in range(buckets):
        if empty[row]:
            points.append((row * size, math.nan))
            continue
        places = sorted({int(least[row]), int(greatest[row])})
        points += [(row * size + place, float(table[row, place])) for place in places]
    return points
