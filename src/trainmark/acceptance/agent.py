"""One node of an acceptance: measures its devices, itself, and its pairs with other nodes.

Started by a launcher on every node as ``python -m trainmark.acceptance.agent SESSION_DIR …``. A
node that hangs or fails costs each partner at most one deadline, and nobody else's result.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.acceptance.acceptance import (
    WINDOWS,
    Acceptance,
    NodeSession,
    device_names,
    node_name,
    rank_setup,
    write_joined,
)
from trainmark.acceptance.cluster import (
    FURTHER_FILE,
    PAIRS_FILE,
    conclude_nodes,
    host_of,
    opened_session,
)
from trainmark.acceptance.evidence import Arrived, Evidence, EvidenceWriter, Left, NotMeasured
from trainmark.acceptance.peers import Heart, Session
from trainmark.acceptance.schedule import default_num_rounds, disjoint_rounds, pair_rounds
from trainmark.acceptance.tasks import RankTask
from trainmark.acceptance.teams import Team
from trainmark.documents import written_whole
from trainmark.launch.node import is_input_lost, locate_data
from trainmark.launch.processes import note_stop_signals
from trainmark.rank.worker import DATA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.acceptance.cluster import OpenedSession
    from trainmark.acceptance.schedule import Round
    from trainmark.launch.processes import StopRequest

_END_ROUND = 1_000_000  # at which a node arrives when it has done all rounds of pairs
_LOOK_AGAIN_S = 0.5


class _HeartbeatStop:
    """A stop request that a silent standard input sets too, as launch.node has it."""

    def __init__(self, request: StopRequest, *, heartbeat: bool) -> None:
        self._request, self._heartbeat = request, heartbeat
        self._last_s = [time.monotonic()]

    @property
    def signal_name(self) -> str | None:
        if self._request.signal_name is None and self._heartbeat and is_input_lost(self._last_s):
            self._request.signal_name = "SIGHUP"
        return self._request.signal_name


class Agent:
    """This node in a session of all nodes."""

    def __init__(
        self,
        opened: OpenedSession,
        local: NodeSession,
        rank: int,
    ) -> None:
        self._opened, self._local, self._rank = opened, local, rank
        self._session = Session(opened.folder, opened.number)

    def run(self) -> None:
        """Measure all phases of this node."""
        local = self._local
        acceptance = local.acceptance
        ranks = self._session.wait_for_all(
            acceptance.num_nodes, deadline_s=acceptance.request.join, is_stopped=self._is_stopped
        )
        local.run(acceptance.rounds)
        if "pairs" not in acceptance.request.chosen_phases or self._is_stopped():
            return
        rounds = self._published(PAIRS_FILE, ranks, self._pair_rounds)
        self._run_pairs(rounds, first_number=0)
        local.writer.write(Arrived, round=_END_ROUND)
        further = self._published(FURTHER_FILE, ranks, self._further_rounds)
        self._run_pairs(further, first_number=len(rounds) + 1000 * self._opened.number)

    def _is_stopped(self) -> bool:
        return self._local.stop.signal_name is not None

    def _published(
        self, name: str, ranks: list[int], make: Callable[[list[int]], list[Round]]
    ) -> list[Round]:
        """Return rounds that the first node alive chooses, and all others read.

        Args:
            ranks: of the nodes that joined.
        """
        path = self._opened.session_dir / name
        ends_s = time.monotonic() + 3 * self._local.acceptance.request.deadline
        while not path.exists() and time.monotonic() < ends_s and not self._is_stopped():
            self._session.look()
            alive = [rank for rank in ranks if self._session.peers[rank].is_alive]
            if alive and alive[0] == self._rank:
                rounds = make(ranks)
                with written_whole(path) as file:
                    file.write(json.dumps(rounds).encode())
                break
            time.sleep(_LOOK_AGAIN_S)
        if not path.exists():
            return []
        return [[(a, b) for a, b in pairs] for pairs in json.loads(path.read_text())]

    def _name(self, rank: int) -> str:
        return self._session.peers[rank].joined.node

    def _pair_rounds(self, ranks: list[int]) -> list[Round]:
        """Return the rounds of pairs of the nodes that joined, in the order of their names."""
        by_name = sorted(ranks, key=self._name)
        count = self._local.acceptance.request.rounds or default_num_rounds(len(by_name))
        rounds = pair_rounds(len(by_name), count)
        return [[(by_name[a], by_name[b]) for a, b in pairs] for pairs in rounds]

    def _further_rounds(self, ranks: list[int]) -> list[Round]:
        """Return the rounds that confirm what looks bad, once all nodes are done or lost."""
        deadline_s = 2 * self._local.acceptance.request.deadline
        for rank in ranks:
            self._session.wait_for(
                rank, _END_ROUND, deadline_s=deadline_s, is_stopped=self._is_stopped
            )
        acceptance = self._local.acceptance
        _, again = conclude_nodes(self._opened, acceptance.request, interrupted=None)
        rank_of = {self._name(rank): rank for rank in ranks}
        pairs = [(rank_of[a], rank_of[b]) for a, b in again if a in rank_of and b in rank_of]
        lost = [rank for rank in ranks if not self._session.peers[rank].is_alive]
        return disjoint_rounds(pairs, busy=lost)

    def _run_pairs(self, rounds: list[Round], *, first_number: int) -> None:
        """Measure this node's pairs that were not measured in an earlier session."""
        done = Evidence.read(self._opened.folder).results.keys()
        for number, pairs in enumerate(rounds, first_number):
            if self._is_stopped():
                return
            for pair in pairs:
                members = tuple(sorted(map(self._name, pair)))
                if self._rank in pair and ("pairs", number, members) not in done:
                    self._run_pair(number, pair, members)

    def _run_pair(self, number: int, pair: tuple[int, int], members: tuple[str, ...]) -> None:
        """Wait for the partner of a round and measure with it."""
        local = self._local
        acceptance = local.acceptance
        partner = pair[0] if pair[1] == self._rank else pair[1]
        local.writer.write(Arrived, round=number)
        # The partner may wait for a node that hangs before it comes here.
        patience_s = 2 * acceptance.request.deadline
        if not self._session.wait_for(
            partner, number, deadline_s=patience_s, is_stopped=self._is_stopped
        ):
            if not self._is_stopped():
                local.writer.write(
                    NotMeasured,
                    phase="pairs",
                    round=number,
                    members=list(members),
                    reason="deadline",
                    error=f"{self._name(partner)} did not come",
                    absent=self._name(partner),
                )
            return
        first, second = sorted(pair)
        nproc = len(acceptance.device_names)
        task = RankTask(
            plan_dir=str(acceptance.plans[2 * nproc]),
            devices=list(range(nproc)),
            ranks_here=nproc,
            control_steps=0,
            windows=WINDOWS,
            budget_s=acceptance.request.seconds,
            measures_device=False,
        )
        address = self._session.peers[first].joined.address
        # Nodes may share a machine: each first node has a port of its own.
        master = (address, self._opened.cluster.master_port + 1 + first)
        team = Team(
            members=members, task=task, node=int(self._rank == second), num_nodes=2, master=master
        )
        local.measure([team], "pairs", number)


def _address(rank: int, master: str, port: int) -> str:
    """Return the host at which other nodes reach this one: of the interface towards the first."""
    if rank == 0:
        return master
    family = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((master, port))  # sends nothing
        return str(probe.getsockname()[0])


def main(words: list[str]) -> int:
    """Measure this node's part of the session."""
    parser = argparse.ArgumentParser(prog="trainmark.acceptance.agent", description=__doc__)
    parser.add_argument("session_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heartbeat", action="store_true")
    asked = parser.parse_args(words)
    opened = opened_session(asked.session_dir.absolute())
    host = host_of(opened, asked.node_rank) or os.environ.get("SLURMD_NODENAME")
    writer = EvidenceWriter(opened.folder, node_name(host or socket.gethostname()), opened.number)
    plan = opened.plan
    vendor = devices.choose(plan.device.vendor)
    acceptance = Acceptance(
        request=opened.request,
        folder=opened.folder,
        plans=opened.plans,
        plan=plan,
        node=writer.node,
        device_names=device_names(writer.node, vendor, plan.nproc),
        num_nodes=plan.nnodes,
    )
    data = locate_data(asked.node_rank, plan, asked.data)
    with note_stop_signals() as request, rank_setup(plan, plan.nproc) as setup:
        stop = _HeartbeatStop(request, heartbeat=asked.heartbeat)
        setup.variables[DATA_VARIABLE] = str(data)
        address = _address(asked.node_rank, asked.master, asked.port)
        write_joined(writer, acceptance, setup, rank=asked.node_rank, address=address)
        with Heart(writer):
            Agent(
                opened, NodeSession(acceptance, setup, writer, stop, _show), asked.node_rank
            ).run()
        writer.write(Left, signal=stop.signal_name)
    return 0


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
