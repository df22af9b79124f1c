"""Which nodes are paired when."""

from __future__ import annotations

from itertools import combinations

import pytest

from trainmark.acceptance.schedule import (
    choose_num_rounds,
    make_round_robin,
    pack_disjoint_rounds,
    plan_pair_rounds,
)


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 7, 8, 33])
def test_each_pair_of_nodes_is_measured_once_in_a_round_robin(num_nodes: int) -> None:
    """``make_round_robin`` returns rounds: lists of pairs, each of two numbers of nodes."""
    pairs = [pair for round_pairs in make_round_robin(num_nodes) for pair in round_pairs]

    assert sorted(pairs) == list(combinations(range(num_nodes), 2))


@pytest.mark.parametrize("num_nodes", [2, 3, 8, 9, 65])
def test_no_node_is_in_two_pairs_of_a_round(num_nodes: int) -> None:
    """The numbers of nodes are even and odd ones, with fewer and more pairs than 30 rounds take."""
    for pairs in plan_pair_rounds(num_nodes=num_nodes, num_rounds=30):
        members = [node for pair in pairs for node in pair]
        # Of an odd number of nodes one rests.
        assert len(set(members)) == len(members) == num_nodes - num_nodes % 2


def test_fewer_than_two_nodes_have_no_rounds_and_two_have_the_same_pair_in_each() -> None:
    """Three rounds are asked for; a round is a list of pairs of the numbers of nodes."""
    assert plan_pair_rounds(num_nodes=0, num_rounds=3) == []
    assert plan_pair_rounds(num_nodes=1, num_rounds=3) == []
    assert plan_pair_rounds(num_nodes=2, num_rounds=3) == [[(0, 1)]] * 3


def test_random_rounds_repeat_no_pair_before_all_were_measured() -> None:
    """``plan_pair_rounds`` returns the pairs of each round; a node is in one pair of a round."""
    # Fewer rounds than the 63 of a round robin.
    rounds = plan_pair_rounds(num_nodes=64, num_rounds=30, seed=1)

    pairs = [pair for round_pairs in rounds for pair in round_pairs]
    # All pairs differ: 30 rounds with 32 pairs of 64 nodes each.
    assert len(set(pairs)) == len(pairs) == 30 * 32
    # The seed decides the rounds; 1 and 2 are any two.
    assert rounds == plan_pair_rounds(num_nodes=64, num_rounds=30, seed=1)
    assert rounds != plan_pair_rounds(num_nodes=64, num_rounds=30, seed=2)


def test_one_node_has_no_rounds() -> None:
    """A round consists of pairs of nodes, and one node has none; 5 is any number of rounds."""
    assert plan_pair_rounds(num_nodes=1, num_rounds=5) == make_round_robin(1) == []


def test_default_is_round_robin_for_few_nodes_and_random_rounds_for_many() -> None:
    # Up to 64 nodes all meet; of five, one rests in each round. More nodes have 36 random rounds.
    # The expected number of rounds of pairs, by the number of nodes.
    by_num_nodes = {1: 0, 2: 1, 5: 5, 64: 63, 65: 36, 1024: 36}

    assert {num_nodes: choose_num_rounds(num_nodes) for num_nodes in by_num_nodes} == by_num_nodes


def test_pairs_are_scheduled_in_rounds_without_a_repeated_node() -> None:
    # Each pair is in the first round in which both of its nodes are free, lower number first.
    assert pack_disjoint_rounds([(0, 1), (2, 1), (3, 2), (0, 1)]) == [
        [(0, 1), (2, 3)],
        [(1, 2)],
        [(0, 1)],
    ]


def test_pairs_with_busy_nodes_are_excluded() -> None:
    """Of the pairs to schedule, those with a node of ``busy`` wait for a later call."""
    assert pack_disjoint_rounds([(0, 1), (2, 3)], busy=[3]) == [[(0, 1)]]  # node 3 trains already
