"""What the nodes of a session tell each other: through their evidence, in a folder that all see.

Each node writes its own file and reads those of the others. There is no server whose end would end
the session, nothing is locked, and what was told stays as evidence. Clocks of nodes are never
compared: a node counts as lost when its file has not grown for a while by the reader's own clock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.acceptance.evidence import (
    EVIDENCE_DIR,
    Arrived,
    Beat,
    Event,
    Joined,
    Left,
    read_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trainmark.acceptance.evidence import EvidenceWriter

BEAT_S = 5.0
# Network file systems may show a file's growth half a minute late.
SILENCE_S = 90.0
_LOOK_AGAIN_S = 0.5


@dataclass(slots=True)
class Peer:
    """Another node of the session, or this one, as its file tells."""

    joined: Joined
    arrived: set[int] = field(default_factory=set)
    has_left: bool = False
    size: int = 0
    grew_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Tell whether it has not left and wrote something lately."""
        return not self.has_left and time.monotonic() - self.grew_s < SILENCE_S


class Session:
    """All nodes of one session as this node sees them, by their rank.

    Args:
        number: of the session; files of other sessions are not read.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self.peers: dict[int, Peer] = {}

    def look(self) -> None:
        """Read what nodes have written since the last call."""
        for path in (self._folder / EVIDENCE_DIR).glob(f"*.{self._number}.jsonl"):
            events = read_events(path)
            if events and isinstance(events[0], Joined):
                self._update(events, path.stat().st_size)

    def _update(self, events: Sequence[Event | None], size: int) -> None:
        first = events[0]
        assert isinstance(first, Joined)
        peer = self.peers.setdefault(first.rank, Peer(first))
        if size != peer.size:
            peer.size, peer.grew_s = size, time.monotonic()
        for event in events:
            if isinstance(event, Arrived):
                peer.arrived.add(event.round)
            elif isinstance(event, Left):
                peer.has_left = True

    def wait_for_all(
        self, num_nodes: int, *, deadline_s: float, is_stopped: Callable[[], bool]
    ) -> list[int]:
        """Wait until all nodes have joined; return the ranks of those that have by the deadline."""
        ends_s = time.monotonic() + deadline_s
        self.look()
        while len(self.peers) < num_nodes and time.monotonic() < ends_s and not is_stopped():
            time.sleep(_LOOK_AGAIN_S)
            self.look()
        return sorted(self.peers)

    def wait_for(
        self, rank: int, round_number: int, *, deadline_s: float, is_stopped: Callable[[], bool]
    ) -> bool:
        """Wait until a node has arrived at a round; False if it is lost or late."""
        ends_s = time.monotonic() + deadline_s
        while time.monotonic() < ends_s and not is_stopped():
            self.look()
            peer = self.peers.get(rank)
            if peer is None or round_number in peer.arrived:
                return peer is not None
            if not peer.is_alive:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return False


class Heart:
    """Writes a beat every few seconds while a block runs, so that others know the node lives."""

    def __init__(self, writer: EvidenceWriter) -> None:
        self._writer = writer
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self._writer.write(Beat)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
