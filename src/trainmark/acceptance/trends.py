"""Estimate changes over time that all nodes share, as heat causes them.

They are removed from the measurements and reported. V is the number of values.
"""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import compute_medians

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers

_LARGE_ROUND = 16  # number of values from which their median is the level of their round
_MIN_HALF_ROUNDS = 4  # number of rounds of a half from which the later half is judged by itself
_MIN_TREND_ROUNDS = 6  # number of rounds from which a trend is reported
_MIN_LINE_ROUNDS = 3  # number of rounds from which a line is fitted to small rounds


def compute_round_levels(values: Floats, rounds: Integers) -> Floats:
    """Return the level of the round of each value: what the times of the round have in common.

    The level of a round with at least ``_LARGE_ROUND`` values, a large round, is their median. That
    of a smaller round is interpolated between the large rounds before and after it; before the
    first large round it is the level of the first one, after the last one that of the last. The
    median of two pairs, for instance, shows more of the speed of these pairs than of their round.
    If no round is large, the levels are a straight line, whose slope is the median of the slopes
    between rounds (Theil and Sen). The line has the mean 0. A constant in all levels does not
    matter, because effects are differences from the peers.

    Args:
        values: (V,) logarithms of times.
        rounds: (V,) number of the round of each. Only the order of the numbers counts: rounds that
            confirm others have numbers that are higher by a million.

    Returns:
        (V,).
    """
    if len(values) == 0:
        return values
    # ``round_index`` is the index in ``round_numbers`` of the round of each value.
    round_numbers, round_index, counts = np.unique(rounds, return_inverse=True, return_counts=True)
    round_medians = compute_medians(values, round_index, len(round_numbers))
    is_large = counts >= _LARGE_ROUND
    positions = np.arange(len(round_numbers))  # of the rounds in time: all last about equally long
    if is_large.any():
        levels: Floats = np.interp(positions, positions[is_large], round_medians[is_large])
        return levels[round_index]
    if len(round_numbers) < _MIN_LINE_ROUNDS:  # too few for a line: all levels count as equal
        return np.zeros_like(values)
    # The slope between every two rounds, of which each pair counts once.
    distances = positions[:, None] - positions[None, :]
    rises = round_medians[:, None] - round_medians[None, :]
    is_later = distances > 0
    slope = float(np.median(rises[is_later] / distances[is_later]))
    line: Floats = slope * (positions - positions.mean())
    return line[round_index]


def compute_trend(values: Floats, rounds: Integers) -> float | None:
    """Return the relative rise of times from the first to the last third of the rounds.

    None if there are too few rounds.

    Args:
        values: (V,) logarithms of times.
        rounds: (V,) number of the round of each.
    """
    round_numbers, round_index = np.unique(rounds, return_inverse=True)
    if len(round_numbers) < _MIN_TREND_ROUNDS:
        return None
    round_medians = compute_medians(values, round_index, len(round_numbers))
    third = len(round_numbers) // 3
    rise = float(np.median(round_medians[-third:]) - np.median(round_medians[:third]))
    return expm1(rise)


def is_in_later_half(rounds: Integers) -> Flags:
    """Return which measurements are of the later half of the rounds.

    No measurement is, if there are too few rounds to judge the later half by itself.

    Args:
        rounds: (V,) number of the round of each measurement.

    Returns:
        (V,).
    """
    round_numbers, round_index = np.unique(rounds, return_inverse=True)
    half = len(round_numbers) // 2
    if half < _MIN_HALF_ROUNDS:
        return np.zeros(len(rounds), bool)
    is_late: Flags = round_index >= half
    return is_late
