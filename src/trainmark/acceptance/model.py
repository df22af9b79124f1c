"""Judge nodes and links by their step times: pure functions of arrays.

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
from trainmark.acceptance.intervals import MANY_MEASUREMENTS, compute_num_std_errors
from trainmark.acceptance.judgement import MIN_LINK_ROUNDS, Judgement, Measurements
from trainmark.acceptance.link_verdicts import judge_links
from trainmark.acceptance.node_verdicts import SHAREABLE_CAUSES, TESTS_PER_NODE, judge_nodes
from trainmark.acceptance.pair_model import fit_pairs
from trainmark.acceptance.trends import compute_round_levels

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Floats
    from trainmark.acceptance.pair_model import PairFit

ERROR_RATE = 0.01  # probability that anything at all is judged wrongly by chance
# Suspect nodes are measured with each other only if there are at least and at most so many: of two
# there is a single pair, and the number of pairs grows with the square.
_MIN_SUSPECTS = 3
_MAX_SUSPECTS = 16
# Degrees of freedom below which the noise of pairs is not estimated from their residuals alone.
_MIN_DEGREES_OF_FREEDOM = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier time of a node alone, with which nodes are compared instead of with their peers.

    Args:
        seconds: median of ``count`` measurements.
        count: number of measurements.
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
        measured: step times of nodes alone and in pairs.
        worse_by: slowdown up to which a node or link passes.
        error_rate: probability of any wrong verdict, half of it for nodes, half for links.
        baseline: earlier time of a node alone, with which nodes are compared; None: they are
            compared with the median node.
    """
    effect_limit = log1p(worse_by)  # effects are logarithms of slowdowns
    # What the measurements of a round have in common; effects are what remains without it.
    round_levels = compute_round_levels(np.log(measured.alone_s), measured.alone_round)
    # The noise is the standard deviation of the logarithm of one measurement.
    alone, alone_noise = estimate_alone(measured, round_levels)
    # Effects of nodes in pairs, and what remains of each pair without them: what its link adds.
    pairs = fit_pairs(measured, alone, alone_noise, effect_limit)
    pairs, degrees_of_freedom = _correct_noise(measured, pairs, alone_noise)
    if not _are_alone_repeated(measured) and pairs.noise > alone_noise:
        # The measurements of nodes alone hardly show their noise: that of pairs counts for them.
        alone = alone.scale(pairs.noise / alone_noise)
        alone_noise = pairs.noise
    links = judge_links(
        measured,
        pairs,
        effect_limit=effect_limit,
        error_rate=error_rate / 2,
        degrees_of_freedom=degrees_of_freedom,
    )
    # A link is compared with its own nodes, so that only nodes are compared with a baseline.
    if baseline is not None and len(measured.alone_s):
        shift, std_error = _compute_baseline_shift(measured, baseline, alone_noise)
        alone = alone.shift(shift, std_error=std_error)
        pairs = pairs.shift(shift, std_error=std_error)
    nodes = judge_nodes(
        measured,
        alone,
        pairs,
        effect_limit=effect_limit,
        error_rate=error_rate / 2,
        degrees_of_freedom=degrees_of_freedom,
    )
    # If no node was measured twice, the noise of nodes alone is unknown: ``alone_noise`` is that of
    # pairs or the lower bound.
    # Without degrees of freedom it counts as unknown in the verdicts, and so it does here.
    has_repeats = len(measured.alone_s) > len(np.unique(measured.alone_node))
    has_noise_alone = has_repeats and degrees_of_freedom >= 1
    has_noise_of_pairs = len(measured.pair_s) > 0 and degrees_of_freedom >= 1
    return Judgement(
        nodes=nodes,
        links=links,
        noise_alone=alone_noise if has_noise_alone else None,
        noise_pairs=pairs.noise if has_noise_of_pairs else None,
        trend=pairs.trend,  # rise of the times of pairs from the first to the last rounds
    )


def count_degrees_of_freedom(*, num_alone: int, num_pairs: int, num_nodes: int) -> int:
    """Return the degrees of freedom of the noise: measurements minus estimated effects.

    The noise of pairs is estimated from the pairs. If these are few, measurements of single nodes
    are used for it, too, and count. Below 1 there are too few measurements to estimate the noise.

    Args:
        num_alone: measurements of single nodes.
        num_pairs: measurements of pairs.
    """
    # One effect of each node is estimated from the pairs.
    degrees_of_freedom_pairs = num_pairs - num_nodes
    if num_alone == 0 or degrees_of_freedom_pairs >= _MIN_DEGREES_OF_FREEDOM:
        return degrees_of_freedom_pairs
    # One more effect of each node is estimated from the measurements of single nodes.
    degrees_of_freedom_alone = num_alone - num_nodes
    # Fewer measurements than nodes count 0: a negative number must not reduce the other one.
    return max(0, degrees_of_freedom_pairs) + max(0, degrees_of_freedom_alone)


def compute_widening(num_nodes: int, degrees_of_freedom: int) -> float:
    """Return how many times as wide as with a known noise the intervals of nodes are.

    Few measurements show the noise only roughly, which makes the intervals wider. For a judgement
    of several quantities or peer groups, which share the error rate, they are even wider.

    Args:
        degrees_of_freedom: of the noise, at least 1.
    """
    error_rate = ERROR_RATE / 2  # the other half is for links
    return compute_num_std_errors(
        error_rate, TESTS_PER_NODE * num_nodes, degrees_of_freedom
    ) / compute_num_std_errors(error_rate, TESTS_PER_NODE * num_nodes, MANY_MEASUREMENTS)


def _correct_noise(
    measured: Measurements, pairs: PairFit, alone_noise: float
) -> tuple[PairFit, int]:
    """Return the fit of the pairs with a noise that is not too small, and its degrees of freedom.

    The noise is the standard deviation of the logarithm of one measurement. The degrees of freedom
    are those of the noise.

    The residuals of few pairs may be near 0 by chance, and the noise that is estimated from them is
    then too small. If there are few pairs, the noise is therefore at least that of nodes alone. If
    not all of these were measured, it is also at least the root mean square of the residuals.

    Args:
        pairs: ``residual`` is the logarithm of each pair's measured time over the time that its
            slower node explains; ``noise`` is estimated from these residuals.
        alone_noise: standard deviation of a measurement of a node alone.
    """
    num_alone = len(measured.alone_s)
    num_pairs = len(measured.pair_s)
    degrees_of_freedom = count_degrees_of_freedom(
        num_alone=num_alone, num_pairs=num_pairs, num_nodes=measured.num_nodes
    )
    # ``pairs.noise`` is estimated from pairs alone, with one effect for each node. So nodes alone,
    # which ``degrees_of_freedom`` may include, do not count here.
    if num_pairs - measured.num_nodes >= _MIN_DEGREES_OF_FREEDOM:  # enough pairs
        return pairs, degrees_of_freedom
    # ``alone_noise`` has its lowest value, near 0, if no node was measured alone twice.
    noise = max(pairs.noise, alone_noise)
    degrees_of_freedom_pairs = num_pairs - measured.num_nodes
    # Without degrees of freedom, pairs show no noise.
    if num_alone < measured.num_nodes and degrees_of_freedom_pairs > 0:
        # ``pairs.noise`` comes from medians, which ignore outliers and may be 0 by chance.
        noise_with_outliers = _compute_root_mean_square(pairs.residual, degrees_of_freedom_pairs)
        noise = max(noise, noise_with_outliers)
    return pairs.replace_noise(noise), degrees_of_freedom


def _are_alone_repeated(measured: Measurements) -> bool:
    """Tell whether nodes were measured alone twice or more often each, on average.

    Only the differences between measurements of the same node show their noise.
    """
    return len(measured.alone_s) >= 2 * measured.num_nodes


def _compute_root_mean_square(residual: Floats, degrees_of_freedom: int) -> float:
    """Return the noise of few residuals as their root mean square, which outliers raise.

    ``estimate_noise`` uses medians, and the median of few residuals may be 0 by chance.

    Args:
        residual: (P,) logarithm of each pair's measured time over the time that its slower node
            explains.
        degrees_of_freedom: number of residuals minus number of effects that were estimated from the
            same pairs.
    """
    return sqrt(float(np.sum(residual**2)) / degrees_of_freedom)


def _compute_baseline_shift(
    measured: Measurements, baseline: Baseline, alone_noise: float
) -> tuple[float, float]:
    """Return what makes effects relative to the baseline, and the standard error that it adds.

    Effects are relative to the median node, so the first value is the effect of the median node
    relative to the baseline.
    """
    shift = _compute_log_median_s(measured) - log(baseline.seconds)
    # The baseline is a median, whose standard error is sqrt(pi / 2) times that of a mean.
    std_error = alone_noise * sqrt(pi / 2 / baseline.count)
    return shift, std_error


def _compute_log_median_s(measured: Measurements) -> float:
    """Return the logarithm of the seconds of a step of the median node alone.

    Each node counts with the lower median of its own measurements.
    """
    values = np.log(measured.alone_s)
    # The median over the nodes.
    return compute_peer_level(
        compute_lower_medians(values, measured.alone_node, measured.num_nodes)
    )


def choose_pairs_to_measure_again(judgement: Judgement) -> list[tuple[int, int]]:
    """Return the pairs of nodes that would confirm what looks bad.

    Links that look slow are measured again. Nodes whose network is slow may share one fault. To
    show whether they do, each two of them are measured together, unless they already were.

    Returns:
        The pairs; one that is to be measured several times is listed as often.
    """
    links = judgement.links
    # ``MIN_LINK_ROUNDS`` is 2: a slow link needs at least two rounds. These links were measured in
    # one, which may have been disturbed. So each gets not only the missing round but two new ones,
    # as ``docs/accept.md`` says.
    pairs = links.list_suspects() * MIN_LINK_ROUNDS
    # Shareable causes: the node is slow with other nodes, and not known to be slow alone.
    suspect_nodes = [
        node for node, cause in enumerate(judgement.nodes.cause) if cause in SHAREABLE_CAUSES
    ]
    # A group that shares a fault has at least three nodes (``node_verdicts._MIN_GROUP``): the only
    # pair of two suspects shows none. The pairs of very many would take too long.
    if _MIN_SUSPECTS <= len(suspect_nodes) <= _MAX_SUSPECTS:
        # ``first`` is the lower node of a link, as it is in the pairs of ``combinations``.
        measured = set(zip(links.first.tolist(), links.second.tolist(), strict=True))
        pairs += [pair for pair in combinations(suspect_nodes, 2) if pair not in measured]
    return pairs
