"""Fit the model of pairs: effects of nodes, and what remains of each pair.

The logarithm of the step time of a pair of nodes is

    level of the round + max(effect of the first node, effect of the second) + effect of the link
    + noise

because the slower node decides how fast a pair trains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import (
    MIN_NOISE,
    Estimates,
    compute_biweight_means,
    compute_lower_medians,
    compute_peer_error,
    compute_peer_level,
    estimate_noise,
    subtract_peer_level,
)
from trainmark.acceptance.trends import compute_round_levels, compute_trend, is_in_later_half

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers, Measurements

_ITERATIONS = 5  # of effects and the choice of ends, which depend on each other


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFit:
    """Effects of nodes in pairs, and what they do not explain of each measurement.

    Args:
        nodes: effects over all rounds.
        late: effects in the later half of the rounds; ``early``: in the other half.
        residual: (P,) logarithm of the step time minus level and node effect.
        without_level: (P,) logarithm of the step time minus the level alone.
        slower_effect: (P,) effect of the slower node.
        noise: standard deviation of a measurement.
        trend: see ``Judgement``.
    """

    nodes: Estimates
    early: Estimates
    late: Estimates
    residual: Floats
    without_level: Floats
    slower_effect: Floats
    noise: float
    trend: float | None

    def shift(self, by: float, *, error: float) -> PairFit:
        """Return the fit with a constant added to the effects of nodes, which has an error."""
        return replace(
            self,
            nodes=self.nodes.shift(by, error=error),
            early=self.early.shift(by, error=error),
            late=self.late.shift(by, error=error),
        )

    def replace_noise(self, noise: float) -> PairFit:
        """Return the fit with the errors that follow from another noise."""
        factor = noise / self.noise
        return replace(
            self,
            nodes=self.nodes.scale(factor),
            early=self.early.scale(factor),
            late=self.late.scale(factor),
            noise=noise,
        )


@dataclass(frozen=True, slots=True)
class _Ends:
    """Each measurement of a pair twice: of its first node, and of its second.

    Args:
        node: (2P,) the node; ``partner``: (2P,) the other one.
    """

    node: Integers
    partner: Integers
    num_nodes: int

    @classmethod
    def of(cls, measured: Measurements) -> _Ends:
        """Return the ends of the pairs."""
        first, second = measured.first, measured.second
        node, partner = np.concatenate([first, second]), np.concatenate([second, first])
        return cls(node, partner, measured.num_nodes)

    def find_informative(self, effect: Floats, *, noise: float, limit: float) -> Flags:
        """Return which ends depend on their node: those whose partner is not slower.

        The slower node of a pair decides its time. A node whose partners are all slower keeps all
        of its ends: they are upper bounds of its effect.

        Returns:
            (2P,).
        """
        counts = np.bincount(self.node, minlength=self.num_nodes)
        margin = limit / 2 + 2 * noise / np.sqrt(np.maximum(counts[self.partner], 1))
        chosen = effect[self.partner] <= effect[self.node] + margin
        has_any = np.bincount(self.node[chosen], minlength=self.num_nodes) > 0
        return chosen | ~has_any[self.node]

    def compute_means(
        self, values: Floats, chosen: Flags, noise: float, *, start: Floats | None = None
    ) -> Estimates:
        """Return the mean of each node over its chosen ends.

        Args:
            values: (P,) of the pairs.
        """
        both = np.tile(values, 2)
        return compute_biweight_means(
            both[chosen], self.node[chosen], self.num_nodes, noise, start=start
        )


def fit_pairs(
    measured: Measurements, alone: Estimates, alone_noise: float, limit: float
) -> PairFit:
    """Fit the model to the pairs.

    Args:
        alone: effects of nodes alone, from which the search begins.
        limit: effect beyond which a node counts as slow.
    """
    first, second = measured.first, measured.second
    ends = _Ends.of(measured)
    times = np.log(measured.pair_s)
    values = times - compute_round_levels(times, measured.pair_round)
    values, effect = _estimate_start(values, ends, alone, alone_noise, limit)
    # Of these estimates only the effects are used: the first iteration computes errors and counts.
    nodes = Estimates(effect=effect, error=effect * 0, count=np.zeros(measured.num_nodes, np.int64))
    noise = MIN_NOISE
    chosen = np.zeros(len(ends.node), bool)
    for _ in range(_ITERATIONS):
        slower = np.fmax(nodes.effect[first], nodes.effect[second])
        noise = estimate_noise(values - slower, measured.num_nodes)
        chosen = ends.find_informative(nodes.effect, noise=noise, limit=limit)
        nodes = ends.compute_means(values, chosen, noise, start=nodes.effect)
        level = compute_peer_level(nodes.effect)
        values = values - level
        nodes = nodes.shift(-level)
    slower = np.fmax(nodes.effect[first], nodes.effect[second])
    is_late = np.tile(is_in_later_half(measured.pair_round), 2)
    return PairFit(
        nodes=nodes.shift(0.0, error=compute_peer_error(nodes)),
        early=subtract_peer_level(ends.compute_means(values, chosen & ~is_late, noise)),
        late=subtract_peer_level(ends.compute_means(values, chosen & is_late, noise)),
        residual=values - slower,
        without_level=values,
        slower_effect=slower,
        noise=noise,
        trend=compute_trend(times, measured.pair_round),
    )


def _estimate_start(
    values: Floats, ends: _Ends, alone: Estimates, alone_noise: float, limit: float
) -> tuple[Floats, Floats]:
    """Return the values relative to the median node, and the effects from which the fit begins."""
    effect = np.nan_to_num(alone.effect)
    chosen = ends.find_informative(effect, noise=alone_noise, limit=limit)
    both = np.tile(values, 2)
    effect = compute_lower_medians(both[chosen], ends.node[chosen], ends.num_nodes)
    level = compute_peer_level(effect)
    return values - level, effect - level
