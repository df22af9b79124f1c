"""How often does the search for groups name the right one? Simulated sets of nodes.

Alone and in pairs all nodes are healthy; those behind one switch are slow as soon as some of them
train together with others. Every measurement of a set has noise of 2%.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from trainmark.acceptance.groups import GroupSearch, NodeSet, SetTimes, StepTimeModel, search_groups

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

    def compute_slowdown(self, team: frozenset[str]) -> float:
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
    """Measure what the search asks for, each set as often as it needs, until it ends."""
    model = StepTimeModel(
        alone_s=ALONE_S, pair_s=PAIR_S, noise=NOISE, degrees_of_freedom=40 * num_nodes
    )
    names = [name_of(node) for node in range(num_nodes)]
    seconds: dict[NodeSet, list[float]] = {}
    for num_rounds in range(MAX_ROUNDS):
        ended = search_groups(names, model, SetTimes(seconds=seconds), repeats=REPEATS)
        if ended.outcome != "unfinished":
            return Searched(ended, len(seconds), REPEATS * num_rounds)
        for team in ended.to_measure:
            effects = fault.compute_slowdown(frozenset(team)) + generator.normal(0, NOISE, REPEATS)
            seconds[team] = (model.predict_s(len(team)) * np.exp(effects)).tolist()
    raise AssertionError(f"no end after {MAX_ROUNDS} rounds")


@dataclass(frozen=True, slots=True)
class GroupScenario:
    """A fault, which is the same in clusters of every size."""

    name: str
    fault: GroupFault


GROUP_SCENARIOS = (
    GroupScenario("no fault", GroupFault()),
    GroupScenario(
        "8 nodes behind a switch that is 10% slower than the other switches; "
        "the nodes have positions 9 to 16 in the sorted node list",
        GroupFault(switches=(tuple(range(8, 16)),)),
    ),
    GroupScenario(
        "8 nodes behind a switch that is 10% slower than the other switches; "
        "the nodes have positions 29 to 36 in the sorted node list",
        GroupFault(switches=(tuple(range(28, 36)),)),
    ),
    GroupScenario(
        "any training run on three or more nodes is 7% slower than predicted",
        GroupFault(growth=0.07),
    ),
)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """How often exactly the right groups were named, and what that took on average."""

    scenario: str
    num_nodes: int
    draws: int
    right: float
    blamed: float
    num_sets: float
    num_rounds: float


def simulate_groups(
    scenario: GroupScenario, num_nodes: int, *, draws: int, seed: int = 0
) -> GroupRow:
    """Search ``draws`` clusters; draw k has the seed (seed, k)."""
    switches = scenario.fault.switches
    expected = {tuple(name_of(node) for node in switch) for switch in switches}
    faulty = {name for switch in expected for name in switch}
    right = blamed = num_sets = num_rounds = 0
    for draw in range(draws):
        searched = search(num_nodes, scenario.fault, np.random.default_rng((seed, draw)))
        named = {group.members for group in searched.search.groups}
        right += named == expected
        blamed += any(name not in faulty for members in named for name in members)
        num_sets += searched.num_sets
        num_rounds += searched.num_rounds
    return GroupRow(
        scenario.name,
        num_nodes,
        draws,
        right / draws,
        blamed / draws,
        num_sets / draws,
        num_rounds / draws,
    )
