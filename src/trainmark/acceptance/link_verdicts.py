"""Verdicts on links: what a pair adds to the step of the slower of its two nodes.

An effect is the natural logarithm of a pair's step time over that of the slower node. In shapes, P
is the number of measurements of pairs, L that of links.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import compute_lower_medians
from trainmark.acceptance.intervals import (
    NO_ROUNDS,
    compute_num_std_errors,
    convert_to_slowdowns,
    count_more_rounds,
    decide_verdicts,
)
from trainmark.acceptance.judgement import (
    MIN_LINK_ROUNDS,
    LinkVerdicts,
    Measurements,
    Verdict,
    make_empty_floats,
)

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers
    from trainmark.acceptance.pair_model import PairFit

_MIN_SLOW_SHARE = 0.75  # of the rounds of a link, which must be slow before the link is
_ONE_SIDED_95 = 1.645  # standard errors: 95% of normal estimates do not lie further to one side


def judge_links(
    measured: Measurements,
    pairs: PairFit,
    *,
    effect_limit: float,
    error_rate: float,
    degrees_of_freedom: int,
) -> LinkVerdicts:
    """Return the verdict on each link.

    A link is judged by the lower median of its rounds, and is slow only if most of its rounds are.
    A disturbance of a single round therefore makes no link slow.

    Args:
        measured: step times of pairs.
        pairs: has, for each measurement of a pair, the residual: the logarithm of how much slower
            the pair was than the slower of its nodes.
        effect_limit: effect (logarithm of a slowdown) beyond which a link is slow.
        error_rate: probability of any wrong verdict.
        degrees_of_freedom: of the noise of a measurement; below 1 it is unknown, and no link is
            decided.
    """
    residual = pairs.residual  # (P,), one of each measurement of a pair
    # Of two nodes, no link is judged: what their only link adds to the step cannot be told from
    # what training in a pair adds in any case.
    if measured.num_nodes <= 2:
        measured = Measurements(num_nodes=measured.num_nodes)
        residual = make_empty_floats()
    # ``links.rounds`` (L,): number of measurements of each link; ``links.link_of_pair`` (P,): index
    # of the link of each measurement.
    links = _Links.from_measurements(measured)
    effect = compute_lower_medians(residual, links.link_of_pair, len(links.rounds))  # (L,)
    std_error = _estimate_std_errors(measured, pairs, links)
    num_std_errors = compute_num_std_errors(error_rate, len(links.rounds), degrees_of_freedom)
    half_width = num_std_errors * std_error
    is_confirmed = _find_confirmed_links(links, residual, effect, effect_limit)
    # Slow by its interval, but in too few rounds: undecided until it is measured again.
    is_suspect = (effect - half_width > effect_limit) & ~is_confirmed
    verdicts = decide_verdicts(effect, half_width, effect_limit)
    for link in np.flatnonzero(is_suspect):
        verdicts[link] = Verdict.UNDECIDED
    is_undecided = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    rounds_to_decide = count_more_rounds(effect, half_width, links.rounds, effect_limit)
    return LinkVerdicts(
        first=links.first,
        second=links.second,
        slower=convert_to_slowdowns(effect),
        low=convert_to_slowdowns(effect - half_width),
        high=convert_to_slowdowns(effect + half_width),
        rounds=links.rounds,
        verdict=verdicts,
        more_rounds=_combine_more_rounds(is_suspect, is_undecided, links.rounds, rounds_to_decide),
        is_suspect=is_suspect,
        detectable=_find_detectable_slowdown(std_error, effect_limit, num_std_errors),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """The links between nodes that were measured.

    Args:
        first: (L,) lower node of each link.
        second: (L,) its other node.
        rounds: (L,) number of rounds in which it was measured.
        link_of_pair: (P,) index of the link of each measurement of a pair.
    """

    first: Integers
    second: Integers
    rounds: Integers
    link_of_pair: Integers

    @classmethod
    def from_measurements(cls, measured: Measurements) -> _Links:
        """Return the links of the measured pairs: each two nodes that were measured together.

        A link may have been measured in several rounds. ``first`` is always the lower node.
        """
        # Both nodes of a pair as one number, so that equal numbers are measurements of one link.
        # At least 1, because it divides below: without nodes there are no pairs either.
        base = max(1, measured.num_nodes)
        # A pair is measured once in a round, so that the counts are numbers of rounds.
        numbers, link_of_pair, rounds = np.unique(
            measured.first * base + measured.second, return_inverse=True, return_counts=True
        )
        return cls(
            first=numbers // base,
            second=numbers % base,
            rounds=rounds,
            link_of_pair=link_of_pair,
        )


def _estimate_std_errors(measured: Measurements, pairs: PairFit, links: _Links) -> Floats:
    """Return the standard error of each link's effect.

    The effect of a link is a logarithm: how much slower its pair was than the slower of its nodes,
    in the median of its rounds. It has the error of this median and that of the node's effect.

    Args:
        measured: ``first`` and ``second`` (P,) are the nodes of each measurement of a pair.
        pairs: ``nodes.std_error`` (N,) is the standard error of each node's effect, ``noise`` the
            standard deviation of one measurement of a pair.
        links: ``rounds`` (L,) is the number of measurements of each link, ``link_of_pair`` (P,) the
            index of the link of each measurement.

    Returns:
        (L,), one of each link.
    """
    node_errors = pairs.nodes.std_error
    # (P,) mean of the variances of both nodes of each pair, in place of that of its slower node:
    # which one that is, is known only up to these errors.
    mean_variance = (node_errors[measured.first] ** 2 + node_errors[measured.second] ** 2) / 2
    node_variance = np.zeros(len(links.rounds))  # (L,)
    # All measurements of a link have the same nodes, so that each of them sets the same value. NaN:
    # the error of a node is unknown, because all its measurements were outliers without a weight.
    # Then only the noise of the link's own measurements counts.
    node_variance[links.link_of_pair] = np.nan_to_num(mean_variance)
    # The lower median of one or two rounds is a single measurement. The standard error of a median
    # of more is sqrt(pi / 2) times that of their mean, if they are normal.
    relative_error_of_median = np.where(links.rounds > 2, np.sqrt(np.pi / 2 / links.rounds), 1.0)
    std_errors: Floats = np.sqrt((pairs.noise * relative_error_of_median) ** 2 + node_variance)
    return std_errors


def _find_confirmed_links(
    links: _Links, residual: Floats, effect: Floats, effect_limit: float
) -> Flags:
    """Return which links have enough slow rounds to be judged slow.

    A link is confirmed if it was measured in at least ``MIN_LINK_ROUNDS`` rounds, of which at least
    the share ``_MIN_SLOW_SHARE`` was slow. For a link whose effect is not above the limit the
    answer means nothing.

    Args:
        links: ``rounds`` (L,) is the number of rounds in which each link was measured,
            ``link_of_pair`` (P,) the index of the link of each measurement of a pair.
        residual: (P,) logarithm of how much slower each pair was than the slower of its nodes.
        effect: (L,) lower median of the residuals of each link.
        effect_limit: effect beyond which a link is slow, a logarithm, too.

    Returns:
        (L,) a flag for each link.
    """
    # (P,) A round is slow if it lies above the middle between the limit and the effect of its link:
    # it is then nearer to this effect, which is above the limit.
    is_slow_round = residual > (effect_limit + effect[links.link_of_pair]) / 2
    # (L,) number of slow rounds: each flag has the weight 0 or 1.
    slow_rounds = np.bincount(links.link_of_pair, is_slow_round, len(links.rounds))
    has_enough_rounds = links.rounds >= MIN_LINK_ROUNDS
    is_confirmed: Flags = has_enough_rounds & (slow_rounds >= _MIN_SLOW_SHARE * links.rounds)
    return is_confirmed


def _combine_more_rounds(
    is_suspect: Flags, is_undecided: Flags, rounds: Integers, rounds_to_decide: Integers
) -> Integers:
    """Return how many more rounds would confirm each suspect and decide each undecided link.

    Args:
        is_suspect: (L,) whether the interval of a link lies above the limit, but too few of its
            rounds were slow. Such a link is also undecided.
        is_undecided: (L,) whether a link is neither judged slow nor passes.
        rounds: (L,) number of rounds in which each link was measured.
        rounds_to_decide: (L,) more rounds after which the interval of a link would lie on one side
            of the limit; it means nothing for a suspect, whose interval does already.

    Returns:
        (L,); ``NO_ROUNDS`` for a link that is decided.
    """
    # A suspect that has enough rounds, of which too few were slow, needs at least one more.
    more = np.where(is_suspect, np.maximum(1, MIN_LINK_ROUNDS - rounds), NO_ROUNDS)
    is_only_undecided = is_undecided & ~is_suspect
    more[is_only_undecided] = rounds_to_decide[is_only_undecided]
    return more


def _find_detectable_slowdown(
    std_error: Floats, effect_limit: float, num_std_errors: float
) -> float:
    """Return the smallest slowdown of a link that is noticed with probability 95%.

    An effect is the natural logarithm of a slowdown: of how much slower a pair is than the slower
    of its nodes.

    A link is noticed if the whole interval of its effect lies above the limit. Its estimate must
    lie above the limit by half the width of the interval. To do so with probability 95%, the true
    effect must be larger by another ``_ONE_SIDED_95`` standard errors. The median standard error of
    all links stands for each.

    Args:
        std_error: (L,) standard error of each link's effect.
        effect_limit: effect beyond which a link is slow.
        num_std_errors: standard errors by which an interval reaches to each side.

    Returns:
        The slowdown; NaN without links.
    """
    if len(std_error) == 0:
        return nan
    # (1,), because ``convert_to_slowdowns`` takes an array.
    median_error = np.median(std_error, keepdims=True)
    effect = effect_limit + (num_std_errors + _ONE_SIDED_95) * median_error
    return float(convert_to_slowdowns(effect)[0])
