"""Run an acceptance on several nodes: one job of an engine, with an agent on every node.

The folder must be on a file system that all nodes see: the nodes meet in it.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from trainmark import __version__
from trainmark.acceptance.acceptance import (
    PLANS_DIR,
    REQUEST_FILE,
    folder_of,
    keep_request,
    opened_folder,
    resolve_plans,
)
from trainmark.acceptance.evidence import Evidence
from trainmark.acceptance.peers import Session
from trainmark.acceptance.request import AcceptRequest
from trainmark.acceptance.result import AcceptanceResult, Finding
from trainmark.acceptance.schedule import default_num_rounds
from trainmark.acceptance.verdicts import (
    Assessment,
    collect_times,
    judge_bits,
    judge_times,
    note_bad_rounds,
)
from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import Cluster, read_cluster
from trainmark.launch.launchers import EngineJob, JobState, ssh
from trainmark.launch.submission import CLUSTER_FILE, require_launcher
from trainmark.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trainmark.acceptance.evidence import Joined
    from trainmark.launch.launchers import Launcher
    from trainmark.launch.processes import StopRequest

SESSIONS_DIR = "sessions"
PAIRS_FILE, FURTHER_FILE = "pairs.json", "further.json"  # rounds that the first node chose
_START_S = 20.0  # of the ranks of a round
_POLL_S = 1.0
_CANCEL_AGAIN_S, _CANCEL_PATIENCE_S = 30.0, 120.0


class AcceptancePlan(Plan):
    """The plan of a session: what launchers start, with an agent in place of a run's node."""

    node_module: ClassVar[str] = "trainmark.acceptance.agent"
    ends_with_a_node: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A session as its folder tells.

    Args:
        folder: of the acceptance.
        number: of the session, which is the name of its folder.
        plans: folder of the plan of teams by their number of devices.
        is_submitted: whether its job was started by an earlier command.
    """

    folder: Path
    number: int
    request: AcceptRequest
    plan: AcceptancePlan
    plans: dict[int, Path]
    cluster: Cluster
    is_submitted: bool = False

    @property
    def session_dir(self) -> Path:
        """Return the folder of the session."""
        return self.folder / SESSIONS_DIR / str(self.number)

    def announcement(self) -> list[str]:
        """Return what will be measured, and about how long each phase takes, in words."""
        nodes = self.plan.nnodes
        lines = [f"{nodes} nodes with {self.plan.nproc} devices each, folder {self.folder}"]
        total_s = 0.0
        for phase, count in num_rounds(self.request, nodes).items():
            seconds = count * (_START_S + self.request.seconds)
            total_s += seconds
            lines.append(f"{phase}: {count} rounds, about {seconds / 60:.1f} min")
        limit_min = float(self.plan.recipe["timeout_s"]) / 60
        lines.append(f"in all about {total_s / 60:.0f} min, and at most {limit_min:.0f} min")
        return lines


def num_rounds(request: AcceptRequest, num_nodes: int) -> dict[str, int]:
    """Return the number of rounds of each chosen phase."""
    counts = {
        "devices": request.repeats,
        "nodes": request.repeats,
        "pairs": request.rounds or default_num_rounds(num_nodes),
    }
    return {phase: counts[phase] for phase in request.chosen_phases}


@contextmanager
def prepared_session(request: AcceptRequest) -> Iterator[OpenedSession]:
    """Check everything, make the folder of a new session, and hold the folder's lock.

    Raises:
        UsageError: options that do not fit, fewer than two nodes, hosts without a shared folder.
        EnvironmentFault: the launcher cannot be used here, or a host does not answer.
    """
    cluster = read_cluster(request.cluster)
    num_nodes = request.nnodes or cluster.nodes or len(cluster.ssh.hosts)
    nproc = request.nproc or cluster.devices_per_node
    if num_nodes < 2:
        raise UsageError(
            f"{num_nodes} nodes",
            where="--nnodes",
            rule="several nodes are compared",
            fix="name their number; without --launcher, this machine's devices are compared",
        )
    if nproc is None:
        raise UsageError(
            "the number of devices of a node is not known",
            where="--nproc",
            fix="add --nproc, or devices_per_node to the cluster file",
        )
    if cluster.ssh.run_root is not None:
        raise UsageError(
            "ssh.run_root keeps the files of each host apart",
            where="cluster file",
            rule="the nodes of an acceptance meet in a folder that all see",
            fix="remove run_root, and name a shared folder with --out",
        )
    folder = folder_of(request)
    with opened_folder(folder, request):
        number = len(list((folder / SESSIONS_DIR).glob("*"))) + 1
        session_dir = folder / SESSIONS_DIR / str(number)
        worlds = [(1, nproc), (2, nproc), (1, 1)]
        plans = resolve_plans(request, worlds, cluster.find_remote_target(request.launcher))
        plan = _session_plan(request, plans[0], session_dir, num_nodes)
        require_launcher(cluster, plan.launcher).check(plan, cluster)
        keep_request(folder, request, plans)
        session_dir.mkdir(parents=True)
        command = launchers.load_launcher(plan.launcher).command(plan, cluster)
        settings = cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n"
        for name, text in {**command.files, CLUSTER_FILE: settings}.items():
            (session_dir / name).write_text(text, encoding="utf-8")
        plan.save(session_dir)
        yield opened_session(session_dir)


def _session_plan(
    request: AcceptRequest, node_plan: Plan, session_dir: Path, num_nodes: int
) -> AcceptancePlan:
    """Return the plan of a session from that of one node."""
    rounds = num_rounds(request, num_nodes)
    # A round that meets a node that hangs waits twice for it.
    limit_s = request.join + 2 * request.deadline * (2 + sum(rounds.values()))
    changed = {
        "nnodes": num_nodes,
        "run_dir": str(session_dir),
        "recipe": node_plan.recipe | {"timeout_s": limit_s},
    }
    return AcceptancePlan(**node_plan.model_dump() | changed)


def opened_session(session_dir: Path) -> OpenedSession:
    """Return a session whose folder is ready."""
    folder = session_dir.parent.parent
    plan = AcceptancePlan.model_validate_json((session_dir / "plan.json").read_bytes())
    plans = {int(path.name.partition("-")[0]): path for path in (folder / PLANS_DIR).iterdir()}
    return OpenedSession(
        folder=folder,
        number=int(session_dir.name),
        plan=plan,
        plans=plans,
        request=AcceptRequest.model_validate_json((folder / REQUEST_FILE).read_bytes()),
        cluster=Cluster.model_validate_json((session_dir / CLUSTER_FILE).read_bytes()),
    )


@contextmanager
def attached_session(folder: Path) -> Iterator[OpenedSession]:
    """Return the last session of a folder, whose job may still run, and hold the folder's lock.

    Raises:
        RecordError: there is no session of several nodes.
        EnvironmentFault: another command waits for it.
    """
    folder = folder.absolute()
    numbers = [int(path.name) for path in (folder / SESSIONS_DIR).glob("*")]
    if not numbers:
        raise RecordError(
            "no acceptance of several nodes",
            where=str(folder),
            rule="a launcher's sessions are in its folder `sessions`",
            fix="name the --out of the first command",
        )
    try:
        with run_dir.lock_folder(folder):
            opened = opened_session(folder / SESSIONS_DIR / str(max(numbers)))
            yield replace(opened, is_submitted=True)
    except BlockingIOError:
        raise EnvironmentFault(
            "another process waits for it", where=str(folder), fix="wait for its end"
        ) from None


def host_of(opened: OpenedSession, rank: int) -> str | None:
    """Return the name of a node in the cluster's file; None where the engine names it."""
    if opened.plan.launcher != "ssh":
        return None
    return list(ssh.select_hosts(opened.cluster, nnodes=opened.plan.nnodes))[rank]


def measure_nodes(
    opened: OpenedSession, stop: StopRequest, *, show: Callable[[str], None]
) -> AcceptanceResult:
    """Start the session's job unless it was, wait for its end, judge, and write the result.

    Raises:
        EnvironmentFault: the engine refused the job.
    """
    plan, cluster = opened.plan, opened.cluster
    launcher = require_launcher(cluster, plan.launcher)
    if opened.is_submitted:
        job = EngineJob(plan, cluster)
    else:
        job = launchers.start_job(launcher.command(plan, cluster), plan, cluster)
    wait_for_nodes(opened, launcher, job, stop, show=show)
    result, _ = conclude_nodes(opened, opened.request, interrupted=stop.signal_name)
    result.write(opened.folder)
    return result


def wait_for_nodes(
    opened: OpenedSession,
    launcher: Launcher,
    job: EngineJob,
    stop: StopRequest,
    *,
    show: Callable[[str], None],
) -> None:
    """Wait until the job ended; cancel it when a signal comes or only lost nodes are left."""
    session = Session(opened.folder, opened.number)
    limit_s = time.monotonic() + float(opened.plan.recipe["timeout_s"])
    cancel_s = give_up_s = math.inf
    announced = ""
    while time.monotonic() < give_up_s:
        state = _state_of(launcher, job)
        if state.phase in ("ended", "lost"):
            if state.phase == "lost":
                show(state.said)
            return
        session.look()
        alive = [peer for peer in session.peers.values() if peer.is_alive]
        progress = f"{state.said}; {len(session.peers)} nodes joined, {len(alive)} still measure"
        if progress != announced:
            show(progress)
            announced = progress
        is_over = bool(session.peers) and not alive
        now_s = time.monotonic()
        if give_up_s == math.inf and (stop.signal_name or is_over or now_s > limit_s):
            cancel_s, give_up_s = now_s, now_s + _CANCEL_PATIENCE_S
        if now_s >= cancel_s:
            cancel_s, job.cancels = now_s + _CANCEL_AGAIN_S, job.cancels + 1
            with suppress(EnvironmentFault):  # the state shows that it is still there
                launcher.cancel(job)
        time.sleep(_POLL_S)


def _state_of(launcher: Launcher, job: EngineJob) -> JobState:
    try:
        return launcher.state(job)
    except EnvironmentFault as fault:
        return JobState(phase="running", said=fault.what)


def conclude_nodes(
    opened: OpenedSession, request: AcceptRequest, *, interrupted: str | None
) -> tuple[AcceptanceResult, list[tuple[str, str]]]:
    """Judge what was measured so far.

    Returns:
        The result, and the pairs of nodes that are to be measured again, each as often as that.
    """
    evidence = Evidence.read(opened.folder)
    nodes = sorted(evidence.nodes.values(), key=lambda joined: joined.node)
    assessment = Assessment(
        products={node_facts.node: node_facts.products[0] for node_facts in nodes}
    )
    owner = {device: node_facts.node for node_facts in nodes for device in node_facts.devices}
    owner |= {node_facts.node: node_facts.node for node_facts in nodes}
    groups = _comparable(nodes)
    limits = {"worse_by": request.worse_by, "rates_worse_by": request.rates_worse_by}
    again = judge_times(
        assessment,
        collect_times(evidence, "nodes"),
        [[node_facts.node for node_facts in group] for group in groups],
        **limits,
    )
    of_devices = [
        [device for node_facts in group for device in node_facts.devices] for group in groups
    ]
    _judge_devices(assessment, evidence, owner, of_devices, limits)
    judge_bits(assessment, evidence, owner, [set(devices) for devices in of_devices])
    not_measured = note_bad_rounds(assessment, evidence, owner)
    _note_absent(assessment, evidence, opened)
    result = AcceptanceResult(
        suite_version=__version__,
        unit="node",
        case=opened.plan.case,
        recipe=opened.plan.recipe_name,
        phases=request.chosen_phases,
        members=assessment.members(),
        links=assessment.links,
        bits=assessment.bits,
        quantities=assessment.quantities,
        not_measured=tuple(not_measured),
        interrupted=interrupted,
    )
    return result, again


def _comparable(nodes: list[Joined]) -> list[list[Joined]]:
    """Return the nodes in groups of the same products and software."""
    groups: dict[str, list[Joined]] = defaultdict(list)
    for node_facts in nodes:
        groups[json.dumps([node_facts.products, node_facts.software], sort_keys=True)].append(
            node_facts
        )
    return list(groups.values())


def _judge_devices(
    assessment: Assessment,
    evidence: Evidence,
    owner: dict[str, str],
    groups: list[list[str]],
    limits: dict[str, float],
) -> None:
    """Judge all devices beside each other, and blame their nodes."""
    products = {device: assessment.products[owner[device]] for group in groups for device in group}
    devices = Assessment(products=products)
    judge_times(devices, collect_times(evidence, "devices"), groups, **limits)
    for device, findings in devices.findings.items():
        for finding in findings:
            named = finding.model_copy(update={"text": device})
            assessment.findings[owner[device]].append(named)


def _note_absent(assessment: Assessment, evidence: Evidence, opened: OpenedSession) -> None:
    """Blame nodes that never joined, and those that did not come to a round."""
    absent = {one.absent: one for one in evidence.failures.values() if one.absent is not None}
    for name, failure in absent.items():
        if name in assessment.products:
            assessment.findings[name].append(Finding(code="no_answer", text=failure.error))
    joined = {one.rank for one in evidence.nodes.values()}
    for rank in sorted(set(range(opened.plan.nnodes)) - joined):
        name = host_of(opened, rank) or f"node {rank}"
        assessment.products.setdefault(name, "")
        assessment.findings[name].append(Finding(code="no_answer", text="it never started"))
