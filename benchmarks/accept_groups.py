"""How often does the search for groups name the right one? Simulated sets of nodes.

Alone and in pairs all nodes are healthy; those behind one switch are slow as soon as some of them
train together with others. Every measurement of a set has noise of 2%.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from trainmark.acceptance.groups import GroupSearch, Parts, SetTimes, Team, search_groups

NOISE = 0.02
ALONE_S, PAIR_S = 1.0, 1.2
REPEATS = 5
MAX_ROUNDS = 1_000  # beyond which a search counts as endless


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFault:
    """What is wrong with a cluster.

    Args:
        switches: nodes behind each bad switch.
        loss: share of speed that is lost by a set that crosses a bad switch.
        at_least: nodes behind the switch that must train for it.
        growth: share by which any set larger than a pair is slower than predicted.
    """

    switches: tuple[tuple[int, ...], ...] = ()
    loss: float = 0.1
    at_least: int = 3
    growth: float = 0.0

    def slowdown(self, team: frozenset[str]) -> float:
        """Return what is added to the logarithm of the step time of a set."""
        of_growth = log(1 + self.growth) if len(team) > 2 else 0.0
        for switch in self.switches:
            behind = team & {name_of(node) for node in switch}
            if self.at_least <= len(behind) < len(team):
                return of_growth - log(1 - self.loss)
        return of_growth


@dataclass(frozen=True, slots=True)
class Searched:
    """The end of a search, and what it cost."""

    search: GroupSearch
    num_sets: int
    num_rounds: int


def name_of(node: int) -> str:
    """Return the name of a simulated node."""
    return f"node{node}"


def search(num_nodes: int, fault: GroupFault, generator: np.random.Generator) -> Searched:
    """Measure what the search asks for until it ends."""
    parts = Parts(alone_s=ALONE_S, pair_s=PAIR_S, noise=NOISE, freedom=40 * num_nodes)
    names = [name_of(node) for node in range(num_nodes)]
    seconds: dict[Team, list[float]] = {}
    for num_rounds in range(MAX_ROUNDS):
        ended = search_groups(names, parts, SetTimes(seconds=seconds), repeats=REPEATS)
        if ended.outcome != "unfinished":
            return Searched(ended, len(seconds), num_rounds)
        for team in ended.to_measure:
            effect = fault.slowdown(frozenset(team)) + generator.normal(0, NOISE)
            times = seconds.setdefault(team, [])
            times.append(parts.predict_s(len(team)) * float(np.exp(effect)))
    raise AssertionError(f"no end after {MAX_ROUNDS} rounds")
