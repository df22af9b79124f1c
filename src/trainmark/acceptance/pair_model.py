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
    biweight_means,
    estimate_noise,
    lower_medians,
    peer_error,
    peer_level,
    relative_to_peers,
)
from trainmark.acceptance.trends import compute_round_levels, compute_trend, is_in_later_half

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers, Measurements

_ITERATIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFit:
    """Effects of nodes in pairs, and what is left of each pair.

    Args:
        nodes: effects over all rounds.
        late: effects in the later half of the rounds; ``early``: in the other half.
        residual: (P,) logarithm of the step time without level and node effects.
        without_level: (P,) the same with node effects.
        of_nodes: (P,) effect of the slower node.
        noise: standard deviation of a measurement.
        trend: see ``Judgement``.
    """

    nodes: Estimates
    early: Estimates
    late: Estimates
    residual: Floats
    without_level: Floats
    of_nodes: Floats
    noise: float
    trend: float | None

    def shifted(self, by: float, *, error: float) -> PairFit:
        """Return the fit with a constant added to the effects of nodes, which has an error."""
        return replace(
            self,
            nodes=self.nodes.shifted(by, error=error),
            early=self.early.shifted(by, error=error),
            late=self.late.shifted(by, error=error),
        )

    def with_noise(self, noise: float) -> PairFit:
        """Return the fit with errors of another noise: too few pairs do not tell their own."""
        factor = noise / self.noise
        return replace(
            self,
            nodes=self.nodes.scaled(factor),
            early=self.early.scaled(factor),
            late=self.late.scaled(factor),
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

    def informative(self, effect: Floats, *, noise: float, limit: float) -> Flags:
        """Return which ends say something about their node: those whose partner is not slower.

        A node whose partners are all slower keeps them: their times are upper bounds of its own.
        """
        counts = np.bincount(self.node, minlength=self.num_nodes)
        margin = limit / 2 + 2 * noise / np.sqrt(np.maximum(counts[self.partner], 1))
        chosen = effect[self.partner] <= effect[self.node] + margin
        has_any = np.bincount(self.node[chosen], minlength=self.num_nodes) > 0
        return chosen | ~has_any[self.node]

    def means(
        self, values: Floats, chosen: Flags, noise: float, *, start: Floats | None = None
    ) -> Estimates:
        """Return the mean of each node over its chosen ends.

        Args:
            values: (P,) of the pairs.
        """
        both = np.tile(values, 2)
        return biweight_means(both[chosen], self.node[chosen], self.num_nodes, noise, start=start)


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
    values, effect = _begin(values, ends, alone, alone_noise, limit)
    nodes = Estimates(effect=effect, error=effect * 0, count=np.zeros(measured.num_nodes, np.int64))
    noise, chosen = MIN_NOISE, np.zeros(len(ends.node), bool)
    for _ in range(_ITERATIONS):
        slower = np.fmax(nodes.effect[first], nodes.effect[second])
        noise = estimate_noise(values - slower, measured.num_nodes)
        chosen = ends.informative(nodes.effect, noise=noise, limit=limit)
        nodes = ends.means(values, chosen, noise, start=nodes.effect)
        level = peer_level(nodes.effect)
        values, nodes = values - level, nodes.shifted(-level)
    slower = np.fmax(nodes.effect[first], nodes.effect[second])
    is_late = np.tile(is_in_later_half(measured.pair_round), 2)
    return PairFit(
        nodes=nodes.shifted(0.0, error=peer_error(nodes)),
        early=relative_to_peers(ends.means(values, chosen & ~is_late, noise)),
        late=relative_to_peers(ends.means(values, chosen & is_late, noise)),
        residual=values - slower,
        without_level=values,
        of_nodes=slower,
        noise=noise,
        trend=compute_trend(times, measured.pair_round),
    )


def _begin(
    values: Floats, ends: _Ends, alone: Estimates, alone_noise: float, limit: float
) -> tuple[Floats, Floats]:
    """Return the values relative to the median node, and first effects of the nodes."""
    effect = np.nan_to_num(alone.effect)
    chosen = ends.informative(effect, noise=alone_noise, limit=limit)
    both = np.tile(values, 2)
    effect = lower_medians(both[chosen], ends.node[chosen], ends.num_nodes)
    level = peer_level(effect)
    return values - level, effect - level
