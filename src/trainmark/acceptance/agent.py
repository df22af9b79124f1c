"""One node of an acceptance: measures its devices, itself, and its teams with other nodes.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.acceptance.conclusion import REFUSAL, conclude_nodes
from trainmark.acceptance.evidence import (
    Arrived,
    Evidence,
    EvidenceWriter,
    Left,
    NotMeasured,
    name_meeting,
)
from trainmark.acceptance.folder import plan_folder
from trainmark.acceptance.node_session import (
    WINDOWS,
    Acceptance,
    NodeSession,
    device_names,
    node_name,
    rank_setup,
    write_joined,
)
from trainmark.acceptance.peers import Heart, Session
from trainmark.acceptance.schedule import default_num_rounds, disjoint_rounds, pair_rounds
from trainmark.acceptance.session import opened_session
from trainmark.acceptance.tasks import RankTask
from trainmark.acceptance.teams import Team
from trainmark.documents import write_atomically
from trainmark.errors import escape_controls
from trainmark.launch.node import is_input_lost, locate_data
from trainmark.launch.processes import note_stop_signals
from trainmark.rank.worker import DATA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.acceptance.evidence import Phase
    from trainmark.acceptance.session import OpenedSession
    from trainmark.launch.processes import StopRequest

    NodeTeam = Sequence[int]  # node ranks, the first one's node is where the team meets
    NodeRound = Sequence[NodeTeam]

_SESSION_ROUNDS = 1000  # numbers of rounds that a session has for what it finds to measure
_MAX_GROUP_ROUNDS = 900
_POLL_S = 0.5
_EXIT_CANNOT_TAKE_PART = 2


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

    def __init__(self, opened: OpenedSession, local: NodeSession, node_rank: int) -> None:
        self._opened, self._local, self._node_rank = opened, local, node_rank
        self._session = Session(opened.folder, opened.number)
        self._joined: list[int] = []  # node ranks
        self._measured_before = Evidence.read(opened.folder).results.keys()

    def run(self) -> None:
        """Measure all phases of this node."""
        acceptance = self._local.acceptance
        phases = acceptance.request.chosen_phases
        self._joined = self._session.wait_for_all(
            acceptance.num_nodes, timeout_s=acceptance.request.join, is_stopped=self._is_stopped
        )
        self._local.run(acceptance.rounds)
        if "pairs" in phases:
            self._measure_pairs()
        if "groups" in phases:
            self._measure_groups()

    def _is_stopped(self) -> bool:
        return self._local.stop.signal_name is not None

    def _measure_pairs(self) -> None:
        """Measure the rounds of pairs, then those that confirm what looks bad."""
        rounds = self._publish("pairs", self._choose_pairs)
        for number, pairs in enumerate(rounds):
            self._measure_round("pairs", number, pairs)
        self._arrive("pairs end")
        again = self._publish("pairs-again", partial(self._choose_pairs_again, "pairs end"))
        first_number = len(rounds) + _SESSION_ROUNDS * self._opened.number
        for number, pairs in enumerate(again, first_number):
            self._measure_round("pairs", number, pairs)
        self._arrive("pairs-again end")

    def _measure_groups(self) -> None:
        """Measure sets of nodes for as long as the search for groups asks for some."""
        meeting = "pairs-again end"
        for number in range(_MAX_GROUP_ROUNDS):
            name = f"groups-{number}"
            rounds = self._publish(name, partial(self._choose_sets, meeting))
            if not rounds or self._is_stopped():
                return
            self._measure_round("groups", _SESSION_ROUNDS * self._opened.number + number, rounds[0])
            meeting = f"{name} end"
            self._arrive(meeting)

    def _publish(self, name: str, choose: Callable[[], list[NodeRound]]) -> list[NodeRound]:
        """Return rounds that the first node alive chooses, and all others read; empty if none."""
        path = self._opened.session_dir / f"{name}.json"
        ends_s = time.monotonic() + 3 * self._local.acceptance.request.deadline
        while not path.exists() and time.monotonic() < ends_s and not self._is_stopped():
            self._session.scan()
            alive = self._session.alive(self._joined)
            if alive and alive[0] == self._node_rank:
                rounds = choose()
                with write_atomically(path) as file:
                    file.write(json.dumps(rounds).encode())
                break
            time.sleep(_POLL_S)
        if not path.exists():
            return []
        rounds_read: list[NodeRound] = json.loads(path.read_text())
        return rounds_read

    def _choose_pairs(self) -> list[NodeRound]:
        """Return the rounds of pairs of the nodes that joined, in the order of their names."""
        by_name = sorted(self._joined, key=self._session.name)
        count = self._local.acceptance.request.rounds or default_num_rounds(len(by_name))
        rounds = pair_rounds(len(by_name), count)
        return [[(by_name[first], by_name[second]) for first, second in pairs] for pairs in rounds]

    def _choose_pairs_again(self, meeting: str) -> list[NodeRound]:
        """Return the rounds that confirm what looks bad, once all nodes are done or lost."""
        self._wait_for_others(meeting)
        request = self._local.acceptance.request
        conclusion = conclude_nodes(self._opened, request, interrupted=None)
        rank_of = self._rank_of_name()
        pairs = [
            (rank_of[first], rank_of[second])
            for first, second in conclusion.pairs_again
            if first in rank_of and second in rank_of
        ]
        lost = set(self._joined) - set(self._session.alive(self._joined))
        return [list(pairs_of_round) for pairs_of_round in disjoint_rounds(pairs, busy=lost)]

    def _choose_sets(self, meeting: str) -> list[NodeRound]:
        """Return one round of the sets that the search for groups needs; none at its end."""
        self._wait_for_others(meeting)
        request = self._local.acceptance.request
        conclusion = conclude_nodes(self._opened, request, interrupted=None)
        rank_of = self._rank_of_name()
        teams = [
            [rank_of[name] for name in members]
            for members in conclusion.sets_to_measure
            if all(name in rank_of for name in members)
        ]
        return [teams] if teams else []

    def _rank_of_name(self) -> dict[str, int]:
        return {self._session.name(node_rank): node_rank for node_rank in self._joined}

    def _arrive(self, meeting: str) -> None:
        self._local.writer.write(Arrived, meeting=meeting)

    def _wait_for_others(self, meeting: str) -> None:
        """Wait until all nodes have come to a meeting, or are lost or late."""
        timeout_s = 2 * self._local.acceptance.request.deadline
        for node_rank in self._joined:
            self._session.wait_for(
                node_rank, meeting, timeout_s=timeout_s, is_stopped=self._is_stopped
            )
        self._session.scan()

    def _measure_round(self, phase: Phase, number: int, teams: NodeRound) -> None:
        """Measure with the team of this node, unless an earlier session did."""
        for team in teams:
            members = tuple(map(self._session.name, team))
            if phase == "pairs":
                members = tuple(sorted(members))
            is_done = (phase, number, members) in self._measured_before
            if self._node_rank in team and not is_done:
                self._measure_team(phase, number, list(team), members)

    def _measure_team(
        self, phase: Phase, number: int, team: list[int], members: tuple[str, ...]
    ) -> None:
        """Wait for the other nodes of a team and measure with them."""
        if self._is_stopped():
            return
        meeting = name_meeting(phase, number)
        self._arrive(meeting)
        absent = self._wait_for_team(team, meeting)
        if absent is None:
            self._local.measure([self._team_of(team, members)], phase, number)
        elif not self._is_stopped():
            self._local.writer.write(
                NotMeasured,
                phase=phase,
                round=number,
                members=list(members),
                reason="deadline",
                error=f"{self._session.name(absent)} did not come",
                absent=self._session.name(absent),
            )

    def _wait_for_team(self, team: Sequence[int], meeting: str) -> int | None:
        """Return the first node that did not come; None if all did."""
        # The partner may wait for a node that hangs before it comes here.
        ends_s = time.monotonic() + 2 * self._local.acceptance.request.deadline
        for node_rank in team:
            if node_rank != self._node_rank and not self._session.wait_for(
                node_rank,
                meeting,
                timeout_s=max(0.0, ends_s - time.monotonic()),
                is_stopped=self._is_stopped,
            ):
                return node_rank
        return None

    def _team_of(self, team: Sequence[int], members: tuple[str, ...]) -> Team:
        """Return what this node's ranks do in a team of nodes."""
        acceptance = self._local.acceptance
        nproc = len(acceptance.device_names)
        task = RankTask(
            plan_dir=str(plan_folder(acceptance.folder, nproc)),
            devices=list(range(nproc)),
            ranks_here=nproc,
            control_steps=0,
            windows=WINDOWS,
            budget_s=acceptance.request.seconds,
            measures_device=False,
            num_nodes=len(team),
        )
        ordered = sorted(team)
        first = ordered[0]
        # Nodes may share a machine: each first node has a port of its own.
        master = (self._session.address(first), self._opened.cluster.master_port + 1 + first)
        return Team(
            members=members,
            task=task,
            node=ordered.index(self._node_rank),
            num_nodes=len(team),
            master=master,
        )


def find_address(node_rank: int, master: str, port: int) -> str:
    """Return the host at which other nodes reach this one: of the interface towards the first."""
    if node_rank == 0:
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
    options = parser.parse_args(words)
    try:
        opened = opened_session(options.session_dir.absolute())
    except (OSError, ValueError) as error:
        text = (
            f"{socket.gethostname()} cannot read {options.session_dir}: {error}; "
            "name an --out on a file system that every node sees under the same path"
        )
        print(escape_controls(f"{REFUSAL}{options.node_rank}: {text}"), file=sys.stderr, flush=True)
        return _EXIT_CANNOT_TAKE_PART
    _measure_node(opened, options)
    return 0


def _measure_node(opened: OpenedSession, options: argparse.Namespace) -> None:
    """Join the session, measure all phases, and leave it."""
    node_rank, plan = options.node_rank, opened.plan
    writer = EvidenceWriter(opened.folder, _find_name(opened, node_rank), opened.number)
    acceptance = Acceptance(
        request=opened.request,
        folder=opened.folder,
        plan=plan,
        node=writer.node,
        device_names=device_names(
            writer.node, devices.choose_vendor(plan.device.vendor), plan.nproc
        ),
        num_nodes=plan.nnodes,
    )
    data = locate_data(node_rank, plan, options.data)
    with note_stop_signals() as request, rank_setup(plan, plan.nproc) as setup:
        stop = _HeartbeatStop(request, heartbeat=options.heartbeat)
        setup.variables[DATA_VARIABLE] = str(data)
        address = find_address(node_rank, options.master, options.port)
        write_joined(writer, acceptance, setup, node_rank=node_rank, address=address)
        local = NodeSession(acceptance, setup, writer, stop, _show)
        with Heart(writer):
            Agent(opened, local, node_rank).run()
        writer.write(Left, signal=stop.signal_name)


def _find_name(opened: OpenedSession, node_rank: int) -> str:
    """Return the name of this node as its engine knows it."""
    if opened.plan.launcher == "ssh":
        return node_name(opened.node_names[node_rank])
    return node_name(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
