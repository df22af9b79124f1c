"""Verdicts on links: what a pair adds to the step of the slower of its two nodes."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance.estimation import lower_medians
from trainmark.acceptance.intervals import as_shares, compute_reach, count_more_rounds, decide
from trainmark.acceptance.judgement import (
    MIN_LINK_ROUNDS,
    LinkVerdicts,
    Measurements,
    Verdict,
    no_floats,
)

if TYPE_CHECKING:
    from trainmark.acceptance.judgement import Flags, Floats, Integers
    from trainmark.acceptance.pair_model import PairFit

_MIN_SLOW_ROUNDS = 0.75  # share of a slow link's rounds that are slow
_LIKELY = 1.645  # standard errors that 95% of estimates stay within to one side


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
        measured, residual = Measurements(num_nodes=measured.num_nodes), no_floats()
    base = max(1, measured.num_nodes)
    links, place, rounds = np.unique(
        measured.first * base + measured.second, return_inverse=True, return_counts=True
    )
    effect = lower_medians(residual, place, len(links))
    error = _estimate_errors(measured, pairs, place, rounds)
    reach = compute_reach(error_rate, len(links), freedom)
    half = reach * error
    is_slow_round = residual > (limit + effect[place]) / 2
    slow_rounds = np.bincount(place, is_slow_round, len(links))
    is_confirmed = (rounds >= MIN_LINK_ROUNDS) & (slow_rounds >= _MIN_SLOW_ROUNDS * rounds)
    is_suspect = (effect - half > limit) & ~is_confirmed
    verdicts = decide(effect, half, limit)
    for suspect in np.flatnonzero(is_suspect):
        verdicts[suspect] = Verdict.UNDECIDED
    is_undecided = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    detectable = nan
    if len(links):
        smallest = limit + (reach + _LIKELY) * np.median(error, keepdims=True)
        detectable = float(as_shares(smallest)[0])
    return LinkVerdicts(
        first=links // base,
        second=links % base,
        slower=as_shares(effect),
        low=as_shares(effect - half),
        high=as_shares(effect + half),
        rounds=rounds,
        verdict=verdicts,
        more_rounds=_count_more_rounds(
            is_suspect, is_undecided, rounds, count_more_rounds(effect, half, rounds, limit)
        ),
        is_suspect=is_suspect,
        detectable=detectable,
    )


def _estimate_errors(
    measured: Measurements, pairs: PairFit, place: Integers, rounds: Integers
) -> Floats:
    """Return the standard error of each link's effect: of its rounds and of its nodes' effects."""
    nodes = pairs.nodes.error
    of_nodes = np.zeros(len(rounds))
    of_nodes[place] = np.nan_to_num(nodes[measured.first] ** 2 + nodes[measured.second] ** 2) / 2
    of_median = np.where(rounds > 2, np.sqrt(np.pi / 2 / rounds), 1.0)
    errors: Floats = np.sqrt((pairs.noise * of_median) ** 2 + of_nodes)
    return errors


def _count_more_rounds(
    is_suspect: Flags, is_undecided: Flags, rounds: Integers, to_decide: Integers
) -> Integers:
    """Return how many rounds would confirm each suspect and decide each undecided link.

    Args:
        to_decide: rounds that would decide each link, see ``count_more_rounds``.
    """
    more = np.where(is_suspect, np.maximum(1, MIN_LINK_ROUNDS - rounds), -1)
    is_open = is_undecided & ~is_suspect
    more[is_open] = to_decide[is_open]
    return more
