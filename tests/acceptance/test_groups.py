"""The search for groups of nodes that are slow, or fail, only together with others."""

from __future__ import annotations

from math import exp, expm1, log1p, sqrt

import pytest

from trainmark.acceptance.groups import (
    GroupSearch,
    NodeSet,
    SetTimes,
    StepTimeModel,
    fit_step_time_model,
    make_natural_key,
    search_groups,
)
from trainmark.record.stats import compute_student_quantile

MODEL = StepTimeModel(alone_s=1.0, pair_s=1.2, noise=0.001, degrees_of_freedom=100)
REPEATS = 2  # rounds in which the search measures each node set
SWITCH_SLOWDOWN = 0.2  # share by which a set that crosses a slow switch is slower


def name_nodes(*numbers: int) -> NodeSet:
    """Return the names of nodes with these numbers, such as ``node8``."""
    return tuple(f"node{number}" for number in numbers)


class Cluster:
    """Simulated nodes, some of them behind slow switches.

    Args:
        slow_switches: the nodes behind each slow switch; three or more of them together with others
            are slow.
        fails_across_switches: whether such a training fails instead of being slow.
        slower_than_predicted: share by which every set of three or more takes longer than
            predicted, whether it crosses a slow switch or not.
    """

    def __init__(
        self,
        num_nodes: int,
        *slow_switches: NodeSet,
        fails_across_switches: bool = False,
        slower_than_predicted: float = 0.0,
    ) -> None:
        """Make a cluster of the nodes 0 to ``num_nodes`` - 1, of which nothing is measured yet.

        The other arguments are those of the class.
        """
        self.nodes = name_nodes(*range(num_nodes))
        self.slow_switches = slow_switches  # the nodes behind each
        # Whether a set of nodes inside and outside such a switch fails instead of being slow.
        self.fails_across_switches = fails_across_switches
        self.slower_than_predicted = slower_than_predicted  # a share of the predicted time
        # What was measured so far: seconds of a step in each round, or why it failed.
        self.seconds: dict[NodeSet, list[float]] = {}
        self.errors: dict[NodeSet, str] = {}

    def is_crossing_switches(self, team: NodeSet) -> bool:
        """Return whether at least three nodes of one switch train with nodes of others."""
        return any(3 <= len(set(team) & set(switch)) < len(team) for switch in self.slow_switches)

    def measure(self, team: NodeSet) -> None:
        """Keep the result of one more round of a node set.

        ``MODEL`` predicts the seconds of a step from the number of nodes: 1 s for a node alone,
        1.2 s for a pair, more for larger sets. ``SWITCH_SLOWDOWN`` is 0.2: a set that crosses a
        slow switch takes 20% longer.
        """
        if self.fails_across_switches and self.is_crossing_switches(team):
            self.errors[team] = "timed out"
            return
        seconds = MODEL.predict_s(len(team))
        if self.is_crossing_switches(team):
            seconds *= 1 + SWITCH_SLOWDOWN
        if len(team) > 2:  # one node and a pair were measured before the search
            seconds *= 1 + self.slower_than_predicted
        self.seconds.setdefault(team, []).append(seconds)

    def build_search(self) -> GroupSearch:
        """Return how far the search is, given all that was measured so far.

        ``MODEL`` predicts the seconds of a step from the number of nodes; a set that takes longer
        is searched for a slow group. ``REPEATS``, 2, is the number of rounds that each set needs.
        """
        measured = SetTimes(seconds=self.seconds, errors=self.errors)
        return search_groups(self.nodes, MODEL, measured, repeats=REPEATS)

    def search(self) -> GroupSearch:
        """Measure what the search asks for until it ends; return the finished search."""
        search = self.build_search()
        while search.outcome == "unfinished":
            # The sets of one round train at the same time: no node may be in two of them.
            busy = [name for team in search.to_measure for name in team]
            assert len(busy) == len(set(busy)) > 0
            for team in search.to_measure:
                self.measure(team)
            search = self.build_search()
        return search


def test_ring_of_many_nodes_sends_twice_what_a_pair_sends() -> None:
    """The model has 1 s for a node alone and 1.2 s for a pair: 0.2 s of communication."""
    assert MODEL.predict_s(2) == pytest.approx(1.2)
    # Each of n nodes sends 2 (n - 1) / n times the gradients: a pair sends them once.
    assert MODEL.predict_s(4) == pytest.approx(1.0 + 0.2 * 2 * 3 / 4)
    assert MODEL.predict_s(1_000_000) == pytest.approx(1.0 + 0.2 * 2)


def test_model_has_the_median_of_nodes_alone_and_of_pairs() -> None:
    """The lists are seconds of a step: of nodes alone, and of pairs; 9.0 and 7.0 are outliers.

    ``noise`` is the share by which times vary, which the model only keeps. Without times of either
    kind there is no model.
    """
    model = fit_step_time_model([1.0, 9.0, 1.1], [1.3, 1.2, 7.0, 1.2], noise=0.02)
    # 3 + 4 measurements, from which two medians are estimated. The median of four is the mean of
    # the two in the middle, 1.2 and 1.3.
    assert model == StepTimeModel(alone_s=1.1, pair_s=1.25, noise=0.02, degrees_of_freedom=5)
    assert fit_step_time_model([], [1.2], noise=0.02) is None
    assert fit_step_time_model([1.0], [], noise=0.02) is None


def test_pair_that_looks_faster_than_its_nodes_communicates_in_no_time() -> None:
    """Noise may make a pair look faster; larger sets are then predicted like a node alone.

    A node alone takes 1.0 s for a step, and a pair 0.9 s. The prediction does not depend on the
    last two fields.
    """
    model = StepTimeModel(alone_s=1.0, pair_s=0.9, noise=0.001, degrees_of_freedom=100)
    assert model.predict_s(8) == 1.0


def test_three_nodes_are_not_searched_and_four_are_measured_together() -> None:
    """Of three nodes, pairs show every fault. ``SetTimes()``: no set was measured yet.

    ``MODEL`` predicts the seconds of a step from the number of nodes, and ``REPEATS`` is the number
    of rounds that a set needs. ``to_measure`` are the sets to measure next.
    """
    three = search_groups(name_nodes(0, 1, 2), MODEL, SetTimes(), repeats=REPEATS)
    assert (three.outcome, three.whole, three.to_measure) == ("as_predicted", None, ())
    four = search_groups(name_nodes(0, 1, 2, 3), MODEL, SetTimes(), repeats=REPEATS)
    assert (four.outcome, four.to_measure) == ("unfinished", (name_nodes(0, 1, 2, 3),))


def test_search_ends_after_all_nodes_if_their_time_is_as_predicted() -> None:
    """Sixteen simulated nodes without a slow switch take exactly what the model predicts.

    ``whole`` is how much slower than predicted all nodes together are. ``cluster.seconds`` has the
    times of each measured set; ``REPEATS``, 2, is the number of rounds that a set needs.
    """
    cluster = Cluster(16)

    search = cluster.search()

    assert search.outcome == "as_predicted"
    assert search.whole is not None
    assert search.whole.slower == pytest.approx(0)
    # Only the set of all nodes was measured.
    num_rounds = {team: len(times) for team, times in cluster.seconds.items()}
    assert num_rounds == {cluster.nodes: REPEATS}


@pytest.mark.parametrize("num_nodes", [64, 61, 1024])  # of 61 nodes, halves differ in size
def test_eight_nodes_behind_a_slow_switch_are_found_with_few_measurements(num_nodes: int) -> None:
    """The nodes 8 to 15 are slow only together with others.

    Sets that cross their switch take 20% longer (``SWITCH_SLOWDOWN``). ``name_nodes`` returns names
    such as ``node8``; ``cluster.seconds`` has an entry for each measured set.
    """
    behind = name_nodes(*range(8, 16))
    cluster = Cluster(num_nodes, behind)

    search = cluster.search()

    assert search.outcome == "found"
    (group,) = search.groups
    assert group.members == behind
    assert group.slowdown is not None
    assert group.slowdown.low < SWITCH_SLOWDOWN < group.slowdown.high
    # The set of all nodes is measured first. It is slow and is halved about log2 times, each time
    # the slow half again: two sets each time. The fast half of each time is later measured together
    # with nodes of the largest fast set: one more set.
    assert len(cluster.seconds) <= 3 * num_nodes.bit_length() + 1


def test_slow_group_that_spans_both_halves_is_found_as_one_group() -> None:
    """Of 64 simulated nodes the nodes 28 to 35 are behind a slow switch.

    They are slow only together with others. The search halves slow sets of nodes, so that its first
    cut divides this group: each half has four of its nodes.
    """
    behind = name_nodes(*range(28, 36))  # the halves of 64 nodes meet at node 32

    search = Cluster(64, behind).search()

    assert [group.members for group in search.groups] == [behind]


def test_two_slow_switches_are_found_as_two_groups() -> None:
    """Of 64 simulated nodes two times eight are behind a slow switch of their own.

    The nodes of each switch are slow together with any others. Groups are found in any order.
    """
    first, second = name_nodes(*range(8, 16)), name_nodes(*range(40, 48))

    search = Cluster(64, first, second).search()

    assert {group.members for group in search.groups} == {first, second}


def test_group_that_fails_to_train_is_named_with_its_error() -> None:
    """Sets that cross the switch of the nodes 8 to 15 fail instead of being slow.

    The simulated cluster keeps ``timed out`` as the error of such a set.
    """
    behind = name_nodes(*range(8, 16))

    search = Cluster(64, behind, fails_across_switches=True).search()

    (group,) = search.groups
    assert (group.members, group.slowdown, group.error) == (behind, None, "timed out")
    assert search.whole is None  # all nodes together were never timed: that training fails too


def test_slow_path_between_two_halves_blames_no_node() -> None:
    """Of 16 simulated nodes the nodes 8 to 15 are behind a slow switch: exactly one half.

    ``parts`` are the two sets that are fast by themselves, and slow together.
    """
    # The slow switch divides the cluster in halves: each is slow only with the other.
    behind = name_nodes(*range(8, 16))

    search = Cluster(16, behind).search()

    assert search.outcome == "cannot_tell"
    assert search.groups == ()
    assert search.parts == (name_nodes(*range(8)), behind)


def test_wrong_prediction_blames_no_node_and_ends_the_search_early() -> None:
    """Each set of three or more of 64 simulated nodes takes 20% longer than predicted.

    There is no slow switch. ``cluster.seconds`` has an entry for each measured set.
    """
    cluster = Cluster(64, slower_than_predicted=0.2)

    search = cluster.search()

    # If four or more sets are all slow, the prediction is wrong, and no group is slow. The two
    # halves are too few to conclude that.
    assert (search.outcome, search.groups) == ("evenly_slow", ())
    assert len(cluster.seconds) == 1 + 2 + 4  # all nodes, the halves and the quarters


def test_single_nodes_of_slow_sets_are_not_measured() -> None:
    """Sets of three or more are slow. Of five nodes, one half has three; its halves one and two.

    Only nodes that pass by themselves are searched, so a single node counts as fast.
    """
    cluster = Cluster(5, slower_than_predicted=0.2)

    search = cluster.search()

    # All five; their halves, three and two; and of the three only the half of two.
    assert sorted(len(node_set) for node_set in cluster.seconds) == [2, 2, 3, 5]
    assert (search.outcome, search.groups) == ("cannot_tell", ())


def test_wrong_prediction_does_not_hide_a_group() -> None:
    """All sets of three or more nodes take 1% longer than predicted, for whatever reason.

    Sets that cross the slow switch of the nodes 8 to 15 take another 20% longer.
    """
    behind = name_nodes(*range(8, 16))
    # Much less than the slow switch adds.
    cluster = Cluster(64, behind, slower_than_predicted=0.01)

    assert [group.members for group in cluster.search().groups] == [behind]


def test_group_is_not_decided_with_a_reference_of_two_nodes() -> None:
    """Of eight simulated nodes no set of more than two trains fast.

    The two slow switches have nodes of both halves, so that both halves are slow; they are halved
    into four fast pairs. With the first pair, the reference, only one other pair is slow.
    """
    cluster = Cluster(8, name_nodes(0, 2, 3), name_nodes(4, 5, 6))

    search = cluster.search()

    assert search.parts == (
        name_nodes(0, 1),
        name_nodes(2, 3),
        name_nodes(4, 5),
        name_nodes(6, 7),
    )
    assert (search.outcome, search.groups) == ("cannot_tell", ())


def test_error_rate_is_divided_by_the_tests_of_all_halvings() -> None:
    """Eight nodes that take the predicted time have an interval around 0, as wide as the noise.

    Up to three halvings and the set of all nodes: four times four intervals are judged. Each end of
    an interval may be wrong with the error rate, 0.5%, divided by their number.
    """
    nodes = name_nodes(*range(8))
    model = StepTimeModel(alone_s=1.0, pair_s=1.2, noise=0.01, degrees_of_freedom=100)
    measured = SetTimes(seconds={nodes: [model.predict_s(8)] * 4})

    search = search_groups(nodes, model, measured, repeats=4, error_rate=0.005)

    # The level of the quantile leaves out both ends. The standard error of four rounds is half of
    # the noise.
    half_width = compute_student_quantile(100.0, 1 - 2 * 0.005 / 16) * 0.01 / 2
    assert search.whole is not None
    assert search.whole.low == pytest.approx(expm1(-half_width))
    assert search.whole.high == pytest.approx(expm1(half_width))


@pytest.mark.parametrize(("relative_effect", "outcome"), [(0.99, "cannot_tell"), (1.01, "found")])
def test_noise_of_a_set_and_of_its_parts_widens_the_interval(
    relative_effect: float, outcome: str
) -> None:
    """A part of 32 nodes is slow with the reference if the whole interval is above the limit.

    All measured sets take the predicted time, but for three: the set of all nodes, its last half
    and the last quarter are slow. So the parts are a half, a quarter and two eighths. The first
    eighth is measured together with four nodes of the half, the reference.

    Args:
        relative_effect: effect of that set, the logarithm of its measured over its predicted
            time, divided by the smallest effect that counts as slow.
        outcome: how the search ends.
    """
    model = StepTimeModel(alone_s=1.0, pair_s=1.2, noise=0.01, degrees_of_freedom=100)
    whole, half, quarter = (name_nodes(*range(first, 32)) for first in (0, 16, 24))
    eighth_with_reference = name_nodes(8, 9, 10, 11, 24, 25, 26, 27)
    # Six halvings of 32 nodes, the set of all nodes counted as one: 24 intervals.
    num_std_errors = compute_student_quantile(100.0, 1 - 2 * 0.005 / 24)
    # The set has eight nodes. It is compared with the mean of the parts of at least eight, the half
    # and the quarter. Each of the three sets has one round, so its variance is that of the noise;
    # the mean of two has half of it.
    std_error = 0.01 * sqrt(1 + 1 / 2)
    smallest_slow_effect = log1p(0.05) + num_std_errors * std_error
    effects = {
        whole: 1.0,
        half: 1.0,
        quarter: 1.0,
        eighth_with_reference: relative_effect * smallest_slow_effect,
    }
    seconds: dict[NodeSet, list[float]] = {}
    while True:
        measured = SetTimes(seconds=seconds)
        search = search_groups(whole, model, measured, repeats=1, worse_by=0.05, error_rate=0.005)
        if search.outcome != "unfinished":
            break
        for node_set in search.to_measure:
            effect = effects.get(node_set, 0.0)
            seconds[node_set] = [model.predict_s(len(node_set)) * exp(effect)]

    assert search.outcome == outcome
    assert [group.members for group in search.groups] == (
        [name_nodes(24, 25, 26, 27)] if outcome == "found" else []
    )


def test_search_reuses_earlier_measurements() -> None:
    """Of 64 simulated nodes the nodes 8 to 15 are behind a slow switch.

    ``search`` measures until the search ends; the cluster keeps the times. ``build_search`` begins
    a search with the times that are there, and measures nothing.
    """
    cluster = Cluster(64, name_nodes(*range(8, 16)))
    finished = cluster.search()

    assert cluster.build_search() == finished  # a new search over the same times is at its end


def test_three_nodes_are_not_searched() -> None:
    """With fewer than four nodes the pairs already show every fault: nothing is to be measured."""
    assert Cluster(3).search() == GroupSearch(outcome="as_predicted")


def test_names_are_ordered_by_their_numbers() -> None:
    """As text alone, node10 would come before node9."""
    assert sorted(["node10", "node9", "a2", "a"], key=make_natural_key) == [
        "a",
        "a2",
        "node9",
        "node10",
    ]
    # A digit for Python, but not one of a number: it is sorted as text.
    assert sorted(["²", "1"], key=make_natural_key) == ["1", "²"]
