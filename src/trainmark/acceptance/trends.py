"""Changes over time that all nodes share, as heat causes them: estimated, removed, reported."""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import medians

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers

_LARGE_ROUND = 16  # values; so many tell the level of their round alone
_MIN_HALF_ROUNDS = 4  # of a half, to judge the later one by itself
_MIN_TREND_ROUNDS = 6


def compute_round_levels(values: Floats, rounds: Integers) -> Floats:
    """Return the level of the round of each value.

    Of rounds with many values their median; small rounds have the level of their neighbours. If
    all are small: a straight line by the median of slopes (Theil and Sen), because the level of a
    round of two pairs cannot be told from the pairs.
    """
    if len(values) == 0:
        return values
    names, place, counts = np.unique(rounds, return_inverse=True, return_counts=True)
    of_rounds, is_large = medians(values, place, len(names)), counts >= _LARGE_ROUND
    if is_large.any():
        levels: Floats = np.interp(names, names[is_large], of_rounds[is_large])
        return levels[place]
    if len(names) < 3:
        return values * 0
    distances = names[:, None] - names[None, :]
    rises = of_rounds[:, None] - of_rounds[None, :]
    slope = float(np.median(rises[distances > 0] / distances[distances > 0]))
    line: Floats = slope * (names - names.mean())
    return line[place]


def compute_trend(values: Floats, rounds: Integers) -> float | None:
    """Return the share by which the last third of the rounds is above the first; None: too few."""
    names, place = np.unique(rounds, return_inverse=True)
    if len(names) < _MIN_TREND_ROUNDS:
        return None
    of_rounds, third = medians(values, place, len(names)), len(names) // 3
    return expm1(float(np.median(of_rounds[-third:]) - np.median(of_rounds[:third])))


def is_in_later_half(rounds: Integers) -> Flags:
    """Return which measurements are of the later half of the rounds; none if there are too few."""
    names, place = np.unique(rounds, return_inverse=True)
    half = len(names) // 2
    late: Flags = place >= half if half >= _MIN_HALF_ROUNDS else np.zeros(len(rounds), bool)
    return late
