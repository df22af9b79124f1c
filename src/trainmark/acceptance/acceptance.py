"""Run an acceptance on one machine: plan its phases, measure what is missing, and judge.

Everything is in one folder. The same command in the same folder goes on with what is missing.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trainmark import __version__, devices
from trainmark.acceptance.evidence import (
    Evidence,
    EvidenceWriter,
    Joined,
    Left,
    Measured,
    NotMeasured,
)
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.result import AcceptanceResult
from trainmark.acceptance.schedule import default_num_rounds, disjoint_rounds, pair_rounds
from trainmark.acceptance.tasks import RankTask
from trainmark.acceptance.teams import Team, measure_teams
from trainmark.acceptance.verdicts import (
    Assessment,
    collect_times,
    judge_bits,
    judge_times,
    note_bad_rounds,
)
from trainmark.documents import written_whole
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch import processes, run_dir
from trainmark.launch.local import prepare_setup
from trainmark.launch.network import LOOPBACK, refuse_unusable_network
from trainmark.plan.resolving import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainmark.acceptance.evidence import Phase
    from trainmark.launch.local import Setup
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.choosing import RemoteTarget
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor

REQUEST_FILE = "request.json"
PLANS_DIR = "plans"
LOGS_DIR = "logs"  # what ranks print, by node
DEFAULT_DIR = Path("acceptances")
CONTROL_STEPS = 6
WINDOWS = 10
_START_S = 20.0  # of the ranks of a round: imports, data, model, first steps
_FREE_TO_CHANGE = {
    "out",
    "phases",
    "rounds",
    "repeats",
    "join",
    "deadline",
    "worse_by",
    "rates_worse_by",
}


class StopSource(Protocol):
    """What says whether to stop; see ``processes.StopRequest``."""

    @property
    def signal_name(self) -> str | None:
        """Name of the signal that asks for it; None before one came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Teams that measure at the same time.

    Args:
        teams: the device numbers of each.
    """

    phase: Phase
    number: int
    teams: Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """An acceptance whose folder and plans are ready.

    Args:
        plans: folder of the plan of teams by their number of devices.
        node: name of this machine.
        device_names: of the devices that are measured, in their order.
        num_nodes: that are accepted together; of several, pairs are of nodes.
    """

    request: AcceptRequest
    folder: Path
    plans: dict[int, Path]
    plan: Plan
    node: str
    device_names: tuple[str, ...]
    num_nodes: int = 1

    @property
    def rounds(self) -> list[Round]:
        """Return the rounds of this machine: of one machine with those of pairs of devices."""
        count = len(self.device_names)
        all_nodes = tuple(range(count))
        rounds: list[Round] = []
        for phase in self.request.chosen_phases:
            if phase == "devices":
                teams = [(node,) for node in all_nodes]
                rounds += [
                    Round(phase="devices", number=number, teams=teams)
                    for number in range(self.request.repeats)
                ]
            elif phase == "nodes":
                repeats = self.request.repeats if self.num_nodes > 1 else 1
                rounds += [
                    Round(phase="nodes", number=number, teams=[all_nodes])
                    for number in range(repeats)
                ]
            elif count > 2 and self.num_nodes == 1:  # the pair of two devices is the node
                num_rounds = self.request.rounds or default_num_rounds(count)
                rounds += [
                    Round(phase="pairs", number=number, teams=list(pairs))
                    for number, pairs in enumerate(pair_rounds(count, num_rounds))
                ]
        return rounds

    def members(self, phase: Phase, team: Sequence[int]) -> tuple[str, ...]:
        """Return the names of what a team measures."""
        if phase == "nodes":
            return (self.node,)
        return tuple(self.device_names[device] for device in team)

    def expected_s(self, rounds: Sequence[Round]) -> float:
        """Return about how long rounds take."""
        return len(rounds) * (_START_S + self.request.seconds)

    def announcement(self) -> list[str]:
        """Return what will be measured, and about how long each phase takes, in words."""
        lines = [f"{len(self.device_names)} devices of {self.node}, folder {self.folder}"]
        total_s = 0.0
        for phase in self.request.chosen_phases:
            rounds = [
                planned_round for planned_round in self.rounds if planned_round.phase == phase
            ]
            if rounds:
                total_s += self.expected_s(rounds)
                minutes = self.expected_s(rounds) / 60
                count = "1 round" if len(rounds) == 1 else f"{len(rounds)} rounds"
                lines.append(f"{phase}: {count}, about {minutes:.1f} min")
        limit_min = len(self.rounds) * self.request.deadline / 60
        lines.append(f"in all about {total_s / 60:.0f} min, and at most {limit_min:.0f} min")
        return lines


@contextmanager
def prepared(request: AcceptRequest) -> Iterator[Acceptance]:
    """Check everything, make the folder or open that of an earlier session, and hold its lock.

    Raises:
        UsageError: the options do not fit, or not those of the earlier session.
        EnvironmentFault: too few devices, or the folder cannot be used.
        DataError: the data cannot be trained on.
    """
    if (request.nnodes or 1) > 1:
        raise UsageError(
            f"{request.nnodes} nodes",
            where="--nnodes",
            rule="a launcher starts several nodes",
            fix="add --launcher ssh or slurm, see `trainmark list launchers`",
        )
    vendor = _vendor_of(request)
    count = vendor.count()
    nproc = request.nproc or count
    node = node_name(socket.gethostname())
    names = device_names(node, vendor, nproc)
    _ = request.chosen_phases  # refuses unknown ones before anything is made
    folder = folder_of(request)
    with opened_folder(folder, request):
        plans = resolve_plans(request, [(1, nproc), (1, min(2, nproc)), (1, 1)])
        yield Acceptance(
            request=request,
            folder=folder,
            plans=keep_request(folder, request, plans),
            plan=plans[0],
            node=node,
            device_names=names,
        )


def node_name(host: str) -> str:
    """Return the name of a host as it can stand in a list and in a file's name."""
    return re.sub(r"[^\w.-]", "_", host) or "node"


def device_names(node: str, vendor: Vendor, nproc: int) -> tuple[str, ...]:
    """Return the names of the devices of a node."""
    return tuple(f"{node}:{vendor.torch_type}:{index}" for index in range(nproc))


def _vendor_of(request: AcceptRequest) -> Vendor:
    """Return the vendor whose devices are measured."""
    return devices.choose(request.device)


def folder_of(request: AcceptRequest) -> Path:
    """Return the folder of an acceptance, which may not be there yet."""
    if request.out is not None:
        return request.out.resolve()
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return (DEFAULT_DIR / f"{stamp}-{secrets.token_hex(3)}").resolve()


@contextmanager
def opened_folder(folder: Path, request: AcceptRequest) -> Iterator[None]:
    """Hold the lock of a new folder, or of one with an earlier session of the same acceptance."""
    path = folder / REQUEST_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            run_dir.refuse_used(folder)
        with run_dir.lock_folder(folder):
            if path.exists():
                _refuse_other_request(path, request)
            yield
    except BlockingIOError:
        raise EnvironmentFault(
            "another process measures there", where=str(folder), fix="wait for its end"
        ) from None
    except FileExistsError:
        raise EnvironmentFault(
            "not a folder", where=str(folder), fix="choose another --out"
        ) from None


def _refuse_other_request(path: Path, request: AcceptRequest) -> None:
    """Refuse to go on with other work: what was measured could not be compared.

    Raises:
        UsageError: naming the option that differs.
    """
    try:
        before = AcceptRequest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise UsageError(
            f"not the request of an acceptance: {str(error).splitlines()[0]}",
            where=str(path),
            rule="accept goes on only with what it began",
            fix="choose another --out",
        ) from None
    for name in AcceptRequest.model_fields:
        was, now = getattr(before, name), getattr(request, name)
        if name not in _FREE_TO_CHANGE and was != now:
            raise UsageError(
                f"{name} was {was} and is {now}",
                where=str(path.parent),
                rule="a second accept in a folder goes on with the same work",
                fix="repeat the first command, or choose another --out",
            )


def resolve_plans(
    request: AcceptRequest, worlds: Iterable[tuple[int, int]], remote: RemoteTarget | None = None
) -> list[Plan]:
    """Return the training of teams of each number of nodes and devices; writes nothing.

    Args:
        remote: the machines of a launcher; None: this one.
    """
    plans: list[Plan] = []
    for num_nodes, nproc in dict.fromkeys(worlds):
        recipe = plans[0].recipe_name if plans else None
        asked = request.run_request(nnodes=num_nodes, nproc=nproc, recipe=recipe)
        plans.append(resolve(asked, remote=remote))
    return plans


def keep_request(folder: Path, request: AcceptRequest, plans: Iterable[Plan]) -> dict[int, Path]:
    """Write what nothing refused; return the folder of each plan by its number of devices."""
    paths: dict[int, Path] = {}
    for plan in plans:
        place = folder / PLANS_DIR / f"{plan.world_size}-devices"
        place.mkdir(parents=True, exist_ok=True)
        plan.save(place)
        paths[plan.world_size] = place
    with written_whole(folder / REQUEST_FILE) as file:
        file.write(request.model_dump_json(indent=2).encode() + b"\n")
    return paths


def measure(
    acceptance: Acceptance, stop: StopRequest, *, show: Callable[[str], None] = lambda _: None
) -> AcceptanceResult:
    """Measure what is missing, judge, and write the result.

    Args:
        stop: the measurement ends as soon as it holds a signal; what was measured counts.
        show: called with the progress, in words.

    Raises:
        EnvironmentFault: the ranks cannot reach each other.
    """
    count = len(acceptance.device_names)
    with rank_setup(acceptance.plan, count) as setup:
        vendor = devices.all_vendors()[acceptance.plan.device.vendor]
        refuse_unusable_network(setup.variables, vendor, world_size=count, master=LOOPBACK)
        writer = EvidenceWriter(acceptance.folder, acceptance.node)
        write_joined(writer, acceptance, setup)
        session = NodeSession(acceptance, setup, writer, stop, show)
        session.run(acceptance.rounds)
        session.run(_further_rounds(acceptance))
        writer.write(Left, signal=stop.signal_name)
    result, _ = conclude(acceptance, interrupted=stop.signal_name)
    result.write(acceptance.folder)
    return result


@contextmanager
def rank_setup(plan: Plan, count: int) -> Iterator[Setup]:
    """Yield what ranks of this machine are started with; end what is left of them."""
    run_id = f"accept-{secrets.token_hex(6)}"
    setup = prepare_setup(devices.all_vendors()[plan.device.vendor], count, run_id)
    setup.variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic, as CUDA asks for
    try:
        yield setup
    finally:
        processes.kill_run(run_id)


def write_joined(
    writer: EvidenceWriter,
    acceptance: Acceptance,
    setup: Setup,
    *,
    rank: int = 0,
    address: str = "",
) -> None:
    """Write what this node is, as the first event of its session."""
    products = devices.all_vendors()[acceptance.plan.device.vendor].product_names()
    count = len(acceptance.device_names)
    writer.write(
        Joined,
        node=acceptance.node,
        devices=list(acceptance.device_names),
        products=[products[min(index, len(products) - 1)] for index in range(count)],
        software=setup.described["packages"] | {"driver": setup.described["driver"]},
        rank=rank,
        address=address,
    )


def _further_rounds(acceptance: Acceptance) -> list[Round]:
    """Return rounds that confirm what looks bad in pairs."""
    if "pairs" not in acceptance.request.chosen_phases:
        return []
    _, again = conclude(acceptance, interrupted=None)
    number = {name: index for index, name in enumerate(acceptance.device_names)}
    pairs = [(number[first], number[second]) for first, second in again]
    evidence = Evidence.read(acceptance.folder)
    used = [pair for phase, pair, _ in evidence.results if phase == "pairs"]
    start = max([*used, len(acceptance.rounds)]) + 1
    return [
        Round(phase="pairs", number=start + offset, teams=list(teams))
        for offset, teams in enumerate(disjoint_rounds(pairs))
    ]


@dataclass(frozen=True, slots=True)
class NodeSession:
    """One process that measures rounds on this machine."""

    acceptance: Acceptance
    setup: Setup
    writer: EvidenceWriter
    stop: StopSource
    show: Callable[[str], None]

    def run(self, rounds: Sequence[Round]) -> None:
        """Measure what of ``rounds`` was not measured in this or an earlier session."""
        todo = self._missing(rounds)
        started_s = time.monotonic()
        for done, current_round in enumerate(todo):
            if self.stop.signal_name is not None:
                return
            left_s = self.acceptance.expected_s(todo[done:])
            if done:
                left_s = (time.monotonic() - started_s) / done * (len(todo) - done)
            of_phase = [other for other in rounds if other.phase == current_round.phase]
            place = (
                of_phase.index(next(x for x in of_phase if x.number == current_round.number)) + 1
            )
            self.show(
                f"{current_round.phase}: round {place} of {len(of_phase)}, "
                f"about {left_s / 60:.0f} min left"
            )
            self._measure(current_round)

    def _missing(self, rounds: Sequence[Round]) -> list[Round]:
        done = Evidence.read(self.acceptance.folder).results.keys()
        todo = []
        for planned_round in rounds:
            teams = [
                team
                for team in planned_round.teams
                if (
                    planned_round.phase,
                    planned_round.number,
                    self.acceptance.members(planned_round.phase, team),
                )
                not in done
            ]
            if teams:
                todo.append(
                    Round(phase=planned_round.phase, number=planned_round.number, teams=teams)
                )
        return todo

    def _measure(self, current_round: Round) -> None:
        teams = [
            self._team(current_round, devices_of_team) for devices_of_team in current_round.teams
        ]
        self.measure(teams, current_round.phase, current_round.number)

    def measure(self, teams: Sequence[Team], phase: Phase, number: int) -> None:
        """Measure teams of a round at the same time, and write how it ended for each."""
        folder = self.acceptance.folder / LOGS_DIR
        folder.mkdir(exist_ok=True)
        with (folder / f"{self.acceptance.node}.txt").open("ab") as log:
            outcomes = measure_teams(
                teams,
                self.setup,
                log=log,
                deadline_s=self.acceptance.request.deadline,
                is_stopped=lambda: self.stop.signal_name is not None,
            )
        for outcome in outcomes:
            common = {"phase": phase, "round": number, "members": outcome.team.members}
            if outcome.reason is None:
                self.writer.write(Measured, **common, results=outcome.results)
            else:
                self.writer.write(NotMeasured, **common, reason=outcome.reason, error=outcome.error)

    def _team(self, current_round: Round, team: tuple[int, ...]) -> Team:
        is_control = current_round.phase == "devices" and current_round.number == 0
        task = RankTask(
            plan_dir=str(self.acceptance.plans[len(team)]),
            devices=list(team),
            ranks_here=len(self.acceptance.device_names),
            control_steps=CONTROL_STEPS if is_control else 0,
            windows=WINDOWS,
            budget_s=self.acceptance.request.seconds,
            measures_device=current_round.phase == "devices",
        )
        return Team(members=self.acceptance.members(current_round.phase, team), task=task)


def conclude(
    acceptance: Acceptance, *, interrupted: str | None
) -> tuple[AcceptanceResult, list[tuple[str, str]]]:
    """Judge what was measured so far.

    Returns:
        The result, and the pairs that are to be measured again, each as often as that.
    """
    evidence = Evidence.read(acceptance.folder)
    joined = evidence.nodes[acceptance.node]
    products = dict(zip(joined.devices, joined.products, strict=True))
    for results in evidence.results.values():
        for of_rank in results:  # ranks name their device better than planning can
            products[acceptance.device_names[of_rank.device]] = of_rank.product
    by_product = defaultdict(list)
    for name, product in products.items():
        by_product[product].append(name)
    groups = list(by_product.values())
    assessment = Assessment(products=products)
    again = judge_times(
        assessment,
        collect_times(evidence, "devices"),
        groups,
        worse_by=acceptance.request.worse_by,
        rates_worse_by=acceptance.request.rates_worse_by,
    )
    owner = {name: name for name in products}
    judge_bits(assessment, evidence, owner, [set(names) for names in groups])
    not_measured = note_bad_rounds(assessment, evidence, owner)
    result = AcceptanceResult(
        suite_version=__version__,
        unit="device",
        case=acceptance.plan.case,
        recipe=acceptance.plan.recipe_name,
        phases=acceptance.request.chosen_phases,
        members=assessment.members(),
        links=assessment.links,
        bits=assessment.bits,
        quantities=assessment.quantities,
        not_measured=tuple(not_measured),
        interrupted=interrupted,
    )
    return result, again
