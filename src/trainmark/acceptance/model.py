"""Judge nodes and links by step times: pure functions of arrays.

Nodes are measured alone and in pairs; ``pair_model`` has the model, ``estimation`` and ``trends``
what is estimated, ``node_verdicts`` and ``link_verdicts`` what is decided. Every interval is
corrected for the number of nodes or links that are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import log, log1p, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance import DEFAULT_WORSE_BY
from trainmark.acceptance.estimation import (
    compute_lower_medians,
    compute_peer_level,
    estimate_alone,
)
from trainmark.acceptance.judgement import MIN_LINK_ROUNDS, Judgement, Measurements
from trainmark.acceptance.link_verdicts import judge_links
from trainmark.acceptance.node_verdicts import MAY_BE_SHARED, judge_nodes
from trainmark.acceptance.pair_model import fit_pairs
from trainmark.acceptance.trends import compute_round_levels

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Floats

ERROR_RATE = 0.01  # probability that anything at all is judged wrongly by chance
# Numbers of nodes whose links with each other are measured to find a common fault.
_MIN_GROUP = 3
_MAX_GROUP = 16
_MIN_FREEDOM = 20  # degrees of freedom, below which the residuals of pairs do not give their noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier time of a node alone, with which nodes are compared instead of with their peers.

    Args:
        seconds: median of the measurements.
        count: how many there are.
    """

    seconds: float
    count: int


def judge_measurements(
    measured: Measurements,
    *,
    worse_by: float = DEFAULT_WORSE_BY,
    error_rate: float = ERROR_RATE,
    baseline: Baseline | None = None,
) -> Judgement:
    """Return the verdicts on all nodes and on all links that were measured.

    Args:
        worse_by: slowdown against its peers up to which a node or link passes.
        error_rate: probability of any wrong verdict, half of it for nodes, half for links.
        baseline: what has the effect 0; None: the median node.
    """
    limit = log1p(worse_by)
    levels = compute_round_levels(np.log(measured.alone_s), measured.alone_round)
    alone, alone_noise = estimate_alone(measured, levels)
    pairs = fit_pairs(measured, alone, alone_noise, limit)
    # Each node's effect is estimated from the pairs. If these are few, their noise is at least that
    # of nodes alone, or that of the pairs with their outliers.
    freedom = len(measured.pair_s) - measured.num_nodes
    if freedom < _MIN_FREEDOM and len(measured.alone_s):
        freedom = max(0, freedom) + len(measured.alone_s) - measured.num_nodes
        pairs = pairs.replace_noise(max(pairs.noise, alone_noise))
    elif 0 < freedom < _MIN_FREEDOM:
        pairs = pairs.replace_noise(
            max(pairs.noise, _compute_root_mean_square(pairs.residual, freedom))
        )
    rate = error_rate / 2
    links = judge_links(measured, pairs, limit=limit, error_rate=rate, freedom=freedom)
    if baseline is not None and len(measured.alone_s):
        shift = _compute_level_alone(measured) - log(baseline.seconds)
        error = alone_noise * sqrt(pi / 2 / baseline.count)
        alone = alone.shift(shift, error=error)
        pairs = pairs.shift(shift, error=error)
    nodes = judge_nodes(measured, alone, pairs, limit=limit, error_rate=rate, freedom=freedom)
    return Judgement(
        nodes=nodes,
        links=links,
        noise_alone=alone_noise if len(measured.alone_s) else None,
        noise_pairs=pairs.noise if len(measured.pair_s) else None,
        trend=pairs.trend,
    )


def _compute_root_mean_square(residual: Floats, freedom: int) -> float:
    """Return the noise of few residuals with their outliers; their median may be 0 by chance."""
    return sqrt(float(np.sum(residual**2)) / freedom)


def _compute_level_alone(measured: Measurements) -> float:
    """Return the logarithm of the seconds of the median node alone."""
    values = np.log(measured.alone_s)
    return compute_peer_level(
        compute_lower_medians(values, measured.alone_node, measured.num_nodes)
    )


def choose_pairs_to_measure_again(judgement: Judgement) -> list[tuple[int, int]]:
    """Return the pairs that would confirm what looks bad; listed as often as to be measured.

    Links that look slow are measured again. Nodes whose network is slow are measured with each
    other, unless they were, which shows whether they share one fault.
    """
    links = judgement.links
    pairs = links.list_suspects() * MIN_LINK_ROUNDS  # each suspect so many times
    causes = enumerate(judgement.nodes.cause)
    suspect_nodes = [node for node, cause in causes if cause in MAY_BE_SHARED]
    if _MIN_GROUP <= len(suspect_nodes) <= _MAX_GROUP:
        measured = set(zip(links.first.tolist(), links.second.tolist(), strict=True))
        pairs += [pair for pair in combinations(suspect_nodes, 2) if pair not in measured]
    return pairs
