"""Verdicts on links: what a pair adds to the step of the slower of its two nodes."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import compute_lower_medians
from trainmark.acceptance.intervals import (
    NO_ROUNDS,
    compute_reach,
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

_MIN_SLOW_ROUNDS = 0.75  # of the rounds of a slow link
_ONE_SIDED_95 = 1.645  # standard errors: 95% of normal estimates do not lie further to one side


def judge_links(
    measured: Measurements, pairs: PairFit, *, limit: float, error_rate: float, freedom: int
) -> LinkVerdicts:
    """Return the verdict on each link.

    The lower median of its rounds counts, and a link is slow only if most of its rounds are: so
    that disturbances of single rounds blame no link.

    Args:
        limit: effect beyond which a link is slow.
        error_rate: probability of any wrong verdict.
        freedom: see ``compute_reach``.
    """
    residual = pairs.residual
    if measured.num_nodes <= 2:  # a single link has no peers
        measured = Measurements(num_nodes=measured.num_nodes)
        residual = make_empty_floats()
    # A link is one number, from which its two nodes are divided again below.
    base = max(1, measured.num_nodes)
    links, place, rounds = np.unique(
        measured.first * base + measured.second, return_inverse=True, return_counts=True
    )
    effect = compute_lower_medians(residual, place, len(links))
    error = _estimate_errors(measured, pairs, place, rounds)
    reach = compute_reach(error_rate, len(links), freedom)
    half_width = reach * error
    # A round is slow if it is nearer to the slow link than to the limit.
    is_slow_round = residual > (limit + effect[place]) / 2
    slow_rounds = np.bincount(place, is_slow_round, len(links))
    is_confirmed = (rounds >= MIN_LINK_ROUNDS) & (slow_rounds >= _MIN_SLOW_ROUNDS * rounds)
    is_suspect = (effect - half_width > limit) & ~is_confirmed
    verdicts = decide_verdicts(effect, half_width, limit)
    for suspect in np.flatnonzero(is_suspect):
        verdicts[suspect] = Verdict.UNDECIDED
    is_undecided = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    detectable = nan
    if len(links):
        smallest = limit + (reach + _ONE_SIDED_95) * np.median(error, keepdims=True)
        detectable = float(convert_to_slowdowns(smallest)[0])
    return LinkVerdicts(
        first=links // base,
        second=links % base,
        slower=convert_to_slowdowns(effect),
        low=convert_to_slowdowns(effect - half_width),
        high=convert_to_slowdowns(effect + half_width),
        rounds=rounds,
        verdict=verdicts,
        more_rounds=_count_more_rounds(
            is_suspect, is_undecided, rounds, count_more_rounds(effect, half_width, rounds, limit)
        ),
        is_suspect=is_suspect,
        detectable=detectable,
    )


def _estimate_errors(
    measured: Measurements, pairs: PairFit, place: Integers, rounds: Integers
) -> Floats:
    """Return the standard error of each link's effect: of its rounds and of its nodes' effects.

    Args:
        place: (P,) the link of each measurement.
        rounds: (L,) number of measurements of each link.
    """
    node_errors = pairs.nodes.error
    node_variance = np.zeros(len(rounds))
    pair_variance = node_errors[measured.first] ** 2 + node_errors[measured.second] ** 2
    node_variance[place] = np.nan_to_num(pair_variance) / 2
    # The lower median of one or two rounds is a single measurement.
    relative_error_of_median = np.where(rounds > 2, np.sqrt(np.pi / 2 / rounds), 1.0)
    errors: Floats = np.sqrt((pairs.noise * relative_error_of_median) ** 2 + node_variance)
    return errors


def _count_more_rounds(
    is_suspect: Flags, is_undecided: Flags, rounds: Integers, to_decide: Integers
) -> Integers:
    """Return how many rounds would confirm each suspect and decide each undecided link.

    Args:
        to_decide: rounds that would decide each link, see ``count_more_rounds``.
    """
    more = np.where(is_suspect, np.maximum(1, MIN_LINK_ROUNDS - rounds), NO_ROUNDS)
    is_open = is_undecided & ~is_suspect
    more[is_open] = to_decide[is_open]
    return more
