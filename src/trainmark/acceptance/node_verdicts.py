"""Verdicts on nodes: which estimate counts for each, and where a slow one is slow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.intervals import as_shares, compute_reach, count_more_rounds, decide
from trainmark.acceptance.judgement import Cause, NodeVerdicts, Verdict

if TYPE_CHECKING:
    from trainmark.acceptance.estimation import Estimates
    from trainmark.acceptance.judgement import Flags, Integers, Measurements
    from trainmark.acceptance.pair_model import PairFit

MAY_BE_SHARED = (Cause.NETWORK, Cause.GROUP, Cause.UNKNOWN)  # of a fault of several nodes
_TESTS_PER_NODE = 2  # over all rounds, in the later half
_MIN_GROUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
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
    choices = [_choose(node, alone, pairs, limit, reach) for node in range(num_nodes)]
    effect = np.array([choice.effect for choice in choices])
    half = reach * np.array([choice.error for choice in choices])
    count = np.array([choice.count for choice in choices])
    verdicts = decide(effect, half, limit)
    causes = [
        choice.cause if verdict is Verdict.SLOW else None
        for choice, verdict in zip(choices, verdicts, strict=True)
    ]
    is_open = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    return NodeVerdicts(
        slower=as_shares(effect),
        low=as_shares(effect - half),
        high=as_shares(effect + half),
        verdict=verdicts,
        group=_mark_groups(measured, pairs, causes),
        cause=causes,
        more_rounds=np.where(is_open, count_more_rounds(effect, half, count, limit), -1),
    )


def _choose(node: int, alone: Estimates, pairs: PairFit, limit: float, reach: float) -> _Choice:
    """Return the estimate by which a node is judged: NaN if it was not measured."""
    late, early = _choice_of(pairs.late, node), _choice_of(pairs.early, node)
    if late is not None and early is not None and _is_hot(early, late, limit, reach):
        return replace(late, cause=Cause.HOT)
    by_itself, with_others = _choice_of(alone, node), _choice_of(pairs.nodes, node)
    if with_others is None:
        return by_itself or _Choice(effect=nan, error=nan, count=0, cause=Cause.UNKNOWN)
    if by_itself is None:
        return replace(with_others, cause=Cause.UNKNOWN)
    difference = with_others.effect - by_itself.effect
    if abs(difference) <= reach * sqrt(by_itself.error**2 + with_others.error**2):
        return _combine(by_itself, with_others)
    return replace(with_others, cause=Cause.NETWORK) if difference > 0 else by_itself


def _is_hot(early: _Choice, late: _Choice, limit: float, reach: float) -> bool:
    """Return whether a node is slow in the later half of the rounds, and slower than before."""
    rise = late.effect - early.effect
    is_rising = rise > reach * sqrt(late.error**2 + early.error**2)
    return is_rising and late.effect - reach * late.error > limit


def _choice_of(estimates: Estimates, node: int) -> _Choice | None:
    effect, error = float(estimates.effect[node]), float(estimates.error[node])
    if not isfinite(effect) or not isfinite(error):
        return None
    return _Choice(effect=effect, error=error, count=int(estimates.count[node]), cause=Cause.NODE)


def _combine(first: _Choice, second: _Choice) -> _Choice:
    """Return the mean of two estimates of the same effect, weighted by their precision."""
    weights = 1 / first.error**2, 1 / second.error**2
    total = sum(weights)
    return _Choice(
        effect=(weights[0] * first.effect + weights[1] * second.effect) / total,
        error=sqrt(1 / total),
        count=first.count + second.count,
        cause=Cause.NODE,
    )


def _mark_groups(measured: Measurements, pairs: PairFit, causes: list[Cause | None]) -> Integers:
    """Find nodes that are slow only with others outside their group; change their cause.

    Such nodes are as fast with each other as healthy nodes are: they share what is slow, an uplink
    of a switch for instance. Of nodes that are slow by themselves each pair is slow too.

    Returns:
        The number of the group of each node, -1 outside of any.
    """
    group = np.full(measured.num_nodes, -1)
    suspects = np.array([cause in MAY_BE_SHARED for cause in causes], bool)
    inside = suspects[measured.first] & suspects[measured.second]
    is_fast = inside & (pairs.without_level < pairs.of_nodes / 2)
    candidates = _join_pairs(measured.first[is_fast], measured.second[is_fast])
    groups = [nodes for nodes in candidates if _is_mostly(is_fast, inside, measured, nodes)]
    for number, nodes in enumerate(sorted(groups, key=min)):
        for node in nodes:
            group[node] = number
            causes[node] = Cause.GROUP
    return group


def _join_pairs(first: Integers, second: Integers) -> list[set[int]]:
    """Return the sets of nodes that pairs connect."""
    joined: list[set[int]] = []
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        connected, apart = {a, b}, []
        for nodes in joined:
            if nodes.isdisjoint(connected):
                apart.append(nodes)
            else:
                connected |= nodes
        joined = [*apart, connected]
    return joined


def _is_mostly(is_fast: Flags, inside: Flags, measured: Measurements, nodes: set[int]) -> bool:
    """Return whether most pairs within ``nodes`` are fast: of three nodes or more."""
    listed = sorted(nodes)
    within = inside & np.isin(measured.first, listed) & np.isin(measured.second, listed)
    return len(nodes) >= _MIN_GROUP and 2 * int(is_fast[within].sum()) > int(within.sum())
