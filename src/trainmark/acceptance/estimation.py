"""Robust estimates of levels, effects and noise: pure functions of arrays of logarithms of times.

Effects are differences from the peers: the median node has the effect 0. They are means by Tukey's
biweight, so that a few bad measurements do not move a node. N is the number of nodes, V that of
values.
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
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of normal noise
_ITERATIONS = 5
_FURTHER_ITERATIONS = 2  # of a mean that is begun near its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Effects with their standard errors; arrays of (N,).

    Args:
        effect: NaN without measurements.
        error: standard error; NaN without measurements.
        count: measurements from which each was estimated.
    """

    effect: Floats
    error: Floats
    count: Integers

    def shift(self, by: float, *, error: float = 0.0) -> Estimates:
        """Return the estimates with a constant added to each effect, which has an error itself."""
        return Estimates(
            effect=self.effect + by,
            error=np.sqrt(self.error**2 + error**2),
            count=self.count,
        )

    def scale(self, factor: float) -> Estimates:
        """Return the estimates with all errors multiplied by a factor."""
        return replace(self, error=self.error * factor)


def estimate_alone(measured: Measurements, levels: Floats) -> tuple[Estimates, float]:
    """Return the effects of nodes alone, relative to their peers, and the noise of a measurement.

    Args:
        levels: (A,) level of the round of each measurement, see ``trends``.
    """
    num_nodes, node = measured.num_nodes, measured.alone_node
    values = np.log(measured.alone_s) - levels
    residuals = values - compute_lower_medians(values, node, num_nodes)[node]
    noise = estimate_noise(residuals, len(set(node.tolist())))
    return subtract_peer_level(compute_biweight_means(values, node, num_nodes, noise)), noise


def estimate_noise(residuals: Floats, num_fitted: int) -> float:
    """Return the standard deviation of residuals, which outliers hardly change.

    Args:
        residuals: (V,) differences of values from what was estimated from them.
        num_fitted: number of effects that were estimated from the same values.
    """
    if len(residuals) == 0:
        return MIN_NOISE
    freedom = max(1, len(residuals) - num_fitted)
    spread = float(np.median(np.abs(residuals - np.median(residuals))))
    return max(MIN_NOISE, _NORMAL_MAD * spread * sqrt(len(residuals) / freedom))


def compute_medians(
    values: Floats, place: Integers, num_places: int, *, lower: bool = False
) -> Floats:
    """Return the median of the values of each place; NaN without values.

    Args:
        values: (V,).
        place: (V,) to which each value belongs, from 0 to ``num_places - 1``.
        lower: of an even number the lower of the two in the middle, not their mean.
    """
    order = np.lexsort((values, place))
    counts = np.bincount(place, minlength=num_places)
    starts = np.cumsum(counts) - counts
    present = counts > 0
    ordered = values[order]
    results = np.full(num_places, np.nan)
    low = ordered[(starts + (counts - 1) // 2)[present]]
    high = ordered[(starts + counts // 2)[present]]
    results[present] = low if lower else (low + high) / 2
    return results


def compute_lower_medians(values: Floats, place: Integers, num_places: int) -> Floats:
    """Return the lower median of the values of each place; NaN without values."""
    return compute_medians(values, place, num_places, lower=True)


def compute_biweight_means(
    values: Floats, node: Integers, num_nodes: int, noise: float, *, start: Floats | None = None
) -> Estimates:
    """Return the mean of each node's values by Tukey's biweight.

    Args:
        values: (V,).
        node: (V,) to which each value belongs.
        noise: standard deviation of a value.
        start: where the search for each mean begins; None: at the lower median of its values.
    """
    centre = compute_lower_medians(values, node, num_nodes) if start is None else start
    weight = np.ones(len(values))
    for _ in range(_ITERATIONS if start is None else _FURTHER_ITERATIONS):
        distance = (values - centre[node]) / (_TUNING * noise)
        weight = np.where(np.abs(distance) < 1, (1 - distance**2) ** 2, 0.0)
        total = np.bincount(node, weight, num_nodes)
        mean = np.bincount(node, weight * values, num_nodes) / np.where(total > 0, total, 1)
        centre = np.where(total > 0, mean, centre)
    count = np.bincount(node[weight > 0], minlength=num_nodes)
    error = np.full(num_nodes, np.nan)
    present = count > 0
    error[present] = noise / np.sqrt(_EFFICIENCY * count[present])
    return Estimates(effect=centre, error=error, count=count)


def compute_peer_level(effect: Floats) -> float:
    """Return the effect of the median node; of two, that of the faster one."""
    ordered = np.sort(effect[np.isfinite(effect)])
    return float(ordered[(len(ordered) - 1) // 2]) if len(ordered) else 0.0


def compute_peer_error(estimates: Estimates) -> float:
    """Return the standard error of the median node's effect; 0 without estimates."""
    errors = estimates.error[np.isfinite(estimates.error)]
    if len(errors) == 0:
        return 0.0
    # That of a median of normal values: sqrt(pi / 2) times that of their mean.
    return sqrt(np.pi / 2) * float(np.median(errors)) / sqrt(len(errors))


def subtract_peer_level(estimates: Estimates) -> Estimates:
    """Return the effects as differences from the median node, with the error of both."""
    return estimates.shift(
        -compute_peer_level(estimates.effect), error=compute_peer_error(estimates)
    )
