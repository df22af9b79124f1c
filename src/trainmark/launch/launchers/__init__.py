"""The interface of launchers: turn a job into a command, and follow the job once it is started.

The command depends only on the ``JobSpec`` and the cluster file, so that it can be printed, pasted
and tested; running it is separate. The user's engine (Slurm, Kubernetes, Ray) schedules, queues and
ends jobs; a launcher only calls it. On every node the command starts the Python module that the
``JobSpec`` names. Each launcher knows one engine, and none knows another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from shutil import which
from typing import IO, TYPE_CHECKING, Literal

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.launch.cluster import CONTAINER
from trainmark.launch.python_commands import build_module_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

JobPhase = Literal["waiting", "running", "ended", "lost"]
Process = subprocess.Popen[bytes]
JOB_FILE = "job.id"  # in the job's folder: output of the command, which names the job
LOG_FILE = "log.job.txt"  # in the job's folder: output of the job outside of its nodes
NO_RUNTIME = "no container runtime (docker, podman or apptainer) is set"
_PROGRAM_TIMEOUT_S = 60.0  # of most calls of an engine's program; the engine may be under load


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """The command that starts a job. It runs in the job's folder, after ``files`` are written.

    Args:
        argv: program and arguments.
        files: content by path, relative to the job's folder.
        submits: whether the command returns at once and prints the job's id, which is kept in
            ``JOB_FILE``. The job then continues without the process that started it.
    """

    argv: tuple[str, ...]
    files: Mapping[str, str]
    submits: bool = False

    def render_script(self, run_dir: Path) -> str:
        """Return a shell script for a user to paste, which starts the job by hand.

        It writes ``files`` into the job's folder and runs the command there. What a command that
        submits prints goes to ``JOB_FILE``, in which ``attach`` finds the job's id.
        """
        return render_template(
            "command.sh.j2", command=self, folder=str(run_dir), job_file=JOB_FILE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job.

    Args:
        phase: ``ended``: the job ended by itself; ``lost``: the engine refused it or took its
            nodes away.
        description: the engine's own words, for example ``PENDING (Priority)``.
    """

    phase: JobPhase
    description: str = ""


@dataclass
class EngineJob:
    """A job that was started, by this process or an earlier one.

    Args:
        spec: what was started.
        cluster: settings of the cluster on which the job runs.
        process: the process of the command, if this process started it and it does not submit.
        num_cancels: how often ``Launcher.cancel`` was called for the job, counted before the call;
            launchers may use more force from the second time on.
    """

    spec: JobSpec
    cluster: Cluster
    process: Process | None = None
    num_cancels: int = 0

    @property
    def folder(self) -> Path:
        """Return the folder of the job, in which its files are."""
        return self.spec.run_dir

    @property
    def id(self) -> str:
        """Return the process id, or for a submitted job the last word that its command printed.

        Raises:
            RecordError: the command printed nothing.
        """
        if self.process is not None:
            return str(self.process.pid)
        file = self.folder / JOB_FILE  # what the command printed
        words = file.read_text(errors="replace").split() if file.exists() else []
        if not words:
            raise RecordError("the file does not name a job of this run", where=str(file))
        return words[-1]


class Launcher(ABC):
    """One way to start a job on the machines of a cluster.

    This base class follows a job that is a process of this machine and ends with this process.
    Launchers of engines override ``read_state`` and ``cancel``.
    """

    programs: tuple[str, ...] = ()  # programs that must be on the PATH of this machine
    poll_s = 1.0  # seconds between two queries of a job's state

    @abstractmethod
    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Check for problems that would stop the job, before anything is submitted.

        Raises:
            UsageError: the job or the cluster file asks for something impossible.
            EnvironmentFault: a host, or the engine (Slurm, Kubernetes, Ray), does not answer as
                expected.
        """

    @abstractmethod
    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the command that starts the job; start and write nothing."""

    def read_state(self, job: EngineJob) -> JobState:
        """Return the current state of a job, without blocking for long.

        This base class looks at the process of the command; launchers that submit ask the engine.

        Raises:
            EnvironmentFault: the engine does not answer; the last known state stays valid.
            RecordError: ``JOB_FILE`` does not name the job.
        """
        # An earlier process of this program started the job, which ended with that process.
        if job.process is None:
            return JobState(phase="ended")
        exit_code = job.process.poll()
        if exit_code is None:
            return JobState(phase="running", description="running")
        if exit_code == 0:
            return JobState(phase="ended")
        # Several lines, because docker's last one only points to its help.
        last_lines = read_log_end(job.folder / LOG_FILE).splitlines()[-3:]
        return JobState(phase="ended", description="; ".join(filter(None, last_lines)))

    def cancel(self, job: EngineJob) -> None:
        """End a job and all its processes; called again if the job is still running.

        This base class ends the process of the command, which ends the job.

        Raises:
            EnvironmentFault: the engine does not answer.
        """
        if job.process:  # None: the job ended with the earlier process that started it
            job.process.terminate()

    def collect(self, job: EngineJob) -> None:  # noqa: B027 - most have nothing to do
        """Copy files that nodes wrote elsewhere into the job's folder; remove the job's remains.

        Raises:
            EnvironmentFault: a node or the engine cannot be reached.
        """


def load_launcher(name: str) -> Launcher:
    """Return the launcher called ``name``; not for ``local``, which has no launcher class."""
    module = import_module(f"{__name__}.{name}")
    launcher_class: type[Launcher] = getattr(module, name.capitalize())  # module ssh: class Ssh
    return launcher_class()


def explain_unusable_launcher(name: str, cluster: Cluster) -> str | None:
    """Return why a launcher cannot be used on this machine; None if it can."""
    programs: tuple[str, ...] = load_launcher(name).programs
    if name == CONTAINER:
        # The cluster file may also describe a container that only an engine can start: a pod of
        # Kubernetes, or Slurm's pyxis. This launcher needs a program of its own to start one.
        if cluster.container is None or not cluster.container.is_started_by_node:
            return f"{NO_RUNTIME} in a cluster file"
        # The cluster file names the program: docker, podman or apptainer.
        programs = (str(cluster.container.runtime),)
    missing = ", ".join(program for program in programs if which(program) is None)
    return f"{missing}: not on PATH" if missing else None


def render_template(file: str, **values: object) -> str:
    """Return the text of a template in this package, filled in with ``values``."""
    # Imported here, because the import is slow, and most commands do not need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__, "."),  # templates are beside this module
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"join_words": shlex.join, "quote": shlex.quote, "json": json.dumps}
    return environment.get_template(file).render(**values)


def read_log_end(log: Path) -> str:
    """Return the last 64 KiB of a log, which may be too large to read whole.

    Empty if the log is missing: somebody may delete the job's folder while the job runs.
    """
    if not log.exists():
        return ""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - (64 << 10)))
        return file.read().decode(errors="replace")


def run_program(
    *argv: str,
    input_text: str = "",
    output: IO[bytes] | int = subprocess.PIPE,
    folder: Path | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run a program of an engine; return what it printed, unless ``output`` takes it.

    Args:
        input_text: what the program gets as standard input.
        output: a file for the program's standard output; the text that is returned is then empty.
        folder: working directory of the program; None: that of this process.
        timeout_s: time in which the program must end; None: ``_PROGRAM_TIMEOUT_S``.

    Raises:
        EnvironmentFault: the program failed, with the message that it printed; or it could not be
            started, or did not end in time.
    """
    try:
        process = subprocess.run(
            argv,
            cwd=folder,
            input=input_text,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROGRAM_TIMEOUT_S if timeout_s is None else timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(str(error), where=argv[0]) from None
    if process.returncode:
        # Some programs print their errors to standard output. The end of a long text tells most.
        message = (process.stderr or process.stdout or "").strip()[-2000:]
        raise EnvironmentFault(message or f"exit code {process.returncode}", where=argv[0])
    return process.stdout or ""


def start_job(command: EngineCommand, spec: JobSpec, cluster: Cluster) -> EngineJob:
    """Run ``command`` in the job's folder, into which its files were written before.

    A command that submits returns at once, and the job runs without this process. Any other command
    becomes a process that ends when this process does.

    Raises:
        EnvironmentFault: the engine refused the job; the error has the engine's message.
    """
    folder = spec.run_dir
    process = None
    if command.submits:
        with (folder / JOB_FILE).open("wb") as file:
            run_program(*command.argv, output=file, folder=folder)
    else:
        with (folder / LOG_FILE).open("wb") as file:
            # This program runs the command given after it, and lets the kernel end the command when
            # the process with the given id, this one, dies.
            wrapper = build_module_command("trainmark.rank.parent", str(os.getpid()))
            process = subprocess.Popen(
                (*wrapper, *command.argv),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
            )
    return EngineJob(spec, cluster, process)
