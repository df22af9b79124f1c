"""Run an acceptance on several nodes: one job of an engine, with an agent on every node.

The folder must be on a file system that all nodes see: through it they wait for each other.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.acceptance.baseline import save_baselines
from trainmark.acceptance.conclusion import conclude_nodes
from trainmark.acceptance.folder import (
    choose_folder,
    open_folder,
    resolve_plans,
    save_request,
)
from trainmark.acceptance.groups import MIN_NODES
from trainmark.acceptance.peers import Session
from trainmark.acceptance.session import (
    SESSIONS_DIR,
    OpenedSession,
    count_rounds,
    read_session,
)
from trainmark.acceptance.timetable import estimate_round_s, format_time
from trainmark.errors import EnvironmentFault, RecordError, TrainmarkError, UsageError
from trainmark.launch import launchers, run_dir
from trainmark.launch.cluster import read_cluster
from trainmark.launch.job_watch import JobWatch
from trainmark.launch.launchers import EngineJob
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


@contextmanager
def prepare_session(
    request: AcceptRequest, *, read_baselines: BaselineReader | None = None
) -> Iterator[OpenedSession]:
    """Check everything, make the folder of a new session, and yield the session.

    A session is one joint measurement by all nodes. An acceptance has one folder, and each of its
    sessions a folder in it, with the session's plan and the settings of the cluster.

    The lock of the acceptance's folder is held until the end of the block.

    Args:
        read_baselines: returns the earlier times with which nodes are to be compared. It gets the
            plans of this acceptance, and refuses times of another case or recipe. None: nodes are
            compared with their peers.

    Raises:
        UsageError: options that do not fit, fewer than two nodes, hosts without a shared folder.
        EnvironmentFault: the launcher cannot be used here, or a host does not answer.
        DataError: the data cannot be trained on.
    """
    # ``plans``: of the training on each size of team. The session is planned as if it were the
    # first one of the folder.
    opened, plans = plan_session(request)
    baselines = None if read_baselines is None else read_baselines(plans)
    with open_folder(opened.folder, request):
        number = max(_list_session_numbers(opened.folder), default=0) + 1
        opened = _renumber_session(opened, number)
        spec = opened.describe_job()
        launcher = require_launcher(opened.cluster, spec.launcher)
        launcher.check(spec, opened.cluster)
        save_baselines(opened.folder, baselines)
        save_request(opened.folder, opened.request, plans)
        opened.session_dir.mkdir(parents=True)
        command = launcher.build_command(spec, opened.cluster)
        settings = opened.cluster.model_dump_json(indent=2, exclude_defaults=True) + "\n"
        # `read_session` reads the cluster's settings again. The files of the command, such as a
        # batch script, are read by what starts the nodes, such as Slurm.
        for name, text in {**command.files, CLUSTER_FILE: settings}.items():
            (opened.session_dir / name).write_text(text, encoding="utf-8")
        opened.plan.save(opened.session_dir)
        yield opened


def plan_session(
    request: AcceptRequest, *, dry_run: bool = False
) -> tuple[OpenedSession, list[Plan]]:
    """Check the options and return the first session, with the plans to save; write nothing.

    Args:
        dry_run: the caller only shows the session. Data that this machine cannot see is then not
            checked.

    Returns:
        The session, as if it were the first one of its folder, and the plan of a training for each
        size of a team, which is the devices that train together: all devices of a node, two nodes,
        one device.

    Raises:
        UsageError: options that do not fit, fewer than two nodes, hosts without a shared folder.
        DataError, EnvironmentFault: the case cannot be trained with these options.
    """
    cluster = read_cluster(request.cluster)
    num_nodes = request.nnodes or cluster.nodes or len(cluster.ssh.hosts)
    nproc = request.nproc or cluster.devices_per_node
    if num_nodes < 2:
        raise UsageError(
            f"the number of nodes is {num_nodes}",
            where="--nnodes",
            rule="an acceptance test with a launcher needs at least 2 nodes",
            fix="set --nnodes to at least 2, or remove --launcher to test only this machine",
        )
    if nproc is None:
        raise UsageError(
            "the number of devices per node is unknown",
            where="--nproc",
            fix="add --nproc, or set devices_per_node in the cluster file",
        )
    if cluster.ssh.run_root is not None:
        raise UsageError(
            "ssh.run_root gives each host a separate folder",
            where="cluster file",
            rule="all nodes of an acceptance test must share one folder",
            fix="remove run_root, and set --out to a folder that all nodes share",
        )
    remote = cluster.find_remote_target(request.launcher)
    # Nodes of a team, and devices of each: one node, a pair of nodes, and a single device.
    worlds = [(1, nproc), (2, nproc), (1, 1)]
    plans = resolve_plans(request, worlds, remote, dry_run=dry_run)
    # The remark says why the phase of groups is left out; it is empty if it stays.
    request, remark = _leave_out_groups(request, num_nodes, nproc, remote, dry_run=dry_run)
    folder = choose_folder(request)
    # The plan of a training on one node, with the number of nodes and the folder of the session.
    changes = {"nnodes": num_nodes, "run_dir": str(folder / SESSIONS_DIR / "1")}
    opened = OpenedSession(
        folder=folder,
        number=1,
        request=request,
        plan=plans[0].model_copy(update=changes),
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

    This phase trains on all nodes together first, and on groups of them if that is slow.

    Args:
        nproc: devices of each node.
        remote: the machines of the launcher; None: this one.
        dry_run: data that this machine cannot see is not checked.

    Returns:
        The request, and a remark on why the phase is left out; empty if it stays.

    Raises:
        TrainmarkError: the recipe cannot train on all nodes, and the user named the phase.
    """
    phases = request.chosen_phases
    # With fewer nodes than `MIN_NODES` the phase stays in the request, but has no rounds.
    if "groups" not in phases or num_nodes < MIN_NODES:
        return request, ""
    try:
        resolve_plans(request, [(num_nodes, nproc)], remote, dry_run=dry_run)
    except TrainmarkError as error:
        if request.phases is not None:  # the user asked for groups by name
            raise
        other_phases = ",".join(phase for phase in phases if phase != "groups")
        remark = f"groups: skipped: {error.what}"
        return request.model_copy(update={"phases": other_phases}), remark
    return request, ""


def _renumber_session(opened: OpenedSession, number: int) -> OpenedSession:
    """Return the session with another number, and the folder of this number."""
    session_dir = opened.folder / SESSIONS_DIR / str(number)
    plan = opened.plan.model_copy(update={"run_dir": str(session_dir)})
    return replace(opened, number=number, plan=plan)


@contextmanager
def attach_session(folder: Path) -> Iterator[OpenedSession]:
    """Yield the last session of a folder, whose job may still run.

    The lock of the folder is held until the end of the block.

    Args:
        folder: of an acceptance of several nodes.

    Raises:
        RecordError: the folder has no session of several nodes.
        EnvironmentFault: another command is already waiting for the end of the session.
    """
    folder = folder.absolute()
    numbers = _list_session_numbers(folder)
    if not numbers:
        raise RecordError(
            "this folder contains no acceptance test of several nodes",
            where=str(folder),
            rule="the folder of an acceptance test with a launcher must contain a `sessions` "
            "folder",
            fix="pass the --out folder of the command that submitted the test",
        )
    # The stack lets the handler below cover the locking alone, and not the block of the caller.
    with ExitStack() as stack:
        try:
            stack.enter_context(run_dir.lock_folder(folder))
        except BlockingIOError:
            raise EnvironmentFault(
                "another process is already waiting for this acceptance test",
                where=str(folder),
                fix="wait until the other process ends",
            ) from None
        opened = read_session(folder / SESSIONS_DIR / str(max(numbers)))
        yield replace(opened, is_submitted=True)  # so that no second job is started


def _list_session_numbers(folder: Path) -> list[int]:
    """Return the numbers of the sessions of an acceptance, each of which is the name of a folder.

    Other files there, such as those that file systems and file managers leave, do not count.
    """
    paths = (folder / SESSIONS_DIR).glob("*")
    return [int(path.name) for path in paths if re.fullmatch("[0-9]+", path.name)]


def measure_nodes(
    opened: OpenedSession, stop: StopRequest, *, show: Callable[[str], None]
) -> AcceptanceResult:
    """Start the session's job if it was not submitted before; wait for its end; write the result.

    Args:
        opened: the session as its folder describes it.
        stop: holds the signal that asks to stop, once one came; the job is then cancelled.
        show: called with the progress, in words.

    Raises:
        EnvironmentFault: the engine, which runs the job, such as Slurm, refused it.
    """
    spec = opened.describe_job()
    cluster = opened.cluster
    # It makes the command that hands the job to the engine, and asks the engine for its state.
    launcher = require_launcher(cluster, spec.launcher)
    if opened.is_submitted:
        job = EngineJob(spec, cluster)  # its id is in a file of the session's folder
    else:
        job = launchers.start_job(launcher.build_command(spec, cluster), spec, cluster)
    wait_for_nodes(opened, launcher, job, stop, show=show)
    result = conclude_nodes(opened, interrupted=stop.signal_name).result
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
    """Wait until the job ended.

    It is cancelled when a signal comes, when its time is over (that in the queue of the engine does
    not count), when the engine has not answered for as long, or when no node is alive any more.
    If the engine does not end a cancelled job, this gives up after a while.

    Args:
        opened: the session of the job.
        launcher: that of the engine which runs the job.
        job: the session's job.
        stop: holds the signal, once one came.
        show: called with the progress, in words.
    """
    session = Session(opened.folder, opened.number)  # reads what the nodes write while they measure
    counts = count_rounds(opened.request, opened.plan.nnodes)  # planned rounds by phase
    progress = _SessionProgress(counts, estimate_round_s(opened.request.seconds))
    watch = JobWatch(launcher, job)
    for state in watch.iterate_states():
        # Lost: the engine refused the job or took its nodes away, as the description says.
        if state.phase == "lost":
            show(state.description)
        if state.phase in ("ended", "lost"):
            return
        session.scan()
        # `peers` are the nodes that have joined. Those that ended or fell silent are not alive.
        alive = [peer for peer in session.peers.values() if peer.is_alive]
        nodes_line = progress.describe_nodes(state.description, len(session.peers), len(alive))
        for line in (nodes_line, progress.describe_phase(alive)):
            if line is not None:
                show(line)
        # Before the first node has joined, the job may still wait in the engine's queue. An old
        # state is no reason to cancel: the job may have ended with its nodes since.
        are_all_gone = bool(session.peers) and not alive and watch.is_state_new
        # Without the second, the wait for an engine that never answers would have no end.
        is_late = max(watch.running_s, watch.silent_s) > opened.limit_s
        if stop.signal_name or are_all_gone or is_late:
            watch.cancel()


class _SessionProgress:
    """What to show of a session, one joint measurement by all nodes, whenever it changes.

    Args:
        counts: rounds of each phase, in their order.
        round_s: about how long a round takes.
    """

    def __init__(self, counts: dict[Phase, int], round_s: float) -> None:
        self._counts = counts  # planned rounds of each phase, in the order of the phases
        self._round_s = round_s  # about how long a round takes
        # What was shown last: the line about nodes; the phase with the number of its ended rounds.
        self._shown_nodes = ""
        self._shown_phase: tuple[Phase | None, int] = (None, 0)

    def describe_nodes(self, state: str, num_joined: int, num_alive: int) -> str | None:
        """Return a line about the job and its nodes; None if it is the same as before.

        Args:
            state: of the job, in words.
            num_joined: number of nodes that have joined the session.
            num_alive: number of them that still measure.
        """
        text = f"{state}; nodes that joined: {num_joined}, still measuring: {num_alive}"
        if text == self._shown_nodes:
            return None
        self._shown_nodes = text
        return text

    def describe_phase(self, alive: Sequence[Peer]) -> str | None:
        """Return a line about the rounds of the latest phase; None if it is the same as before.

        It is None, too, while no round has ended.

        Args:
            alive: the nodes that still measure; the one that is farthest ahead counts.
        """
        phase, num_ended = self._find_phase(alive)
        if phase is None or (phase, num_ended) == self._shown_phase:
            return None
        self._shown_phase = (phase, num_ended)
        count = self._counts[phase]  # planned rounds
        # Rounds that confirm suspects, or search for groups, are not part of the planned number.
        if num_ended > count:
            return f"{phase}: {num_ended} rounds done; suspicious results are measured again"
        remaining = format_time((count - num_ended) * self._round_s)
        return f"{phase}: {num_ended} of {count} rounds done, about {remaining} left"

    def _find_phase(self, alive: Sequence[Peer]) -> tuple[Phase | None, int]:
        """Return the latest phase with a round that ended, and the number of these rounds.

        The node that is farthest ahead counts. None and 0: no round has ended.

        Args:
            alive: the nodes that still measure; ``ended_rounds`` has their rounds by phase.
        """
        # The last phase first: the keys of `_counts` are in the order in which phases are measured.
        for phase in reversed(self._counts):
            num_ended = max((peer.ended_rounds[phase] for peer in alive), default=0)
            if num_ended:
                return phase, num_ended
        return None, 0
