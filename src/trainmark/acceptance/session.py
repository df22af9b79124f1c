"""Describe a session of several nodes: its plan, its folder, its rounds and how long they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.acceptance.groups import MIN_NODES
from trainmark.acceptance.remarks import list_option_remarks
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.schedule import choose_num_rounds, plan_pair_rounds
from trainmark.acceptance.timetable import (
    ScheduledRound,
    Timetable,
    estimate_round_s,
    format_time,
)
from trainmark.launch.cluster import Cluster
from trainmark.launch.job_spec import JobSpec
from trainmark.launch.launchers import slurm, ssh
from trainmark.launch.submission import CLUSTER_FILE
from trainmark.plan.plan import Plan
from trainmark.record.record import ACCEPTANCE_REQUEST_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.acceptance.evidence import Phase

SESSIONS_DIR = "sessions"
AGENT_MODULE = "trainmark.acceptance.agent"  # the module that a session starts on every node


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session, one joint measurement by all nodes, as its folder describes it.

    Args:
        folder: of the acceptance.
        number: of the session, which is the name of its folder.
        plan: of a training on all nodes; its folder is that of the session. The teams that are
            timed train by other plans, which are in the folder of the acceptance.
        is_submitted: whether its job was started by an earlier command.
        remark: which phase is left out, and why; empty: none is.
    """

    folder: Path
    number: int
    request: AcceptRequest
    plan: Plan
    cluster: Cluster
    is_submitted: bool = False
    remark: str = ""

    @property
    def session_dir(self) -> Path:
        """Return the folder of the session."""
        return self.folder / SESSIONS_DIR / str(self.number)

    @property
    def limit_s(self) -> float:
        """Time limit of the session's job in seconds."""
        num_nodes = self.plan.nnodes
        counts = count_rounds(self.request, num_nodes)
        num_rounds = sum(counts.values())
        if counts.get("groups"):  # none with few nodes, even if the phase is chosen
            num_rounds += estimate_further_group_rounds(self.request, num_nodes)
        # All nodes must join within `join` seconds. The deadline is the time limit of a round in
        # seconds: a round in which a node hangs costs two deadlines, and so does each of two
        # barriers, at which all nodes wait after the pairs and after their confirmation. The
        # confirming rounds of pairs, and the barriers after rounds of groups, are not counted: they
        # have time enough unless a node hangs in almost every round.
        return self.request.join + 2 * self.request.deadline * (num_rounds + 2)

    def describe_job(self) -> JobSpec:
        """Return the session's job: an agent on each node, which goes on if another node fails."""
        return JobSpec.from_plan(
            self.plan,
            node_module=AGENT_MODULE,
            ends_with_a_node=False,
            timeout_s=self.limit_s,
        )

    def make_timetable(self) -> Timetable:
        """Return what will be measured, and about how long it takes."""
        num_nodes = self.plan.nnodes
        round_s = estimate_round_s(self.request.seconds)
        # What the devices and the launcher were tested on, if they did no real runs yet.
        remarks = self.plan.describe_unproven()
        if self.remark:  # a phase is left out
            remarks.append(self.remark)
        # None without the phase of groups; 0 with too few nodes for it.
        num_group_rounds = count_rounds(self.request, num_nodes).get("groups")
        if num_group_rounds:
            num_further = estimate_further_group_rounds(self.request, num_nodes)
            remarks.append(
                f"groups: if all nodes together are slow, up to {num_further} more rounds, "
                f"about {format_time(num_further * round_s)}"
            )
        limit_s = self.limit_s
        if self.plan.launcher == "slurm":
            time_option_s = slurm.read_time_option_s(self.cluster)
            remarks.append(_describe_slurm_limit(time_option_s))
            limit_s = min(limit_s, time_option_s or limit_s)  # 0: no limit
        schedule = self._make_schedule()
        remarks += list_option_remarks(
            self.request, schedule, alone_phase="nodes", num_members=num_nodes
        )
        nproc = self.plan.nproc
        devices_text = "1 device" if nproc == 1 else f"{nproc} devices"
        return Timetable(
            title=f"{num_nodes} nodes with {devices_text} each, folder {self.folder}",
            schedule=schedule,
            round_s=round_s,
            limit_s=limit_s,
            remarks=tuple(remarks),
        )

    def _make_schedule(self) -> list[ScheduledRound]:
        """Return the planned rounds of all nodes, each with its teams.

        Pairs are planned among all nodes. A session that some nodes do not join has other pairs.
        """
        names = self.node_names
        schedule: list[ScheduledRound] = []
        for phase, num_rounds in count_rounds(self.request, len(names)).items():
            planned_pairs = plan_pair_rounds(len(names), num_rounds) if phase == "pairs" else []
            for number in range(num_rounds):
                teams: list[tuple[str, ...]]
                if phase == "pairs":
                    teams = [
                        (names[first], names[second]) for first, second in planned_pairs[number]
                    ]
                elif phase == "groups":
                    teams = [names]  # one team of all nodes
                else:
                    # A team of each node. In the phase ``devices`` it stands for the devices of
                    # the node, which are measured at the same time, each as a team by itself.
                    teams = [(name,) for name in names]
                schedule.append(ScheduledRound(phase=phase, number=number, teams=teams))
        return schedule

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of the nodes: their hosts if the launcher is ssh, else ``node 0`` etc.

        With any other launcher a scheduler, such as Slurm, chooses the hosts later.
        """
        num_nodes = self.plan.nnodes
        if self.plan.launcher == "ssh":
            return tuple(ssh.select_hosts(self.cluster, nnodes=num_nodes))
        return tuple(f"node {node_rank}" for node_rank in range(num_nodes))


def _describe_slurm_limit(time_option_s: float | None) -> str:
    """Return how the time limit of a Slurm job is chosen, and how to choose a shorter one.

    Args:
        time_option_s: the limit that the cluster file sets; None: it sets none.
    """
    if time_option_s is None:
        return (
            "Slurm is asked for the time that all rounds need if a node hangs in each of them; for "
            "a shorter job, use a smaller --deadline, or set `time` in slurm.options of the "
            "cluster file"
        )
    return (
        "`time` in slurm.options of the cluster file limits the job; if the job ends before all "
        "rounds are measured, run the same command again to measure the rest"
    )


def count_rounds(request: AcceptRequest, num_nodes: int) -> dict[Phase, int]:
    """Return the number of rounds of each chosen phase that are measured in any case.

    Further rounds depend on what these show: pairs that look slow are measured again, and if all
    nodes together are slow, a search measures parts of them.
    """
    counts: dict[Phase, int] = {
        "devices": request.repeats,
        "nodes": request.repeats,
        # None: the user did not choose the number.
        "pairs": request.rounds or choose_num_rounds(num_nodes),
        # The training of all nodes together. With few nodes, pairs show every fault.
        "groups": request.repeats if num_nodes >= MIN_NODES else 0,
    }
    chosen = request.chosen_phases
    return {phase: count for phase, count in counts.items() if phase in chosen}


def estimate_further_group_rounds(request: AcceptRequest, num_nodes: int) -> int:
    """Return about how many rounds the search for one slow group takes.

    It is done only if the training of all nodes together is slow.

    The search halves the set of all nodes, then each half that is slow, until all parts are fast by
    themselves. Then it measures each part together with nodes of the largest part. Last it measures
    all parts that were slow with these as one set. Sets that have no node in common are measured in
    the same round: all halves of one halving, and then all parts, because each gets other nodes of
    the largest part. Each set is measured ``repeats`` times.
    """
    num_halvings = math.ceil(math.log2(num_nodes))
    # One more for the parts with nodes of the largest one, and one for all slow parts together.
    return request.repeats * (num_halvings + 2)


def read_session(session_dir: Path) -> OpenedSession:
    """Return a session from its folder, which is ``FOLDER/sessions/NUMBER``.

    Raises:
        OSError, ValueError: a file is missing or damaged.
    """
    folder = session_dir.parent.parent  # of the acceptance, which may have several sessions
    plan = Plan.model_validate_json((session_dir / "plan.json").read_bytes())
    # ``remark``, which phase is left out and why, stays empty: it is only for the timetable that is
    # shown before the start, and is not kept in the folder.
    return OpenedSession(
        folder=folder,
        number=int(session_dir.name),
        plan=plan,
        request=AcceptRequest.model_validate_json((folder / ACCEPTANCE_REQUEST_FILE).read_bytes()),
        cluster=Cluster.model_validate_json((session_dir / CLUSTER_FILE).read_bytes()),
    )
