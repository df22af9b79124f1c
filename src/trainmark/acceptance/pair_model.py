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

    An effect is the logarithm of a node's slowdown. The level of a round is what the logarithms of
    all its step times have in common. P is the number of measured pairs.

    Args:
        nodes: effects over all rounds.
        early_nodes: effects in the first half of the rounds; in all rounds if these are few.
        late_nodes: effects in the later half of the rounds; NaN if there are few rounds.
        residual: (P,) logarithm of the step time minus the level and ``slower_effect``.
        without_level: (P,) logarithm of the step time minus the level alone.
        slower_effect: (P,) effect of the slower node.
        noise: standard deviation of a measurement.
        trend: relative rise of the step times from the first to the last rounds; None: there are
            too few rounds.
    """

    nodes: Estimates
    early_nodes: Estimates
    late_nodes: Estimates
    residual: Floats
    without_level: Floats
    slower_effect: Floats
    noise: float
    trend: float | None

    def shift(self, by: float, *, std_error: float) -> PairFit:
        """Return the fit with a constant added to the effects of nodes.

        An effect is the logarithm of a node's slowdown. The effects over all rounds change, and
        those in the first and in the later half of them. What the fit has of each measured pair
        stays relative to the median node: pairs are compared only with what the fit predicts of
        them.

        Args:
            by: the constant that is added to each effect.
            std_error: standard error of the constant itself.
        """
        return replace(
            self,
            nodes=self.nodes.shift(by, std_error=std_error),
            early_nodes=self.early_nodes.shift(by, std_error=std_error),
            late_nodes=self.late_nodes.shift(by, std_error=std_error),
        )

    def replace_noise(self, noise: float) -> PairFit:
        """Return the fit with another noise, and with the standard errors that follow from it.

        They are those of the effects (logarithms of slowdowns) of nodes: over all rounds, in the
        first and in the later half of them.

        Args:
            noise: standard deviation of a measurement.
        """
        factor = noise / self.noise  # standard errors are proportional to the noise
        return replace(
            self,
            nodes=self.nodes.scale(factor),
            early_nodes=self.early_nodes.scale(factor),
            late_nodes=self.late_nodes.scale(factor),
            noise=noise,
        )


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of the measured pairs: each pair once for its first node, once for its second.

    Args:
        node: (2P,) number of the node of each end, where P is the number of measured pairs: first
            the first nodes of all pairs, then the second ones.
        partner: (2P,) the other node of the pair.
        num_nodes: number of nodes.
    """

    node: Integers
    partner: Integers
    num_nodes: int

    @classmethod
    def from_measurements(cls, measured: Measurements) -> _Ends:
        """Return the ends of the measured pairs.

        A measured pair has two ends, one for each of its nodes; the partner is the other node.
        """
        # First the ends of the first nodes of all pairs, then those of the second nodes.
        return cls(
            node=np.concatenate([measured.first, measured.second]),
            partner=np.concatenate([measured.second, measured.first]),
            num_nodes=measured.num_nodes,
        )

    def find_informative(self, effect: Floats, *, noise: float, effect_limit: float) -> Flags:
        """Return which ends depend on their node: those whose partner is not clearly slower.

        A measured pair has two ends, one for each of its nodes; the partner is the other node. The
        slower node of a pair decides its time. A node whose partners are all slower keeps all of
        its ends: they are upper bounds of its effect.

        Args:
            effect: (N,) logarithm of the slowdown of each node, as it is estimated so far.
            noise: standard deviation of a measurement.
            effect_limit: effect beyond which a node counts as slow.

        Returns:
            (2P,) a flag for each end; P is the number of measured pairs.
        """
        # (N,) number of ends of each node
        counts = np.bincount(self.node, minlength=self.num_nodes)
        # Two standard errors of the partner's effect: noise alone seldom excludes a partner that is
        # as fast as the node.
        noise_margin = 2 * noise / np.sqrt(np.maximum(counts[self.partner], 1))
        # A partner may be slower by half of what counts as slow. It raises the mean of the node by
        # no more than that, and in return more ends count in the mean.
        tolerated_bias = effect_limit / 2
        margin = tolerated_bias + noise_margin
        is_informative = effect[self.partner] <= effect[self.node] + margin
        has_informative = np.bincount(self.node[is_informative], minlength=self.num_nodes) > 0
        return is_informative | ~has_informative[self.node]

    def compute_means(
        self, values: Floats, chosen: Flags, noise: float, *, start: Floats | None = None
    ) -> Estimates:
        """Return the mean of each node over its chosen ends, which outliers hardly change.

        A measured pair has two ends, one for each of its nodes; ``node`` is the node of each end.

        Args:
            values: (P,) value of each pair.
            chosen: (2P,) which ends count: first those of the first nodes, then of the second ones.
            noise: standard deviation of a value.
            start: (N,) where the iterations for each mean begin; None: at the lower median of its
                values.
        """
        values_of_ends = np.tile(values, 2)  # the time of a pair is that of both its ends
        return compute_biweight_means(
            values_of_ends[chosen], self.node[chosen], self.num_nodes, noise, start=start
        )


def fit_pairs(
    measured: Measurements, alone: Estimates, alone_noise: float, effect_limit: float
) -> PairFit:
    """Estimate the effects of nodes in pairs, by a model in which the slower node decides the time.

    The logarithm of a pair's time is the level of its round, which all pairs of the round have in
    common, plus the effect of its slower node, plus noise. A pair shows the effect of a node only
    if its other node is not clearly slower. So the choice of pairs depends on the effects, and the
    effects are estimated from the chosen pairs: both are computed in turn, a few times.

    Args:
        measured: step times of pairs, ``pair_s``, with the two nodes and the round of each.
        alone: effects of nodes alone, by which the first pairs are chosen. An effect is the
            logarithm of a node's slowdown.
        alone_noise: standard deviation of a measurement of a node alone.
        effect_limit: effect beyond which a node counts as slow.
    """
    first = measured.first  # (P,) one node of each pair
    second = measured.second  # (P,) its other node
    ends = _Ends.from_measurements(measured)  # a pair has two ends, one for each of its nodes
    log_times = np.log(measured.pair_s)
    without_level = log_times - compute_round_levels(log_times, measured.pair_round)
    without_level, effect = _estimate_start(without_level, ends, alone, alone_noise, effect_limit)
    # Only the effects are used at the start: the first iteration computes errors and counts.
    nodes = Estimates(
        effect=effect, std_error=np.zeros_like(effect), count=np.zeros(measured.num_nodes, np.int64)
    )
    # Both get their values in the loop.
    noise = MIN_NOISE
    chosen = np.zeros(len(ends.node), bool)
    for _ in range(_ITERATIONS):
        # (P,) effect of the node that decides the time of each pair
        slower_effect = np.maximum(nodes.effect[first], nodes.effect[second])
        noise = estimate_noise(without_level - slower_effect, measured.num_nodes)
        chosen = ends.find_informative(nodes.effect, noise=noise, effect_limit=effect_limit)
        nodes = ends.compute_means(without_level, chosen, noise, start=nodes.effect)
        # Keep the effect of the median node at 0.
        median_effect = compute_peer_level(nodes.effect)
        without_level = without_level - median_effect
        nodes = nodes.shift(-median_effect)
    slower_effect = np.maximum(nodes.effect[first], nodes.effect[second])
    # Effects in both halves of the rounds show which nodes became slower.
    is_late = np.tile(is_in_later_half(measured.pair_round), 2)  # of each end
    early_means = ends.compute_means(without_level, chosen & ~is_late, noise)
    late_means = ends.compute_means(without_level, chosen & is_late, noise)
    return PairFit(
        # The loop subtracted the effect of the median node; here its standard error is added.
        nodes=nodes.shift(0.0, std_error=compute_peer_std_error(nodes)),
        early_nodes=subtract_peer_level(early_means),
        late_nodes=subtract_peer_level(late_means),
        # What the effects of the nodes do not explain: the effect of the link, and noise.
        residual=without_level - slower_effect,
        without_level=without_level,
        slower_effect=slower_effect,
        noise=noise,
        trend=compute_trend(log_times, measured.pair_round),
    )


def _estimate_start(
    without_level: Floats, ends: _Ends, alone: Estimates, alone_noise: float, effect_limit: float
) -> tuple[Floats, Floats]:
    """Return what the fit of pairs begins with: times of pairs and effects of nodes.

    An effect is the logarithm of a node's slowdown. Each node begins with the lower median (of an
    even number of values the lower of the two in the middle) of the pairs in which its partner is
    not clearly slower.

    Args:
        without_level: (P,) logarithm of each pair's step time minus what all pairs of its round
            have in common.
        ends: two ends of each of these pairs, one for each of its nodes.
        alone: effects of nodes alone, which show whose partners are slower.
        alone_noise: standard deviation of a measurement of a node alone.
        effect_limit: effect beyond which a node counts as slow.

    Returns:
        ``without_level`` (P,) and the effects of the nodes (N,), both minus the effect of the
        median node.
    """
    effect_alone = np.nan_to_num(alone.effect)  # a node that was not measured counts as normal
    chosen = ends.find_informative(effect_alone, noise=alone_noise, effect_limit=effect_limit)
    values_of_ends = np.tile(without_level, 2)  # the time of a pair is that of both its ends
    effect = compute_lower_medians(values_of_ends[chosen], ends.node[chosen], ends.num_nodes)
    median_effect = compute_peer_level(effect)
    return without_level - median_effect, effect - median_effect
