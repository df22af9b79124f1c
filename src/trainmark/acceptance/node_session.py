"""Measure the rounds of one machine: its devices, itself, and pairs of its devices."""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.acceptance.evidence import (
    Evidence,
    EvidenceWriter,
    Joined,
    Measured,
    NotMeasured,
)
from trainmark.acceptance.folder import LOGS_DIR, get_plan_folder
from trainmark.acceptance.remarks import list_option_remarks
from trainmark.acceptance.schedule import choose_num_rounds, plan_pair_rounds
from trainmark.acceptance.tasks import RankTask
from trainmark.acceptance.teams import Team, measure_teams
from trainmark.acceptance.timetable import Progress, ScheduledRound, Timetable, estimate_round_s
from trainmark.launch import processes
from trainmark.launch.local import prepare_setup
from trainmark.launch.processes import CpuUse
from trainmark.record.findings import BUSY_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trainmark.acceptance.evidence import Phase
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.launch.local import Setup
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor

CONTROL_STEPS = 6  # of a training that is done twice and compared bit by bit
WINDOWS = 10  # timed pieces of a training
MIN_DEVICES_FOR_PAIRS = 3  # of one machine; two form one pair, which is compared with no other


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Teams that measure at the same time.

    Args:
        teams: the device indices of each team.
    """

    phase: Phase
    number: int
    teams: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """An acceptance test, which finds devices or nodes that are slow or faulty.

    Its folder and its plans are ready. Several commands may measure for it, one after the other:
    each is a session, and all write to the folder.

    Args:
        request: the options that the user chose.
        plan: of the training on all devices of this machine.
        node: name of this machine.
        device_names: of the devices that are measured, in their order.
        num_nodes: number of nodes that are accepted together.
    """

    request: AcceptRequest
    folder: Path
    plan: Plan
    node: str
    device_names: tuple[str, ...]
    num_nodes: int = 1

    @property
    def rounds(self) -> list[Round]:
        """Return the rounds that this machine measures by itself.

        The phase ``devices`` measures each device alone, ``nodes`` all devices together, ``pairs``
        pairs of devices. With several nodes, pairs are pairs of nodes, and not among these rounds.

        A round has one or more teams that measure at the same time; a team is a tuple of the
        indices of its devices.
        """
        num_devices = len(self.device_names)
        phases = self.request.chosen_phases
        rounds: list[Round] = []
        if "devices" in phases:
            singles = [(device,) for device in range(num_devices)]
            rounds += self._repeat_round("devices", singles, self.request.repeats)
        if "nodes" in phases:
            # The only node of an acceptance is compared with no other: it only has to work.
            repeats = self.request.repeats if self.num_nodes > 1 else 1
            rounds += self._repeat_round("nodes", [tuple(range(num_devices))], repeats)
        # Of two devices, the only pair is the node itself, which the phase `nodes` measures. By a
        # single pair no link could be judged either.
        has_pairs = num_devices >= MIN_DEVICES_FOR_PAIRS and self.num_nodes == 1
        if "pairs" in phases and has_pairs:
            # None: the user did not choose the number.
            num_rounds = self.request.rounds or choose_num_rounds(num_devices)
            rounds += [
                Round(phase="pairs", number=number, teams=list(pairs))
                for number, pairs in enumerate(plan_pair_rounds(num_devices, num_rounds))
            ]
        return rounds

    @staticmethod
    def _repeat_round(phase: Phase, teams: Sequence[tuple[int, ...]], repeats: int) -> list[Round]:
        """Return ``repeats`` rounds of the same teams; a team is its device indices."""
        return [Round(phase=phase, number=number, teams=teams) for number in range(repeats)]

    def list_missing_rounds(self, rounds: Sequence[Round]) -> list[Round]:
        """Return the rounds with the teams that no session has measured yet."""
        # Each is a phase, the number of a round, and the names of the members.
        measured_teams = Evidence.read(self.folder).results.keys()
        missing_rounds = []
        for planned_round in rounds:
            missing_teams = []
            for device_indices in planned_round.teams:
                members = self.list_member_names(planned_round.phase, device_indices)
                if (planned_round.phase, planned_round.number, members) not in measured_teams:
                    missing_teams.append(device_indices)
            if missing_teams:
                missing_rounds.append(replace(planned_round, teams=missing_teams))
        return missing_rounds

    def list_member_names(self, phase: Phase, device_indices: Sequence[int]) -> tuple[str, ...]:
        """Return the names of what a team of this machine measures.

        Args:
            device_indices: the devices of the team.

        Returns:
            The names of the devices; in the phase ``nodes``, whose team has all devices of the
            node, the name of the node.
        """
        if phase == "nodes":
            return (self.node,)
        return tuple(self.device_names[index] for index in device_indices)

    def make_timetable(self) -> Timetable:
        """Return what will be measured, and about how long it takes.

        The devices of this machine are the members: each is accepted or not. Rounds that earlier
        sessions measured are left out.
        """
        rounds = self.rounds
        missing_rounds = self.list_missing_rounds(rounds)
        num_devices = len(self.device_names)
        devices_text = "1 device" if num_devices == 1 else f"{num_devices} devices"
        remarks = [
            # What devices and the launcher were tested on, if they did no real runs yet.
            *self.plan.describe_unproven(),
            # All rounds count for these remarks, also those of earlier sessions.
            *list_option_remarks(
                self.request,
                self._schedule(rounds),
                alone_phase="devices",
                num_members=num_devices,
            ),
        ]
        num_measured = len(rounds) - len(missing_rounds)
        if num_measured:
            remarks.append(f"measured in earlier sessions: {num_measured} of {len(rounds)} rounds")
        return Timetable(
            title=f"{devices_text} of {self.node}, folder {self.folder}",
            schedule=self._schedule(missing_rounds),
            round_s=estimate_round_s(self.request.seconds),
            # After the deadline each round is ended. Rounds that confirm slow pairs are not
            # counted: how many there are is known only after the planned rounds.
            limit_s=len(missing_rounds) * self.request.deadline,
            remarks=tuple(remarks),
        )

    def _schedule(self, rounds: Sequence[Round]) -> list[ScheduledRound]:
        """Return rounds whose teams have names of devices or nodes, in place of device indices."""
        return [
            ScheduledRound(
                phase=planned_round.phase,
                number=planned_round.number,
                teams=[
                    self.list_member_names(planned_round.phase, team)
                    for team in planned_round.teams
                ],
            )
            for planned_round in rounds
        ]


def make_node_name(host: str) -> str:
    """Return the name of a host with only such characters as a file's name may have."""
    return re.sub(r"[^\w.-]", "_", host) or "node"


def list_device_names(node: str, vendor: Vendor, nproc: int) -> tuple[str, ...]:
    """Return the names of the devices of a node."""
    return tuple(f"{node}:{vendor.torch_type}:{index}" for index in range(nproc))


@contextmanager
def prepare_rank_setup(plan: Plan, num_ranks: int) -> Iterator[Setup]:
    """Yield the environment in which ranks of this machine start.

    Ranks that still run at the end of the ``with`` block are killed.

    Args:
        plan: names the vendor of the devices.
        num_ranks: ranks of this machine if all its devices train.
    """
    # An environment variable of the ranks has this id, by which ``kill_run`` finds their processes.
    run_id = f"accept-{secrets.token_hex(6)}"
    setup = prepare_setup(devices.list_vendors()[plan.device.vendor], num_ranks, run_id)
    # cuBLAS is only deterministic with a workspace of a fixed size (CUDA's documentation).
    setup.variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    try:
        yield setup
    finally:
        processes.kill_run(run_id)


def write_joined_event(
    writer: EvidenceWriter,
    acceptance: Acceptance,
    setup: Setup,
    *,
    node_rank: int = 0,
    address: str = "",
) -> None:
    """Write the devices, products and software of this node as the first event of its session.

    Args:
        acceptance: has the names of this node and its devices.
        setup: ``environment`` has the versions of this node's software.
        node_rank: number of this node in the session.
        address: host at which other nodes reach this one; empty: there are no others.
    """
    products = devices.list_vendors()[acceptance.plan.device.vendor].product_names()
    count = len(acceptance.device_names)
    writer.write(
        Joined,
        node=acceptance.node,
        devices=list(acceptance.device_names),
        # A CPU is one product, and any number of ranks share it.
        products=[products[min(index, len(products) - 1)] for index in range(count)],
        software=setup.environment["packages"] | {"driver": setup.environment["driver"]},
        node_rank=node_rank,
        address=address,
    )


@dataclass(frozen=True, slots=True)
class NodeSession:
    """One process that measures rounds on this machine.

    In a round, teams measure at the same time. A team is devices that train together, or one device
    alone.

    Args:
        acceptance: the acceptance test, with the names of the devices of this machine.
        setup: what ranks are started with.
        writer: writes the evidence of this node.
        poll_stop_signal: called several times a second while this machine measures. It looks for a
            signal that asks to stop, and returns its name; None: the measurement goes on.
        show: called with the progress, in words.
    """

    acceptance: Acceptance
    setup: Setup
    writer: EvidenceWriter
    poll_stop_signal: Callable[[], str | None]
    show: Callable[[str], None]

    def run(self, rounds: Sequence[Round]) -> None:
        """Measure the teams of ``rounds`` that no session has measured yet.

        A signal ends it early. In ``Round`` a team is the indices of its devices.
        """
        missing_rounds = self.acceptance.list_missing_rounds(rounds)
        progress = Progress(
            [planned_round.phase for planned_round in missing_rounds],
            training_s=self.acceptance.request.seconds,
        )
        has_warned = False
        for planned_round in missing_rounds:
            if self.poll_stop_signal() is not None:
                return
            self.show(progress.begin_round())
            teams = [
                self._build_team(planned_round, device_indices)
                for device_indices in planned_round.teams
            ]
            others_cpu_share = self.measure(teams, planned_round.phase, planned_round.number)
            if others_cpu_share is not None and others_cpu_share > BUSY_SHARE and not has_warned:
                has_warned = True  # once is enough; the result has the share of all rounds
                self.show(
                    f"other programs used {others_cpu_share:.0%} of the cores of "
                    f"{self.acceptance.node} during this round, which makes times noisy; press "
                    "Ctrl-C to stop, and measure on an idle machine"
                )

    def measure(self, teams: Sequence[Team], phase: Phase, number: int) -> float | None:
        """Measure teams of a round at the same time, and write how it ended for each.

        Args:
            phase: what kind of teams the round has, such as ``devices`` or ``pairs``.
            number: of the round in its phase.

        Returns:
            The share of this machine's cores that other programs used; None: not known.
        """
        logs = self.acceptance.folder / LOGS_DIR
        logs.mkdir(exist_ok=True)
        cpu_use_before = CpuUse.read()
        with (logs / f"{self.acceptance.node}.txt").open("ab") as log:
            outcomes = measure_teams(
                teams,
                self.setup,
                log=log,
                deadline_s=self.acceptance.request.deadline,
                is_stopped=lambda: self.poll_stop_signal() is not None,
            )
        # All ranks of the round have ended, so that they do not count as others.
        others_cpu_share = cpu_use_before.compute_others_share(CpuUse.read())
        for outcome in outcomes:
            members = outcome.team.members
            if outcome.reason is None:  # the team did not fail
                self.writer.write(
                    Measured,
                    phase=phase,
                    round=number,
                    members=members,
                    results=outcome.results,
                    others_cpu_share=others_cpu_share,
                )
            else:
                self.writer.write(
                    NotMeasured,
                    phase=phase,
                    round=number,
                    members=members,
                    reason=outcome.reason,
                    error=outcome.error,
                )
        return others_cpu_share

    def _build_team(self, planned_round: Round, device_indices: tuple[int, ...]) -> Team:
        """Return a team of devices of this machine, with the task of its ranks.

        Args:
            planned_round: the round in which the team measures.
            device_indices: its devices, one for each rank.
        """
        # In a control training a device trains twice from the same seed, and the steps of both are
        # compared bit by bit. Each device does this once, in its first round alone.
        has_control_training = planned_round.phase == "devices" and planned_round.number == 0
        task = RankTask(
            # Each size of a team has a plan of its own.
            plan_dir=str(get_plan_folder(self.acceptance.folder, len(device_indices))),
            devices=list(device_indices),
            # Also for a smaller team: a rank always gets the same share of the processor cores.
            ranks_here=len(self.acceptance.device_names),
            control_steps=CONTROL_STEPS if has_control_training else 0,
            windows=WINDOWS,  # pieces of the training that are timed one by one
            budget_s=self.acceptance.request.seconds,
            # Matmuls and copies of a device are timed only in its rounds alone.
            measures_device=planned_round.phase == "devices",
        )
        return Team(
            members=self.acceptance.list_member_names(planned_round.phase, device_indices),
            task=task,
        )
