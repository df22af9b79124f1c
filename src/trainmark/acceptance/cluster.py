"""Run an acceptance on several nodes: one job of an engine, with an agent on every node.

The folder must be on a file system that all nodes see: the nodes meet in it.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.acceptance.baseline import save_baselines
from trainmark.acceptance.conclusion import conclude_nodes
from trainmark.acceptance.folder import (
    folder_of,
    opened_folder,
    resolve_plans,
    save_request,
)
from trainmark.acceptance.groups import MIN_NODES
from trainmark.acceptance.peers import Session
from trainmark.acceptance.session import (
    SESSIONS_DIR,
    AcceptancePlan,
    OpenedSession,
    max_further_group_rounds,
    num_rounds,
    opened_session,
)
from trainmark.acceptance.timetable import expected_round_s, minutes
from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError, UsageError
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import read_cluster
from trainmark.launch.launchers import EngineJob, JobState
from trainmark.launch.submission import CLUSTER_FILE, require_launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trainmark.acceptance.baseline import BaselineReader
    from trainmark.acceptance.evidence import Phase
    from trainmark.acceptance.peers import Peer
    from trainmark.acceptance.request import AcceptRequest
    from trainmark.acceptance.result import AcceptanceResult
    from trainmark.launch.launchers import Launcher
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.choosing import RemoteTarget
    from trainmark.plan.plan import Plan

_POLL_S = 1.0
_CANCEL_AGAIN_S, _CANCEL_PATIENCE_S = 30.0, 120.0


@contextmanager
def prepared_session(
    request: AcceptRequest, *, read_baselines: BaselineReader | None = None
) -> Iterator[OpenedSession]:
    """Check everything, make the folder of a new session, and hold the folder's lock.

    Args:
        read_baselines: returns the baseline that was asked for, given the plans.

    Raises:
        UsageError: options that do not fit, fewer than two nodes, hosts without a shared folder.
        EnvironmentFault: the launcher cannot be used here, or a host does not answer.
    """
    opened, plans = plan_session(request)
    baselines = None if read_baselines is None else read_baselines(plans)
    with opened_folder(opened.folder, request):
        number = len(list((opened.folder / SESSIONS_DIR).glob("*"))) + 1
        opened = _numbered(opened, number)
        require_launcher(opened.cluster, opened.plan.launcher).check(opened.plan, opened.cluster)
        save_baselines(opened.folder, baselines)
        save_request(opened.folder, opened.request, plans)
        opened.session_dir.mkdir(parents=True)
        command = launchers.load_launcher(opened.plan.launcher).command(opened.plan, opened.cluster)
        settings = opened.cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n"
        for name, text in {**command.files, CLUSTER_FILE: settings}.items():
            (opened.session_dir / name).write_text(text, encoding="utf-8")
        opened.plan.save(opened.session_dir)
        yield opened


def plan_session(
    request: AcceptRequest, *, dry_run: bool = False
) -> tuple[OpenedSession, list[Plan]]:
    """Check the options and return the first session, with the plans to save; write nothing.

    Args:
        dry_run: it is only shown; see ``resolve``.

    Raises:
        UsageError, DataError, EnvironmentFault: see ``prepared_session``.
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
    remote = cluster.find_remote_target(request.launcher)
    plans = resolve_plans(request, [(1, nproc), (2, nproc), (1, 1)], remote, dry_run=dry_run)
    request, remark = _leave_out_groups(request, num_nodes, nproc, remote, dry_run=dry_run)
    folder = folder_of(request)
    opened = OpenedSession(
        folder=folder,
        number=1,
        request=request,
        plan=_session_plan(request, plans[0], folder, num_nodes),
        cluster=cluster,
        remark=remark,
    )
    return opened, plans


def _leave_out_groups(
    request: AcceptRequest,
    num_nodes: int,
    nproc: int,
    remote: RemoteTarget | None,
    *,
    dry_run: bool,
) -> tuple[AcceptRequest, str]:
    """Leave out the phase of groups if the recipe cannot train on all nodes together.

    Returns:
        The request, and why the phase is left out; empty if it is not.

    Raises:
        TrainmarkError: it cannot, and the phase was asked for by name.
    """
    phases = request.chosen_phases
    if "groups" not in phases or num_nodes < MIN_NODES:
        return request, ""
    try:
        resolve_plans(request, [(num_nodes, nproc)], remote, dry_run=dry_run)
    except TrainmarkError as error:
        if request.phases is not None:
            raise
        kept = ",".join(phase for phase in phases if phase != "groups")
        return request.model_copy(update={"phases": kept}), f"groups: left out: {error.what}"
    return request, ""


def _numbered(opened: OpenedSession, number: int) -> OpenedSession:
    """Return a session of another number."""
    session_dir = opened.folder / SESSIONS_DIR / str(number)
    plan = opened.plan.model_copy(update={"run_dir": str(session_dir)})
    return replace(opened, number=number, plan=plan)


def _session_plan(
    request: AcceptRequest, node_plan: Plan, folder: Path, num_nodes: int
) -> AcceptancePlan:
    """Return the plan of the first session from that of one node."""
    rounds = sum(num_rounds(request, num_nodes).values())
    if "groups" in request.chosen_phases:
        rounds += max_further_group_rounds(request, num_nodes)
    # A round that meets a node that hangs waits twice for it.
    limit_s = request.join + 2 * request.deadline * (2 + rounds)
    changed = {
        "nnodes": num_nodes,
        "run_dir": str(folder / SESSIONS_DIR / "1"),
        "recipe": node_plan.recipe | {"timeout_s": limit_s},
    }
    return AcceptancePlan(**node_plan.model_dump() | changed)


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
    result = conclude_nodes(opened, opened.request, interrupted=stop.signal_name).result
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
    counts = num_rounds(opened.request, opened.plan.nnodes)
    progress = _SessionProgress(counts, expected_round_s(opened.request.seconds))
    limit_s = time.monotonic() + float(opened.plan.recipe["timeout_s"])
    cancel_s = give_up_s = math.inf
    while time.monotonic() < give_up_s:
        state = _state_of(launcher, job)
        if state.phase in ("ended", "lost"):
            if state.phase == "lost":
                show(state.said)
            return
        session.scan()
        alive = [peer for peer in session.peers.values() if peer.is_alive]
        nodes_line = progress.describe_nodes(state.said, len(session.peers), len(alive))
        for line in (nodes_line, progress.describe_phase(alive)):
            if line is not None:
                show(line)
        is_over = bool(session.peers) and not alive
        now_s = time.monotonic()
        if give_up_s == math.inf and (stop.signal_name or is_over or now_s > limit_s):
            cancel_s, give_up_s = now_s, now_s + _CANCEL_PATIENCE_S
        if now_s >= cancel_s:
            cancel_s, job.cancels = now_s + _CANCEL_AGAIN_S, job.cancels + 1
            with suppress(EnvironmentFault):  # the state shows that it is still there
                launcher.cancel(job)
        time.sleep(_POLL_S)


class _SessionProgress:
    """What to show of a session, whenever it changes.

    Args:
        counts: rounds of each phase, in their order.
        round_s: about how long a round takes.
    """

    def __init__(self, counts: dict[Phase, int], round_s: float) -> None:
        self._counts, self._round_s = counts, round_s
        self._shown = ""
        self._phase: Phase | None = None
        self._ended = 0

    def describe_nodes(self, state: str, num_joined: int, num_alive: int) -> str | None:
        """Return the state of the job and its nodes; None if it is as before."""
        text = f"{state}; {num_joined} nodes joined, {num_alive} still measure"
        if text == self._shown:
            return None
        self._shown = text
        return text

    def describe_phase(self, alive: Sequence[Peer]) -> str | None:
        """Return how far the phase is that the first nodes are in; None if that is as before."""
        phase, ended = self._find_phase(alive)
        if phase is None or (phase, ended) == (self._phase, self._ended):
            return None
        self._phase, self._ended = phase, ended
        count = self._counts[phase]
        if ended > count:
            return f"{phase}: {ended} rounds ended; what looked bad is measured again"
        left = minutes((count - ended) * self._round_s)
        return f"{phase}: {ended} of {count} rounds ended, about {left} left"

    def _find_phase(self, alive: Sequence[Peer]) -> tuple[Phase | None, int]:
        for phase in reversed(self._counts):
            ended = max((peer.ended_rounds[phase] for peer in alive), default=0)
            if ended:
                return phase, ended
        return None, 0


def _state_of(launcher: Launcher, job: EngineJob) -> JobState:
    try:
        return launcher.state(job)
    except EnvironmentFault as fault:
        return JobState(phase="running", said=fault.what)
