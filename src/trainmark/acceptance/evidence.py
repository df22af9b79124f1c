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
Phase = Literal["devices", "nodes", "pairs"]


class Joined(msgspec.Struct, tag="joined", tag_field="event", frozen=True, kw_only=True):
    """A node began a session.

    Args:
        devices: names of its devices.
        products: product name of each.
        software: versions by package, the driver's among them.
    """

    unix_s: float
    node: str
    devices: list[str]
    products: list[str]
    software: dict[str, str | None]


class Measured(msgspec.Struct, tag="measured", tag_field="event", frozen=True, kw_only=True):
    """A team measured on this node.

    Args:
        round: number in the phase, counted from 0.
        members: devices or nodes of the team, also those of other nodes.
        results: of the ranks of this node.
    """

    unix_s: float
    phase: Phase
    round: int
    members: list[str]
    results: list[RankResult]


class NotMeasured(msgspec.Struct, tag="not_measured", tag_field="event", frozen=True, kw_only=True):
    """A team measured nothing on this node."""

    unix_s: float
    phase: Phase
    round: int
    members: list[str]
    reason: Reason
    error: str


class Left(msgspec.Struct, tag="left", tag_field="event", frozen=True, kw_only=True):
    """A node ended its session; ``signal``: the name of the signal that asked for it."""

    unix_s: float
    signal: str | None


Event = Joined | Measured | NotMeasured | Left
_decode = msgspec.json.Decoder(Event).decode


class EvidenceWriter:
    """Append the events of one node and session to its file."""

    def __init__(self, folder: Path, node: str) -> None:
        (folder / EVIDENCE_DIR).mkdir(exist_ok=True)
        session = len(list((folder / EVIDENCE_DIR).glob(f"{node}.*.jsonl"))) + 1
        self._path = folder / EVIDENCE_DIR / f"{node}.{session}.jsonl"

    def write(self, kind: type[Event], **fields: Any) -> None:
        """Write one event, with the time of this node's clock."""
        line = msgspec.json.encode(kind(unix_s=time.time(), **fields)) + b"\n"
        with self._path.open("ab") as file:
            file.write(line)


Key = tuple[Phase, int, tuple[str, ...]]


@dataclass(slots=True)
class Evidence:
    """All that the nodes of an acceptance wrote.

    Args:
        nodes: the last ``Joined`` of each node.
        results: of all ranks of a team, by phase, round and members.
        failures: why a team measured nothing, unless it did in a later session.
        malformed_lines: lines that are no events; a node that was killed leaves one at most.
    """

    nodes: dict[str, Joined] = field(default_factory=dict)
    results: dict[Key, list[RankResult]] = field(default_factory=dict)
    failures: dict[Key, NotMeasured] = field(default_factory=dict)
    malformed_lines: int = 0

    @classmethod
    def read(cls, folder: Path) -> Evidence:
        """Read all sessions of all nodes."""
        evidence = cls()
        for event in evidence._events(folder):
            if isinstance(event, Joined):
                evidence.nodes[event.node] = event
            elif isinstance(event, Measured):
                key = (event.phase, event.round, tuple(event.members))
                evidence.results[key] = event.results
                evidence.failures.pop(key, None)
            elif isinstance(event, NotMeasured):
                key = (event.phase, event.round, tuple(event.members))
                if key not in evidence.results:
                    evidence.failures[key] = event
        return evidence

    def _events(self, folder: Path) -> Iterator[Event]:
        paths = (folder / EVIDENCE_DIR).glob("*.jsonl")
        for path in sorted(paths, key=lambda path: int(path.name.split(".")[-2])):
            for line in path.read_bytes().splitlines():
                try:
                    yield _decode(line)
                except msgspec.MsgspecError:
                    self.malformed_lines += 1
