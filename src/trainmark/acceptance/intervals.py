"""From an effect and its error to a verdict: how far intervals reach, and what would decide."""

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


def compute_reach(error_rate: float, num_tests: int, freedom: int) -> float:
    """Return how many standard errors an interval reaches to each side.

    A verdict depends on one end of its interval, so that each end has the whole error rate. It is
    divided by the number of tests (Bonferroni).

    Args:
        freedom: degrees of freedom of the noise: measurements minus estimated effects; below 1
            the noise is unknown, and the interval is infinite.
    """
    if freedom < 1:
        return inf
    return compute_student_quantile(float(freedom), 1 - 2 * error_rate / max(2, num_tests))


def convert_to_slowdowns(effect: Floats) -> Floats:
    """Return effects as slowdowns: 0.05 is 5% more time; the ends of intervals may be infinite."""
    with np.errstate(over="ignore"):
        return np.expm1(effect)


def decide_verdicts(effect: Floats, half_width: Floats, limit: float) -> list[Verdict]:
    """Return the verdict of each interval; what was not measured is undecided.

    Args:
        half_width: how far the interval reaches to each side of its effect.
    """
    verdicts = [Verdict.UNDECIDED] * len(effect)
    for place in np.flatnonzero(effect - half_width > limit):
        verdicts[place] = Verdict.SLOW
    for place in np.flatnonzero(effect + half_width <= limit):
        verdicts[place] = Verdict.PASS
    return verdicts


def count_more_rounds(
    effect: Floats, half_width: Floats, count: Integers, limit: float
) -> Integers:
    """Return how many further measurements would bring each interval to one side of the limit.

    Args:
        half_width: how far the interval of ``count`` measurements reaches to each side.

    Returns:
        ``NO_ROUNDS`` where more than ``MAX_ROUNDS`` would be needed.
    """
    distance = np.abs(effect - limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.ceil(count * (half_width / distance) ** 2 - count)
    is_practical = needed <= MAX_ROUNDS  # false for NaN, too
    return np.where(is_practical, np.fmax(needed, 1), NO_ROUNDS).astype(np.int64)
