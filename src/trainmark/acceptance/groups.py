"""Find groups of nodes that are slow, or fail, only when they train together with others.

Three words have one meaning each:

- a *node set* is measured in one training of all its nodes; the *whole* is that of all nodes;
- a *part* is a node set that the search obtained by halving;
- a *group* is the result: nodes that share a fault, as nodes behind one switch do.

The whole is measured first. If it is slower than its nodes alone and in pairs predict, it is halved
until every part is fast by itself; then each part is measured with the largest one. A part that is
slow with it has a fault. With d groups among n nodes about d log n sets are measured. Nodes are
halved in the order of their names, because those behind one switch mostly have neighbouring names.

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
from trainmark.acceptance.estimation import compute_biweight_means
from trainmark.acceptance.intervals import compute_num_std_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIN_NODES = 4  # with fewer nodes, pairs show every fault
_MIN_EVEN_SETS = 4  # if so many sets are all slow, no group is slow but the prediction is wrong
_MIN_REFERENCE_NODES = 3  # a reference of two proves nothing: pairs are what predictions are from
_TESTS_PER_HALVING = 4  # about so many sets are judged in each of log2(number of nodes) halvings

NodeSet = tuple[str, ...]  # names of nodes, in the order of their numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """What nodes alone and in pairs predict of larger node sets.

    A node set is some nodes that train together.

    Args:
        alone_s: seconds of a step of the median node alone.
        pair_s: seconds of a step of the median pair.
        noise: standard deviation of the logarithm of one measurement.
        degrees_of_freedom: number of measurements minus number of values that were estimated from
            them.
    """

    alone_s: float
    pair_s: float
    noise: float
    degrees_of_freedom: int

    def predict_s(self, num_nodes: int) -> float:
        """Return the predicted seconds of a step of a node set.

        A node alone takes ``alone_s`` for a step, a pair of nodes ``pair_s``; the difference is the
        time of communication, which depends on the number of nodes.

        A ring all-reduce of n nodes sends 2 (n - 1) / n of the gradients over each link: of two
        nodes all of them, of many nodes twice as much.
        """
        # Noise may make pairs look faster than nodes alone.
        communication_s = max(0.0, self.pair_s - self.alone_s)
        return self.alone_s + communication_s * 2 * (num_nodes - 1) / num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimes:
    """What was measured of node sets.

    Args:
        seconds: by node set the seconds of a step in each round.
        errors: by node set why it failed; sets that did not fail are missing.
    """

    seconds: Mapping[NodeSet, Sequence[float]] = field(default_factory=dict)
    errors: Mapping[NodeSet, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How much slower a node set is than predicted: 0.05 is 5% more time.

    Args:
        slower: the estimate.
        low: lower end of its interval.
        high: upper end of its interval.
    """

    slower: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """Nodes that are slow, or fail, together with others and not by themselves.

    Args:
        slowdown: of a node set with the group and others; None: such a set failed.
        error: of the set that failed; empty: none did.
    """

    members: NodeSet
    slowdown: Slowdown | None
    error: str = ""


Outcome = Literal["as_predicted", "found", "evenly_slow", "cannot_tell", "unfinished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearch:
    """How far a search is.

    Args:
        to_measure: node sets that are to be measured once more before it can go on; disjoint.
        whole: slowdown of the whole; None: it was not measured often enough yet, or failed.
        groups: what the search found.
        parts: that are fast by themselves; with the outcome ``cannot_tell`` something between them
            is slow, and the search cannot decide which of them has the fault.
    """

    outcome: Outcome
    to_measure: tuple[NodeSet, ...] = ()
    whole: Slowdown | None = None
    groups: tuple[SlowGroup, ...] = ()
    parts: tuple[NodeSet, ...] = ()


class _MissingMeasurements(Exception):
    """The search cannot go on before these node sets are measured."""

    def __init__(self, node_sets: Iterable[NodeSet]) -> None:
        self.node_sets = tuple(node_sets)


def search_groups(
    nodes: Iterable[str],
    model: StepTimeModel,
    measured: SetTimes,
    *,
    repeats: int,
    worse_by: float = DEFAULT_WORSE_BY,
    error_rate: float = 0.005,
) -> GroupSearch:
    """Return the groups that the measured node sets show, or which sets to measure next.

    A group is several nodes that share a fault: by themselves they are fast, with other nodes slow.

    Args:
        nodes: names of the nodes that are comparable and pass by themselves.
        model: predicts how long larger sets take.
        measured: what was measured of node sets so far.
        repeats: rounds in which each set is measured.
        worse_by: slowdown up to which a set still passes.
        error_rate: probability of any wrong group.
    """
    whole = _sort_names(nodes)
    # So few nodes are not searched. An outcome "as_predicted" without a slowdown is not reported.
    if len(whole) < MIN_NODES:
        return GroupSearch(outcome="as_predicted")
    # A whole of n nodes is halved about log2(n) times, and about ``_TESTS_PER_HALVING`` sets are
    # judged after each halving. The whole, which is judged first, counts as one halving more.
    num_tests = _TESTS_PER_HALVING * (1 + round(log2(len(whole))))
    sets = _MeasuredSets(
        effects=_estimate_effects(model, measured.seconds),
        model=model,
        measured=measured,
        repeats=repeats,
        effect_limit=log1p(worse_by),
        num_std_errors=compute_num_std_errors(error_rate, num_tests, model.degrees_of_freedom),
    )
    try:
        return _search_slow_groups(whole, sets)
    except _MissingMeasurements as missing:
        return GroupSearch(
            outcome="unfinished",
            to_measure=_choose_disjoint(missing.node_sets),
            whole=sets.compute_slowdown(whole),
        )


def _estimate_effects(
    model: StepTimeModel, seconds: Mapping[NodeSet, Sequence[float]]
) -> dict[NodeSet, float]:
    """Return the logarithm of the measured over the predicted time of each node set.

    Args:
        model: predicts the step time of a set from the number of its nodes.
        seconds: by node set the measured seconds of a step in each round; sets without any are left
            out.
    """
    node_sets = [node_set for node_set, values in seconds.items() if values]
    if not node_sets:
        return {}
    counts = [len(seconds[node_set]) for node_set in node_sets]
    values = np.log(np.concatenate([seconds[node_set] for node_set in node_sets]))
    # For each value the index of its node set.
    index_of_set = np.repeat(np.arange(len(node_sets)), counts)
    # The mean logarithm of each set, which outliers hardly change.
    means = compute_biweight_means(values, index_of_set, len(node_sets), model.noise)
    return {
        node_set: mean - log(model.predict_s(len(node_set)))
        for node_set, mean in zip(node_sets, means.effect.tolist(), strict=True)
    }


@lru_cache(maxsize=100_000)  # names are sorted for each set, and a node is in many sets
def make_natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``node2`` before ``node10``: numbers by their value."""
    parts = re.split(r"(\d+)", name)  # texts and digits in turn
    # Each part as a number and a text, so that any two can be compared. Texts get the number -1.
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


@dataclass(frozen=True, slots=True)
class _MeasuredSets:
    """The measured node sets, which are nodes that trained together, and which of them are slow.

    A set is slow if the whole interval of its effect lies above the limit.

    Args:
        effects: logarithm of the measured over the predicted time of each set.
        model: predicts the step time of a set from the number of its nodes.
        measured: the step times of each set, and the errors of those that failed.
        repeats: rounds in which each set is to be measured.
        effect_limit: effect beyond which a set is slow.
        num_std_errors: standard errors to each side of an interval.
    """

    effects: Mapping[NodeSet, float]
    model: StepTimeModel
    measured: SetTimes
    repeats: int
    effect_limit: float
    num_std_errors: float

    def require_measured(self, node_sets: Iterable[NodeSet]) -> None:
        """Check that each of these sets was measured in ``repeats`` rounds, or failed.

        Nothing is required of a set of one node: only nodes that pass by themselves are searched.

        Raises:
            _MissingMeasurements: some were not; the search ends here and starts again from the
                whole once they are.
        """
        # ``measured.errors`` has the sets that failed, ``measured.seconds`` a step time of each
        # round of the others.
        missing_sets = [
            node_set
            for node_set in node_sets
            if len(node_set) > 1
            and node_set not in self.measured.errors
            and len(self.measured.seconds.get(node_set, ())) < self.repeats
        ]
        if missing_sets:
            raise _MissingMeasurements(missing_sets)

    def is_slow(self, node_set: NodeSet) -> bool:
        """Return whether a set is slower than predicted, or failed; a set of one node never is.

        The effect of a set is the logarithm of its measured over its predicted step time. The set
        is slow if the whole interval of the effect lies above the limit.
        """
        if len(node_set) == 1:  # only nodes that pass by themselves are searched
            return False
        if node_set in self.measured.errors:
            return True
        lower_end = self.effects[node_set] - self.num_std_errors * self.compute_std_error(node_set)
        return lower_end > self.effect_limit

    def is_slower_than_parts(self, node_set: NodeSet, parts: Sequence[NodeSet]) -> bool:
        """Return whether a set is slow, and slower than parts that are fast by themselves.

        The effects of the parts, logarithms of the measured over the predicted step time, show by
        how much the prediction is wrong for sets of this size. It is made from single nodes and
        pairs, so that it may be right for small sets and wrong for large ones. So only parts that
        are at least as large as the set count, or the largest part if there are none. A set that
        failed counts as slower.

        Args:
            node_set: a set that was measured, or failed.
            parts: node sets that are fast by themselves, at least one of them larger than a node.
        """
        if node_set in self.measured.errors:
            return True
        similar_parts = [part for part in parts if len(part) >= len(node_set)]
        if not similar_parts:
            similar_parts = [max(parts, key=len)]
        # Not below 0: parts that are faster than predicted do not make this set a slow one.
        prediction_error = max(0.0, fmean(self.effects[part] for part in similar_parts))
        difference = self.effects[node_set] - prediction_error
        # Variance of the mean over the parts: that of their sum by the square of their number.
        sum_variances = sum(self.compute_std_error(part) ** 2 for part in similar_parts)
        prediction_variance = sum_variances / len(similar_parts) ** 2
        std_error = sqrt(self.compute_std_error(node_set) ** 2 + prediction_variance)
        lower_end = difference - self.num_std_errors * std_error
        return self.is_slow(node_set) and lower_end > self.effect_limit

    def compute_std_error(self, node_set: NodeSet) -> float:
        """Return the standard error of the effect of a set."""
        return self.model.noise / sqrt(len(self.measured.seconds[node_set]))

    def get_effect(self, node_set: NodeSet) -> float:
        """Return the effect of a set; infinity if it failed, so that it sorts as the slowest."""
        return inf if node_set in self.measured.errors else self.effects[node_set]

    def make_group(self, members: NodeSet, node_set: NodeSet) -> SlowGroup:
        """Return a group that was slow, or failed, in a node set.

        Args:
            members: the nodes of the group.
            node_set: nodes of the group with others, whose training was slow or failed.

        Returns:
            The group with the slowdown of the set, or with the error by which it failed.
        """
        error = self.measured.errors.get(node_set, "")  # empty: it did not fail
        slowdown = None if error else self.compute_slowdown(node_set)
        return SlowGroup(members=members, slowdown=slowdown, error=error)

    def compute_slowdown(self, node_set: NodeSet) -> Slowdown | None:
        """Return the slowdown of a set with its interval; None if it was not measured.

        A slowdown of 0.05 is 5% more time than predicted. The interval is made for the effect, the
        logarithm of the measured over the predicted step time.
        """
        if not self.measured.seconds.get(node_set):
            return None
        effect = self.effects[node_set]
        half_width = self.num_std_errors * self.compute_std_error(node_set)
        return Slowdown(
            slower=expm1(effect), low=expm1(effect - half_width), high=expm1(effect + half_width)
        )


def _search_slow_groups(whole: NodeSet, sets: _MeasuredSets) -> GroupSearch:
    """Search the set of all nodes, the whole, for groups that are slow only with other nodes.

    First decide whether the whole is slow. Then halve it into parts that are fast by themselves.
    Then find the parts that are slow together with the largest one, the reference. A node set is
    slow if its step takes longer than nodes alone and in pairs predict.

    Args:
        sets: what was measured of node sets, and which of them are slow.

    Raises:
        _MissingMeasurements: the search needs a node set that was not measured often enough.
    """
    sets.require_measured([whole])
    slowdown = sets.compute_slowdown(whole)
    if not sets.is_slow(whole):
        return GroupSearch(outcome="as_predicted", whole=slowdown)
    parts = _split_into_fast_parts(whole, sets)
    if parts is None:  # all halves are slow: the prediction is wrong, and no group stands out
        return GroupSearch(outcome="evenly_slow", whole=slowdown)
    undecided = GroupSearch(outcome="cannot_tell", whole=slowdown, parts=tuple(parts))
    reference = max(parts, key=len)
    # A fast reference of one or two nodes proves nothing: the prediction is made from single nodes
    # and pairs.
    if len(reference) < _MIN_REFERENCE_NODES:
        return undecided
    faulty_parts = _find_parts_with_fault(parts, reference, sets)
    num_members = sum(len(part) for part in faulty_parts)
    # If no part is slow with the reference, it is unknown which part has the fault. If half of the
    # nodes or more are slow with it, the reference itself may have the fault.
    if not faulty_parts or 2 * num_members >= len(whole):
        return undecided
    groups = _join_groups(faulty_parts, sets)
    return GroupSearch(outcome="found", whole=slowdown, groups=tuple(groups))


def _sort_names(names: Iterable[str]) -> NodeSet:
    """Return the node set of these names."""
    return tuple(sorted(names, key=make_natural_key))


def _halve(node_set: NodeSet) -> tuple[NodeSet, NodeSet]:
    """Return both halves of a set; of an odd number of nodes the first half has one more."""
    middle = (len(node_set) + 1) // 2
    return node_set[:middle], node_set[middle:]


def _split_into_fast_parts(whole: NodeSet, sets: _MeasuredSets) -> list[NodeSet] | None:
    """Halve node sets that are slow until none is, and return the sets that are fast.

    It ends at sets of one node, which are never slow.

    Args:
        whole: the set of all nodes, which is slow.
        sets: what was measured of node sets, and which of them are slower than predicted.

    Returns:
        The fast sets; None if all halves of several slow sets are slow. Then either the step times
        are predicted too low, or something that all nodes share is slow: no group stands out. Sets
        that an earlier halving found to be fast do not change that.

    Raises:
        _MissingMeasurements: halves that are to be measured first.
    """
    slow_sets = [whole]
    parts: list[NodeSet] = []
    while slow_sets:
        halves = [half for node_set in slow_sets for half in _halve(node_set)]
        sets.require_measured(halves)
        slow_sets = [half for half in halves if sets.is_slow(half)]
        are_all_slow = len(slow_sets) == len(halves)
        # The two halves of a single slow set are too few to conclude that no group stands out.
        if are_all_slow and len(halves) >= _MIN_EVEN_SETS:
            return None
        parts += [half for half in halves if half not in slow_sets]
    return parts


def _add_reference_nodes(part: NodeSet, reference: NodeSet, offset: int) -> NodeSet:
    """Return a part and as many nodes of the reference, or all of it if it has fewer.

    The remaining nodes of the reference are free for other parts, which are measured at the same
    time.

    Args:
        part: nodes that are fast by themselves, and are measured with nodes of the reference.
        reference: the nodes of another part, which are fast by themselves, too.
        offset: index of the first node that is taken from the reference; after its last node, its
            first ones follow.
    """
    rotated = reference[offset:] + reference[:offset]
    return _sort_names(part + rotated[: len(part)])


def _find_parts_with_fault(
    parts: Sequence[NodeSet], reference: NodeSet, sets: _MeasuredSets
) -> dict[NodeSet, NodeSet]:
    """Return the parts with a fault: those that are slow, or fail, with nodes of the reference.

    Args:
        parts: node sets that are fast by themselves, the reference among them.
        reference: the largest part, with which each other part is measured.
        sets: what was measured of node sets, and which of them are slow.

    Returns:
        For each part with a fault the node set that was measured: the nodes of the part and some of
        the reference.

    Raises:
        _MissingMeasurements: sets of a part and nodes of the reference that are to be measured
            first.
    """
    set_of_part: dict[NodeSet, NodeSet] = {}
    offset = 0
    for part in parts:
        if part != reference:
            set_of_part[part] = _add_reference_nodes(part, reference, offset % len(reference))
            # The next part gets other nodes of the reference: disjoint sets are measured at once.
            offset += len(part)
    sets.require_measured(set_of_part.values())
    # The parts themselves, with which these sets are compared, are already measured.
    return {
        part: node_set
        for part, node_set in set_of_part.items()
        if sets.is_slower_than_parts(node_set, parts)
    }


def _join_groups(faulty_parts: Mapping[NodeSet, NodeSet], sets: _MeasuredSets) -> list[SlowGroup]:
    """Return the groups: one if all parts with a fault are fast together, else one for each part.

    Args:
        faulty_parts: the nodes of each part with a fault, which are fast by themselves, and the
            larger node set in which they were slow or failed.
        sets: what was measured of node sets, and which of them are slow.

    Raises:
        _MissingMeasurements: the set of all faulty parts is to be measured first.
    """
    if len(faulty_parts) > 1:
        union = _sort_names(name for part in faulty_parts for name in part)
        sets.require_measured([union])
        # Nodes of one group, such as those behind one switch, are slow only with nodes outside it.
        if not sets.is_slow(union):
            # The group is reported with the slowest set, which shows the fault most clearly; for
            # `get_effect`, a set that failed is slower than all others.
            slowest_set = max(faulty_parts.values(), key=sets.get_effect)
            return [sets.make_group(union, slowest_set)]
    return [sets.make_group(part, node_set) for part, node_set in faulty_parts.items()]


def _choose_disjoint(node_sets: Iterable[NodeSet]) -> tuple[NodeSet, ...]:
    """Return sets that can be measured at the same time, because no two of them share a node.

    The first set is always among them. The sets that are left out are measured in later rounds.
    """
    chosen: list[NodeSet] = []
    busy: set[str] = set()
    for node_set in node_sets:
        if busy.isdisjoint(node_set):
            chosen.append(node_set)
            busy.update(node_set)
    return tuple(chosen)


def fit_step_time_model(
    alone_s: Sequence[float], pair_s: Sequence[float], noise: float
) -> StepTimeModel | None:
    """Return the model that predicts the step time of larger node sets.

    It predicts from the median measurement of a node alone and the median one of a pair.

    Args:
        alone_s: seconds of a step in each measurement of a node alone.
        pair_s: seconds of a step in each measurement of a pair.
        noise: standard deviation of the logarithm of one measurement.

    Returns:
        The model; None if there are no measurements of nodes alone, or none of pairs.
    """
    if not alone_s or not pair_s:
        return None
    return StepTimeModel(
        alone_s=float(np.median(alone_s)),
        pair_s=float(np.median(pair_s)),
        noise=noise,
        degrees_of_freedom=len(alone_s) + len(pair_s) - 2,  # two medians are estimated from them
    )
