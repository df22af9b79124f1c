"""Robust estimates of levels, effects and noise: pure functions of arrays of logarithms of times.

The level of a round is the median logarithm of its times; the effect of a node is by how much its
own logarithms lie above the level. Effects are differences from the peers: the median node has the
effect 0. They are means by Tukey's biweight, so that a few bad measurements do not move a node. N
is the number of nodes, V that of values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Floats, Integers, Measurements

MIN_NOISE = 1e-4  # real step times always have more; equal ones would give an interval of width 0
_TUNING = 4.685  # of Tukey's biweight: 95% as efficient as the mean under normal noise
_EFFICIENCY = 0.95
_NORMAL_STD_OVER_MAD = 1.4826  # standard deviation over median absolute deviation of normal noise
_ITERATIONS = 5  # of a mean that begins at the median
_FURTHER_ITERATIONS = 2  # of a mean that begins near its final value


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Effects of nodes with their standard errors; arrays of (N,), one element a node.

    Args:
        effect: logarithm of the slowdown, the step time of the node over that of its peers; NaN
            without measurements.
        std_error: standard error; NaN without measurements.
        count: measurements from which each was estimated.
    """

    effect: Floats
    std_error: Floats
    count: Integers

    def shift(self, by: float, *, std_error: float = 0.0) -> Estimates:
        """Return the estimates with a constant added to each effect.

        Args:
            by: the constant.
            std_error: standard error of the constant itself.
        """
        return Estimates(
            effect=self.effect + by,
            std_error=np.sqrt(self.std_error**2 + std_error**2),
            count=self.count,
        )

    def scale(self, factor: float) -> Estimates:
        """Return the estimates with all standard errors multiplied by a factor."""
        return replace(self, std_error=self.std_error * factor)


def estimate_alone(measured: Measurements, levels: Floats) -> tuple[Estimates, float]:
    """Return the effects of nodes alone, relative to their peers, and the noise of a measurement.

    An effect is the natural logarithm of a slowdown; the noise is the standard deviation of the
    logarithm of one measurement, or ``MIN_NOISE`` if no node was measured twice.

    Args:
        measured: of it only the measurements of nodes alone are used: the seconds of a step,
            ``alone_s`` (A,), and the node of each, ``alone_node`` (A,).
        levels: (A,) the logarithm of the time that is usual in the round of each measurement.
    """
    num_nodes = measured.num_nodes
    node = measured.alone_node
    values = np.log(measured.alone_s) - levels
    # Noise is what is left after the usual value of its node is subtracted from each value. The
    # usual value is a median, because the biweight means below need the noise. It is not the lower
    # median, which is one of the values itself: of two values one would always have no noise. For
    # the same reason nodes that were measured once do not count.
    residuals = values - compute_medians(values, node, num_nodes)[node]
    counts = np.bincount(node, minlength=num_nodes)  # (N,) measurements of each node
    is_repeated = counts[node] > 1
    noise = estimate_noise(residuals[is_repeated], int((counts > 1).sum()))
    effects = compute_biweight_means(values, node, num_nodes, noise)
    return subtract_peer_level(effects), noise


def estimate_noise(residuals: Floats, num_fitted: int) -> float:
    """Return the standard deviation of residuals, which outliers hardly change.

    It is computed from the median absolute deviation. Fitted effects make residuals smaller than
    the noise is, which the degrees of freedom correct. It is at least ``MIN_NOISE``, because a
    noise of 0 would give intervals without width. ``_NORMAL_STD_OVER_MAD`` is the ratio of both
    measures of spread for normal noise.

    Args:
        residuals: (V,) differences of values from what was estimated from them.
        num_fitted: number of effects that were estimated from the same values.
    """
    if len(residuals) == 0:
        return MIN_NOISE
    degrees_of_freedom = max(1, len(residuals) - num_fitted)
    median_deviation = float(np.median(np.abs(residuals - np.median(residuals))))
    correction = sqrt(len(residuals) / degrees_of_freedom)
    return max(MIN_NOISE, _NORMAL_STD_OVER_MAD * median_deviation * correction)


def compute_medians(
    values: Floats, group: Integers, num_groups: int, *, lower: bool = False
) -> Floats:
    """Return the median of the values of each group, such as a node or a round.

    Args:
        values: (V,).
        group: (V,) group of each value, from 0 to ``num_groups - 1``.
        lower: of an even number of values the lower of the two in the middle, not their mean.

    Returns:
        (num_groups,); NaN for a group without values.
    """
    # Ordered by group and, within a group, by value: each group is one piece of the array.
    ordered = values[np.lexsort((values, group))]
    counts = np.bincount(group, minlength=num_groups)
    starts = np.cumsum(counts) - counts
    has_values = counts > 0
    medians = np.full(num_groups, np.nan)
    # The two values in the middle of each group; the same one if the group has an odd number.
    low = ordered[(starts + (counts - 1) // 2)[has_values]]
    high = ordered[(starts + counts // 2)[has_values]]
    medians[has_values] = low if lower else (low + high) / 2
    return medians


def compute_lower_medians(values: Floats, group: Integers, num_groups: int) -> Floats:
    """Return the lower median of the values of each group; NaN for a group without values.

    Of an even number of values the lower median is the lower of the two in the middle.
    """
    return compute_medians(values, group, num_groups, lower=True)


def compute_biweight_means(
    values: Floats, node: Integers, num_nodes: int, noise: float, *, start: Floats | None = None
) -> Estimates:
    """Return the mean of each node's values by Tukey's biweight.

    The weight of a value falls with its distance from the mean, down to 0, and the mean is computed
    again with these weights, a few times.

    Args:
        values: (V,).
        node: (V,) number of the node to which each value belongs.
        noise: standard deviation of a value.
        start: (N,) where the search for each mean begins; None: at the lower median of its values.

    Returns:
        The mean of each node as its effect, with its standard error and the number of its values
        that have a weight. The standard error is NaN if no value has one.
    """
    centre = compute_lower_medians(values, node, num_nodes) if start is None else start
    weight = np.ones(len(values))  # replaced in the first iteration, of which there is always one
    # A given start is near the result already, so that fewer iterations are enough.
    for _ in range(_ITERATIONS if start is None else _FURTHER_ITERATIONS):
        # A value has no weight from ``_TUNING`` standard deviations on.
        distance = (values - centre[node]) / (_TUNING * noise)
        weight = np.where(np.abs(distance) < 1, (1 - distance**2) ** 2, 0.0)
        total_weight = np.bincount(node, weight, num_nodes)
        has_weight = total_weight > 0
        weighted_sum = np.bincount(node, weight * values, num_nodes)
        # Without weight the sum is 0 too; the centre then stays as it was.
        mean = weighted_sum / np.where(has_weight, total_weight, 1)
        centre = np.where(has_weight, mean, centre)
    count = np.bincount(node[weight > 0], minlength=num_nodes)
    std_error = np.full(num_nodes, np.nan)
    has_values = count > 0
    # Under normal noise the estimate is as precise as a plain mean of 95% of the values
    # (``_EFFICIENCY``).
    std_error[has_values] = noise / np.sqrt(_EFFICIENCY * count[has_values])
    return Estimates(effect=centre, std_error=std_error, count=count)


def compute_peer_level(effect: Floats) -> float:
    """Return the effect of the median node; 0 if no node was measured.

    Args:
        effect: (N,) logarithm of the slowdown or of the time of each node, so that a fast node has
            a low effect; NaN: not measured.
    """
    ordered = np.sort(effect[np.isfinite(effect)])
    if len(ordered) == 0:
        return 0.0
    # If two nodes are in the middle, the faster one counts: of only two nodes, the slower one is
    # compared with the faster one.
    return float(ordered[(len(ordered) - 1) // 2])


def compute_peer_std_error(estimates: Estimates) -> float:
    """Return the standard error of the median node's effect; 0 without estimates."""
    std_errors = estimates.std_error[np.isfinite(estimates.std_error)]
    if len(std_errors) == 0:
        return 0.0
    # The standard error of a median of normal values is sqrt(pi / 2) times that of their mean. Each
    # node's effect counts with the same standard error, the median one.
    return sqrt(np.pi / 2) * float(np.median(std_errors)) / sqrt(len(std_errors))


def subtract_peer_level(estimates: Estimates) -> Estimates:
    """Return the effects of nodes as differences from the effect of the median node.

    The standard error of a difference includes that of the median node's effect.
    """
    return estimates.shift(
        -compute_peer_level(estimates.effect), std_error=compute_peer_std_error(estimates)
    )
