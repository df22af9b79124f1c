"""Start the ranks of one machine, watch them, and end them.

The local launcher calls ``run_ranks`` in its own process. Other launchers start this module on
every node, as ``python -m trainmark.launch.node RUN_DIR …``: it runs the node's ranks
and writes the node's event file, and makes no record: that is for the process that submitted the
run. It ends its ranks on SIGTERM, and with ``--heartbeat`` also when nobody writes to its standard
input.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from trainmark import __version__, cases, devices
from trainmark.data.generated import default_root
from trainmark.devices import cores
from trainmark.devices.vendors.cpu import chosen_threads
from trainmark.errors import DataError, TrainmarkError, escaped
from trainmark.launch import processes
from trainmark.launch.stopping import stop_signals_noted
from trainmark.plan.plan import Plan
from trainmark.rank import hang
from trainmark.rank.events import EventWriter, node_file, telemetry_file
from trainmark.rank.worker import DATA_VARIABLE, NODE_VARIABLE, STACKS_SIGNAL, stacks_file
from trainmark.record import environment
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.devices.cores import Placement
    from trainmark.protocols import Vendor

    StopReason = Callable[[], dict[str, Any] | None]  # fields of the event ``stop``

POLL_S = 0.1
_END_PATIENCE_S = 2.0  # of SIGTERM, and for the sampler's last reading
# Ranks of other nodes fail when ours are ended, and must have saved their stacks by then. Nodes
# start within a second or two of each other.
_LET_SAVE_S = 5.0
_SILENCE_S = 60.0  # of standard input, after which the launcher counts as lost


class Setup(NamedTuple):
    """What the ranks of one machine are started with.

    Args:
        variables: of all ranks.
        described: this machine, as the event ``launch`` has it.
    """

    placed: list[Placement]
    variables: dict[str, str]
    described: dict[str, Any]


def set_up(vendor: Vendor, nproc: int, mark: str) -> Setup:
    """Place the ranks of this machine and describe it.

    Args:
        mark: value of ``RUN_VARIABLE``, by which the processes are found.

    Raises:
        UsageError: a variable that places ranks, or ``OMP_NUM_THREADS``, has no valid value.
    """
    placed = cores.placements(vendor, nproc, os.environ)
    threads = min(placement.threads for placement in placed)
    variables = os.environ | processes.import_variables() | run_variables(mark, threads)
    described = environment.collect(variables, vendor)
    users = devices.occupants(vendor.name, nproc)
    described["device_users"] = [user._asdict() for user in users]
    return Setup(placed, variables, described)


def run_variables(mark: str, threads: int) -> dict[str, str]:
    """Return the variables that all ranks have in common.

    Args:
        threads: of each rank, unless the user gives another number.

    Raises:
        UsageError: ``OMP_NUM_THREADS`` is no number of threads.
    """
    return {
        processes.RUN_VARIABLE: mark,
        "OMP_NUM_THREADS": str(chosen_threads(os.environ) or threads),
        # As fast as the default on an idle machine. On a shared one, threads that spin for long
        # take the cores from the thread for which they wait: steps took eight times as long.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
        "TOKENIZERS_PARALLELISM": "false",  # without it the library warns in every rank
        "PYTHONUNBUFFERED": "1",
    }


def world_variables(
    local_rank: int, *, nproc: int, node: int = 0, nnodes: int = 1, master: tuple[str, int]
) -> dict[str, str]:
    """Return the variables that tell a process which rank it is, as torch.distributed reads them.

    Args:
        master: host and port where rank 0 listens for the others.
    """
    return {
        "RANK": str(node * nproc + local_rank),
        "WORLD_SIZE": str(nnodes * nproc),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
    }


@contextmanager
def started(
    argv: Sequence[str],
    setup: Setup,
    *,
    output: IO[bytes] | int,
    errors: IO[bytes] | int,
    node: int = 0,
    nnodes: int = 1,
    master: tuple[str, int] | None = None,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a rank for each placement; when the block ends, end those that still run.

    Each has a session of its own, so that no signal of a terminal reaches it. Processes that ranks
    started are for the caller to end, with ``processes.kill_run``.

    Args:
        master: where all ranks meet; None: at a free port of this machine, which has them all.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    placement = {cores.PLACEMENT_VARIABLE: cores.to_variable(setup.placed)}
    try:
        with ExitStack() as stack:
            meet = master or ("127.0.0.1", stack.enter_context(held_port()))
            for local_rank in range(len(setup.placed)):
                world = world_variables(
                    local_rank, nproc=len(setup.placed), node=node, nnodes=nnodes, master=meet
                )
                ranks.append(
                    subprocess.Popen(
                        argv, env=setup.variables | placement | world, stdin=subprocess.DEVNULL,
                        stdout=output, stderr=errors, start_new_session=True,
                    )
                )  # fmt: skip
            yield ranks
    finally:
        for rank in ranks:
            rank.terminate()
        deadline = time.monotonic() + _END_PATIENCE_S
        for rank in ranks:
            with suppress(subprocess.TimeoutExpired):
                rank.wait(max(0.0, deadline - time.monotonic()))
            rank.kill()
            rank.wait()  # adds its processor time to that of our ended children


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a free port on which only ``torch.distributed`` can listen.

    A bound socket with SO_REUSEADDR that never listens lets another such socket listen there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def sampled(
    plan: Plan, run_dir: Path, mark: str, log: IO[bytes], node: int | None
) -> Iterator[None]:
    """Run the sampler while the block runs, if the plan says so.

    It ends when its standard input does, also if this process dies. It is not started again:
    samples without their last line tell that it was killed.
    """
    if plan.sample_every_s == 0:
        yield
        return
    words = [str(run_dir), telemetry_file(node)]
    with subprocess.Popen(
        [sys.executable, "-m", "trainmark.rank.telemetry.sampler", *words],
        env=os.environ | processes.import_variables() | {processes.RUN_VARIABLE: mark},
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
    ) as sampler:  # fmt: skip
        try:
            yield
        finally:
            assert sampler.stdin is not None
            sampler.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                sampler.wait(_END_PATIENCE_S)
            sampler.kill()


def rank_command(python: str, run_dir: Path | str) -> list[str]:
    """Return the command line of every rank; its environment says which it is."""
    return [python, "-m", "trainmark.rank.worker", str(run_dir)]


def run_ranks(
    plan: Plan,
    run_dir: Path,
    setup: Setup,
    events: EventWriter,
    reason_to_stop: StopReason,
    *,
    node: int | None = None,
    master: tuple[str, int] | None = None,
) -> bool:
    """Run this machine's ranks to their end, and tell in events how they ended.

    Args:
        reason_to_stop: called several times a second; what it returns ends the ranks.
        node: number of this machine; None: the run has no other.
        master: host and port of the first node, where ranks meet.

    Returns:
        Whether all ranks succeeded.
    """
    mark = processes.mark(plan.run_id, node)
    oom_kills, cpu = processes.oom_kills(), processes.CpuUse.now()
    argv = rank_command(sys.executable, run_dir)
    name = "launcher" if node is None else f"node{node}"
    try:
        with (
            (run_dir / f"log.{name}.txt").open("wb") as log,
            sampled(plan, run_dir, mark, log, node),
        ):
            with started(
                argv, setup, output=log, errors=log, node=node or 0, nnodes=plan.nnodes,
                master=master,
            ) as ranks:  # fmt: skip
                stop = _watch(ranks, plan, run_dir, reason_to_stop, first=(node or 0) * plan.nproc)
                failures = [] if stop else _failures(ranks, (node or 0) * plan.nproc)
            ended_ns = time.perf_counter_ns()  # before the wait for the sampler's end
    finally:
        processes.kill_run(mark)
    if stop is not None:
        events.emit("stop", **stop)
    if kills := processes.oom_kills() - oom_kills:
        events.emit("oom_kills", count=kills)
    events.emit(
        "agent_exit",
        t_ns=ended_ns,
        exit_code=1 if failures or (stop and node is not None) else 0,
        failures=failures,
        others_cpu_share=cpu.others_share(processes.CpuUse.now()),
    )
    return stop is None and not failures


def _watch(
    ranks: Sequence[subprocess.Popen[bytes]],
    plan: Plan,
    run_dir: Path,
    reason_to_stop: StopReason,
    *,
    first: int,
) -> dict[str, Any] | None:
    """Wait until all ranks ended or one failed; else return the reason to stop them."""
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        time.sleep(POLL_S)
        codes = [rank.poll() for rank in ranks]
        # After the exit codes: a signal to every process ends the ranks too.
        stop = reason_to_stop()
        if stop is not None or any(codes) or None not in codes:
            return stop
        if time.monotonic() >= deadline:
            files = {rank: run_dir / stacks_file(rank) for rank in range(first, first + len(ranks))}
            saved = processes.save_stacks(ranks, list(files.values()), STACKS_SIGNAL)
            where = hang.report(files)
            time.sleep(_LET_SAVE_S if plan.nnodes > 1 else 0)
            return {"reason": "timeout", "timeout_s": timeout_s, "stacks": saved, "hang": where}


def _failures(ranks: Sequence[subprocess.Popen[bytes]], first: int) -> list[dict[str, Any]]:
    """Return the ranks that ended by themselves and failed; the others are ended for it."""
    return [
        {"rank": number, "exit_code": rank.returncode, "time_s": time.time()}
        for number, rank in enumerate(ranks, first)
        if rank.poll()
    ]


def _data_folder(node: int, plan: Plan, given: Path | None) -> Path:
    """Return the folder of the data on this node; generated data is made where it is not.

    Raises:
        DataError: it does not hold what the plan was made for.
    """
    case, recipe = plan.load_case(), plan.load_recipe()
    folder = given or Path(plan.data.folder)
    if plan.data.origin == "generated" and not folder.exists():
        folder = cases.generated_folder(case, recipe, default_root())
    if cases.part(case.name, "data").check(folder, recipe).content_id != plan.data.content_id:
        raise DataError(
            "other data than where the run was planned",
            where=f"node {node}, {folder}",
            rule="all nodes train on the same data",
            remedy="copy the data to this node again",
        )
    return folder


def _input_lost(last_s: list[float]) -> bool:
    """Read what came on standard input; tell whether it ended or was silent for too long.

    Args:
        last_s: when something came last; updated.
    """
    while select.select([sys.stdin], [], [], 0)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            return True
        last_s[0] = time.monotonic()
    return time.monotonic() - last_s[0] > _SILENCE_S


def _run_node(asked: argparse.Namespace, events: EventWriter, reason_to_stop: StopReason) -> bool:
    """Run this node's ranks; return whether all succeeded.

    Raises:
        TrainmarkError: this node cannot run its part; nothing was started.
    """
    run_dir, number = asked.run_dir.absolute(), asked.node_rank
    plan = Plan.read(run_dir)
    folder = _data_folder(number, plan, asked.data)
    setup = set_up(
        devices.choose(plan.device.vendor), plan.nproc, processes.mark(plan.run_id, number)
    )
    events.emit(
        "launch",
        unix_ns=time.time_ns(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=["trainmark.launch.node", str(number)],
        environment=setup.described,
        node=number,
    )
    packages = {"trainmark": __version__, "python": setup.described["python"]}
    packages |= setup.described["packages"]
    setup.variables[NODE_VARIABLE] = json.dumps({"node": number, "packages": packages})
    setup.variables[DATA_VARIABLE] = str(folder)
    master = asked.master, asked.port
    return run_ranks(plan, run_dir, setup, events, reason_to_stop, node=number, master=master)


def main(words: list[str]) -> int:
    """Run this node's part of the plan in the run directory; 0 if all its ranks succeeded."""
    parser = argparse.ArgumentParser(prog="trainmark.launch.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heartbeat", action="store_true")
    asked = parser.parse_args(words)
    number = asked.node_rank
    last_s = [time.monotonic()]
    with stop_signals_noted() as request:

        def reason_to_stop() -> dict[str, Any] | None:
            lost = request.signal_name is None and asked.heartbeat and _input_lost(last_s)
            name = "SIGHUP" if lost else request.signal_name
            return None if name is None else {"reason": "signal", "signal": name}

        events = EventWriter(asked.run_dir / node_file(number), time.perf_counter_ns)
        succeeded = False
        try:
            succeeded = _run_node(asked, events, reason_to_stop)
        except TrainmarkError as fault:
            print(escaped(f"node {number}: {fault}"), file=sys.stderr, flush=True)
            text = str(TrainmarkError(fault.what, where=fault.where, rule=fault.rule))
            said = message("node_refused", node=number, text=text, remedy=fault.remedy)
            events.emit("refused", unix_ns=time.time_ns(), message=said.as_dict())
        events.emit("finished")
        events.close()
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
