"""Verdicts on nodes: which estimate counts for each, and where a slow one is slow.

An effect is the natural logarithm of a node's step time over that of its peers. It becomes a
slowdown only in the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.intervals import (
    MANY_MEASUREMENTS,
    NO_ROUNDS,
    UNKNOWN_ROUNDS,
    compute_num_std_errors,
    convert_to_slowdowns,
    count_more_rounds,
    decide_verdicts,
)
from trainmark.acceptance.judgement import NO_GROUP, Cause, NodeVerdicts, Verdict

if TYPE_CHECKING:
    from trainmark.acceptance.estimation import Estimates
    from trainmark.acceptance.judgement import Floats, Integers, Measurements
    from trainmark.acceptance.pair_model import PairFit

# Causes that may be one fault of several nodes, of their switch for instance.
SHAREABLE_CAUSES = (Cause.NETWORK, Cause.GROUP, Cause.UNKNOWN)
TESTS_PER_NODE = 2  # over all rounds, and in the later half of them
_MIN_GROUP = 3  # nodes; two have only a single pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeEstimate:
    """The estimate by which a node is judged.

    Args:
        effect: NaN: the node was not measured.
        std_error: standard error of the effect.
        count: measurements from which it was estimated.
        cause: where the node is slow, if it is.
    """

    effect: float
    std_error: float
    count: int
    cause: Cause


def judge_nodes(
    measured: Measurements,
    alone: Estimates,
    pairs: PairFit,
    *,
    effect_limit: float,
    error_rate: float,
    degrees_of_freedom: int,
) -> NodeVerdicts:
    """Return the verdict on each node.

    Args:
        measured: step times of nodes alone and in pairs.
        alone: effects (logarithms of slowdowns) of nodes alone.
        pairs: effects of nodes in pairs, and the times of pairs relative to the median node.
        effect_limit: effect beyond which a node is slow.
        error_rate: probability of any wrong verdict.
        degrees_of_freedom: of the noise of a measurement; below 1 it is unknown, and no node is
            decided.
    """
    num_nodes = measured.num_nodes
    # Two tests of each node: it is judged over all rounds, and over the later half of them.
    num_std_errors = compute_num_std_errors(
        error_rate, TESTS_PER_NODE * num_nodes, degrees_of_freedom
    )
    estimates = [
        _choose_estimate(
            node, alone, pairs, effect_limit=effect_limit, num_std_errors=num_std_errors
        )
        for node in range(num_nodes)
    ]
    effect = np.array([estimate.effect for estimate in estimates])
    std_error = np.array([estimate.std_error for estimate in estimates])
    half_width = num_std_errors * std_error  # of the interval of each effect
    count = np.array([estimate.count for estimate in estimates])  # measurements of each node
    verdicts = decide_verdicts(effect, half_width, effect_limit)
    causes = [
        estimate.cause if verdict is Verdict.SLOW else None
        for estimate, verdict in zip(estimates, verdicts, strict=True)
    ]
    # Nodes that are slow by the same fault get a group number, and ``Cause.GROUP`` in ``causes``.
    group_of_node = _mark_groups(measured, pairs, causes)
    is_undecided = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    rounds_to_decide = _count_rounds_to_decide(
        effect, std_error, half_width, count, effect_limit=effect_limit, error_rate=error_rate
    )
    return NodeVerdicts(
        slower=convert_to_slowdowns(effect),
        low=convert_to_slowdowns(effect - half_width),
        high=convert_to_slowdowns(effect + half_width),
        verdict=verdicts,
        group=group_of_node,
        cause=causes,
        more_rounds=np.where(is_undecided, rounds_to_decide, NO_ROUNDS),
    )


def _count_rounds_to_decide(
    effect: Floats,
    std_error: Floats,
    half_width: Floats,
    count: Integers,
    *,
    effect_limit: float,
    error_rate: float,
) -> Integers:
    """Return how many further rounds would bring each node's interval to one side of the limit.

    Args:
        effect: (N,) logarithm of the slowdown of each node, the middle of its interval.
        std_error: (N,) standard error of each effect.
        half_width: (N,) how far the interval of each node reaches to each side.
        count: (N,) measurements of each node so far.
        effect_limit: effect beyond which a node is slow.
        error_rate: probability of any wrong verdict.

    Returns:
        (N,); ``NO_ROUNDS``: no practical number would; ``UNKNOWN_ROUNDS``: it is not known yet.
    """
    rounds = count_more_rounds(effect, half_width, count, effect_limit)
    # With few measurements the noise itself is uncertain, and intervals are wide for this reason
    # alone. So the rounds are also counted with the narrower intervals of a known noise, as after
    # many measurements. If a number of rounds would decide only then, it is not known yet.
    num_std_errors = compute_num_std_errors(
        error_rate, TESTS_PER_NODE * len(effect), degrees_of_freedom=MANY_MEASUREMENTS
    )
    rounds_with_known_noise = count_more_rounds(
        effect, num_std_errors * std_error, count, effect_limit
    )
    is_unknown = (rounds == NO_ROUNDS) & (rounds_with_known_noise != NO_ROUNDS)
    rounds[is_unknown] = UNKNOWN_ROUNDS
    return rounds


def _choose_estimate(
    node: int, alone: Estimates, pairs: PairFit, *, effect_limit: float, num_std_errors: float
) -> _NodeEstimate:
    """Return the estimate by which a node is judged, with the cause if the node turns out slow.

    A node that became slow is judged by the later half of the rounds, any other one by all rounds.

    Args:
        alone: effects of nodes that train alone.
        pairs: effects of nodes in pairs: in all rounds, in their first and in their later half.
        effect_limit: effect beyond which a node is slow.
        num_std_errors: standard errors by which an interval reaches to each side.
    """
    early = _get_estimate(pairs.early_nodes, node)
    late = _get_estimate(pairs.late_nodes, node)
    if early is not None and late is not None:
        rise = late.effect - early.effect
        has_risen = rise > num_std_errors * _combine_std_errors(early, late)
        is_late_slow = late.effect - num_std_errors * late.std_error > effect_limit
        if has_risen and is_late_slow:  # slow only in the later half, as nodes that become hot
            return replace(late, cause=Cause.HOT)
    by_itself = _get_estimate(alone, node)
    with_others = _get_estimate(pairs.nodes, node)
    if with_others is None:
        if by_itself is None:
            return _NodeEstimate(effect=nan, std_error=nan, count=0, cause=Cause.UNKNOWN)
        return replace(by_itself, cause=Cause.NODE)
    if by_itself is None:  # only in pairs: is the node slow, or its network?
        return replace(with_others, cause=Cause.UNKNOWN)
    return _combine_estimates(by_itself, with_others, num_std_errors)


def _combine_estimates(
    by_itself: _NodeEstimate, with_others: _NodeEstimate, num_std_errors: float
) -> _NodeEstimate:
    """Return one estimate of a node, with its cause, from its estimates alone and in pairs.

    If both agree, it is their mean, else the larger of them.

    Args:
        by_itself: estimate of the node alone.
        with_others: estimate of the node in pairs.
        num_std_errors: standard errors up to which a difference may be chance.
    """
    difference = with_others.effect - by_itself.effect
    if abs(difference) <= num_std_errors * _combine_std_errors(by_itself, with_others):
        # As slow alone as with others: the node itself is slow, not its network.
        return _average_estimates(by_itself, with_others, cause=Cause.NODE)
    if difference > 0:  # slower with others than alone
        return replace(with_others, cause=Cause.NETWORK)
    return replace(by_itself, cause=Cause.NODE)  # slower alone than with others


def _get_estimate(estimates: Estimates, node: int) -> _NodeEstimate | None:
    """Return the estimate of one node; None: it was not measured. The caller sets the cause."""
    effect = float(estimates.effect[node])
    std_error = float(estimates.std_error[node])
    if not isfinite(effect) or not isfinite(std_error):
        return None
    return _NodeEstimate(
        effect=effect,
        std_error=std_error,
        count=int(estimates.count[node]),
        cause=Cause.UNKNOWN,
    )


def _combine_std_errors(first: _NodeEstimate, second: _NodeEstimate) -> float:
    """Return the standard error of the difference of two effects."""
    return sqrt(first.std_error**2 + second.std_error**2)


def _average_estimates(
    first: _NodeEstimate, second: _NodeEstimate, *, cause: Cause
) -> _NodeEstimate:
    """Return the mean of two estimates of the same effect, weighted by their precision.

    Args:
        cause: where the node is slow, if it is; the result has it.
    """
    first_weight = 1 / first.std_error**2
    second_weight = 1 / second.std_error**2
    total_weight = first_weight + second_weight
    return _NodeEstimate(
        effect=(first_weight * first.effect + second_weight * second.effect) / total_weight,
        std_error=sqrt(1 / total_weight),
        count=first.count + second.count,
        cause=cause,
    )


def _mark_groups(measured: Measurements, pairs: PairFit, causes: list[Cause | None]) -> Integers:
    """Find groups of nodes that are slow only with nodes outside their group; change their cause.

    Nodes of a group are as fast with each other as healthy nodes are: they share what is slow, an
    uplink of a switch for instance. If nodes are slow by themselves, their pairs with each other
    are slow, too.

    Args:
        measured: ``first`` and ``second`` are the nodes of each measured pair.
        pairs: the times of these pairs relative to the median node.
        causes: why each node is slow; None: it is not slow. Changed in place to ``Cause.GROUP`` for
            the nodes of a group.

    Returns:
        (N,) number of the group of each node; ``NO_GROUP`` outside of any.
    """
    group_of_node = np.full(measured.num_nodes, NO_GROUP)
    # Slow nodes whose fault may be shared, such as one of the network.
    is_suspect = np.array([cause in SHAREABLE_CAUSES for cause in causes], bool)
    is_pair_of_suspects = is_suspect[measured.first] & is_suspect[measured.second]
    # ``without_level`` and ``slower_effect`` (P,) are logarithms of how much slower a pair is than
    # the median node: as it was measured, and as the effect of its slower node predicts. A pair is
    # fast if it is nearer to 0, as a pair of healthy nodes is, than to the prediction.
    is_fast = is_pair_of_suspects & (pairs.without_level < pairs.slower_effect / 2)
    candidates = _join_pairs(measured.first[is_fast], measured.second[is_fast])
    groups = []
    for nodes in candidates:
        members = sorted(nodes)
        is_within = np.isin(measured.first, members) & np.isin(measured.second, members)
        num_pairs = int(is_within.sum())
        num_fast = int((is_fast & is_within).sum())
        # Most pairs of a group are fast. Two nodes have only one pair with each other, which is too
        # little evidence for a group.
        if len(members) >= _MIN_GROUP and 2 * num_fast > num_pairs:
            groups.append(members)
    for number, members in enumerate(sorted(groups)):
        for node in members:
            group_of_node[node] = number
            causes[node] = Cause.GROUP
    return group_of_node


def _join_pairs(first: Integers, second: Integers) -> list[set[int]]:
    """Return the sets of nodes that pairs connect, directly or through other nodes.

    Args:
        first: one node of each pair.
        second: the other node of each pair.
    """
    components: list[set[int]] = []  # disjoint sets, which each pair may join to one
    for node, partner in zip(first.tolist(), second.tolist(), strict=True):
        connected = {node, partner}
        unconnected = []
        for nodes in components:
            if nodes.isdisjoint(connected):
                unconnected.append(nodes)
            else:
                connected |= nodes
        components = [*unconnected, connected]
    return components
