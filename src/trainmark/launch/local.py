"""Run a plan's ranks on this machine, over ``torch.distributed.run``.

``command`` is pure; what starts, watches and ends processes is apart. Works the same for
one rank and for many.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark.devices.cpu import usable_cores
from trainmark.errors import EnvironmentFault
from trainmark.launch import processes, run_dir
from trainmark.launch.keeper import DONE
from trainmark.measure.worker import STACKS_SIGNAL, stacks_file
from trainmark.results import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.launch.own_files import OwnFiles
    from trainmark.launch.stopping import StopRequest
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record

AGENT_LOG = "log.launcher.txt"
_POLL_S = 0.1
_KEEPER_PATIENCE_S = 5


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


def import_variables() -> dict[str, str]:
    """Return the variables that keep a child from importing from the working directory.

    A file called json.py there is the user's own business. An empty part of ``PYTHONPATH``,
    as ``PYTHONPATH=$PYTHONPATH:/more`` leaves one, stands for that folder too.
    """
    variables = {"PYTHONSAFEPATH": "1"}
    paths = os.environ.get("PYTHONPATH")
    if paths is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths.split(os.pathsep)))
    return variables


@dataclass(slots=True)
class _Watch:
    """What the launcher learns while the ranks run."""

    request: StopRequest
    agent_output: bytes = b""
    stop: dict[str, Any] | None = None
    oom_kills_before: int | None = field(default_factory=processes.oom_kills)
    cpu_before: processes.CpuUse = field(default_factory=processes.CpuUse.now)
    orphans_cpu_s: float = 0.0


def launch(plan: Plan, request: StopRequest, on_poll: Callable[[], None] = lambda: None) -> Record:
    """Run ``plan`` to its end and return its record, written beside its events.

    Args:
        request: the run is stopped as soon as it holds a signal.
        on_poll: called several times a second while the ranks run, to show progress.

    Raises:
        EnvironmentFault: the run directory cannot be made; nothing was started.
    """
    folder = Path(plan.run_dir)
    watch = _Watch(request)
    variables = os.environ | import_variables() | rank_environment(plan, usable_cores())
    described = environment.collect(variables)
    with _Keeper(folder, plan.run_id) as keeper:
        run_dir.create(folder)
        own = run_dir.first_words(plan, folder, described)
        try:
            poll = _both(keeper.replace_if_dead, on_poll)
            agent = _run_ranks(plan, watch, own, variables, poll)
        except BaseException as error:
            # A fault of ours or of this machine: the ranks end, and a record says so.
            processes.kill_run(plan.run_id)
            stop = {"reason": "launcher_error", "message": f"{type(error).__name__}: {error}"}
            record = run_dir.finish(own, stop=stop, agent=None)
            if record.cause is not None and record.cause.kind == "files_lost":
                return record  # the error was a consequence
            raise
        return run_dir.finish(own, stop=watch.stop, agent=agent)


def _run_ranks(
    plan: Plan,
    watch: _Watch,
    own: OwnFiles,
    variables: dict[str, str],
    on_poll: Callable[[], None],
) -> dict[str, Any]:
    """Start the ranks, watch them to their end, leave none; return the agent's news."""
    with (
        _temporary_folder() as agent_log_dir,
        (Path(plan.run_dir) / AGENT_LOG).open("wb") as agent_log,
        subprocess.Popen(
            command(plan, python=sys.executable, agent_log_dir=agent_log_dir),
            env=variables,
            cwd=_working_directory(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=agent_log,
            start_new_session=True,
        ) as agent,
    ):
        try:
            _watch_agent(agent, plan, watch, own, on_poll)
        finally:
            watch.orphans_cpu_s = processes.rank_cpu_s(plan.run_id)
            processes.kill_run(plan.run_id)
        return _agent_news(watch, agent.wait())


def _working_directory() -> str | None:
    """Return where the agent starts: here, or at the root where this folder was deleted.

    Intel's MKL does not load in a folder that is gone.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        return "/"
    return None


@contextmanager
def _temporary_folder() -> Iterator[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="trainmark-")
    except OSError as error:
        raise EnvironmentFault(
            f"no folder for temporary files: {error.strerror}",
            rule="the ranks' last words go there, apart from the run's own disk",
            remedy="set TMPDIR to a folder you may write to",
        ) from error
    with folder as name:
        yield name


def _agent_news(watch: _Watch, exit_code: int) -> dict[str, Any]:
    """Return the agent's exit and what it printed of the ranks' failures."""
    failures: list[dict[str, Any]] = []
    for line in watch.agent_output.decode(errors="replace").splitlines():
        if line.startswith('{"failures"'):
            failures = json.loads(line)["failures"]
    now = processes.oom_kills()
    before = watch.oom_kills_before
    kills = now - before if now is not None and before is not None else 0
    others = watch.cpu_before.others_share(processes.CpuUse.now(), orphans_s=watch.orphans_cpu_s)
    return {
        "exit_code": exit_code,
        "failures": failures,
        "oom_kills": kills,
        "others_cpu_share": others,
    }


def _watch_agent(
    agent: subprocess.Popen[bytes],
    plan: Plan,
    watch: _Watch,
    own: OwnFiles,
    on_poll: Callable[[], None],
) -> None:
    """Follow the agent until it closes its output, a signal comes or time is up."""
    assert agent.stdout is not None
    timeout_s = float(plan.recipe["timeout_s"])
    deadline = time.monotonic() + timeout_s
    while True:
        readable, _, _ = select.select([agent.stdout], [], [], _POLL_S)
        # First of all: a signal to the whole process group ends the agent too.
        if watch.request.signal_name is not None:
            watch.stop = {"reason": "signal", "signal": watch.request.signal_name}
            return
        if readable:
            chunk = os.read(agent.stdout.fileno(), 65536)
            if not chunk:
                return
            watch.agent_output += chunk
        if agent.poll() is not None and not readable:
            return  # a rank that outlived the agent may hold its output open
        if own.gone():
            watch.stop = {"reason": "files_lost", "files": own.lost()}
            return  # nobody could use what the ranks measure from here on
        if time.monotonic() >= deadline:
            watch.stop = _time_out(plan, timeout_s)
            return
        on_poll()


def _time_out(plan: Plan, timeout_s: float) -> dict[str, Any]:
    files = {rank: Path(plan.run_dir) / stacks_file(rank) for rank in range(plan.world_size)}
    saved = processes.save_stacks(plan.run_id, files, STACKS_SIGNAL)
    return {"reason": "timeout", "timeout_s": timeout_s, "stacks": saved}


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        first()
        second()

    return call


class _Keeper:
    """A process beside the run that takes over if this one is killed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._command = [sys.executable, "-m", processes.KEEPER_MODULE, str(folder), run_id]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env=os.environ | import_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def replace_if_dead(self) -> None:
        """Start another where somebody killed this one."""
        if self._process.poll() is not None:
            self._process = self._start()

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error of ours: the launcher lives, so it reports for itself.
        try:
            self._process.communicate(DONE, timeout=_KEEPER_PATIENCE_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
