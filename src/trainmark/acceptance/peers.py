"""Let the nodes of a session wait for each other, by their evidence in a folder that all see.

Each node writes its own file and reads those of the others. There is no server whose end would end
the session, nothing is locked, and what nodes exchange stays as evidence. Clocks of nodes are never
compared: a node counts as lost when its file has not grown for a while by the reader's own clock.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.acceptance.evidence import (
    EVIDENCE_DIR,
    Arrived,
    Beat,
    Joined,
    Left,
    Measured,
    NotMeasured,
    decode_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from trainmark.acceptance.evidence import Event, EvidenceWriter, Phase

BEAT_S = 5.0
# Network file systems may show a file's growth half a minute late.
SILENCE_S = 90.0
_POLL_S = 0.5


@dataclass(slots=True)
class Peer:
    """A node of a session, one joint measurement by all nodes, as its file of events shows it.

    Args:
        path: its file.
        joined: its first event; None: that is not written yet.
        barriers: names of those at which it has arrived: moments at which nodes wait for others.
        ended_rounds: rounds of each phase that it has measured, or tried to.
        num_read_bytes: bytes of the file that were read: whole lines.
        last_growth_s: when the file was last seen to grow, by this node's monotonic clock.
    """

    path: Path
    joined: Joined | None = None
    barriers: set[str] = field(default_factory=set)
    ended_rounds: Counter[Phase] = field(default_factory=Counter)
    has_left: bool = False
    num_read_bytes: int = 0
    last_growth_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether it has joined, has not left, and wrote something lately."""
        is_silent = time.monotonic() - self.last_growth_s >= SILENCE_S
        return self.joined is not None and not self.has_left and not is_silent

    def read_on(self) -> None:
        """Read what the node has written since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.num_read_bytes)
            added = file.read()
        whole_lines = added[: added.rfind(b"\n") + 1]  # the node may be writing the last line
        if whole_lines:
            self.num_read_bytes += len(whole_lines)
            self.last_growth_s = time.monotonic()
        for event in decode_events(whole_lines):
            self._note(event)

    def _note(self, event: Event | None) -> None:
        """Keep what an event says about the node; None: the line was no event.

        ``Measured`` and ``NotMeasured`` both end a round. A ``Beat`` is ignored here: it only makes
        the file grow, which shows that the node lives.
        """
        if isinstance(event, Joined):
            self.joined = event
        elif isinstance(event, Arrived):
            self.barriers.add(event.barrier_name)
        elif isinstance(event, (Measured, NotMeasured)):
            self.ended_rounds[event.phase] += 1
        elif isinstance(event, Left):
            self.has_left = True


class Session:
    """All nodes of a session, one joint measurement, as this node sees them.

    Args:
        folder: of the acceptance, in which each node writes a file of events in each session.
        session_number: files of other sessions are not read.

    Attributes:
        peers: the nodes that have joined, by their node rank.
    """

    def __init__(self, folder: Path, session_number: int) -> None:
        self._folder = folder  # of the acceptance
        self._session_number = session_number
        # All nodes that have a file in this session, by its path. Some have not joined yet.
        self._peer_by_path: dict[Path, Peer] = {}
        self.peers: dict[int, Peer] = {}  # by node rank, only nodes that have joined

    def scan(self) -> None:
        """Read what all nodes have written since the last call.

        Each node writes the file ``NODE.SESSION.jsonl``. The node comes into ``peers`` when its
        event ``Joined`` is read, which has its node rank.
        """
        for path in (self._folder / EVIDENCE_DIR).glob(f"*.{self._session_number}.jsonl"):
            peer = self._peer_by_path.setdefault(path, Peer(path))
            peer.read_on()
            if peer.joined is not None:
                self.peers[peer.joined.node_rank] = peer

    def get_address(self, node_rank: int) -> str:
        """Return the host at which other nodes reach a node that has joined."""
        joined = self.peers[node_rank].joined
        assert joined is not None, "only nodes that joined are among the peers"
        return joined.address

    def get_name(self, node_rank: int) -> str:
        """Return the name of a node that has joined."""
        joined = self.peers[node_rank].joined
        assert joined is not None, "only nodes that joined are among the peers"
        return joined.node

    def list_alive(self, node_ranks: Iterable[int]) -> list[int]:
        """Return the node ranks of those nodes that are alive, in the given order."""
        return [rank for rank in node_ranks if rank in self.peers and self.peers[rank].is_alive]

    def wait_for_all(
        self, num_nodes: int, *, timeout_s: float, is_stopped: Callable[[], bool]
    ) -> list[int]:
        """Wait until all nodes have joined; return the node ranks of those that have in time.

        Args:
            num_nodes: number of nodes that are to join.
            is_stopped: asked again and again; True ends the wait.
        """
        ends_s = time.monotonic() + timeout_s
        self.scan()
        while len(self.peers) < num_nodes and time.monotonic() < ends_s and not is_stopped():
            time.sleep(_POLL_S)
            self.scan()
        return sorted(self.peers)

    def wait_for(
        self, node_rank: int, barrier_name: str, *, timeout_s: float, is_stopped: Callable[[], bool]
    ) -> bool:
        """Wait until a node has arrived at a barrier; return whether it has.

        The wait also ends when the node is lost, after ``timeout_s``, or if this node is to stop.

        Args:
            barrier_name: as the node writes it to its file when it arrives.
            is_stopped: asked again and again; True ends the wait.
        """
        peer = self.peers.get(node_rank)
        if peer is None:  # it has not joined
            return False
        ends_s = time.monotonic() + timeout_s
        peer.read_on()
        while barrier_name not in peer.barriers:
            if not peer.is_alive or time.monotonic() >= ends_s or is_stopped():
                return False
            time.sleep(_POLL_S)
            peer.read_on()
        return True


class Heartbeat:
    """Write a beat every few seconds while a block runs, so that others see that the node lives."""

    def __init__(self, writer: EvidenceWriter) -> None:
        self._writer = writer  # of the events of this node
        self._is_over = threading.Event()  # set when the ``with`` block ends
        # ``__enter__`` starts it.
        self._thread = threading.Thread(target=self._write_beats, daemon=True)

    def _write_beats(self) -> None:
        """Write a beat every ``BEAT_S`` seconds until the ``with`` block ends."""
        while not self._is_over.wait(BEAT_S):
            self._writer.write(Beat)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
