"""What a launcher is: it turns a plan into a command, and follows the job that this starts.

``command`` follows from plan and cluster, so that it can be printed, pasted and tested; running it
is separate. An engine that users have (Slurm, Kubernetes, Ray) schedules, queues and
ends jobs; a launcher of ours only speaks with it. On every node the command starts
``trainmark.launch.node``. Each launcher knows one engine, and none knows another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from shutil import which
from typing import IO, TYPE_CHECKING, Literal

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.launch.cluster import CONTAINER
from trainmark.launch.python_commands import build_module_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan

Phase = Literal["waiting", "running", "ended", "lost"]
Process = subprocess.Popen[bytes]
JOB_FILE = "job.id"  # in the run directory: what the command printed, by which the job is found
LOG_FILE = "log.job.txt"  # there too: what a job prints that is no node
NO_RUNTIME = "no docker, podman or apptainer is named"
_PROGRAM_TIMEOUT_S = 60.0  # with a program of an engine under load
_GRACE_S = 300.0  # after the run's own time limit, which the nodes keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What starts a run, in the folder of the run, once ``files`` are there.

    Args:
        argv: program and arguments.
        files: content by path, relative to the run directory.
        submits: whether it returns at once and prints the job's id, which ``JOB_FILE`` keeps; the
            job then goes on without the process that started it.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str]
    submits: bool = False

    def script(self, run_dir: Path) -> str:
        """Return the text for a shell that does what ``start_job`` does, as it can be pasted."""
        return render_template(
            "command.sh.j2", command=self, folder=str(run_dir), job_file=JOB_FILE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a job is.

    Args:
        phase: ``ended``: by itself; ``lost``: the engine refused it, or took its nodes away.
        said: the engine's own words, for example ``PENDING (Priority)``.
    """

    phase: Phase
    said: str = ""


@dataclass
class EngineJob:
    """A job that was started, by this process or an earlier one.

    Args:
        process: that of the command, if this process started it and it does not submit.
        cancels: how often it was told to end.
    """

    plan: Plan
    cluster: Cluster
    process: Process | None = None
    cancels: int = 0

    @property
    def folder(self) -> Path:
        """Return the run directory."""
        return Path(self.plan.run_dir)

    @property
    def id(self) -> str:
        """Return the last word of what the command printed; of a process of ours its number.

        Raises:
            RecordError: it printed nothing.
        """
        if self.process is not None:
            return str(self.process.pid)
        file = self.folder / JOB_FILE
        words = file.read_text(errors="replace").split() if file.exists() else []
        if not words:
            raise RecordError("does not name a job of this run", where=str(file))
        return words[-1]


class Launcher(ABC):
    """One way to start a run on the machines of a cluster.

    The state of a job is here that of a process of this machine, which ends with this one; engines
    have their own.
    """

    programs: tuple[str, ...] = ()  # what must be on the path here
    poll_s = 1.0  # between two questions about a job

    @abstractmethod
    def check(self, plan: Plan, cluster: Cluster) -> None:
        """Look for what would stop the run, before anything is submitted.

        Raises:
            UsageError: the plan or the cluster file asks for what cannot be.
            EnvironmentFault: a host or an engine does not answer as it must.
        """

    @abstractmethod
    def command(self, plan: Plan, cluster: Cluster) -> Command:
        """Return what starts the run; starts and writes nothing."""

    def state(self, job: EngineJob) -> JobState:
        """Return where a job is now. Must not block for long.

        Raises:
            EnvironmentFault: the engine does not answer; the job is where it was.
            RecordError: the run directory does not tell which job it is.
        """
        code = job.process.poll() if job.process else None
        if job.process and code is None:
            return JobState(phase="running", said="running")
        words = read_log_end(job.folder / LOG_FILE).splitlines() if code else []
        # The last of docker's words is about its help.
        return JobState(phase="ended", said="; ".join(filter(None, words[-3:])))

    def cancel(self, job: EngineJob) -> None:
        """End a job and all its processes; called again where it did not help.

        Raises:
            EnvironmentFault: the engine does not answer.
        """
        if job.process:
            job.process.terminate()

    def collect(self, job: EngineJob) -> None:  # noqa: B027 - most have nothing to do
        """Bring what nodes wrote elsewhere into the run directory, and remove what the job left.

        Raises:
            EnvironmentFault: a node or the engine cannot be reached.
        """


def load_launcher(name: str) -> Launcher:
    """Return the launcher called ``name``; not the local one, which is no engine."""
    launcher: Launcher = getattr(import_module(f"{__name__}.{name}"), name.capitalize())()
    return launcher


def explain_absence(name: str, cluster: Cluster) -> str | None:
    """Return why a launcher cannot be used here, None if it can."""
    programs: tuple[str, ...] = load_launcher(name).programs
    if name == CONTAINER:
        if cluster.container is None or not cluster.container.of_node:
            return NO_RUNTIME
        programs = (str(cluster.container.runtime),)
    missing = ", ".join(program for program in programs if which(program) is None)
    return f"{missing}: not on PATH" if missing else None


def render_template(file: str, **values: object) -> str:
    """Return a text of an engine: a template beside the launchers, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__, "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"join_words": shlex.join, "quote": shlex.quote, "json": json.dumps}
    return environment.get_template(file).render(**values)


def compute_job_limit_s(plan: Plan) -> float:
    """Return after how many seconds an engine ends the job; the nodes end their ranks before."""
    return float(plan.recipe["timeout_s"]) + _GRACE_S


def read_log_end(log: Path) -> str:
    """Return the last 64 KiB of a log."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (64 << 10)))
        return file.read().decode(errors="replace")


def run_program(
    *argv: str,
    given: str = "",
    output: IO[bytes] | int = subprocess.PIPE,
    folder: Path | None = None,
) -> str:
    """Run a program of an engine; return what it printed, unless ``output`` takes it.

    Raises:
        EnvironmentFault: it failed, with what it said.
    """
    try:
        ended = subprocess.run(
            argv,
            cwd=folder,
            input=given,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(str(error), where=argv[0]) from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout or "").strip()[-2000:]
        raise EnvironmentFault(said or f"exit code {ended.returncode}", where=argv[0])
    return ended.stdout or ""


def start_job(command: Command, plan: Plan, cluster: Cluster) -> EngineJob:
    """Run ``command`` in the run directory, in which its files are.

    What does not submit becomes a process that ends with this one.

    Raises:
        EnvironmentFault: the engine refused the job, in its own words.
    """
    folder, process = Path(plan.run_dir), None
    if command.submits:
        with (folder / JOB_FILE).open("wb") as file:
            run_program(*command.argv, output=file, folder=folder)
    else:
        with (folder / LOG_FILE).open("wb") as file:
            ends_with_us = build_module_command("trainmark.rank.parent", str(os.getpid()))
            process = subprocess.Popen(
                (*ends_with_us, *command.argv),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
    return EngineJob(plan, cluster, process)
