"""Run a plan's ranks on this machine, one process each.

``command`` and ``rank_environment`` are pure; what starts, watches and ends processes is
apart. Works the same for one rank and for many.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import devices
from trainmark.devices.cpu import usable_cores
from trainmark.launch import processes, run_dir
from trainmark.launch.keeper import Keeper
from trainmark.measure.worker import STACKS_SIGNAL, stacks_file
from trainmark.results import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.launch.own_files import OwnFiles
    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record

RANKS_LOG = "log.launcher.txt"  # what a rank prints before it opens a log of its own
_POLL_S = 0.1


def command(plan: Plan, *, python: str) -> list[str]:
    """Return the command line of every rank of ``plan``; its environment says which it is."""
    return [python, "-m", "trainmark.measure.worker", plan.run_dir]


def rank_environment(plan: Plan, rank: int, *, port: int) -> dict[str, str]:
    """Return the variables that tell a process which rank of ``plan`` it is.

    Args:
        port: where rank 0 listens for the others, as ``torch.distributed`` takes it.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def run_environment(plan: Plan, cores: int) -> dict[str, str]:
    """Return the variables that all ranks of a run have in common."""
    threads = max(1, cores // plan.nproc)
    return {
        processes.RUN_VARIABLE: plan.run_id,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        # As fast as the default on an idle machine; on a shared one, threads that spin for
        # long keep the cores from the very thread they wait for: steps took eight times as long.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
        "TOKENIZERS_PARALLELISM": "false",  # set, or the library warns in every rank
        "PYTHONUNBUFFERED": "1",
    }


def launch(plan: Plan, request: StopRequest, on_poll: Callable[[], None] = lambda: None) -> Record:
    """Run ``plan`` to its end and return its record, written beside its events.

    Args:
        request: the run is stopped as soon as it holds a signal.
        on_poll: called several times a second while the ranks run, to show progress.

    Raises:
        EnvironmentFault: the run directory cannot be made; nothing was started.
    """
    folder = Path(plan.run_dir)
    variables = os.environ | processes.import_variables() | run_environment(plan, usable_cores())
    described = environment.collect(variables, devices.vendors()[plan.device.vendor])
    with Keeper(folder, plan.run_id) as keeper:
        run_dir.create(folder)
        own = run_dir.begin(plan, folder, described)

        def stop_or_show() -> dict[str, Any] | None:
            keeper.replace_if_dead()
            on_poll()
            return _reason_to_stop(request, own)

        try:
            stop, ended = _run_ranks(plan, variables, stop_or_show)
        except BaseException as error:
            # A fault of ours or of this machine: the ranks end, and a record says so.
            stop = {"reason": "launcher_error", "message": f"{type(error).__name__}: {error}"}
            record = run_dir.finish(own, stop=stop, ended=None)
            if record.cause is not None and record.cause.kind == "files_lost":
                return record  # the error was a consequence
            raise
        return run_dir.finish(own, stop=stop, ended=ended)


def _reason_to_stop(request: StopRequest, own: OwnFiles) -> dict[str, Any] | None:
    """Return the event that says why the ranks are to be stopped from outside, if they are."""
    if request.signal_name is not None:
        return {"reason": "signal", "signal": request.signal_name}
    if own.gone():  # nobody could use what the ranks measure from here on
        return {"reason": "files_lost", "files": own.lost()}
    return None


def _run_ranks(
    plan: Plan, variables: dict[str, str], reason_to_stop: Callable[[], dict[str, Any] | None]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Start the ranks, watch them to their end, leave none; return why and how they ended."""
    ranks: list[subprocess.Popen[bytes]] = []
    oom_kills_before = processes.oom_kills()
    cpu_before = processes.CpuUse.now()
    try:
        with (Path(plan.run_dir) / RANKS_LOG).open("wb") as log, _held_port() as port:
            for rank in range(plan.nproc):
                ranks.append(
                    subprocess.Popen(
                        command(plan, python=sys.executable),
                        env=variables | rank_environment(plan, rank, port=port),
                        cwd=_working_directory(),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,  # takes a failing rank's report
                        stderr=log,
                        start_new_session=True,
                    )
                )
            stop = _watch(ranks, plan, reason_to_stop)
        failures = [] if stop else _failures(ranks)
    finally:
        processes.kill_run(plan.run_id)
        for process in ranks:
            process.poll()  # counts its processor time as that of our children
            assert process.stdout is not None
            process.stdout.close()
    return stop, {
        "exit_code": 1 if failures else 0,
        "failures": failures,
        "oom_kills": processes.oom_kills() - oom_kills_before,
        "others_cpu_share": cpu_before.others_share(processes.CpuUse.now()),
    }


@contextmanager
def _held_port() -> Iterator[int]:
    """Hold a free port that nobody but a listener of ``torch.distributed`` can take.

    A socket that reuses its address and never listens lets another such one listen there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _working_directory() -> str | None:
    """Return where the ranks start: here, or at the root where this folder was deleted.

    Intel's MKL does not load in a folder that is gone.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        return "/"
    return None


def _watch(
    ranks: Sequence[subprocess.Popen[bytes]],
    plan: Plan,
    reason_to_stop: Callable[[], dict[str, Any] | None],
) -> dict[str, Any] | None:
    """Follow the ranks until all ended or one failed; return why they are to be stopped else."""
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        time.sleep(_POLL_S)
        codes = [process.poll() for process in ranks]
        stop = reason_to_stop()  # after the codes: a signal to every process ends the ranks too
        if stop is not None or any(codes) or None not in codes:
            return stop
        if time.monotonic() >= deadline:
            files = [Path(plan.run_dir) / stacks_file(rank) for rank in range(len(ranks))]
            saved = processes.save_stacks(ranks, files, STACKS_SIGNAL)
            return {"reason": "timeout", "timeout_s": timeout_s, "stacks": saved}


def _failures(ranks: Sequence[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    """Return how the ranks that ended by themselves failed; the others are consequences."""
    failures = []
    for rank, process in enumerate(ranks):
        if process.poll():
            report = _report(process)
            time_s = time.time() if report is None else report["time_s"]
            failure = {"rank": rank, "exit_code": process.returncode}
            failures.append(failure | {"time_s": time_s, "report": report})
    return failures


def _report(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Return what a rank of ours said of its failure; a rank that was killed says nothing."""
    assert process.stdout is not None
    with suppress(ValueError):  # torn by its death, or printed by somebody else
        found = json.loads(process.stdout.read().rpartition(b"\n")[2])
        if isinstance(found, dict) and "traceback" in found:
            return found
    return None
