"""Find groups of nodes that are slow, or fail, only when they train together with others.

The whole is measured first. If it is slower than alone and in pairs its nodes predict, it is halved
until every part is fast by itself; then each part is measured with the largest one. A part that is
slow with it shares a fault, as nodes behind one switch do. With d such groups among n nodes about
d log n sets are measured. Nodes are halved in the order of their names, because those behind one
switch mostly have neighbouring names.

Pure functions of what was measured, so that the search goes on wherever it was interrupted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import expm1, inf, log, log1p, log2, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

from trainmark.acceptance import DEFAULT_WORSE_BY
from trainmark.acceptance.estimation import biweight_means
from trainmark.acceptance.intervals import compute_reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIN_NODES = 4  # of fewer, pairs say all
_MIN_EVEN_SETS = 4  # that are all slow: no group is, but what pairs predict is wrong
_MIN_REFERENCE = 3  # nodes: a pair always takes as long as pairs predict
_TESTS = 4  # about so many sets are judged, times log2 of the number of nodes

Team = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What nodes alone and in pairs predict of larger sets.

    Args:
        alone_s: seconds of a step of the median node alone.
        pair_s: of the median pair.
        noise: standard deviation of the logarithm of one measurement.
        freedom: measurements that tell the noise, see ``compute_reach``.
    """

    alone_s: float
    pair_s: float
    noise: float
    freedom: int

    def predict_s(self, num_nodes: int) -> float:
        """Return the predicted seconds of a step of a set of nodes.

        A ring all-reduce of n nodes sends 2 (n - 1) / n of the gradients over each link: of two
        nodes all of them, of many nodes twice as much.
        """
        communication_s = max(0.0, self.pair_s - self.alone_s)
        return self.alone_s + communication_s * 2 * (num_nodes - 1) / num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimes:
    """What was measured of sets of nodes, by their names in order.

    Args:
        seconds: of a step, in each round.
        errors: why a set failed that did.
    """

    seconds: Mapping[Team, Sequence[float]] = field(default_factory=dict)
    errors: Mapping[Team, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowShare:
    """By what share a set is slower than predicted, and the ends of the interval."""

    slower: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGroup:
    """Nodes that are slow, or fail, together with others and not by themselves.

    Args:
        share: by which a set with them is slower than predicted; None: such a set failed.
        error: of such a set.
    """

    members: Team
    share: SlowShare | None
    error: str = ""


Outcome = Literal["as_predicted", "found", "evenly_slow", "cannot_tell", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearch:
    """How far a search is.

    Args:
        to_measure: sets that are to be measured once more before it can go on; disjoint.
        whole: None: it was not measured often enough yet, or failed.
        parts: sets that are fast by themselves, between which ``cannot_tell`` cannot decide.
    """

    outcome: Outcome
    to_measure: tuple[Team, ...] = ()
    whole: SlowShare | None = None
    groups: tuple[FoundGroup, ...] = ()
    parts: tuple[Team, ...] = ()


class _MeasureFirst(Exception):
    """Sets must be measured before the search can go on."""

    def __init__(self, teams: Iterable[Team]) -> None:
        self.teams = tuple(teams)


def search_groups(
    nodes: Iterable[str],
    parts: Parts,
    measured: SetTimes,
    *,
    repeats: int,
    worse_by: float = DEFAULT_WORSE_BY,
    error_rate: float = 0.005,
) -> GroupSearch:
    """Return what the measured sets tell of groups, and which to measure next.

    Args:
        nodes: that are comparable and pass by themselves.
        repeats: rounds in which each set is measured.
        worse_by: share by which a set may be slower than predicted.
        error_rate: probability of any wrong group.
    """
    whole = _ordered(nodes)
    if len(whole) < MIN_NODES:
        return GroupSearch(outcome="as_predicted")
    num_tests = _TESTS * (1 + round(log2(len(whole))))
    reach = compute_reach(error_rate, num_tests, parts.freedom)
    judge = _SetJudge(
        effects=_estimate_effects(parts, measured.seconds),
        parts=parts,
        measured=measured,
        repeats=repeats,
        limit=log1p(worse_by),
        reach=reach,
    )
    try:
        return _search(whole, judge)
    except _MeasureFirst as missing:
        return GroupSearch(
            outcome="unfinished",
            to_measure=_choose_disjoint(missing.teams),
            whole=judge.share(whole),
        )


def _estimate_effects(parts: Parts, seconds: Mapping[Team, Sequence[float]]) -> dict[Team, float]:
    """Return the logarithm of the time of each set over the predicted one."""
    teams = [team for team, values in seconds.items() if values]
    if not teams:
        return {}
    counts = [len(seconds[team]) for team in teams]
    values = np.log(np.concatenate([seconds[team] for team in teams]))
    place = np.repeat(np.arange(len(teams)), counts)
    means = biweight_means(values, place, len(teams), parts.noise).effect.tolist()
    return {
        team: mean - log(parts.predict_s(len(team)))
        for team, mean in zip(teams, means, strict=True)
    }


@lru_cache(maxsize=100_000)
def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``node2`` before ``node10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


@dataclass(frozen=True, slots=True)
class _SetJudge:
    """Decides which sets are slow.

    Args:
        effects: logarithm of the time of each measured set over the predicted one.
        limit: effect beyond which a set is slow.
        reach: standard errors to each side of an interval.
    """

    effects: Mapping[Team, float]
    parts: Parts
    measured: SetTimes
    repeats: int
    limit: float
    reach: float

    def need(self, teams: Iterable[Team]) -> None:
        """Raise ``_MeasureFirst`` unless all sets were measured often enough, or failed."""
        missing = [
            team
            for team in teams
            if len(team) > 1
            and team not in self.measured.errors
            and len(self.measured.seconds.get(team, ())) < self.repeats
        ]
        if missing:
            raise _MeasureFirst(missing)

    def is_slow(self, team: Team) -> bool:
        """Return whether a set is slower than predicted, or failed; of one node it never is."""
        if len(team) == 1:
            return False
        if team in self.measured.errors:
            return True
        return self.effects[team] - self.reach * self.error(team) > self.limit

    def is_slow_beside(self, team: Team, parts: Sequence[Team]) -> bool:
        """Return whether a set is slow, also relative to parts that are fast by themselves.

        Those that are as large, or else the largest, show how wrong the prediction is here.
        """
        if team in self.measured.errors:
            return True
        difference, error = self.effects[team], self.error(team)
        similar = [part for part in parts if len(part) >= len(team)] or [max(parts, key=len)]
        difference -= max(0.0, fmean(self.effects[part] for part in similar))
        variance = sum(self.error(part) ** 2 for part in similar) / len(similar) ** 2
        error = sqrt(error**2 + variance)
        return self.is_slow(team) and difference - self.reach * error > self.limit

    def error(self, team: Team) -> float:
        """Return the standard error of the effect of a set."""
        return self.parts.noise / sqrt(len(self.measured.seconds[team]))

    def badness(self, team: Team) -> float:
        """Return the effect of a set; of one that failed infinity."""
        return inf if team in self.measured.errors else self.effects[team]

    def group(self, members: Team, team: Team) -> FoundGroup:
        """Return a group that was slow, or failed, in a set."""
        error = self.measured.errors.get(team, "")
        return FoundGroup(members=members, share=None if error else self.share(team), error=error)

    def share(self, team: Team) -> SlowShare | None:
        """Return the effect of a set with its interval; None if it was not measured."""
        if not self.measured.seconds.get(team):
            return None
        effect, half = self.effects[team], self.reach * self.error(team)
        return SlowShare(slower=expm1(effect), low=expm1(effect - half), high=expm1(effect + half))


def _search(whole: Team, judge: _SetJudge) -> GroupSearch:
    """Return the result of a search.

    Raises:
        _MeasureFirst: it cannot go on yet.
    """
    judge.need([whole])
    share = judge.share(whole)
    if not judge.is_slow(whole):
        return GroupSearch(outcome="as_predicted", whole=share)
    parts = _split_into_fast_parts(whole, judge)
    if parts is None:
        return GroupSearch(outcome="evenly_slow", whole=share)
    reference = max(parts, key=len)
    if len(reference) < _MIN_REFERENCE:
        return GroupSearch(outcome="cannot_tell", whole=share, parts=tuple(parts))
    slow_sets = _find_parts_with_fault(parts, reference, judge)
    num_members = sum(map(len, slow_sets))
    if not slow_sets or 2 * num_members >= len(whole):
        return GroupSearch(outcome="cannot_tell", whole=share, parts=tuple(parts))
    return GroupSearch(outcome="found", whole=share, groups=tuple(_join_groups(slow_sets, judge)))


def _ordered(names: Iterable[str]) -> Team:
    return tuple(sorted(names, key=natural_key))


def _halve(team: Team) -> tuple[Team, Team]:
    middle = (len(team) + 1) // 2
    return team[:middle], team[middle:]


def _split_into_fast_parts(whole: Team, judge: _SetJudge) -> list[Team] | None:
    """Halve sets that are slow until none is; None if all of several sets are slow alike."""
    slow, parts = [whole], []
    while slow:
        halves = [half for team in slow for half in _halve(team)]
        judge.need(halves)
        slow = [half for half in halves if judge.is_slow(half)]
        if len(slow) == len(halves) >= _MIN_EVEN_SETS:
            return None
        parts += [half for half in halves if half not in slow]
    return parts


def _with_reference(part: Team, reference: Team, offset: int = 0) -> Team:
    """Return a part and as many nodes of the reference, or all of it if it has fewer."""
    turned = reference[offset:] + reference[:offset]
    return _ordered(part + turned[: len(part)])


def _find_parts_with_fault(
    parts: Sequence[Team], reference: Team, judge: _SetJudge
) -> dict[Team, Team]:
    """Return the parts that are slow together with the reference, each with the set of both."""
    sets: dict[Team, Team] = {}
    offset = 0
    for part in parts:
        if part != reference:
            sets[part] = _with_reference(part, reference, offset % len(reference))
            offset += len(part)  # other nodes of the reference, so that sets can be disjoint
    judge.need([reference, *sets.values()])
    return {part: team for part, team in sets.items() if judge.is_slow_beside(team, parts)}


def _join_groups(slow_sets: Mapping[Team, Team], judge: _SetJudge) -> list[FoundGroup]:
    """Return the groups: one if all parts with a fault are fast together, else one a part.

    Args:
        slow_sets: by part the set in which it was slow.
    """
    union = _ordered(name for part in slow_sets for name in part)
    if len(slow_sets) > 1:
        judge.need([union])
        if not judge.is_slow(union):
            slowest = max(slow_sets.values(), key=judge.badness)
            return [judge.group(union, slowest)]
    return [judge.group(part, team) for part, team in slow_sets.items()]


def _choose_disjoint(teams: Iterable[Team]) -> tuple[Team, ...]:
    """Return sets that can be measured at the same time, the first one among them."""
    chosen: list[Team] = []
    busy: set[str] = set()
    for team in teams:
        if busy.isdisjoint(team):
            chosen.append(team)
            busy.update(team)
    return tuple(chosen)


def predict_parts(alone_s: Sequence[float], pair_s: Sequence[float], noise: float) -> Parts | None:
    """Return what the medians of nodes alone and of pairs predict; None if either is missing."""
    if not alone_s or not pair_s:
        return None
    return Parts(
        alone_s=float(np.median(alone_s)),
        pair_s=float(np.median(pair_s)),
        noise=noise,
        freedom=len(alone_s) + len(pair_s) - 2,
    )
