"""What each node wrote while it measured: one file a node and session, one JSON object a line.

Only its own node writes a file, so that nothing is locked and the end of a node loses no other
node's results. All sessions of a folder count together: a later one measures what is missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from trainmark.acceptance.tasks import RankResult  # noqa: TC001 - msgspec reads it at run time
from trainmark.acceptance.teams import Reason  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIDENCE_DIR = "evidence"
Phase = Literal["devices", "nodes", "pairs", "groups"]


class Joined(msgspec.Struct, tag="joined", tag_field="event", frozen=True, kw_only=True):
    """A node began a session.

    Args:
        devices: names of its devices.
        products: product name of each.
        software: versions by package, the driver's among them.
        node_rank: number of the node in this session.
        address: host at which other nodes reach it.
    """

    unix_s: float
    node: str
    devices: list[str]
    products: list[str]
    software: dict[str, str | None]
    node_rank: int = 0
    address: str = ""


class Measured(msgspec.Struct, tag="measured", tag_field="event", frozen=True, kw_only=True):
    """A team measured on this node.

    Args:
        round: number in the phase, counted from 0.
        members: devices or nodes of the team, also those of other nodes.
        results: of the ranks of this node.
        others_cpu_share: share of this node's cores that other programs used during the round;
            None: not known.
    """

    unix_s: float
    phase: Phase
    round: int
    members: list[str]
    results: list[RankResult]
    others_cpu_share: float | None = None


class NotMeasured(msgspec.Struct, tag="not_measured", tag_field="event", frozen=True, kw_only=True):
    """A team measured nothing on this node.

    Args:
        round: number in the phase, counted from 0.
        members: devices or nodes of the team, also those of other nodes.
        error: the reason in words.
        absent: name of the node that did not come to the round; None: all came.
    """

    unix_s: float
    phase: Phase
    round: int
    members: list[str]
    reason: Reason
    error: str
    absent: str | None = None


class Beat(msgspec.Struct, tag="beat", tag_field="event", frozen=True, kw_only=True):
    """The node still works."""

    unix_s: float


class Arrived(msgspec.Struct, tag="arrived", tag_field="event", frozen=True, kw_only=True):
    """The node has come to a barrier, at which others wait for it: a round, the end of a phase."""

    unix_s: float
    barrier_name: str = msgspec.field(name="meeting")


class Left(msgspec.Struct, tag="left", tag_field="event", frozen=True, kw_only=True):
    """A node ended its session; ``signal``: the name of the signal that asked for it."""

    unix_s: float
    signal: str | None


Event = Joined | Measured | NotMeasured | Beat | Arrived | Left
_decode = msgspec.json.Decoder(Event).decode


def _create_file(path: Path) -> bool:
    """Create an empty file; return False if it exists.

    It is one operation of the file system, so that of several nodes only one creates a file.
    """
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class EvidenceWriter:
    """Append the events of one node and session to its file.

    Several commands may measure for an acceptance, one after the other: each is a session.

    Args:
        folder: of the acceptance.
        node: name of the node.
        session: its number, from 1; None: the next one of this node.

    Attributes:
        node: its name; if several nodes have the same name, the later ones get a number behind it.
    """

    def __init__(self, folder: Path, node: str, session: int | None = None) -> None:
        # Each node writes a file ``NODE.SESSION.jsonl`` in each session.
        evidence_dir = folder / EVIDENCE_DIR
        evidence_dir.mkdir(exist_ok=True)
        number = session
        if number is None:  # the next one of this node, which has a file of each earlier session
            number = len(list(evidence_dir.glob(f"{node}.*.jsonl"))) + 1
        self.node = node
        num_namesakes = 1  # nodes of this session with the same name, this one included
        while not _create_file(evidence_dir / f"{self.node}.{number}.jsonl"):
            num_namesakes += 1
            self.node = f"{node}-{num_namesakes}"
        self._path = evidence_dir / f"{self.node}.{number}.jsonl"

    def write(self, kind: type[Event], **fields: Any) -> None:
        """Append one event to the file, with the time of this node's clock.

        Args:
            kind: class of the event, such as ``Measured``.
            fields: of the event, all but its time.
        """
        line = msgspec.json.encode(kind(unix_s=time.time(), **fields)) + b"\n"
        with self._path.open("ab", buffering=0) as file:  # other nodes see the line at once
            file.write(line)


@dataclass(slots=True)
class NodeSpan:
    """When a node took part in a session, in seconds since 1970 by its own clock.

    Args:
        joined_s: when it began the session.
        last_round_s: when its last round ended, measured or not; None: none has.
    """

    joined_s: float
    last_round_s: float | None = None


TeamRound = tuple[Phase, int, tuple[str, ...]]  # phase, number of the round, names of the members


@dataclass(slots=True)
class Evidence:
    """All that the nodes of an acceptance wrote.

    In a round, teams measure at the same time. A team is the devices or nodes, its members, that
    train together. Several commands may measure one after the other: each is a session.

    Args:
        nodes: the last ``Joined`` of each node.
        results: of all ranks of a team, by phase, round and members.
        failures: why a team measured nothing; none if any of its nodes wrote results, in this or
            another session.
        spans: when each node took part in each session, by session and node.
        others_cpu_shares: share of a node's cores that other programs used, by node, phase and
            number of the round; only where it is known.
        malformed_lines: number of lines that are no events; a node that was killed leaves one at
            most.
        _arrivals: session, node and name of each barrier at which a node arrived.
        _sessions_of_failures: number of the session of each of ``failures``.
    """

    nodes: dict[str, Joined] = field(default_factory=dict)
    results: dict[TeamRound, list[RankResult]] = field(default_factory=dict)
    failures: dict[TeamRound, NotMeasured] = field(default_factory=dict)
    spans: dict[tuple[int, str], NodeSpan] = field(default_factory=dict)
    others_cpu_shares: dict[tuple[str, Phase, int], float] = field(default_factory=dict)
    malformed_lines: int = 0
    _arrivals: set[tuple[int, str, str]] = field(default_factory=set)
    _sessions_of_failures: dict[TeamRound, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """Read all sessions of all nodes.

        A node writes an event for each round: ``Measured`` with the results of its own ranks, or
        ``NotMeasured`` with the reason. They are collected by phase, number of the round, and names
        of the members of the team. The events ``Beat`` and ``Left`` are not needed here.

        A team may measure a round again in a later session. Results count even if the round failed
        in another session; of several failures the last one counts.
        """
        evidence = cls()
        node = ""  # name of the node whose file is read: its first event has it
        for session, event in evidence._iterate_events(folder):
            if isinstance(event, Joined):
                node = event.node
                evidence.nodes[node] = event
                evidence.spans[session, node] = NodeSpan(joined_s=event.unix_s)
            elif isinstance(event, Arrived):
                evidence._arrivals.add((session, node, event.barrier_name))
            elif isinstance(event, Measured):
                evidence._note_end_of_round(session, node, event)
                key = (event.phase, event.round, tuple(event.members))
                # Added, because each node of a team writes only the results of its own ranks.
                evidence._add_results(key, event.results)
                if event.others_cpu_share is not None:
                    share_key = (node, event.phase, event.round)
                    evidence.others_cpu_shares[share_key] = event.others_cpu_share
                evidence.failures.pop(key, None)
                evidence._sessions_of_failures.pop(key, None)
            elif isinstance(event, NotMeasured):
                evidence._note_end_of_round(session, node, event)
                key = (event.phase, event.round, tuple(event.members))
                if key not in evidence.results:
                    evidence.failures[key] = event
                    evidence._sessions_of_failures[key] = session
        return evidence

    def find_lost_nodes(self) -> dict[str, str]:
        """Return the nodes that did not come to a round, with what their partners wrote.

        A node that came late, because it had waited for others itself, is not lost.

        Returns:
            By the name of each lost node, the error that a partner wrote when it did not come.
        """
        # Only of teams that did not measure the round in another session either.
        errors_of_lost_nodes: dict[str, str] = {}
        for key, failure in self.failures.items():
            if failure.absent is None:  # all came, and the round failed for another reason
                continue
            phase, number, _ = key
            session = self._sessions_of_failures[key]
            # In that session it never arrived at the barrier of the round, not even later.
            if (session, failure.absent, name_barrier(phase, number)) not in self._arrivals:
                errors_of_lost_nodes[failure.absent] = failure.error
        return errors_of_lost_nodes

    def _note_end_of_round(self, session: int, node: str, event: Measured | NotMeasured) -> None:
        """Keep the time at which a node ended its last round so far of a session."""
        span = self.spans.get((session, node))
        if span is not None:  # None: the line in which the node joined is damaged
            span.last_round_s = event.unix_s

    def _add_results(self, key: TeamRound, results: list[RankResult]) -> None:
        """Add results of a node's ranks to those of its team, which are sorted by rank.

        Args:
            key: phase, number of the round, and names of the team's members.
        """
        # The result of a rank that measured the round again replaces its earlier one.
        by_rank = {result.rank: result for result in (*self.results.get(key, []), *results)}
        self.results[key] = [by_rank[rank] for rank in sorted(by_rank)]

    def _iterate_events(self, folder: Path) -> Iterator[tuple[int, Event]]:
        """Yield the events of all nodes, each with the number of its session.

        They are ordered by session; in a session, by node; of a node, as it wrote them. Lines that
        are no events are counted in ``malformed_lines``.
        """
        paths = (folder / EVIDENCE_DIR).glob("*.jsonl")
        # Files of a session by name, so that the verdicts depend on no order of the file system.
        for path in sorted(paths, key=lambda path: (_parse_session_number(path), path.name)):
            session = _parse_session_number(path)
            for event in decode_events(path.read_bytes()):
                if event is None:
                    self.malformed_lines += 1
                else:
                    yield session, event


def _parse_session_number(path: Path) -> int:
    """Return the number of the session in the name ``NODE.SESSION.jsonl`` of a file."""
    return int(path.name.split(".")[-2])


def name_barrier(phase: Phase, number: int) -> str:
    """Return the name of the barrier at which a team begins a round."""
    return f"{phase} {number}"


def decode_events(text: bytes) -> list[Event | None]:
    """Return the event of each line; None for a line that is no event.

    Args:
        text: from the evidence file of a node, which has one event as JSON in each line.
    """
    events: list[Event | None] = []
    for line in text.splitlines():
        try:
            events.append(_decode(line))
        except msgspec.MsgspecError:
            events.append(None)
    return events
