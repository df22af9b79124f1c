"""One node of an acceptance: measures its devices, itself, and in teams with other nodes.

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
    name_barrier,
)
from trainmark.acceptance.folder import get_plan_folder
from trainmark.acceptance.node_session import (
    WINDOWS,
    Acceptance,
    NodeSession,
    list_device_names,
    make_node_name,
    prepare_rank_setup,
    write_joined_event,
)
from trainmark.acceptance.peers import Heartbeat, Session
from trainmark.acceptance.schedule import choose_num_rounds, pack_disjoint_rounds, plan_pair_rounds
from trainmark.acceptance.session import AGENT_MODULE, read_session
from trainmark.acceptance.tasks import RankTask
from trainmark.acceptance.teams import Team
from trainmark.documents import write_atomically
from trainmark.errors import escape_controls
from trainmark.launch.node import HeartbeatReader, locate_data, poll_stop_signal
from trainmark.launch.processes import note_stop_signals
from trainmark.rank.contract import DATA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.acceptance.evidence import Phase
    from trainmark.acceptance.session import OpenedSession

    NodeRanks = Sequence[int]  # the nodes of a team; its first node is the one with the lowest rank
    NodeRound = Sequence[NodeRanks]  # the teams of a round

# Session n numbers the rounds that it decides on while it measures from 1,000,000 n. This is far
# above the number of rounds that any session plans, so that rounds of different sessions never have
# the same number.
_NUMBERS_PER_SESSION = 1_000_000
# A bound of the search for groups, which ends by itself long before.
_MAX_GROUP_ROUNDS = 900
_PAIRS_END = "pairs end"  # names of barriers
_CONFIRMING_PAIRS_END = "pairs-again end"
_POLL_S = 0.5
_EXIT_CANNOT_TAKE_PART = 2


class Agent:
    """This node in a session, one joint measurement by all nodes of an acceptance test.

    In a round, teams of nodes that train together measure at the same time. Each node runs this
    class; they see each other only by the files that each of them writes.

    Args:
        opened: the session as its folder describes it.
        local: measures on this machine.
        node_rank: number of this node in the session.
    """

    def __init__(self, opened: OpenedSession, local: NodeSession, node_rank: int) -> None:
        self._opened = opened  # plan and request of the session, which are the same on all nodes
        self._local = local  # measures on this machine
        self._node_rank = node_rank
        self._session = Session(opened.folder, opened.number)  # what all nodes wrote so far
        self._joined: list[int] = []  # node ranks of the nodes that joined in time; set by `run`
        # What earlier sessions measured, which is not measured again: the phase, the number of the
        # round, and the names of the members of each team.
        self._measured_before = Evidence.read(opened.folder).results.keys()

    def run(self) -> None:
        """Measure all phases of this node."""
        acceptance = self._local.acceptance
        phases = acceptance.request.chosen_phases
        # Node ranks. A node that has not joined after `join` seconds takes no part with this one.
        self._joined = self._session.wait_for_all(
            acceptance.num_nodes, timeout_s=acceptance.request.join, is_stopped=self._is_stopped
        )
        self._local.run(acceptance.rounds)  # what this node measures alone
        if "pairs" in phases:
            self._measure_pairs()
        if "groups" in phases:
            self._measure_groups()

    def _is_stopped(self) -> bool:
        """Tell whether a signal asks to stop."""
        return self._local.poll_stop_signal() is not None

    def _measure_pairs(self) -> None:
        """Measure the rounds of pairs, then again the pairs by which nodes or links look slow."""
        rounds = self._agree_on_rounds("pairs", self._choose_pairs)
        for number, pairs in enumerate(rounds):
            self._measure_round("pairs", number, pairs)
        # Only the node that chooses the next rounds waits for the others at this barrier. They wait
        # for the file with the rounds that it chooses.
        self._announce_arrival(_PAIRS_END)
        confirming_rounds = self._agree_on_rounds(
            "pairs-again", partial(self._choose_confirming_rounds, _PAIRS_END)
        )
        # Rounds that an earlier session measured are skipped by their numbers. Confirming rounds
        # get numbers above those of planned ones: 1,000,000 more in session 1, and so on.
        # So none of them is skipped.
        first_number = len(rounds) + _NUMBERS_PER_SESSION * self._opened.number
        for number, pairs in enumerate(confirming_rounds, first_number):
            self._measure_round("pairs", number, pairs)
        # The node that chooses the first round of `_measure_groups` waits here for the others.
        self._announce_arrival(_CONFIRMING_PAIRS_END)

    def _measure_groups(self) -> None:
        """Search for groups of nodes that are slow only when they train together.

        Each round measures the sets of nodes that the search needs after the round before it. So
        the round is chosen only after all nodes have arrived at the end of the one before.
        """
        # The end of the phase of pairs. A request for groups without pairs is refused.
        previous_barrier = _CONFIRMING_PAIRS_END
        # Rounds that an earlier session measured are skipped by their numbers. Session 1 numbers
        # these from 1,000,000, session 2 from 2,000,000, so that each round of the search is
        # measured.
        first_number = _NUMBERS_PER_SESSION * self._opened.number
        for index in range(_MAX_GROUP_ROUNDS):
            file_name = f"groups-{index}"
            choose_round = partial(self._choose_group_round, previous_barrier)
            rounds = self._agree_on_rounds(file_name, choose_round)
            # No round: the search needs no more, or no node chose one in time.
            if not rounds or self._is_stopped():
                return
            # `_choose_group_round` returns one round at a time.
            self._measure_round("groups", first_number + index, rounds[0])
            previous_barrier = f"{file_name} end"
            self._announce_arrival(previous_barrier)

    def _agree_on_rounds(
        self, file_name: str, choose_rounds: Callable[[], list[NodeRound]]
    ) -> list[NodeRound]:
        """Return rounds that the first node alive chooses and all others read from a file.

        Args:
            file_name: name of the file, without its ending.
            choose_rounds: called on the first node alive; may return no rounds.

        Returns:
            The rounds, each as a list of its teams, a team as the ranks of its nodes. Empty if none
            are needed, if no node chose some in time, or if a signal asks to stop.
        """
        path = self._opened.session_dir / f"{file_name}.json"
        # The deadline is the time limit of a round. The node that chooses may itself wait two
        # deadlines for the others. It may begin to wait one deadline later than this node, because
        # it is still in its last round.
        ends_s = time.monotonic() + 3 * self._local.acceptance.request.deadline
        while not path.exists() and time.monotonic() < ends_s and not self._is_stopped():
            self._session.scan()
            alive = self._session.list_alive(self._joined)
            if alive and alive[0] == self._node_rank:
                chosen_rounds = choose_rounds()
                # Two nodes may choose: the first one, although it was silent for some time, and the
                # second one, which took it for lost. This node may be either of them. The file that
                # is written first counts, and the other node finds it here. If both find none, the
                # later file replaces the earlier one. Nodes that have read different files then
                # wait in vain for each other, and take each other for lost.
                if not path.exists():
                    # Atomically: other nodes read the file as soon as it exists.
                    with write_atomically(path) as file:
                        file.write(json.dumps(chosen_rounds).encode())
                break
            time.sleep(_POLL_S)
        if not path.exists():
            return []
        rounds: list[NodeRound] = json.loads(path.read_text())
        return rounds

    def _choose_pairs(self) -> list[NodeRound]:
        """Return the rounds of pairs of the nodes that joined, in the order of their names.

        A node may have another rank in each session. By name, a later session of the same nodes
        plans the same pairs, and skips those that were measured.
        """
        node_ranks = sorted(self._joined, key=self._session.get_name)
        # `rounds` is None if the user did not choose the number.
        num_rounds = self._local.acceptance.request.rounds or choose_num_rounds(len(node_ranks))
        # Pairs are planned as indices into `node_ranks`.
        return [
            [(node_ranks[first], node_ranks[second]) for first, second in pairs]
            for pairs in plan_pair_rounds(len(node_ranks), num_rounds)
        ]

    def _choose_confirming_rounds(self, barrier_name: str) -> list[NodeRound]:
        """Wait for all nodes; return rounds of the pairs by which nodes or links look slow.

        Measuring them again shows whether they are slow. A pair has the ranks of two nodes.

        Args:
            barrier_name: of the barrier at which all nodes have measured the planned pairs.
        """
        self._wait_for_others(barrier_name)
        conclusion = conclude_nodes(self._opened, interrupted=None)
        # Pairs may come from an earlier session, whose nodes need not have joined this one.
        rank_of = self._map_names_to_ranks()
        pairs = [
            (rank_of[first], rank_of[second])
            for first, second in conclusion.pairs_again
            if first in rank_of and second in rank_of
        ]
        lost = set(self._joined) - set(self._session.list_alive(self._joined))
        # Lost nodes take no part: they count as busy in every round.
        return [list(pairs_of_round) for pairs_of_round in pack_disjoint_rounds(pairs, busy=lost)]

    def _choose_group_round(self, barrier_name: str) -> list[NodeRound]:
        """Wait for all nodes; return the next round of the search for slow groups of nodes.

        A team of the round is a set of nodes that train together; no node is in two sets.

        Args:
            barrier_name: of the barrier at which all nodes have measured the round before.

        Returns:
            A list of one round; empty if the search needs no more sets, or only sets with nodes
            that have not joined this session.
        """
        self._wait_for_others(barrier_name)
        conclusion = conclude_nodes(self._opened, interrupted=None)
        # Sets may have nodes of an earlier session that did not join this one.
        rank_of = self._map_names_to_ranks()
        teams = [
            [rank_of[name] for name in node_set]
            for node_set in conclusion.sets_to_measure
            if all(name in rank_of for name in node_set)
        ]
        return [teams] if teams else []

    def _map_names_to_ranks(self) -> dict[str, int]:
        """Return the node rank of each node that joined, by its name."""
        return {self._session.get_name(node_rank): node_rank for node_rank in self._joined}

    def _announce_arrival(self, barrier_name: str) -> None:
        """Let other nodes know that this one has come to a barrier; do not wait for them."""
        self._local.writer.write(Arrived, barrier_name=barrier_name)

    def _wait_for_others(self, barrier_name: str) -> None:
        """Wait until each node has come to a barrier; go on without those that are lost or late."""
        # Twice the time limit of a round for all nodes together, because a node may still be in the
        # round before, where it waits for another node that hangs.
        ends_s = time.monotonic() + 2 * self._local.acceptance.request.deadline
        for node_rank in self._joined:
            self._session.wait_for(
                node_rank,
                barrier_name,
                timeout_s=max(0.0, ends_s - time.monotonic()),
                is_stopped=self._is_stopped,
            )
        # Reads what all nodes have written. After it, `list_alive` knows which nodes are lost.
        self._session.scan()

    def _measure_round(self, phase: Phase, number: int, teams: NodeRound) -> None:
        """Measure with the team of this node, unless an earlier session did.

        Args:
            number: of the round in its phase.
            teams: the node ranks of each team.
        """
        for node_ranks in teams:
            member_names = tuple(self._session.get_name(node_rank) for node_rank in node_ranks)
            if phase == "pairs":  # a pair has one name, in whichever order it was chosen
                member_names = tuple(sorted(member_names))
            # Results of earlier sessions are kept by phase, number of the round and member names.
            is_done = (phase, number, member_names) in self._measured_before
            if self._node_rank in node_ranks and not is_done:
                self._measure_with_team(phase, number, node_ranks, member_names)

    def _measure_with_team(
        self, phase: Phase, number: int, node_ranks: NodeRanks, member_names: tuple[str, ...]
    ) -> None:
        """Wait for the other nodes of a team and measure with them.

        If one of them does not come, this node writes that the team was not measured.

        Args:
            number: of the round in its phase.
            node_ranks: of the nodes of the team, this one among them.
            member_names: of the same nodes; those of a pair are sorted.
        """
        if self._is_stopped():
            return
        barrier_name = name_barrier(phase, number)
        self._announce_arrival(barrier_name)
        absent = self._wait_for_team(node_ranks, barrier_name)  # rank of a node that did not come
        if absent is None:
            team = self._build_team(node_ranks, member_names)
            self._local.measure([team], phase, number)
        # A signal to stop ends the wait, too, and then no node was late.
        elif not self._is_stopped():
            self._local.writer.write(
                NotMeasured,
                phase=phase,
                round=number,
                members=list(member_names),
                reason="deadline",
                error=f"{self._session.get_name(absent)} did not join in time",
                absent=self._session.get_name(absent),
            )

    def _wait_for_team(self, node_ranks: NodeRanks, barrier_name: str) -> int | None:
        """Wait until all nodes of a team have come to a barrier.

        Returns:
            The node rank of the first one that did not come in time, or before a signal asked to
            stop; None if all came.
        """
        # Twice the time limit of a round, because another node of the team may still be in the
        # round before, where it waits for a node that hangs.
        ends_s = time.monotonic() + 2 * self._local.acceptance.request.deadline
        for node_rank in node_ranks:
            if node_rank == self._node_rank:
                continue
            has_come = self._session.wait_for(
                node_rank,
                barrier_name,
                timeout_s=max(0.0, ends_s - time.monotonic()),
                is_stopped=self._is_stopped,
            )
            if not has_come:
                return node_rank
        return None

    def _build_team(self, node_ranks: NodeRanks, member_names: tuple[str, ...]) -> Team:
        """Return a team of nodes as this node sees it, with the task of this node's ranks.

        Args:
            node_ranks: of the nodes of the team, this one among them.
            member_names: of the same nodes, under which the results are kept; those of a pair are
                sorted by name, so that their order may differ from that of the ranks.
        """
        acceptance = self._local.acceptance
        nproc = len(acceptance.device_names)
        task = RankTask(
            plan_dir=str(get_plan_folder(acceptance.folder, nproc)),
            devices=list(range(nproc)),  # the device of each rank
            ranks_here=nproc,  # ranks of this node, among which the cores of a CPU are divided
            # The phase `devices` compares devices bit by bit and times their matmuls and copies. So
            # no training is repeated for a comparison here, and of the ranks only steps and
            # collectives are timed.
            control_steps=0,
            measures_device=False,
            windows=WINDOWS,  # pieces of the training that are timed one by one
            budget_s=acceptance.request.seconds,
            num_nodes=len(node_ranks),
        )
        ordered_ranks = sorted(node_ranks)
        first_rank = ordered_ranks[0]
        # Nodes may share a machine: each node that is the first of a team has a port of its own,
        # above the one that the launcher passes to all nodes.
        port = self._opened.cluster.master_port + 1 + first_rank
        return Team(
            members=member_names,
            task=task,
            node=ordered_ranks.index(self._node_rank),  # number of this node within the team
            num_nodes=len(node_ranks),
            # Host and port at which the ranks of the team find each other.
            master=(self._session.get_address(first_rank), port),
        )


def find_address(node_rank: int, master: str, port: int) -> str:
    """Return the host at which other nodes reach this one.

    It is the address of this node's interface towards the first node.

    Args:
        master: host of the first node.
        port: of the first node; it need not be open.
    """
    if node_rank == 0:
        return master
    family, *_ = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((master, port))  # chooses the interface; a datagram socket sends nothing
        return str(probe.getsockname()[0])


def main(words: list[str]) -> int:
    """Measure this node's part of the session.

    Args:
        words: the command line, without the program's name.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog=AGENT_MODULE, description=__doc__)
    parser.add_argument("session_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    # Host of the first node, and a port of it. The node finds its own address by them.
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path)  # folder on this node; absent: that of the plan
    # Set if the launcher writes to standard input for as long as it lives.
    parser.add_argument("--heartbeat", action="store_true")
    options = parser.parse_args(words)
    try:
        opened = read_session(options.session_dir.absolute())
    except (OSError, ValueError) as error:
        text = (
            f"{socket.gethostname()} cannot read {options.session_dir}: {error}; set --out "
            "to a folder that every node can access under the same path"
        )
        # The node cannot write evidence. `explain_absence` finds this line by its beginning in the
        # job's log, and reports the text as the reason why the node is absent.
        print(escape_controls(f"{REFUSAL}{options.node_rank}: {text}"), file=sys.stderr, flush=True)
        return _EXIT_CANNOT_TAKE_PART
    _measure_node(opened, options)
    return 0


def _measure_node(opened: OpenedSession, options: argparse.Namespace) -> None:
    """Join the session, measure all phases, and leave it.

    Args:
        opened: the session as its folder describes it.
        options: of the command line: the rank of this node, the host and the port of the first node
            (``master``, ``port``), the folder of the data, and whether the launcher writes to
            standard input for as long as it lives (``heartbeat``).
    """
    node_rank = options.node_rank
    plan = opened.plan
    name = _choose_node_name(opened, node_rank)
    writer = EvidenceWriter(opened.folder, name, session=opened.number)
    acceptance = Acceptance(
        request=opened.request,
        folder=opened.folder,
        plan=plan,
        # The writer puts a number behind the name if another node of the session has the same one.
        node=writer.node,
        device_names=list_device_names(
            writer.node, devices.choose_vendor(plan.device.vendor), plan.nproc
        ),
        num_nodes=plan.nnodes,
    )
    data = locate_data(node_rank, plan, options.data)
    with note_stop_signals() as stop, prepare_rank_setup(plan, plan.nproc) as setup:
        heartbeat = HeartbeatReader() if options.heartbeat else None
        # Also stops if the launcher, which writes beats to standard input, falls silent.
        poll_signal = partial(poll_stop_signal, stop, heartbeat)
        setup.variables[DATA_VARIABLE] = str(data)  # ranks read the folder of the data from it
        address = find_address(node_rank, options.master, options.port)
        write_joined_event(writer, acceptance, setup, node_rank=node_rank, address=address)
        local = NodeSession(acceptance, setup, writer, poll_signal, _show)
        with Heartbeat(writer):  # writes beats to this node's evidence, so that others see it lives
            Agent(opened, local, node_rank).run()
        writer.write(Left, signal=poll_signal())


def _choose_node_name(opened: OpenedSession, node_rank: int) -> str:
    """Return the name of this node.

    It is the host in the user's list if the launcher is ssh, the name that Slurm gives the node if
    Slurm started it, else the name of this machine.

    Args:
        opened: the session, with its launcher and the hosts of its nodes, ``node_names``.
    """
    if opened.plan.launcher == "ssh":
        return make_node_name(opened.node_names[node_rank])
    return make_node_name(os.environ.get("SLURMD_NODENAME") or socket.gethostname())


def _show(text: str) -> None:
    """Print a line of progress at once."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
