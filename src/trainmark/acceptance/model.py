"""Judge nodes and links by step times: pure functions of arrays.

The logarithm of the step time of a pair of nodes is

    level of the round + max(effect of the first node, effect of the second) + effect of the link
    + noise

because the slower node decides how fast a pair trains. A node alone has its level, its effect and
noise. Effects are differences from the peers: the median node has the effect 0. They are estimated
by Tukey's biweight, so that a few bad pairs do not move a node. Every interval is corrected for the
number of nodes or links that are judged (Bonferroni).

Times are in seconds, effects are natural logarithms until they are reported as shares: an effect of
0.05 is 5.1% more time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from math import expm1, inf, isfinite, log1p, nan, sqrt
from typing import TYPE_CHECKING

import numpy as np

from trainmark.acceptance import DEFAULT_WORSE_BY
from trainmark.record.stats import compute_student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

ERROR_RATE = 0.01  # probability that anything at all is judged wrongly by chance
MIN_LINK_ROUNDS = 2  # one slow round may be a disturbance of that moment
MAX_ROUNDS = 10_000  # more would not be practical: the effect is at the limit itself
_MIN_SLOW_ROUNDS = 0.75  # share of a slow link's rounds that are slow
_LIKELY = 1.645  # standard errors that 95% of estimates stay within to one side
_MIN_NOISE = 1e-4  # of real step times
_TUNING = 4.685  # of Tukey's biweight: 95% as efficient as the mean under normal noise
_EFFICIENCY = 0.95
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of normal noise
_ITERATIONS = 5
_FURTHER_ITERATIONS = 2  # of a mean that is begun near its end
_LARGE_ROUND = 16  # values; so many tell the level of their round alone
_MAX_GROUP = 16  # nodes whose links with each other are measured to find a common fault
_TESTS_PER_NODE = 2  # over all rounds, in the later half
_MIN_FREEDOM = 20  # measurements of pairs beyond the number of nodes, to tell their noise
_MIN_HALF_ROUNDS = 4  # of a half, to judge the later one by itself


class Verdict(str, Enum):
    """What is decided about a node or a link."""

    PASS = "pass"
    SLOW = "slow"
    UNDECIDED = "undecided"


class Cause(str, Enum):
    """Where a slow node is slow."""

    NODE = "node"  # alone too
    NETWORK = "network"  # only with other nodes, whichever they are
    GROUP = "group"  # only with nodes outside a group that shares the fault
    HOT = "hot"  # only in the later half of the rounds
    UNKNOWN = "unknown"  # in pairs; it was not measured alone


_MAY_BE_SHARED = (Cause.NETWORK, Cause.GROUP, Cause.UNKNOWN)


def _no_integers() -> Integers:
    return np.empty(0, np.int64)


def _no_floats() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Step times of nodes alone and in pairs.

    Args:
        num_nodes: nodes have the numbers 0 to ``num_nodes - 1``.
        alone_node: (A,) node of each measurement alone.
        alone_round: (A,) its repeat; measurements of one repeat were made at the same time.
        alone_s: (A,) seconds of a step.
        first: (P,) lower node of each measurement of a pair.
        second: (P,) its other node.
        pair_round: (P,) its round.
        pair_s: (P,) seconds of a step.
    """

    num_nodes: int
    alone_node: Integers = field(default_factory=_no_integers)
    alone_round: Integers = field(default_factory=_no_integers)
    alone_s: Floats = field(default_factory=_no_floats)
    first: Integers = field(default_factory=_no_integers)
    second: Integers = field(default_factory=_no_integers)
    pair_round: Integers = field(default_factory=_no_integers)
    pair_s: Floats = field(default_factory=_no_floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Effects with their standard errors, each of so many measurements; NaN without any."""

    effect: Floats
    error: Floats
    count: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdicts:
    """What is decided about each node; arrays of (N,).

    Args:
        slower: share by which the node's steps take longer than its peers'.
        low: lower end of the interval of ``slower``; ``high``: upper end.
        verdict: a ``Verdict`` each.
        cause: a ``Cause`` of each slow node, else None.
        group: number of the group of a node whose cause is a group, else -1.
        more_rounds: rounds that would decide an undecided node; -1: none would, or it is decided.
    """

    slower: Floats
    low: Floats
    high: Floats
    verdict: list[Verdict]
    cause: list[Cause | None]
    group: Integers
    more_rounds: Integers

    def with_verdict(self, wanted: Verdict) -> list[int]:
        """Return the nodes of one verdict."""
        return [node for node, verdict in enumerate(self.verdict) if verdict is wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkVerdicts:
    """What is decided about each link that was measured; arrays of (L,).

    Args:
        first: lower node; ``second``: the other one.
        slower: share by which steps take longer than the slower node of the pair explains.
        rounds: in which the link was measured.
        is_suspect: whether it looks slow, but in too few rounds to say so.
        detectable: share by which a link must be slower to be noticed with probability 95% after
            one round and confirmed after ``MIN_LINK_ROUNDS``; NaN without links.
    """

    first: Integers
    second: Integers
    slower: Floats
    low: Floats
    high: Floats
    rounds: Integers
    verdict: list[Verdict]
    more_rounds: Integers
    is_suspect: Flags
    detectable: float

    def with_verdict(self, wanted: Verdict) -> list[int]:
        """Return the places of the links of one verdict."""
        return [place for place, verdict in enumerate(self.verdict) if verdict is wanted]

    def suspects(self) -> list[tuple[int, int]]:
        """Return the links that look slow and were measured too seldom to say so."""
        return [
            (int(self.first[place]), int(self.second[place]))
            for place in np.flatnonzero(self.is_suspect & (self.rounds < MIN_LINK_ROUNDS))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Everything that is decided by step times.

    Args:
        noise_alone: standard deviation of a measurement of a node alone, as a share; None without.
        noise_pairs: that of a pair in a round.
        trend: share by which the level of all pairs rose from the first third of the rounds to the
            last, which is removed; None if there are too few rounds.
    """

    nodes: NodeVerdicts
    links: LinkVerdicts
    noise_alone: float | None
    noise_pairs: float | None
    trend: float | None


def pairs_to_measure_again(judgement: Judgement) -> list[tuple[int, int]]:
    """Return the pairs that would confirm what looks bad, each as often as it is to be measured.

    Links that look slow are measured again. Nodes whose network is slow are measured with each
    other, unless they were, which shows whether they share one fault.
    """
    pairs = judgement.links.suspects() * MIN_LINK_ROUNDS
    causes = enumerate(judgement.nodes.cause)
    shared = [node for node, cause in causes if cause in _MAY_BE_SHARED]
    if 2 < len(shared) <= _MAX_GROUP:
        links = judgement.links
        measured = set(zip(links.first.tolist(), links.second.tolist(), strict=True))
        pairs += [pair for pair in combinations(shared, 2) if pair not in measured]
    return pairs


def judge(
    measured: Measurements,
    *,
    worse_by: float = DEFAULT_WORSE_BY,
    error_rate: float = ERROR_RATE,
) -> Judgement:
    """Return the verdicts on all nodes and on all links that were measured.

    Args:
        worse_by: share of the step time by which a node or link may be slower than its peers.
        error_rate: probability of any wrong verdict, half of it for nodes, half for links.
    """
    limit = log1p(worse_by)
    alone, alone_noise = _estimate_alone(measured)
    pairs = _PairFit.of(measured, alone, alone_noise, limit)
    freedom = len(measured.pair_s) - measured.num_nodes
    if freedom < _MIN_FREEDOM and len(measured.alone_s):
        freedom = max(0, freedom) + len(measured.alone_s) - measured.num_nodes
        pairs = pairs.with_noise(max(pairs.noise, alone_noise))
    rate = error_rate / 2
    nodes = _judge_nodes(measured, alone, pairs, limit=limit, error_rate=rate, freedom=freedom)
    links = _judge_links(measured, pairs, limit=limit, error_rate=rate, freedom=freedom)
    return Judgement(
        nodes=nodes,
        links=links,
        noise_alone=alone_noise if len(measured.alone_s) else None,
        noise_pairs=pairs.noise if len(measured.pair_s) else None,
        trend=pairs.trend,
    )


# Estimation


def _estimate_alone(measured: Measurements) -> tuple[Estimates, float]:
    """Return the effects of nodes alone, and the noise of a measurement."""
    num_nodes, node = measured.num_nodes, measured.alone_node
    values = np.log(measured.alone_s)
    values = values - _round_levels(values, measured.alone_round)
    noise = _noise(values - _lower_medians(values, node, num_nodes)[node], len(set(node.tolist())))
    estimates = _biweight_means(values, node, num_nodes, noise)
    return _relative_to_peers(estimates), noise


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairFit:
    """Effects of nodes in pairs, and what is left of each pair.

    Args:
        residual: (P,) logarithm of the step time without level and node effects.
        without_level: (P,) the same with node effects.
        of_nodes: (P,) effect of the slower node.
        nodes: effects over all rounds.
        late: effects in the later half of the rounds; ``early``: in the other half.
    """

    nodes: Estimates
    early: Estimates
    late: Estimates
    residual: Floats
    without_level: Floats
    noise: float
    trend: float | None
    of_nodes: Floats

    def with_noise(self, noise: float) -> _PairFit:
        """Return the fit with errors of another noise: too few pairs do not tell their own."""
        factor = noise / self.noise
        nodes, early, late = (
            replace(estimates, error=estimates.error * factor)
            for estimates in (self.nodes, self.early, self.late)
        )
        return replace(self, nodes=nodes, early=early, late=late, noise=noise)

    @classmethod
    def of(
        cls, measured: Measurements, alone: Estimates, alone_noise: float, limit: float
    ) -> _PairFit:
        """Fit the model to the pairs.

        Args:
            alone: effects of nodes alone, from which the search begins.
            limit: effect beyond which a node counts as slow.
        """
        num_nodes, first, second = measured.num_nodes, measured.first, measured.second
        node, partner = np.concatenate([first, second]), np.concatenate([second, first])
        values = np.log(measured.pair_s)
        levels = _round_levels(values, measured.pair_round)
        without_level = values - levels
        known = np.nan_to_num(alone.effect)
        informative = _is_informative(known, node, partner, noise=alone_noise, limit=limit)
        doubled = np.tile(without_level, 2)
        effect = _lower_medians(doubled[informative], node[informative], num_nodes)
        without_level, effect = without_level - _peer_level(effect), effect - _peer_level(effect)
        nodes = Estimates(effect=effect, error=effect * 0, count=np.zeros(num_nodes, np.int64))
        noise = _MIN_NOISE
        for _ in range(_ITERATIONS):
            slower = np.fmax(effect[first], effect[second])
            noise = _noise(without_level - slower, num_nodes)
            informative = _is_informative(effect, node, partner, noise=noise, limit=limit)
            doubled = np.tile(without_level, 2)
            nodes = _biweight_means(
                doubled[informative], node[informative], num_nodes, noise, start=effect
            )
            shift = _peer_level(nodes.effect)
            without_level = without_level - shift
            nodes = _shifted(nodes, shift)
            effect = nodes.effect
        slower = np.fmax(effect[first], effect[second]) if len(first) else without_level
        doubled, is_late = np.tile(without_level, 2), np.tile(_is_late(measured.pair_round), 2)
        halves = [
            _biweight_means(doubled[chosen], node[chosen], num_nodes, noise)
            for chosen in (informative & ~is_late, informative & is_late)
        ]
        return cls(
            nodes=_with_peer_error(nodes),
            early=_relative_to_peers(halves[0]),
            late=_relative_to_peers(halves[1]),
            residual=without_level - slower,
            without_level=without_level,
            noise=noise,
            trend=_trend(values, measured.pair_round),
            of_nodes=slower,
        )


def _is_informative(
    effect: Floats, node: Integers, partner: Integers, *, noise: float, limit: float
) -> Flags:
    """Tell which measurements say something about ``node``: those that its partner does not bind.

    A node whose partners are all slower keeps them: their times are upper bounds of its own.
    """
    num_nodes = len(effect)
    counts = np.bincount(node, minlength=num_nodes)
    margin = limit / 2 + 2 * noise / np.sqrt(np.maximum(counts[partner], 1))
    informative = effect[partner] <= effect[node] + margin
    has_any = np.bincount(node[informative], minlength=num_nodes) > 0
    return informative | ~has_any[node]


def _round_levels(values: Floats, rounds: Integers) -> Floats:
    """Return the level of the round of each value.

    Of rounds with many values their median; small rounds have the level of their neighbours. If
    all are small: a straight line by the median of slopes (Theil and Sen), because the level of a
    round of two pairs cannot be told from the pairs.
    """
    if len(values) == 0:
        return values
    names, place, counts = np.unique(rounds, return_inverse=True, return_counts=True)
    medians, is_large = _medians(values, place, len(names)), counts >= _LARGE_ROUND
    if is_large.any():
        levels: Floats = np.interp(names, names[is_large], medians[is_large])
        return levels[place]
    if len(names) < 3:
        return values * 0
    steps = names[:, None] - names[None, :]
    rises = medians[:, None] - medians[None, :]
    slope = float(np.median(rises[steps > 0] / steps[steps > 0]))
    line: Floats = slope * (names - names.mean())
    return line[place]


def _trend(values: Floats, rounds: Integers) -> float | None:
    """Return by what share the first third of the rounds differs from the last; None if too few."""
    names, place = np.unique(rounds, return_inverse=True)
    if len(names) < 6:
        return None
    medians, third = _medians(values, place, len(names)), len(names) // 3
    return expm1(float(np.median(medians[-third:]) - np.median(medians[:third])))


def _is_late(rounds: Integers) -> Flags:
    """Tell which measurements are of the later half of the rounds; none if there are too few."""
    names, place = np.unique(rounds, return_inverse=True)
    half = len(names) // 2
    late: Flags = place >= half if half >= _MIN_HALF_ROUNDS else np.zeros(len(rounds), bool)
    return late


def _noise(residuals: Floats, num_fitted: int) -> float:
    """Return the standard deviation of residuals without outliers.

    Args:
        num_fitted: effects that were estimated from the same values.
    """
    if len(residuals) == 0:
        return _MIN_NOISE
    freedom = max(1, len(residuals) - num_fitted)
    spread = float(np.median(np.abs(residuals - np.median(residuals))))
    return max(_MIN_NOISE, _NORMAL_MAD * spread * sqrt(len(residuals) / freedom))


def _medians(values: Floats, place: Integers, num_places: int, *, lower: bool = False) -> Floats:
    """Return the median of the values of each place; NaN without values.

    Args:
        lower: of an even number the lower of the two in the middle, not their mean.
    """
    order = np.lexsort((values, place))
    counts = np.bincount(place, minlength=num_places)
    starts = np.cumsum(counts) - counts
    present = counts > 0
    ordered = values[order]
    medians = np.full(num_places, np.nan)
    low = ordered[(starts + (counts - 1) // 2)[present]]
    high = ordered[(starts + counts // 2)[present]]
    medians[present] = low if lower else (low + high) / 2
    return medians


def _lower_medians(values: Floats, place: Integers, num_places: int) -> Floats:
    return _medians(values, place, num_places, lower=True)


def _biweight_means(
    values: Floats, node: Integers, num_nodes: int, noise: float, *, start: Floats | None = None
) -> Estimates:
    """Return the mean of each node's values by Tukey's biweight.

    Args:
        start: where the search for each mean begins; None: at the lower median of its values.
    """
    centre = _lower_medians(values, node, num_nodes) if start is None else start
    weight = np.ones(len(values))
    for _ in range(_ITERATIONS if start is None else _FURTHER_ITERATIONS):
        distance = (values - centre[node]) / (_TUNING * noise)
        weight = np.where(np.abs(distance) < 1, (1 - distance**2) ** 2, 0.0)
        total = np.bincount(node, weight, num_nodes)
        mean = np.bincount(node, weight * values, num_nodes) / np.where(total > 0, total, 1)
        centre = np.where(total > 0, mean, centre)
    count = np.bincount(node[weight > 0], minlength=num_nodes)
    error = np.full(num_nodes, np.nan)
    present = count > 0
    error[present] = noise / np.sqrt(_EFFICIENCY * count[present])
    return Estimates(effect=centre, error=error, count=count)


def _peer_level(effect: Floats) -> float:
    """Return the effect of the median node; of two, that of the faster one."""
    known = np.sort(effect[np.isfinite(effect)])
    return float(known[(len(known) - 1) // 2]) if len(known) else 0.0


def _shifted(estimates: Estimates, shift: float) -> Estimates:
    return Estimates(effect=estimates.effect - shift, error=estimates.error, count=estimates.count)


def _with_peer_error(estimates: Estimates) -> Estimates:
    """Return the estimates with the error of the peers' median added to that of each node."""
    known = estimates.error[np.isfinite(estimates.error)]
    if len(known) == 0:
        return estimates
    of_peers = sqrt(np.pi / 2) * float(np.median(known)) / sqrt(len(known))
    error = np.sqrt(estimates.error**2 + of_peers**2)
    return replace(estimates, error=error)


def _relative_to_peers(estimates: Estimates) -> Estimates:
    """Return the effects as differences from the median node, with the error of both."""
    return _with_peer_error(_shifted(estimates, _peer_level(estimates.effect)))


# Verdicts


def _critical_value(error_rate: float, num_tests: int, freedom: int) -> float:
    """Return how many standard errors an interval reaches to each side.

    A verdict depends on one end of its interval, so that each end has the whole error rate.
    """
    if freedom < 1:  # nothing tells the noise
        return inf
    return compute_student_quantile(float(freedom), 1 - 2 * error_rate / max(2, num_tests))


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeChoice:
    """The estimate by which a node is judged, and where it is slow if it is."""

    effect: float
    error: float
    count: int
    cause: Cause


def _judge_nodes(
    measured: Measurements,
    alone: Estimates,
    pairs: _PairFit,
    *,
    limit: float,
    error_rate: float,
    freedom: int,
) -> NodeVerdicts:
    num_nodes = measured.num_nodes
    reach = _critical_value(error_rate, _TESTS_PER_NODE * num_nodes, freedom)
    choices = [_choose(node, alone, pairs, limit, reach) for node in range(num_nodes)]
    effect = np.array([choice.effect for choice in choices])
    half = reach * np.array([choice.error for choice in choices])
    count = np.array([choice.count for choice in choices])
    verdicts = _verdicts(effect, half, limit)
    is_slow = [verdict is Verdict.SLOW for verdict in verdicts]
    causes = [choice.cause if slow else None for choice, slow in zip(choices, is_slow, strict=True)]
    is_open = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool)
    return NodeVerdicts(
        slower=np.expm1(effect),
        low=np.expm1(effect - half),
        high=np.expm1(effect + half),
        verdict=verdicts,
        group=_mark_groups(measured, pairs, causes),
        cause=causes,
        more_rounds=np.where(is_open, _more_rounds(effect, half, count, limit), -1),
    )


def _choose(
    node: int, alone: Estimates, pairs: _PairFit, limit: float, reach: float
) -> _NodeChoice:
    """Return the estimate by which a node is judged: NaN if it was not measured."""
    late, early = _of_node(pairs.late, node), _of_node(pairs.early, node)
    if late is not None and early is not None and _is_hot(early, late, limit, reach):
        return replace(late, cause=Cause.HOT)
    by_itself, with_others = _of_node(alone, node), _of_node(pairs.nodes, node)
    if with_others is None:
        return by_itself or _NodeChoice(effect=nan, error=nan, count=0, cause=Cause.UNKNOWN)
    if by_itself is None:
        return replace(with_others, cause=Cause.UNKNOWN)
    difference = with_others.effect - by_itself.effect
    if abs(difference) <= reach * sqrt(by_itself.error**2 + with_others.error**2):
        return _combined(by_itself, with_others)
    return replace(with_others, cause=Cause.NETWORK) if difference > 0 else by_itself


def _is_hot(early: _NodeChoice, late: _NodeChoice, limit: float, reach: float) -> bool:
    """Tell whether a node is slow in the later half of the rounds, and slower than before."""
    rise = late.effect - early.effect
    is_rising = rise > reach * sqrt(late.error**2 + early.error**2)
    return is_rising and late.effect - reach * late.error > limit


def _of_node(estimates: Estimates, node: int) -> _NodeChoice | None:
    effect, error = float(estimates.effect[node]), float(estimates.error[node])
    if not isfinite(effect) or not isfinite(error):
        return None
    return _NodeChoice(
        effect=effect, error=error, count=int(estimates.count[node]), cause=Cause.NODE
    )


def _combined(first: _NodeChoice, other: _NodeChoice) -> _NodeChoice:
    """Return the mean of two estimates of the same effect, weighted by their precision."""
    weight_one, weight_other = 1 / first.error**2, 1 / other.error**2
    total = weight_one + weight_other
    return _NodeChoice(
        effect=(weight_one * first.effect + weight_other * other.effect) / total,
        error=sqrt(1 / total),
        count=first.count + other.count,
        cause=Cause.NODE,
    )


def _verdicts(effect: Floats, half: Floats, limit: float) -> list[Verdict]:
    """Return the verdict of each interval; what was not measured is undecided."""
    verdicts = [Verdict.UNDECIDED] * len(effect)
    for place in np.flatnonzero(effect - half > limit):
        verdicts[place] = Verdict.SLOW
    for place in np.flatnonzero(effect + half <= limit):
        verdicts[place] = Verdict.PASS
    return verdicts


def _more_rounds(effect: Floats, half: Floats, count: Integers, limit: float) -> Integers:
    """Return how many further measurements would bring each interval to one side of the limit.

    Args:
        half: what the interval of ``count`` measurements reaches to each side.

    Returns:
        -1 where more than ``MAX_ROUNDS`` would be needed.
    """
    distance = np.abs(effect - limit)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.ceil(count * (half / distance) ** 2 - count)
    is_practical = needed <= MAX_ROUNDS  # not where it is NaN
    return np.where(is_practical, np.fmax(needed, 1), -1).astype(np.int64)


def _mark_groups(measured: Measurements, pairs: _PairFit, causes: list[Cause | None]) -> Integers:
    """Find nodes that are slow only with others outside their group; change their cause.

    Such nodes are as fast with each other as healthy nodes are: they share what is slow, an uplink
    of a switch for instance. Of nodes that are slow by themselves each pair is slow too.

    Returns:
        The number of the group of each node, -1 outside of any.
    """
    group = np.full(measured.num_nodes, -1)
    suspects = np.array([cause in _MAY_BE_SHARED for cause in causes], bool)
    inside = suspects[measured.first] & suspects[measured.second]
    expected = pairs.of_nodes
    is_fast = inside & (pairs.without_level < expected / 2) if len(expected) else inside
    members: list[set[int]] = []
    chosen = zip(measured.first[is_fast].tolist(), measured.second[is_fast].tolist(), strict=True)
    for first, second in chosen:
        joined = {first, second}
        apart = []
        for member in members:
            if member & joined:
                joined |= member
            else:
                apart.append(member)
        members = [*apart, joined]
    mostly_fast = [member for member in members if _is_mostly(is_fast, inside, measured, member)]
    for number, nodes in enumerate(sorted(mostly_fast, key=min)):
        for node in nodes:
            group[node] = number
            causes[node] = Cause.GROUP
    return group


def _is_mostly(is_fast: Flags, inside: Flags, measured: Measurements, nodes: set[int]) -> bool:
    """Tell whether most pairs within ``nodes`` are fast: of three nodes or more."""
    listed = sorted(nodes)
    within = inside & np.isin(measured.first, listed) & np.isin(measured.second, listed)
    return len(nodes) > 2 and 2 * int(is_fast[within].sum()) > int(within.sum())


def _judge_links(
    measured: Measurements, pairs: _PairFit, *, limit: float, error_rate: float, freedom: int
) -> LinkVerdicts:
    """Return the verdict on each link: what its pairs add to the slower of their nodes.

    The lower median of its rounds counts, and a link is slow only if most of its rounds are: so
    that disturbances of single rounds blame no link.
    """
    if measured.num_nodes <= 2:  # a single link has no peers
        measured = Measurements(num_nodes=measured.num_nodes)
        pairs = replace(pairs, residual=_no_floats())
    keys = measured.first * max(1, measured.num_nodes) + measured.second
    names, place, rounds = np.unique(keys, return_inverse=True, return_counts=True)
    effect = _lower_medians(pairs.residual, place, len(names))
    reach = _critical_value(error_rate, len(names), freedom)
    of_nodes = pairs.nodes.error[measured.first] ** 2 + pairs.nodes.error[measured.second] ** 2
    node_error = np.zeros(len(names))
    node_error[place] = np.nan_to_num(of_nodes) / 2
    of_median = np.where(rounds > 2, np.sqrt(np.pi / 2 / rounds), 1.0)
    error = np.sqrt((pairs.noise * of_median) ** 2 + node_error)
    half = reach * error
    is_slow = effect - half > limit
    is_slow_round = pairs.residual > (limit + effect[place]) / 2
    slow_rounds = np.bincount(place, is_slow_round, len(names))
    is_confirmed = (rounds >= MIN_LINK_ROUNDS) & (slow_rounds >= _MIN_SLOW_ROUNDS * rounds)
    is_suspect = is_slow & ~is_confirmed
    more_rounds = np.where(is_suspect, np.maximum(1, MIN_LINK_ROUNDS - rounds), -1)
    verdicts = _verdicts(effect, half, limit)
    for place_of_suspect in np.flatnonzero(is_suspect):
        verdicts[place_of_suspect] = Verdict.UNDECIDED
    is_open = np.array([verdict is Verdict.UNDECIDED for verdict in verdicts], bool) & ~is_suspect
    more_rounds[is_open] = _more_rounds(effect, half, rounds, limit)[is_open]
    detectable = nan
    if len(names):
        detectable = float(np.expm1(limit + (reach + _LIKELY) * np.median(error)))
    return LinkVerdicts(
        first=names // max(1, measured.num_nodes),
        second=names % max(1, measured.num_nodes),
        slower=np.expm1(effect),
        low=np.expm1(effect - half),
        high=np.expm1(effect + half),
        rounds=rounds,
        verdict=verdicts,
        more_rounds=more_rounds,
        is_suspect=is_suspect,
        detectable=detectable,
    )
