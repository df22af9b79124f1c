"""Verdicts on nodes: which estimate counts for each, and where a slow one is slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.intervals import (
    NO_ROUNDS,
    compute_reach,
    convert_to_slowdowns,
    count_more_rounds,
    decide_verdicts,
)
from trainmark.acceptance.judgement import NO_GROUP, Cause, NodeVerdicts, Verdict

if TYPE_CHECKING:
    from trainmark.acceptance.estimation import Estimates
    from trainmark.acceptance.judgement import Flags, Integers, Measurements
    from trainmark.acceptance.pair_model import PairFit

# Causes that several nodes may share, as a fault of their switch.
MAY_BE_SHARED = (Cause.NETWORK, Cause.GROUP, Cause.UNKNOWN)
_TESTS_PER_NODE = 2  # over all rounds, and in the later half of them
_MIN_GROUP = 3  # nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeEstimate:
    """The estimate by which a node is judged, and where it is slow if it is."""

    effect: float
    error: float
    count: int
    cause: Cause


def judge_nodes(
    measured: Measurements,
    alone: Estimates,
    pairs: PairFit,
    *,
    limit: float,
    error_rate: float,
    freedom: int,
) -> NodeVerdicts:
    """Return the verdict on each node.

    Args:
        alone: effects of nodes alone.
        limit: effect beyond which a node is slow.
        error_rate: probability of any wrong verdict.
        freedom: see ``compute_reach``.
    """
    num_nodes = measured.num_nodes
    reach = compute_reach(error_rate, _TESTS_PER_NODE * num_nodes, freedom)
    choices = [_choose_estimate(node, alone, pairs, limit, reach) for node in range(num_nodes)]
    effect = np.array([choice.effect for choice in choices])
    half_width = reach * np.array([choice.error for choice in choices])
    count = np.array([choice.count for choice in choices])
    verdicts = decide_verdicts(effect, half_width, limit)
    causes = [
        choice.cause if verdict is Verdict.SLOW else None
        for choice, verdict in zip(choices, verdicts, strict=True)
    ]
    is_open = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    return NodeVerdicts(
        slower=convert_to_slowdowns(effect),
        low=convert_to_slowdowns(effect - half_width),
        high=convert_to_slowdowns(effect + half_width),
        verdict=verdicts,
        group=_mark_groups(measured, pairs, causes),
        cause=causes,
        more_rounds=np.where(
            is_open, count_more_rounds(effect, half_width, count, limit), NO_ROUNDS
        ),
    )


def _choose_estimate(
    node: int, alone: Estimates, pairs: PairFit, limit: float, reach: float
) -> _NodeEstimate:
    """Return the estimate by which a node is judged: NaN if it was not measured."""
    late = _get_estimate(pairs.late, node)
    early = _get_estimate(pairs.early, node)
    if late is not None and early is not None and _is_hot(early, late, limit, reach):
        return replace(late, cause=Cause.HOT)
    by_itself = _get_estimate(alone, node)
    with_others = _get_estimate(pairs.nodes, node)
    if with_others is None:
        return by_itself or _NodeEstimate(effect=nan, error=nan, count=0, cause=Cause.UNKNOWN)
    if by_itself is None:
        return replace(with_others, cause=Cause.UNKNOWN)
    difference = with_others.effect - by_itself.effect
    if abs(difference) <= reach * sqrt(by_itself.error**2 + with_others.error**2):
        return _combine(by_itself, with_others)
    if difference > 0:
        return replace(with_others, cause=Cause.NETWORK)
    return by_itself


def _is_hot(early: _NodeEstimate, late: _NodeEstimate, limit: float, reach: float) -> bool:
    """Return whether a node is slow in the later half of the rounds, and slower than before."""
    rise = late.effect - early.effect
    is_rising = rise > reach * sqrt(late.error**2 + early.error**2)
    return is_rising and late.effect - reach * late.error > limit


def _get_estimate(estimates: Estimates, node: int) -> _NodeEstimate | None:
    """Return the estimate of one node; None if it was not measured."""
    effect, error = float(estimates.effect[node]), float(estimates.error[node])
    if not isfinite(effect) or not isfinite(error):
        return None
    return _NodeEstimate(
        effect=effect, error=error, count=int(estimates.count[node]), cause=Cause.NODE
    )


def _combine(first: _NodeEstimate, second: _NodeEstimate) -> _NodeEstimate:
    """Return the mean of two estimates of the same effect, weighted by their precision."""
    weights = 1 / first.error**2, 1 / second.error**2
    total = sum(weights)
    return _NodeEstimate(
        effect=(weights[0] * first.effect + weights[1] * second.effect) / total,
        error=sqrt(1 / total),
        count=first.count + second.count,
        cause=Cause.NODE,
    )


def _mark_groups(measured: Measurements, pairs: PairFit, causes: list[Cause | None]) -> Integers:
    """Find nodes that are slow only with others outside their group; change their cause.

    Such nodes are as fast with each other as healthy nodes are: they share what is slow, an uplink
    of a switch for instance. If nodes are slow by themselves, their pairs with each other are, too.

    Args:
        causes: of each node; changed in place to ``Cause.GROUP`` for the nodes of a group.

    Returns:
        (N,) number of the group of each node; ``NO_GROUP`` outside of any.
    """
    group = np.full(measured.num_nodes, NO_GROUP)
    suspects = np.array([cause in MAY_BE_SHARED for cause in causes], bool)
    inside = suspects[measured.first] & suspects[measured.second]
    # Nearer to the median node than to what the slower of both nodes explains.
    is_fast = inside & (pairs.without_level < pairs.slower_effect / 2)
    candidates = _join_pairs(measured.first[is_fast], measured.second[is_fast])
    groups = [nodes for nodes in candidates if _are_mostly_fast(is_fast, inside, measured, nodes)]
    for number, nodes in enumerate(sorted(groups, key=min)):
        for node in nodes:
            group[node] = number
            causes[node] = Cause.GROUP
    return group


def _join_pairs(first: Integers, second: Integers) -> list[set[int]]:
    """Return the sets of nodes that pairs connect, directly or through other nodes."""
    components: list[set[int]] = []
    for node, partner in zip(first.tolist(), second.tolist(), strict=True):
        connected = {node, partner}
        others = []
        for nodes in components:
            if nodes.isdisjoint(connected):
                others.append(nodes)
            else:
                connected |= nodes
        components = [*others, connected]
    return components


def _are_mostly_fast(
    is_fast: Flags, inside: Flags, measured: Measurements, nodes: set[int]
) -> bool:
    """Return whether most pairs within ``nodes`` are fast: of three nodes or more."""
    listed = sorted(nodes)
    within = inside & np.isin(measured.first, listed) & np.isin(measured.second, listed)
    return len(nodes) >= _MIN_GROUP and 2 * int(is_fast[within].sum()) > int(within.sum())
