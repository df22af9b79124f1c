"""What a launcher is: it turns a plan into a command, and follows the job that this starts.

``command`` is a pure function of plan and site, so that it can be printed, pasted and tested;
running it is separate. An engine that users have (Slurm, Kubernetes, Ray) schedules, queues and
ends jobs; a launcher of ours only speaks with it. On every node the command starts
``trainmark.launch.node``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

Phase = Literal["waiting", "running", "ended", "lost"]
SITE_FILE = "site.json"  # in the run directory: the settings that ``attach`` needs
JOB_FILE = "job.id"  # in the run directory: what the command printed, by which the job is found
_HEREDOC = "TRAINMARK_FILE"
# In a shell of its own, so that the user's stays open, in its folder and with its options.
_BEGIN = """\
(
set -e
mkdir -p {0}
cd {0}
[ -z "$(ls -A)" ] || {{ echo 'the folder is not empty: choose another --out' >&2; exit 1; }}"""


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
        lines = [_BEGIN.format(shlex.quote(str(run_dir)))]
        for name, content in self.files.items():
            text = content.removesuffix("\n")
            lines.append(f"cat > {shlex.quote(name)} <<'{_HEREDOC}'\n{text}\n{_HEREDOC}")
        words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        words.append(shlex.join(self.argv))
        if self.prints_job:
            words.append(f"> {JOB_FILE}")
        return "\n".join([*lines, " ".join(words), ")"]) + "\n"


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
