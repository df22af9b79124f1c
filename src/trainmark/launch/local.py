"""Run a plan's ranks on this machine, over ``torch.distributed.run``.

Owns the run directory from its creation to the record in it. ``command`` is pure; what
starts, watches and ends processes is apart. Works the same for one rank and for many.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.cpu import usable_cores
from trainmark.errors import EnvironmentFault
from trainmark.launch import processes
from trainmark.launch.keeper import DONE
from trainmark.measure.events import LAUNCHER_FILE, EventWriter
from trainmark.measure.worker import STACKS_SIGNAL, stacks_file
from trainmark.results import building, environment, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.plan import Plan
    from trainmark.results.record import Record

# Held from the start and given back for the last words, so that a full disk cannot take
# the record away. A record of 10,000 steps has about 0.3 MB.
RESERVE_FILE = ".reserve"
RESERVE_BYTES = 4 * 1024 * 1024
AGENT_LOG = "log.launcher.txt"
_POLL_S = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def command(plan: Plan, *, python: str, agent_log_dir: str) -> list[str]:
    """Return the command line that starts all ranks of ``plan`` on this machine."""
    return [
        python, "-m", "trainmark.launch.agent",
        "--nnodes=1", f"--nproc-per-node={plan.nproc}",
        "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
        f"--rdzv-id={plan.run_id}", "--max-restarts=0", f"--log-dir={agent_log_dir}",
        "-m", "trainmark.measure.worker", plan.run_dir,
    ]  # fmt: skip


def rank_environment(plan: Plan, cores: int) -> dict[str, str]:
    """Return the variables a run adds to its ranks' environment."""
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


def create_run_dir(run_dir: Path) -> None:
    """Create the folder of one run and hold back the disk space its record needs.

    Raises:
        EnvironmentFault: it cannot be written, is in use, or the disk is too full.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if any(run_dir.iterdir()):
            raise EnvironmentFault(
                "the folder is not empty",
                where=str(run_dir),
                rule="a run never writes into another run's folder",
                remedy="choose another --out",
            )
        with (run_dir / RESERVE_FILE).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
    except OSError as error:
        raise _cannot_write(run_dir, error) from error


def _cannot_write(run_dir: Path, error: OSError) -> EnvironmentFault:
    """Give back what was held and say why a run cannot be written there."""
    if error.errno == errno.ENOSPC:
        (run_dir / RESERVE_FILE).unlink(missing_ok=True)
        what = f"less than {2 * RESERVE_BYTES >> 20} MiB are free"
        remedy = "free some space, or choose --out on another disk"
    else:
        what = f"cannot write there: {error.strerror}"
        remedy = "choose an --out you may write to"
    return EnvironmentFault(what, where=str(run_dir), remedy=remedy)


@dataclass(slots=True)
class _Watch:
    """What the launcher learns while the ranks run."""

    signal_name: str | None = None
    agent_output: bytes = b""
    stop: dict[str, Any] | None = None
    oom_kills_before: int | None = field(default_factory=processes.oom_kills)


def launch(plan: Plan, on_poll: Callable[[], None] = lambda: None) -> Record:
    """Run ``plan`` to its end and return its record, written beside its events.

    Args:
        on_poll: called several times a second while the ranks run, to show progress.

    Raises:
        EnvironmentFault: the run directory cannot be made; nothing was started.
    """
    run_dir = Path(plan.run_dir)
    watch = _Watch()
    variables = os.environ | rank_environment(plan, usable_cores())
    with _stop_signals(watch):
        create_run_dir(run_dir)
        events = _first_words(plan, run_dir, variables)
        with _keeper(run_dir):
            try:
                agent = _run_ranks(plan, watch, variables, on_poll)
            except BaseException as error:
                # A fault of ours or of this machine: the ranks end, and a record says so.
                processes.kill_run(plan.run_id)
                stop = {"reason": "launcher_error", "message": f"{type(error).__name__}: {error}"}
                finish(run_dir, events, stop=stop, agent=None)
                raise
            return finish(run_dir, events, stop=watch.stop, agent=agent)


def _first_words(plan: Plan, run_dir: Path, variables: dict[str, str]) -> EventWriter:
    """Write the plan and the launcher's first event; the run counts from here."""
    try:
        plan.save(run_dir)
        events = EventWriter(run_dir / LAUNCHER_FILE, time.perf_counter_ns)
        events.emit(
            "launch",
            unix_ns=time.time_ns(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            argv=sys.argv,
            environment=environment.collect(variables),
        )
    except OSError as error:
        raise _cannot_write(run_dir, error) from error
    return events


def _run_ranks(
    plan: Plan, watch: _Watch, variables: dict[str, str], on_poll: Callable[[], None]
) -> dict[str, Any]:
    """Start the ranks, watch them to their end, leave none; return the agent's news."""
    with (
        tempfile.TemporaryDirectory(prefix="trainmark-") as agent_log_dir,
        (Path(plan.run_dir) / AGENT_LOG).open("wb") as agent_log,
        subprocess.Popen(
            command(plan, python=sys.executable, agent_log_dir=agent_log_dir),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=agent_log,
            start_new_session=True,
        ) as agent,
    ):
        try:
            _watch_agent(agent, plan, watch, on_poll)
        finally:
            processes.kill_run(plan.run_id)
        return _agent_news(watch, agent.wait())


def finish(
    run_dir: Path,
    events: EventWriter,
    *,
    stop: dict[str, Any] | None,
    agent: dict[str, Any] | None,
) -> Record:
    """Write the launcher's last events and the record; every process is gone by now."""
    (run_dir / RESERVE_FILE).unlink(missing_ok=True)
    if stop is not None:
        events.emit("stop", **stop)
    if agent is not None:
        kills = agent.pop("oom_kills")
        if kills:
            events.emit("oom_kills", count=kills)
        events.emit("agent_exit", **agent)
    events.emit("finished")
    events.close()
    built = building.build(run_dir)
    record.write(built, run_dir)
    return built


def _agent_news(watch: _Watch, exit_code: int) -> dict[str, Any]:
    """Return the agent's exit and what it printed of the ranks' failures."""
    failures: list[dict[str, Any]] = []
    for line in watch.agent_output.decode(errors="replace").splitlines():
        if line.startswith('{"failures"'):
            failures = json.loads(line)["failures"]
    now = processes.oom_kills()
    before = watch.oom_kills_before
    kills = now - before if now is not None and before is not None else 0
    return {"exit_code": exit_code, "failures": failures, "oom_kills": kills}


def _watch_agent(
    agent: subprocess.Popen[bytes], plan: Plan, watch: _Watch, on_poll: Callable[[], None]
) -> None:
    """Follow the agent until it closes its output, a signal comes or time is up."""
    assert agent.stdout is not None
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        readable, _, _ = select.select([agent.stdout], [], [], _POLL_S)
        if readable:
            chunk = os.read(agent.stdout.fileno(), 65536)
            if not chunk:
                return
            watch.agent_output += chunk
        if agent.poll() is not None and not readable:
            return  # a rank that outlived the agent may hold its output open
        if watch.signal_name is not None:
            watch.stop = {"reason": "signal", "signal": watch.signal_name}
            return
        if time.monotonic() >= deadline:
            watch.stop = _time_out(plan, timeout_s)
            return
        on_poll()


def _time_out(plan: Plan, timeout_s: float) -> dict[str, Any]:
    run_dir = Path(plan.run_dir)
    files = {rank: run_dir / stacks_file(rank) for rank in range(plan.world_size)}
    saved = processes.save_stacks(plan.run_id, files, STACKS_SIGNAL)
    return {"reason": "timeout", "timeout_s": timeout_s, "stacks": saved}


@contextmanager
def _keeper(run_dir: Path) -> Iterator[None]:
    """Keep a process beside the run that takes over if this one is killed."""
    keeper = subprocess.Popen(
        [sys.executable, "-m", "trainmark.launch.keeper", str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        # Also after an error of ours: the launcher lives, so it reports for itself.
        keeper.communicate(DONE)


@contextmanager
def _stop_signals(watch: _Watch) -> Iterator[None]:
    """Take note of Ctrl-C and its like instead of dying of them."""

    def note(number: int, _frame: object) -> None:
        watch.signal_name = watch.signal_name or signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
