"""What is measured of nodes and links, and what is decided about them: arrays by number.

Times are in seconds. Effects are natural logarithms until they are reported as slowdowns: an effect
of 0.05 is a slowdown of 0.051, which is 5.1% more time. In shapes, A is the number of measurements
of nodes alone, P of pairs in rounds, N of nodes and L of links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

MIN_LINK_ROUNDS = 2  # one slow round may be a disturbance of that moment
NO_GROUP = -1  # in place of the number of a group


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


def make_empty_integers() -> Integers:
    """Return an empty array."""
    return np.empty(0, np.int64)


def make_empty_floats() -> Floats:
    """Return an empty array."""
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
    alone_node: Integers = field(default_factory=make_empty_integers)
    alone_round: Integers = field(default_factory=make_empty_integers)
    alone_s: Floats = field(default_factory=make_empty_floats)
    first: Integers = field(default_factory=make_empty_integers)
    second: Integers = field(default_factory=make_empty_integers)
    pair_round: Integers = field(default_factory=make_empty_integers)
    pair_s: Floats = field(default_factory=make_empty_floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdicts:
    """What is decided about each node; arrays of (N,).

    Args:
        slower: slowdown of the node's steps against its peers'.
        low: lower end of the interval of ``slower``; ``high``: upper end.
        verdict: a ``Verdict`` each.
        cause: a ``Cause`` of each slow node, else None.
        group: number of the group of a node whose cause is a group, else ``NO_GROUP``.
        more_rounds: rounds that would decide an undecided node; ``intervals.UNKNOWN_ROUNDS``: not
            known yet; else ``intervals.NO_ROUNDS``.
    """

    slower: Floats
    low: Floats
    high: Floats
    verdict: list[Verdict]
    cause: list[Cause | None]
    group: Integers
    more_rounds: Integers

    def list_with_verdict(self, verdict: Verdict) -> list[int]:
        """Return the numbers of the nodes with this verdict."""
        return [node for node, decided in enumerate(self.verdict) if decided is verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkVerdicts:
    """What is decided about each link between two nodes that was measured; arrays of (L,).

    Args:
        first: lower node; ``second``: the other one.
        slower: slowdown of the pair's steps against those of its slower node.
        low: lower end of the interval of ``slower``; ``high``: upper end.
        rounds: number of rounds in which the link was measured.
        more_rounds: rounds that would decide an undecided link, else ``intervals.NO_ROUNDS``.
        is_suspect: whether it looks slow, but in too few rounds to decide that.
        detectable: smallest slowdown that is noticed with probability 95% after the rounds so far;
            ``MIN_LINK_ROUNDS`` rounds must confirm it. NaN without links.
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

    def list_with_verdict(self, verdict: Verdict) -> list[int]:
        """Return the indices of the links with this verdict."""
        return [index for index, decided in enumerate(self.verdict) if decided is verdict]

    def list_suspects(self) -> list[tuple[int, int]]:
        """Return both nodes of each link that looks slow, but was measured too seldom to decide.

        A suspect is a link that looks slow, but was slow in too few rounds to be decided. One that
        was measured often enough, but was slow in too few of its rounds, is not among those that
        are returned: it stays undecided, and ``more_rounds`` tells the user to measure again.

        Returns:
            The numbers of both nodes of each link.
        """
        links = np.flatnonzero(self.is_suspect & (self.rounds < MIN_LINK_ROUNDS))
        return [(int(self.first[link]), int(self.second[link])) for link in links]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Everything that is decided by step times.

    Args:
        noise_alone: relative standard deviation of a measurement of a node alone; None: no node
            was measured twice, or there are too few measurements.
        noise_pairs: that of a pair in a round; None: there are no pairs, or too few measurements.
        trend: relative rise of the level of all pairs from the first third of the rounds to the
            last, which is removed; None if there are too few rounds.
    """

    nodes: NodeVerdicts
    links: LinkVerdicts
    noise_alone: float | None
    noise_pairs: float | None
    trend: float | None
