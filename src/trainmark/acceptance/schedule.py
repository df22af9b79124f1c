"""Choose which nodes are paired in which round, before anything starts.

A round is a list of disjoint pairs; two nodes meet if they are a pair of a round. Of an odd number
of nodes, one takes no part in each round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MAX_ROUND_ROBIN_NODES = 64  # up to here every node meets every other one by default
DEFAULT_RANDOM_ROUNDS = 36  # for more nodes
Pair = tuple[int, int]
PairRound = list[Pair]


def choose_num_rounds(num_nodes: int) -> int:
    """Return how many rounds of pairs are measured unless the user chooses.

    In these rounds every node meets every other one; with very many nodes, only some of them.
    """
    if num_nodes <= MAX_ROUND_ROBIN_NODES:
        return count_round_robin_rounds(num_nodes)
    return DEFAULT_RANDOM_ROUNDS


def count_round_robin_rounds(num_nodes: int) -> int:
    """Return after how many rounds every node has met every other one."""
    if num_nodes < 2:
        return 0
    # An odd number of nodes needs one round more: in each round one node takes no part.
    return num_nodes - 1 if num_nodes % 2 == 0 else num_nodes


def make_round_robin(num_nodes: int) -> list[PairRound]:
    """Return rounds in which every two nodes meet exactly once."""
    return [
        _make_robin_round(num_nodes, index) for index in range(count_round_robin_rounds(num_nodes))
    ]


def _make_robin_round(num_nodes: int, index: int) -> PairRound:
    """Return one round by the circle method.

    All nodes but the last stand on a circle. The last node meets node ``index``; of the others
    those meet that are equally far from ``index`` on the circle. If the number of nodes is odd, all
    stand on the circle, and node ``index`` takes no part.

    Args:
        index: number of the round, from 0, and of the node on the circle that the round is about.
    """
    is_even = num_nodes % 2 == 0
    circle_size = num_nodes - 1 if is_even else num_nodes
    pairs = []
    if is_even:
        pairs.append(_sort_pair(index, num_nodes - 1))
    for distance in range(1, (circle_size + 1) // 2):
        pair = _sort_pair((index + distance) % circle_size, (index - distance) % circle_size)
        pairs.append(pair)
    return pairs


def plan_pair_rounds(num_nodes: int, num_rounds: int, *, seed: int = 0) -> list[PairRound]:
    """Return ``num_rounds`` rounds in which no two nodes meet twice before all have met.

    Rounds come from round robins, in which every two nodes meet once. In each of them nodes and
    rounds are in random order. So if only some rounds of a round robin are used, neighbours in a
    rack do not meet more often than other nodes.

    Returns:
        The pairs of each round, as numbers of nodes from 0; none for fewer than two nodes.
    """
    if num_nodes < 2:
        return []
    generator = np.random.default_rng(seed)
    rounds: list[PairRound] = []
    while len(rounds) < num_rounds:  # once for each round robin; the last may be used in part
        shuffled_nodes = generator.permutation(num_nodes).tolist()
        round_indices = generator.permutation(count_round_robin_rounds(num_nodes)).tolist()
        num_missing = num_rounds - len(rounds)
        for index in round_indices[:num_missing]:
            pairs = _make_robin_round(num_nodes, index)
            rounds.append(
                [
                    _sort_pair(shuffled_nodes[first], shuffled_nodes[second])
                    for first, second in pairs
                ]
            )
    return rounds


def pack_disjoint_rounds(pairs: Iterable[Pair], *, busy: Collection[int] = ()) -> list[PairRound]:
    """Return ``pairs`` in few rounds of disjoint pairs.

    Each pair comes into the first round in which both of its nodes are still free.

    Args:
        busy: nodes that cannot take part; their pairs are left out.
    """
    rounds: list[PairRound] = []
    for first, second in pairs:
        if first in busy or second in busy:
            continue
        index = _find_free_round(rounds, {first, second})
        if index == len(rounds):
            rounds.append([])
        rounds[index].append(_sort_pair(first, second))
    return rounds


def _find_free_round(rounds: list[PairRound], nodes: set[int]) -> int:
    """Return the index of the first round in which none of the nodes takes part.

    If there is none, return the index that a new round behind the others would have.
    """
    for index, pairs in enumerate(rounds):
        if all(nodes.isdisjoint(pair) for pair in pairs):
            return index
    return len(rounds)


def _sort_pair(first: int, second: int) -> Pair:
    """Return the pair of two nodes, the lower one first."""
    return (first, second) if first < second else (second, first)
