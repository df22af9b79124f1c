"""Fit the model of pairs: effects of nodes, and what remains of each pair.

The logarithm of the step time of a pair of nodes is

    level of the round + max(effect of the first node, effect of the second) + effect of the link
    + noise

because the slower node decides how fast a pair trains. In shapes, P is the number of measurements
of pairs in rounds, N that of nodes.
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
    compute_peer_level,
    compute_peer_std_error,
    estimate_noise,
    subtract_peer_level,
)
from trainmark.acceptance.trends import compute_round_levels, compute_trend, is_in_later_half

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers, Measurements

_ITERATIONS = 5  # of the effects and of the choice of ends, which depend on each other


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFit:
    """Effects of nodes in pairs, and what they do not explain of each measurement.

    Args:
        nodes: effects over all rounds.
        early: effects in the first half of the rounds; all rounds, if these are few.
        late: effects in the later half of the rounds; NaN, if there are few rounds.
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

    def shift(self, by: float, *, std_error: float) -> PairFit:
        """Return the fit with a constant added to the effects of nodes.

        Args:
            std_error: standard error of the constant itself.
        """
        return replace(
            self,
            nodes=self.nodes.shift(by, std_error=std_error),
            early=self.early.shift(by, std_error=std_error),
            late=self.late.shift(by, std_error=std_error),
        )

    def replace_noise(self, noise: float) -> PairFit:
        """Return the fit with the standard errors that follow from another noise."""
        factor = noise / self.noise  # standard errors are proportional to the noise
        return replace(
            self,
            nodes=self.nodes.scale(factor),
            early=self.early.scale(factor),
            late=self.late.scale(factor),
            noise=noise,
        )


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of the measured pairs: each pair once for its first node, once for its second.

    Args:
        node: (2P,) the node of each end: first those of all first nodes, then of all second ones.
        partner: (2P,) the other node of the pair.
    """

    node: Integers
    partner: Integers
    num_nodes: int

    @classmethod
    def from_measurements(cls, measured: Measurements) -> _Ends:
        """Return the ends of the measured pairs."""
        return cls(
            node=np.concatenate([measured.first, measured.second]),
            partner=np.concatenate([measured.second, measured.first]),
            num_nodes=measured.num_nodes,
        )

    def find_informative(self, effect: Floats, *, noise: float, effect_limit: float) -> Flags:
        """Return which ends depend on their node: those whose partner is not clearly slower.

        The slower node of a pair decides its time. A node whose partners are all slower keeps all
        of its ends: they are upper bounds of its effect.

        Args:
            effect: (N,) effects of the nodes, as far as they are known.
            noise: standard deviation of a measurement.
            effect_limit: effect beyond which a node counts as slow.

        Returns:
            (2P,).
        """
        counts = np.bincount(self.node, minlength=self.num_nodes)
        # Two standard errors of the partner's effect: noise excludes no partner that is as fast.
        noise_margin = 2 * noise / np.sqrt(np.maximum(counts[self.partner], 1))
        # A partner that is slower by less than this raises the mean of the node by less, too: by
        # half of what counts as slow. In return more ends count in the mean.
        tolerated_bias = effect_limit / 2
        margin = tolerated_bias + noise_margin
        is_informative = effect[self.partner] <= effect[self.node] + margin
        has_informative = np.bincount(self.node[is_informative], minlength=self.num_nodes) > 0
        return is_informative | ~has_informative[self.node]

    def compute_means(
        self, values: Floats, chosen: Flags, noise: float, *, start: Floats | None = None
    ) -> Estimates:
        """Return the mean of each node over its chosen ends.

        Args:
            values: (P,) of the pairs.
            chosen: (2P,) which ends count.
            noise: standard deviation of a value.
            start: (N,) where the search for each mean begins, see ``compute_biweight_means``.
        """
        values_of_ends = np.tile(values, 2)  # the time of a pair is that of both its ends
        return compute_biweight_means(
            values_of_ends[chosen], self.node[chosen], self.num_nodes, noise, start=start
        )


def fit_pairs(
    measured: Measurements, alone: Estimates, alone_noise: float, effect_limit: float
) -> PairFit:
    """Estimate the effects of nodes in pairs, by a model in which the slower node decides the time.

    Which pairs tell something of a node depends on the effects of both nodes, and the effects are
    estimated from these pairs: both are computed in turn, a few times.

    Args:
        alone: effects of nodes alone, from which the search begins.
        alone_noise: standard deviation of a measurement of a node alone.
        effect_limit: effect beyond which a node counts as slow.
    """
    first = measured.first
    second = measured.second
    ends = _Ends.from_measurements(measured)
    log_times = np.log(measured.pair_s)
    values = log_times - compute_round_levels(log_times, measured.pair_round)
    values, effect = _estimate_start(values, ends, alone, alone_noise, effect_limit)
    # Only the effects are used at the start: the first iteration computes errors and counts.
    nodes = Estimates(
        effect=effect, std_error=np.zeros_like(effect), count=np.zeros(measured.num_nodes, np.int64)
    )
    # Both get their values in the loop.
    noise = MIN_NOISE
    chosen = np.zeros(len(ends.node), bool)
    for _ in range(_ITERATIONS):
        slower = np.fmax(nodes.effect[first], nodes.effect[second])
        noise = estimate_noise(values - slower, measured.num_nodes)
        chosen = ends.find_informative(nodes.effect, noise=noise, effect_limit=effect_limit)
        nodes = ends.compute_means(values, chosen, noise, start=nodes.effect)
        # Keep the effect of the median node at 0.
        level = compute_peer_level(nodes.effect)
        values = values - level
        nodes = nodes.shift(-level)
    slower = np.fmax(nodes.effect[first], nodes.effect[second])
    # Repeated, because each pair has two ends.
    is_late = np.tile(is_in_later_half(measured.pair_round), 2)
    return PairFit(
        # The loop subtracted the level of the peers; here its standard error is added.
        nodes=nodes.shift(0.0, std_error=compute_peer_std_error(nodes)),
        early=subtract_peer_level(ends.compute_means(values, chosen & ~is_late, noise)),
        late=subtract_peer_level(ends.compute_means(values, chosen & is_late, noise)),
        residual=values - slower,
        without_level=values,
        slower_effect=slower,
        noise=noise,
        trend=compute_trend(log_times, measured.pair_round),
    )


def _estimate_start(
    values: Floats, ends: _Ends, alone: Estimates, alone_noise: float, effect_limit: float
) -> tuple[Floats, Floats]:
    """Return the values relative to the median node, and the effects from which the fit begins.

    Args:
        values: (P,) logarithms of step times without the level of their round.
        ends: the ends of the same pairs.
        alone: effects of nodes alone, by which the first informative ends are found.
        alone_noise: standard deviation of a measurement of a node alone.
        effect_limit: effect beyond which a node counts as slow.
    """
    effect_alone = np.nan_to_num(alone.effect)  # a node that was not measured counts as normal
    chosen = ends.find_informative(effect_alone, noise=alone_noise, effect_limit=effect_limit)
    values_of_ends = np.tile(values, 2)  # the time of a pair is that of both its ends
    effect = compute_lower_medians(values_of_ends[chosen], ends.node[chosen], ends.num_nodes)
    level = compute_peer_level(effect)
    return values - level, effect - level
