"""How often does acceptance name the right node, link or group? Simulated clusters, known faults.

Every draw is a cluster of its own: noise of 2% on each step time, the faults of its row, a common
rise of 2% while devices heat up. Links that look slow are measured in two further rounds, as the
real program does. The tables are those of docs/accept.md; ``accept_groups`` has the second.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.accept_groups import GROUP_SCENARIOS, simulate_groups
from benchmarks.harness import Bar, choose_size, conclude
from trainmark.acceptance.judgement import Cause, Judgement, Measurements, Verdict
from trainmark.acceptance.model import choose_pairs_to_measure_again, judge_measurements
from trainmark.acceptance.schedule import (
    count_round_robin_rounds,
    pack_disjoint_rounds,
    plan_pair_rounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.accept_groups import GroupRow
    from trainmark.acceptance.schedule import PairRound

NOISE, HEATING, DISTURBANCE = 0.02, 0.02, 0.2
ALONE_ROUNDS = 5
SIZES = {64: 63, 256: 36, 1024: 36}  # rounds of pairs by nodes
DRAWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a cluster, as shares of speed that are lost.

    Args:
        nodes: of nodes, alone and in pairs.
        networks: of nodes, in pairs only.
        links: of pairs.
        hot: of nodes, alone and in pairs in the later half of the rounds.
        disturbed: share of the measurements of pairs that take 20% longer by chance.
        uplink: loss between the nodes of ``behind_uplink`` and all others.
    """

    nodes: dict[int, float] = field(default_factory=dict)
    networks: dict[int, float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    hot: dict[int, float] = field(default_factory=dict)
    disturbed: float = 0.0
    uplink: float = 0.0
    behind_uplink: tuple[int, ...] = ()


def _compute_slowdown(loss: float) -> float:
    return -log(1 - loss)


def measure(
    num_nodes: int,
    rounds: Sequence[PairRound],
    faults: Faults,
    generator: np.random.Generator,
    *,
    rounds_before: int = 0,
) -> Measurements:
    """Return simulated step times of a cluster; a step of a healthy node takes 1 s.

    Args:
        rounds_before: that were measured before these, of which the devices are hot.
    """
    effect, network = np.zeros(num_nodes), np.zeros(num_nodes)
    for node, loss in faults.nodes.items():
        effect[node] = _compute_slowdown(loss)
    for node, loss in faults.networks.items():
        network[node] = _compute_slowdown(loss)
    alone_node = np.tile(np.arange(num_nodes), ALONE_ROUNDS)
    alone_round = np.repeat(np.arange(ALONE_ROUNDS), num_nodes)
    alone = effect[alone_node] + generator.normal(0, NOISE, len(alone_node))
    pairs = np.array([pair for pairs_of_round in rounds for pair in pairs_of_round])
    number = rounds_before + np.repeat(
        np.arange(len(rounds)), [len(pairs_of_round) for pairs_of_round in rounds]
    )
    heat = np.minimum(1.0, number / (rounds_before or max(1, len(rounds) - 1)))
    first, second = pairs.T
    by_node = np.tile(effect + network, (2, 1))
    for node, loss in faults.hot.items():
        by_node[1, node] += _compute_slowdown(loss)
    half = (heat >= 0.5).astype(int)
    slower = np.maximum(by_node[half, first], by_node[half, second])
    behind = np.isin(np.arange(num_nodes), faults.behind_uplink)
    crosses = behind[first] != behind[second]
    slower = np.maximum(slower, np.where(crosses, _compute_slowdown(faults.uplink), 0.0))
    for (a, b), loss in faults.links.items():
        slower = slower + np.where((first == a) & (second == b), _compute_slowdown(loss), 0.0)
    slower = slower + HEATING * heat + generator.normal(0, NOISE, len(first))
    slower += DISTURBANCE * (generator.random(len(first)) < faults.disturbed)
    return Measurements(
        num_nodes=num_nodes,
        alone_node=alone_node,
        alone_round=alone_round,
        alone_s=np.exp(alone),
        first=first,
        second=second,
        pair_round=number,
        pair_s=np.exp(slower),
    )


def accept(
    num_nodes: int, rounds: list[PairRound], faults: Faults, generator: np.random.Generator
) -> Judgement:
    """Measure and judge; then measure links that look slow again and judge once more."""
    measured = measure(num_nodes, rounds, faults, generator)
    judgement = judge_measurements(measured)
    again = pack_disjoint_rounds(choose_pairs_to_measure_again(judgement))
    if not again:
        return judgement
    further = measure(num_nodes, again, faults, generator, rounds_before=len(rounds))
    return judge_measurements(
        Measurements(
            num_nodes=num_nodes,
            alone_node=measured.alone_node,
            alone_round=measured.alone_round,
            alone_s=measured.alone_s,
            first=np.concatenate([measured.first, further.first]),
            second=np.concatenate([measured.second, further.second]),
            pair_round=np.concatenate([measured.pair_round, further.pair_round]),
            pair_s=np.concatenate([measured.pair_s, further.pair_s]),
        )
    )


@dataclass(frozen=True, slots=True)
class Named:
    """What a judgement blames."""

    nodes: dict[int, Cause | None]
    links: set[tuple[int, int]]
    groups: set[tuple[int, ...]]

    @classmethod
    def from_judgement(cls, judgement: Judgement) -> Named:
        """Take it out of a judgement."""
        nodes, links = judgement.nodes, judgement.links
        groups: dict[int, list[int]] = {}
        for node, number in enumerate(nodes.group.tolist()):
            if number >= 0:
                groups.setdefault(number, []).append(node)
        return cls(
            {node: nodes.cause[node] for node in nodes.list_with_verdict(Verdict.SLOW)},
            {
                (int(links.first[index]), int(links.second[index]))
                for index in links.list_with_verdict(Verdict.SLOW)
            },
            {tuple(members) for members in groups.values()},
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults of a cluster of some size, and what must be named for them."""

    name: str
    faults: Callable[[int, list[PairRound]], Faults]
    right: Callable[[Faults], Named]


def _name_faults(faults: Faults) -> Named:
    return Named(dict.fromkeys(faults.nodes, Cause.NODE), set(faults.links), set())


def _get_measured_link(rounds: list[PairRound]) -> tuple[int, int]:
    return rounds[0][len(rounds[0]) // 2]


SCENARIOS = (
    Scenario("no fault", lambda *_: Faults(), _name_faults),
    Scenario(
        "no fault, but 1 in 200 measurements is 20% slower",
        lambda *_: Faults(disturbed=0.005),
        _name_faults,
    ),
    Scenario("one node is 5% slower", lambda *_: Faults(nodes={17: 0.05}), _name_faults),
    Scenario(
        "one measured link is 20% slower",
        lambda _, rounds: Faults(links={_get_measured_link(rounds): 0.2}),
        _name_faults,
    ),
    Scenario(
        "three nodes are 6%, 8% and 10% slower; two of them form a pair",
        lambda _, rounds: Faults(
            nodes={rounds[0][0][0]: 0.06, rounds[0][0][1]: 0.08, rounds[0][1][0]: 0.1}
        ),
        _name_faults,
    ),
    Scenario(
        "the network of one node is 6% slower",
        lambda *_: Faults(networks={17: 0.06}),
        lambda faults: Named(dict.fromkeys(faults.networks, Cause.NETWORK), set(), set()),
    ),
    Scenario(
        "8 nodes behind an uplink that is 10% slower",
        lambda *_: Faults(uplink=0.1, behind_uplink=tuple(range(8, 16))),
        lambda faults: Named(
            dict.fromkeys(faults.behind_uplink, Cause.GROUP), set(), {faults.behind_uplink}
        ),
    ),
    Scenario(
        "one node that is 8% slower only when hot",
        lambda *_: Faults(hot={17: 0.08}),
        lambda faults: Named(dict.fromkeys(faults.hot, Cause.HOT), set(), set()),
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """How often all was right, and how often anything was blamed that is not at fault."""

    scenario: str
    num_nodes: int
    num_rounds: int
    draws: int
    right: float
    blamed: float
    passed: float


def simulate(scenario: Scenario, num_nodes: int, *, draws: int, seed: int = 0) -> Row:
    """Judge ``draws`` clusters; draw k has the seed (seed, k)."""
    num_rounds = min(SIZES.get(num_nodes, 36), count_round_robin_rounds(num_nodes))
    right = blamed = 0
    passed = 0.0
    for draw in range(draws):
        rounds = plan_pair_rounds(num_nodes, num_rounds, seed=draw)
        faults = scenario.faults(num_nodes, rounds)
        generator = np.random.default_rng((seed, draw))
        judgement = accept(num_nodes, rounds, faults, generator)
        named, wanted = Named.from_judgement(judgement), scenario.right(faults)
        right += named == wanted
        blamed += not (named.nodes.keys() <= wanted.nodes.keys() and named.links <= wanted.links)
        healthy = num_nodes - len(wanted.nodes)
        passed += len(judgement.nodes.list_with_verdict(Verdict.PASS)) / healthy / draws
    return Row(scenario.name, num_nodes, num_rounds, draws, right / draws, blamed / draws, passed)


def format_table(rows: Sequence[Row]) -> list[str]:
    """Return the rows as the table of docs/accept.md."""
    lines = [
        "| cluster | nodes | rounds of pairs | simulations | correct verdict | false alarms | "
        "healthy nodes that pass |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.scenario} | {row.num_nodes:,} | {row.num_rounds} | {row.draws:,} | "
        f"{row.right:.1%} | {row.blamed:.1%} | {row.passed:.1%} |"
        for row in rows
    ]
    return lines


def group_table(rows: Sequence[GroupRow]) -> list[str]:
    """Return the rows of the search for groups as the table of docs/accept.md."""
    lines = [
        "| trained together | nodes | simulations | correct verdict | false alarms | "
        "sets measured | rounds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.scenario} | {row.num_nodes:,} | {row.draws:,} | {row.right:.1%} | "
        f"{row.blamed:.1%} | {row.num_sets:.1f} | {row.num_rounds:.1f} |"
        for row in rows
    ]
    return lines


@dataclass(frozen=True, slots=True)
class Cost:
    """What one judgement takes."""

    seconds: float
    peak_bytes: int


def measure_cost(num_nodes: int, num_rounds: int) -> Cost:
    """Judge a cluster with a slow node and a slow link; once for the time, once for the memory."""
    rounds = plan_pair_rounds(num_nodes, num_rounds)
    faults = Faults(nodes={17: 0.1}, links={rounds[3][5]: 0.3})
    measured = measure(num_nodes, rounds, faults, np.random.default_rng(0))
    start_s = time.perf_counter()
    judge_measurements(measured)
    seconds = time.perf_counter() - start_s
    tracemalloc.start()
    judge_measurements(measured)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return Cost(seconds, peak_bytes)


def write_results(rows: Sequence[Row], group_rows: Sequence[GroupRow], cost: Cost) -> bool:
    """Write the tables; return whether all bars are met."""
    all_rows = (*rows, *group_rows)
    minimum = min(row.right for row in all_rows)
    clean = [row for row in all_rows if row.scenario.startswith("no fault")]
    maximum = max(row.blamed for row in clean)
    bars = [
        Bar(
            "correct verdicts, lowest of all rows",
            f"{minimum:.1%}",
            "at least 95%",
            minimum >= 0.95,
        ),
        Bar(
            "false alarms in clusters without a fault", f"{maximum:.1%}", "below 1%", maximum < 0.01
        ),
        Bar(
            "time to judge 1,024 nodes and 30 rounds",
            f"{cost.seconds:.2f} s",
            "within 10 s",
            cost.seconds <= 10,
        ),
        Bar(
            "memory to judge them",
            f"{cost.peak_bytes / 1e6:.0f} MB",
            "within 1 GB",
            cost.peak_bytes <= 1e9,
        ),
    ]
    details = [
        "Every measurement has 2% noise, and heat slows all pairs down by 2%. Simulation k of "
        "a row uses the seeds 0 and k, and its schedule of pairs uses the seed k. Every single "
        "node and every set of nodes is measured five times.",
        "",
        *format_table(rows),
        "",
        *group_table(group_rows),
    ]
    return conclude(
        "accept_simulation", "Acceptance of simulated clusters", bars, "\n".join(details)
    )


def main() -> bool:
    """Simulate all clusters and write the tables."""
    rows, group_rows = [], []
    for scenario in SCENARIOS:
        for num_nodes in choose_size(list(SIZES), [64]):
            rows.append(simulate(scenario, num_nodes, draws=choose_size(DRAWS, 5)))
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    for group_scenario in GROUP_SCENARIOS:
        for num_nodes in choose_size(list(SIZES), [64]):
            group_rows.append(
                simulate_groups(group_scenario, num_nodes, draws=choose_size(DRAWS, 5))
            )
            print(f"  {group_rows[-1]}", file=sys.stderr, flush=True)
    return write_results(rows, group_rows, measure_cost(1024, 30))


if __name__ == "__main__":
    sys.exit(not main())
