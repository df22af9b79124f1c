"""Start the ranks of this machine, watch them, and end them; launch a plan here.

A node of an engine runs its ranks with ``run_ranks`` too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trainmark import devices, witness
from trainmark.devices.vendors.cpu import threads_of_rank
from trainmark.events.schema import name_telemetry_file
from trainmark.launch import environment, hang, processes, run_dir
from trainmark.launch.network import LOOPBACK, refuse_unusable_network
from trainmark.launch.python_commands import SAFE_PATH_VARIABLES, build_module_command
from trainmark.launch.stacks import save_stacks
from trainmark.launch.supervisor import supervise_ranks
from trainmark.rank.contract import STACKS_SIGNAL, format_stacks_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.events.schema import EventWriter
    from trainmark.launch.processes import StopRequest
    from trainmark.launch.supervisor import RankProcess
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor
    from trainmark.record.record import Record

    FindStopReason = Callable[[], dict[str, Any] | None]  # fields of the event ``stop``

POLL_S = 0.1
_END_PATIENCE_S = 2.0  # for the sampler's last reading
# The ranks of other nodes fail as soon as those of this node are ended, so they need time to save
# their stacks before. Nodes start within a second or two of each other.
_OTHERS_SAVE_S = 5.0


class Setup(NamedTuple):
    """What the ranks of one machine need to start.

    Args:
        variables: environment of all ranks.
        environment: description of this machine for the event ``launch``.
    """

    nproc: int
    variables: dict[str, str]
    environment: dict[str, Any]


def prepare_setup(
    vendor: Vendor, nproc: int, mark: str, *, program_run_dir: Path | None = None
) -> Setup:
    """Describe this machine, and choose the environment variables of its ranks.

    Args:
        nproc: number of ranks on this machine.
        mark: value of ``RUN_VARIABLE``, which identifies the processes of the run.
        program_run_dir: if the ranks run a program of the user's own, its run directory. The
            program's environment stays as it is, except for the variables that make it load the
            probe, which measures it. None: the ranks train one of Trainmark's own workloads, a
            case.

    Raises:
        UsageError: ``OMP_NUM_THREADS`` has no valid value.
    """
    if program_run_dir is None:
        variables = _choose_case_variables(nproc)
    else:
        variables = os.environ | witness.make_probe_variables(program_run_dir, os.environ)
    # Unbuffered, so that the log also has the last lines of a rank that is killed.
    variables |= {processes.RUN_VARIABLE: mark, "PYTHONUNBUFFERED": "1"}
    description = environment.describe_environment(variables, vendor)
    # Processes that are on the devices before the run starts.
    occupants = devices.list_occupants(vendor.name, nproc)
    description["device_users"] = [occupant._asdict() for occupant in occupants]
    return Setup(nproc, variables, description)


def _choose_case_variables(nproc: int) -> dict[str, str]:
    """Return the environment variables of ranks that train a case, a workload of Trainmark.

    Args:
        nproc: number of ranks on this machine, which share its cores.
    """
    return {
        **os.environ,
        **SAFE_PATH_VARIABLES,  # keep the working directory off the import path
        "OMP_NUM_THREADS": str(threads_of_rank(nproc)),
        # This is as fast as the default on an idle machine. On a shared machine, threads that spin
        # for long take the cores from the thread they wait for: steps took eight times as long.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
        "TOKENIZERS_PARALLELISM": "false",  # without it the library warns in every rank
    }


@contextmanager
def start_ranks(
    argv: Sequence[str],
    setup: Setup,
    *,
    output: IO[bytes] | int,
    errors: IO[bytes] | int,
    node: int = 0,
    nnodes: int = 1,
    master: tuple[str, int] | None = None,
    starts_ranks: bool = False,
) -> Iterator[list[RankProcess]]:
    """Start the ranks of this machine; when the block ends, end them and all that they started.

    Args:
        argv: command of each rank.
        setup: has the number of ranks of this machine, and their environment.
        output: standard output of the ranks.
        errors: standard error of the ranks.
        node: number of this machine among the ``nnodes`` machines of the run, from 0.
        master: host and port at which all ranks meet; None: a free port of this machine, on which
            all ranks run.
        starts_ranks: the command, such as torchrun, is started once and starts the ranks itself.

    Yields:
        The processes that were started, in the order of their ranks; with ``starts_ranks`` the one
        process of the command, in place of the ranks.

    Raises:
        MeasurementError: they cannot be started.
    """
    with ExitStack() as stack:
        # Held until the ranks have ended; their own socket can still listen on it.
        host, port = master or (LOOPBACK, stack.enter_context(hold_port()))
        variables_of_processes = [
            {  # as torch.distributed reads them
                "RANK": str(node * setup.nproc + local_rank),
                "WORLD_SIZE": str(nnodes * setup.nproc),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(setup.nproc),
                "MASTER_ADDR": host,
                "MASTER_PORT": str(port),
            }
            for local_rank in range(setup.nproc)
        ]
        if starts_ranks:
            variables_of_processes = [_choose_torchrun_variables(node, nnodes, host, port)]
        ranks = supervise_ranks(
            argv, setup.variables, variables_of_processes, output=output, errors=errors
        )
        yield stack.enter_context(ranks)


def _choose_torchrun_variables(node: int, nnodes: int, host: str, port: int) -> dict[str, str]:
    """Return the variables with which torchrun fills in options that its command does not have.

    The number of ranks of a machine is none of them: only the user's command sets it.

    Args:
        node: number of this machine among the ``nnodes`` machines of the run, from 0.
        host, port: where the ranks of all machines meet.
    """
    if nnodes == 1:  # torchrun's defaults for these options are right
        return {}
    return {
        "PET_NNODES": str(nnodes),
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
    }


@contextmanager
def hold_port() -> Iterator[int]:
    """Find a free port for ``torch.distributed``, and keep it free while the block runs.

    A socket of this process is bound to the port, so that the system gives it to no program that
    asks for any free port. torch can still listen on it: both sockets have SO_REUSEADDR, and this
    process does not listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


@contextmanager
def _run_sampler(
    plan: Plan, folder: Path, mark: str, log: IO[bytes], node: int | None
) -> Iterator[None]:
    """Run the sampler of telemetry while the block runs, if the plan asks for it.

    The sampler ends when its standard input ends, also if this process dies.

    Args:
        mark: value of ``RUN_VARIABLE``, which identifies the processes of the run.
        log: gets the sampler's errors.
        node: number of this machine; None: the run has no other machine.
    """
    if plan.sample_every_s == 0:
        yield
        return
    with subprocess.Popen(
        build_module_command("trainmark.telemetry.sampler", str(folder), name_telemetry_file(node)),
        env=os.environ | SAFE_PATH_VARIABLES | {processes.RUN_VARIABLE: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,  # Ctrl-C in the terminal does not reach it
    ) as sampler:
        try:
            yield
        finally:
            assert sampler.stdin is not None, "it is a pipe"
            sampler.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                sampler.wait(_END_PATIENCE_S)  # it takes a last reading
            sampler.kill()  # without effect if it has ended


def build_rank_command(python: str, folder: Path | str) -> list[str]:
    """Return the command of every rank; its environment variables tell which rank it is."""
    return build_module_command("trainmark.rank.worker", str(folder), python=python)


def run_ranks(
    plan: Plan,
    folder: Path,
    setup: Setup,
    events: EventWriter,
    find_stop_reason: FindStopReason,
    *,
    node: int | None = None,
    master: tuple[str, int] | None = None,
) -> bool:
    """Run this machine's ranks to their end, and write events about how they ended.

    Args:
        folder: the run directory.
        setup: has the number of ranks of this machine, and their environment.
        find_stop_reason: called several times a second; once it returns a reason, as fields of the
            event ``stop``, the ranks end.
        node: number of this machine; None: the run has no other machine.
        master: host and port of the first node, where ranks meet; None: they meet on a free port
            of this machine.

    Returns:
        Whether all ranks succeeded.
    """
    # All processes of this node's part of the run have the mark in their environment.
    mark = processes.make_mark(plan.run_id, node)
    first_rank = (node or 0) * plan.nproc
    oom_kills_before = processes.count_oom_kills()
    cpu_use_before = processes.CpuUse.read()
    process_name = "launcher" if node is None else f"node{node}"
    try:
        with (
            (folder / f"log.{process_name}.txt").open("wb") as log,
            _run_sampler(plan, folder, mark, log, node),
        ):
            with _start_plan_ranks(
                plan, folder, setup, log, node=node or 0, master=master
            ) as ranks:
                stop_event = _wait_for_ranks(
                    ranks, plan, folder, find_stop_reason, first_rank=first_rank
                )
                # Ranks that were stopped have not failed by themselves.
                failures = [] if stop_event is not None else _list_failures(ranks, first_rank)
            ended_ns = time.perf_counter_ns()  # before the wait for the sampler's end
    finally:
        # What is left: the sampler, or ranks that the supervisor, the process that starts and ends
        # them, did not end because it died itself.
        processes.kill_run(mark)
    if stop_event is not None:
        events.emit("stop", **stop_event)
    oom_kills = processes.count_oom_kills() - oom_kills_before
    if oom_kills:
        # The counter is that of the machine: it may have counted other programs' processes.
        events.emit("oom_kills", count=oom_kills)
    events.emit(
        "ranks_ended",
        t_ns=ended_ns,
        failures=failures,
        # The share of the machine's cores that other programs than the ranks used meanwhile.
        others_cpu_share=cpu_use_before.compute_others_share(processes.CpuUse.read()),
    )
    return stop_event is None and not failures


def _start_plan_ranks(
    plan: Plan,
    folder: Path,
    setup: Setup,
    log: IO[bytes],
    *,
    node: int,
    master: tuple[str, int] | None,
) -> AbstractContextManager[list[RankProcess]]:
    """Start the plan's ranks of this machine.

    They train a case, which is a workload of Trainmark, or run a program of the user's own.

    Args:
        folder: the run directory.
        setup: has the number of ranks of this machine, and their environment.
        log: gets the output and the errors of the ranks.
        node: number of this machine, from 0.
        master: host and port at which all ranks meet; None: a free port of this machine.
    """
    program = plan.witness  # the user's own program; None: the ranks train a case
    argv = build_rank_command(sys.executable, folder) if program is None else program.command
    return start_ranks(
        argv,
        setup,
        output=log,
        errors=log,
        node=node,
        nnodes=plan.nnodes,
        master=master,
        starts_ranks=program is not None and program.starts_ranks,
    )


def _list_failures(ranks: Sequence[RankProcess], first_rank: int) -> list[dict[str, Any]]:
    """Return the ranks that have failed, as the event ``ranks_ended`` lists them.

    Called only if the launcher has not stopped the ranks, so all of them failed by themselves.

    Args:
        first_rank: number of the first of ``ranks`` in the run.
    """
    failures = []
    for number, rank in enumerate(ranks, start=first_rank):
        if rank.poll():  # neither None, as of a rank that runs, nor 0
            now_ns = time.perf_counter_ns()  # when this was noticed
            failures.append({"rank": number, "exit_code": rank.returncode, "t_ns": now_ns})
    return failures


def _wait_for_ranks(
    ranks: Sequence[RankProcess],
    plan: Plan,
    folder: Path,
    find_stop_reason: FindStopReason,
    *,
    first_rank: int,
) -> dict[str, Any] | None:
    """Wait until all ranks have ended, one has failed, or there is a reason to stop them.

    Args:
        folder: the run directory, into which stuck ranks write their stacks at the time limit.
        find_stop_reason: returns why the ranks must be stopped now; None: they need not.
        first_rank: number of the first of ``ranks`` in the run.

    Returns:
        The reason to stop the ranks, as fields of the event ``stop``; None: there is none.
    """
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        time.sleep(POLL_S)
        exit_codes = [rank.poll() for rank in ranks]  # None: the rank runs
        # A signal such as Ctrl-C may end the ranks and also ask this process to stop. The reason is
        # read after the exit codes, so that ranks that such a signal ended do not count as failed.
        stop_event = find_stop_reason()
        has_failed = any(exit_codes)
        have_all_ended = None not in exit_codes
        if stop_event is not None or has_failed or have_all_ended:
            return stop_event
        if time.monotonic() >= deadline:
            numbers = range(first_rank, first_rank + len(ranks))
            files = {rank: folder / format_stacks_name(rank) for rank in numbers}
            file_names = save_stacks(ranks, list(files.values()), STACKS_SIGNAL)
            groups = hang.group_ranks(files)
            if plan.nnodes > 1:
                # Once these ranks are ended, the ranks of other nodes fail. During this wait, the
                # other nodes reach their time limit too, and save the stacks of their ranks.
                time.sleep(_OTHERS_SAVE_S)
            return {
                "reason": "timeout",
                "timeout_s": timeout_s,
                "stacks": file_names,
                "hang": groups,
            }


def launch(
    plan: Plan, stop: StopRequest, on_poll: Callable[[str], None] = lambda _: None
) -> Record:
    """Run ``plan`` to its end, write its record into the run directory, and return it.

    Args:
        stop: the run is stopped as soon as it holds a signal.
        on_poll: called several times a second while the ranks run, to show progress; its argument
            is empty, because a local run has no engine whose state could be shown.

    Raises:
        UsageError: ``OMP_NUM_THREADS`` has no valid value, or a variable names an interface that
            is not there; nothing was started.
        EnvironmentFault: the run directory cannot be made, or the ranks could not reach one
            another; nothing was started.
        LostRunError: the run directory was deleted while the ranks ran.
    """
    folder = Path(plan.run_dir)
    vendor = devices.list_vendors()[plan.device.vendor]
    # ``plan.witness`` is the user's own program, if the ranks run one. The probe in it writes what
    # it measures into the run directory.
    program_run_dir = None if plan.witness is None else folder
    setup = prepare_setup(vendor, plan.nproc, mark=plan.run_id, program_run_dir=program_run_dir)
    refuse_unusable_network(setup.variables, vendor, world_size=plan.world_size, master=LOOPBACK)

    def find_stop_reason() -> dict[str, Any] | None:
        """Show progress; return the signal that was noted, as a reason to stop; None: none was."""
        on_poll("")
        name = stop.signal_name
        return None if name is None else {"reason": "signal", "signal": name}

    with run_dir.create_run_dir(folder):
        events = run_dir.begin_run(plan, folder, setup.environment)
        try:
            run_ranks(plan, folder, setup, events, find_stop_reason)
        except BaseException as error:
            # An error of the launcher or of this machine; the ranks have been ended. The record is
            # written all the same, and the error goes on to the caller.
            text = f"{type(error).__name__}: {error}"
            events.emit("stop", reason="launcher_error", message=text)
            run_dir.finish_run(folder, events)
            raise
        return run_dir.finish_run(folder, events)
