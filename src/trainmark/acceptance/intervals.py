"""Decide verdicts by intervals: how wide they are, and how many measurements would decide.

Effects are natural logarithms of slowdowns. An interval reaches a number of standard errors to each
side of its effect. Arrays have one element a node or link.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.judgement import Verdict
from trainmark.record.stats import compute_student_quantile

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Floats, Integers

MAX_ROUNDS = 10_000  # more are not practical; they are needed if the effect is at the limit itself
NO_ROUNDS = -1  # no practical number of rounds would decide, or a verdict is decided already
UNKNOWN_ROUNDS = -2  # the noise is not known well enough to tell how many rounds would decide
MANY_MEASUREMENTS = 10_000  # degrees of freedom with which the noise counts as known


def compute_num_std_errors(error_rate: float, num_tests: int, degrees_of_freedom: int) -> float:
    """Return how many standard errors an interval reaches to each side.

    Only one end of an interval can cause a wrong verdict: the lower end if the node or link is
    fast, the upper end if it is slow. So each end may be wrong with the whole probability of one
    test, which is the error rate divided by the number of tests (Bonferroni).

    Args:
        error_rate: probability that any of the tests is wrong by chance.
        num_tests: number of intervals that are judged. A single interval counts as two, so that it
            gets the usual two-sided level, 1 - ``error_rate``.
        degrees_of_freedom: number of measurements minus number of effects that were estimated from
            them; below 1 the noise is unknown, and the interval is infinite.
    """
    if degrees_of_freedom < 1:
        return inf
    # A factor of 2, because the quantile leaves out both ends of the distribution.
    level = 1 - 2 * error_rate / max(2, num_tests)
    return compute_student_quantile(float(degrees_of_freedom), level)


def convert_to_slowdowns(effect: Floats) -> Floats:
    """Return effects, natural logarithms of ratios of times, as slowdowns: 0.05 is 5% more time."""
    # The end of a very wide interval becomes infinite, without a warning.
    with np.errstate(over="ignore"):
        return np.expm1(effect)


def decide_verdicts(effect: Floats, half_width: Floats, effect_limit: float) -> list[Verdict]:
    """Return the verdict of each interval: slow if all of it is above the limit, pass if none is.

    An interval with the limit inside is undecided, and so is what was not measured.

    Args:
        effect: natural logarithm of the slowdown of each node or link; NaN: it was not measured.
        half_width: how far the interval reaches to each side of its effect.
        effect_limit: effect up to which a node or link passes; a logarithm of a slowdown, too.
    """
    # Comparisons with NaN are false, so that NaN stays undecided.
    verdicts = [Verdict.UNDECIDED] * len(effect)
    for index in np.flatnonzero(effect - half_width > effect_limit):
        verdicts[index] = Verdict.SLOW
    for index in np.flatnonzero(effect + half_width <= effect_limit):
        verdicts[index] = Verdict.PASS
    return verdicts


def count_more_rounds(
    effect: Floats, half_width: Floats, count: Integers, effect_limit: float
) -> Integers:
    """Return how many further measurements would bring each interval to one side of the limit.

    A round gives each node or link that it measures one measurement. The width of an interval falls
    with the square root of the number of measurements. The number means nothing for an interval
    that is decided already; callers use it for undecided ones only.

    Args:
        effect: natural logarithm of the slowdown of each node or link, the middle of its interval.
        half_width: how far the interval of ``count`` measurements reaches to each side.
        count: measurements so far.
        effect_limit: effect beyond which a node or link is slow.

    Returns:
        The number for each; ``NO_ROUNDS`` where more than ``MAX_ROUNDS`` would be needed.
    """
    distance = np.abs(effect - effect_limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.ceil(count * (half_width / distance) ** 2 - count)
    is_practical = needed <= MAX_ROUNDS  # false for NaN, too
    # At least one: an interval whose lower end is the limit itself is undecided, but would need 0.
    return np.where(is_practical, np.maximum(needed, 1), NO_ROUNDS).astype(np.int64)
