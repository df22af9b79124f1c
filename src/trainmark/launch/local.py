"""Run a plan's ranks on this machine, one process each.

``command`` and ``rank_environment`` are pure functions; other functions start, watch and end
processes. One rank is handled like many.
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
from typing import IO, TYPE_CHECKING, Any

from trainmark import devices
from trainmark.devices import numa
from trainmark.devices.vendors.cpu import chosen_threads
from trainmark.launch import processes, run_dir
from trainmark.launch.keeper import Keeper
from trainmark.launch.sampling import sampled
from trainmark.rank import hang
from trainmark.rank.worker import STACKS_SIGNAL, stacks_file
from trainmark.record import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import psutil

    from trainmark.devices.numa import Placement
    from trainmark.launch.own_files import OwnFiles
    from trainmark.launch.stopping import StopRequest
    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record

RANKS_LOG = "log.launcher.txt"  # what a rank prints before it opens its own log
POLL_S = 0.1


def command(plan: Plan, *, python: str) -> list[str]:
    """Return the command line of every rank of ``plan``; its environment says which it is."""
    return [python, "-m", processes.WORKER_MODULE, plan.run_dir]


def rank_environment(rank: int, *, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that tell a process which of the ``ranks`` of this machine it is.

    Args:
        port: where rank 0 listens for the others, as ``torch.distributed`` takes it.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@contextmanager
def started(
    run_id: str,
    argv: list[str],
    variables: dict[str, str],
    placed: Sequence[Placement],
    *,
    stdout: int,
    stderr: IO[bytes] | int,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a rank for each placement; when the block ends, kill what is left of them.

    Each has a session of its own, so that no signal of a terminal reaches it.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        with held_port() as port:
            for rank in range(len(placed)):
                own = variables | rank_environment(rank, ranks=len(placed), port=port)
                own[numa.PLACEMENT_VARIABLE] = numa.told(placed)
                process = subprocess.Popen(
                    argv, env=own, cwd=_working_directory(), stdin=subprocess.DEVNULL,
                    stdout=stdout, stderr=stderr, start_new_session=True,
                )  # fmt: skip
                ranks.append(process)
            yield ranks
    finally:
        processes.kill_run(run_id)
        for process in ranks:
            process.poll()  # adds its processor time to that of our ended children
            if process.stdout is not None:
                process.stdout.close()


def run_environment(run_id: str, threads: int) -> dict[str, str]:
    """Return the variables that all ranks of a run have in common.

    Args:
        threads: of each rank, unless the user gives another number.

    Raises:
        UsageError: ``OMP_NUM_THREADS`` is no number of threads.
    """
    return {
        processes.RUN_VARIABLE: run_id,
        "OMP_NUM_THREADS": str(chosen_threads(os.environ) or threads),
        # As fast as the default on an idle machine. On a shared one, threads that spin for long
        # take the cores from the thread for which they wait: steps took eight times as long.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
        "TOKENIZERS_PARALLELISM": "false",  # without it the library warns in every rank
        "PYTHONUNBUFFERED": "1",
    }


def launch(plan: Plan, request: StopRequest, on_poll: Callable[[], None] = lambda: None) -> Record:
    """Run ``plan`` to its end and return its record, written beside its events.

    Args:
        request: the run is stopped as soon as it holds a signal.
        on_poll: called several times a second while the ranks run, to show progress.

    Raises:
        UsageError: a variable that places ranks has no valid value; nothing was started.
        EnvironmentFault: the run directory cannot be made; nothing was started.
    """
    folder, vendor = Path(plan.run_dir), devices.all_vendors()[plan.device.vendor]
    placed = numa.placements(vendor, plan.nproc, os.environ)
    threads = min(placement.threads for placement in placed)
    variables = os.environ | processes.import_variables() | run_environment(plan.run_id, threads)
    described = environment.collect(variables, vendor)
    found = devices.occupants(plan.device.vendor, plan.nproc)
    described["device_users"] = [one._asdict() for one in found]
    with Keeper(folder, plan.run_id) as keeper:
        run_dir.create(folder)
        own = run_dir.begin(plan, folder, described)

        def stop_or_show() -> dict[str, Any] | None:
            keeper.replace_if_dead()
            on_poll()
            return _reason_to_stop(request, own)

        try:
            stop, ended = _run_ranks(plan, variables, placed, stop_or_show)
        except BaseException as error:
            # An error of the launcher or of this machine: end the ranks and record the error.
            stop = {"reason": "launcher_error", "message": f"{type(error).__name__}: {error}"}
            record = run_dir.finish(own, stop=stop, ended=None)
            if record.cause is not None and record.cause.kind == "files_lost":
                return record  # the error followed from the failure of a rank
            raise
        return run_dir.finish(own, stop=stop, ended=ended)


def _reason_to_stop(request: StopRequest, own: OwnFiles) -> dict[str, Any] | None:
    """Return the event with the reason to stop the ranks from outside, None if there is none."""
    if request.signal_name is not None:
        return {"reason": "signal", "signal": request.signal_name}
    if own.gone():  # what the ranks measure from here on is lost
        return {"reason": "files_lost", "files": own.lost()}
    return None


def _run_ranks(
    plan: Plan,
    variables: dict[str, str],
    placed: Sequence[Placement],
    reason_to_stop: Callable[[], dict[str, Any] | None],
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Start the ranks and watch them until all ended; return the stop reason and how they ended.

    The sampler runs within the time over which the processor's use is counted: it is ours.
    """
    oom_kills_before = processes.oom_kills()
    cpu_before = processes.CpuUse.now()
    words, pipe = command(plan, python=sys.executable), subprocess.PIPE  # for a failing rank
    with (Path(plan.run_dir) / RANKS_LOG).open("wb") as log, sampled(plan, Path(plan.run_dir), log):
        with started(plan.run_id, words, variables, placed, stdout=pipe, stderr=log) as ranks:
            stop = _watch(ranks, plan, reason_to_stop)
            failures = [] if stop else _failures(ranks)
        ended_ns = time.perf_counter_ns()  # before the wait for the sampler's end
    return stop, {
        "t_ns": ended_ns,
        "exit_code": 1 if failures else 0,
        "failures": failures,
        "oom_kills": processes.oom_kills() - oom_kills_before,
        "others_cpu_share": cpu_before.others_share(processes.CpuUse.now()),
    }


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a free port on which only ``torch.distributed`` can listen.

    A bound socket with SO_REUSEADDR that never listens lets another such socket listen there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _working_directory() -> str | None:
    """Return the ranks' working directory: the current one, or the root if that was deleted.

    Intel's MKL does not load in a deleted folder.
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
    """Wait until all ranks ended or one failed; else return the reason to stop them."""
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        time.sleep(POLL_S)
        codes = [process.poll() for process in ranks]
        # After the exit codes: a signal to every process ends the ranks too.
        stop = reason_to_stop()
        if stop is not None or any(codes) or None not in codes:
            return stop
        if time.monotonic() >= deadline:
            return timed_out(dict(enumerate(ranks)), Path(plan.run_dir), timeout_s)


def timed_out(
    ranks: Mapping[int, subprocess.Popen[bytes] | psutil.Process], run_dir: Path, timeout_s: float
) -> dict[str, Any]:
    """Save the stacks of this machine's ranks; return the event that tells where they were."""
    files = {rank: run_dir / stacks_file(rank) for rank in ranks}
    saved = processes.save_stacks(list(ranks.values()), list(files.values()), STACKS_SIGNAL)
    where = hang.report(files)
    return {"reason": "timeout", "timeout_s": timeout_s, "stacks": saved, "hang": where}


def _failures(ranks: Sequence[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    """Return how ranks failed that ended by themselves; the launcher ended the others."""
    failures = []
    for rank, process in enumerate(ranks):
        if process.poll():
            report = _report(process)
            time_s = time.time() if report is None else report["time_s"]
            failure = {"rank": rank, "exit_code": process.returncode}
            failures.append(failure | {"time_s": time_s, "report": report})
    return failures


def _report(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Return a rank's report of its failure; None for a rank that was killed."""
    assert process.stdout is not None
    # The rank ended, so all it wrote is there; a process that it left behind keeps the pipe open.
    os.set_blocking(process.stdout.fileno(), False)
    written = process.stdout.read() or b""
    with suppress(ValueError):  # cut off when it died, or printed by other code
        found = json.loads(written.rpartition(b"\n")[2])
        if isinstance(found, dict) and "traceback" in found:
            return found
    return None
