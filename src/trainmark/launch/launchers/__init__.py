"""What a launcher is: it turns a plan into a command, and follows the job that this starts.

``command`` is a pure function of plan and site, so that it can be printed, pasted and tested;
running it is separate. An engine that users have (Slurm, Kubernetes, Ray) schedules, queues and
ends jobs; a launcher of ours only speaks with it. On every node the command starts
``trainmark.launch.node``. Each launcher knows one engine, and none knows another.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal, Protocol

from trainmark.errors import EnvironmentFault, RecordError, UsageError, nearest
from trainmark.launch.site import CLASSES, NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

Phase = Literal["waiting", "running", "ended", "lost"]
JOB_FILE = "job.id"  # in the run directory: what the command printed, by which the job is found
_GRACE_S = 300.0  # after the run's own time limit, which the nodes keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What starts a run, in the folder of the run, once ``files`` are there.

    Args:
        argv: program and arguments.
        env: variables beside those of the caller.
        files: content by path, relative to the run directory.
        prints_job: whether its standard output is the job's id, to be kept in ``JOB_FILE``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    prints_job: bool = False

    def script(self, run_dir: Path) -> str:
        """Return the text for a shell that does what ``start`` does, as it can be pasted."""
        return template("command.sh.j2", command=self, folder=str(run_dir), job_file=JOB_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a job is.

    Args:
        phase: ``ended``: by itself; ``lost``: the engine refused it, or took its nodes away.
        said: the engine's own words, for example ``PENDING (Priority)``.
        exit_code: of the job, if the engine tells one.
    """

    phase: Phase
    said: str = ""
    exit_code: int | None = None


class Job(Protocol):
    """A job that was started, by this process or an earlier one."""

    id: str

    def state(self) -> JobState:
        """Return where it is now; called about once a second. Must not block for long."""

    def cancel(self) -> None:
        """End it and all its processes; called again where it did not help."""

    def collect(self) -> None:
        """Bring what nodes wrote elsewhere into the run directory, and remove what the job left.

        Raises:
            EnvironmentFault: a node or the engine cannot be reached.
        """


class Launcher(Protocol):
    """One way to start a run on the machines of a site.

    Args:
        detaches: whether its jobs go on without the process that started them.
    """

    name: str
    detaches: bool

    def absent(self, site: Site) -> str | None:
        """Return why it cannot be used here, None if it can."""

    def check(self, plan: Plan, site: Site) -> None:
        """Look for what would stop the run, before anything is submitted.

        Raises:
            UsageError: the plan or the site file asks for what cannot be.
            EnvironmentFault: a host or an engine does not answer as it must.
        """

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what starts the run; a pure function."""

    def start(self, command: Command, plan: Plan, site: Site) -> Job:
        """Run ``command`` in the run directory, in which its files are.

        Raises:
            EnvironmentFault: the engine refused the job, in its own words.
        """

    def attach(self, plan: Plan, site: Site) -> Job:
        """Return the job that was started for ``plan``, also by a pasted script.

        Raises:
            RecordError: the run directory does not tell which.
        """


def load(name: str) -> Launcher:
    """Return the launcher called ``name``; not the local one, which is no engine.

    Raises:
        UsageError: no launcher is called so.
    """
    if name not in CLASSES:
        raise UsageError(
            f"unknown launcher {name!r}", where="--launcher", remedy=nearest(name, NAMES)
        )
    launcher: Launcher = getattr(import_module(f"{__name__}.{name}"), CLASSES[name])()
    return launcher


def template(file: str, **values: object) -> str:
    """Return a text of an engine: a template beside the launchers, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__name__, "."), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"join_words": shlex.join, "quote": shlex.quote, "json": json.dumps}
    return environment.get_template(file).render(**values)


def limit_s(plan: Plan) -> float:
    """Return after how many seconds an engine ends the job; the nodes end their ranks before."""
    return float(plan.recipe["timeout_s"]) + _GRACE_S


def submit(command: Command, folder: Path) -> str:
    """Run ``command`` in the run directory; return what it printed, kept if it is the job's id.

    Raises:
        EnvironmentFault: it failed, with what it said.
    """
    try:
        with (folder / JOB_FILE).open("w+b") if command.prints_job else TemporaryFile() as out:
            ended = subprocess.run(
                command.argv, cwd=folder, env=os.environ | dict(command.env), stdout=out,
                stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            out.seek(0)
            printed, errors = (text.decode(errors="replace") for text in (out.read(), ended.stderr))
    except OSError as error:
        raise EnvironmentFault(f"{command.argv[0]}: {error.strerror}") from None
    if ended.returncode:
        said = (errors or printed).strip()[-2000:] or f"exit code {ended.returncode}"
        raise EnvironmentFault(f"the engine refused the job: {said}", where=command.argv[0])
    return printed


def job_id(plan: Plan, pattern: str) -> str:
    """Return the last word of what the command of ``plan`` printed.

    Raises:
        RecordError: there is none that matches ``pattern``.
    """
    file = Path(plan.run_dir) / JOB_FILE
    words = file.read_text(errors="replace").split() if file.exists() else []
    if not words or not re.fullmatch(pattern, words[-1], re.ASCII):
        raise RecordError("does not name a job of this run", where=str(file))
    return words[-1]


@dataclass
class ChildJob:
    """A job that is a process of this machine.

    Args:
        process: None after the process ended that started it.
        log: what it prints.
    """

    process: subprocess.Popen[bytes] | None
    log: Path

    @property
    def id(self) -> str:
        """Return the id of the process."""
        return str(self.process.pid) if self.process else ""

    def state(self) -> JobState:
        """Return whether it runs, or its last words."""
        code = self.process.poll() if self.process else None
        if self.process and code is None:
            return JobState(phase="running", said="running")
        words = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        # The last of docker's words is about its help.
        said = "; ".join(filter(None, words[-3:])) if code else ""
        return JobState(phase="ended", said=said, exit_code=code)

    def cancel(self) -> None:
        """End it."""
        if self.process:
            self.process.terminate()

    def collect(self) -> None:
        """Do nothing: it wrote into the run directory."""


def child(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start ``command`` in the run directory as a process that ends with this one.

    Args:
        log: file of the run directory that gets what it prints.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            ("setpriv", "--pdeathsig", "TERM", *command.argv), cwd=log.parent,
            env=os.environ | dict(command.env), stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
