"""Slurm: a batch script with one task a node, and the states of the job it becomes.

Owns what sbatch is told and what the answers of scontrol and the job's own files mean.
Slurm queues, starts and ends everything; run directory and data are on a file system that all
nodes see. Must not know what a node's process does.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.launchers import Command, JobState, job_id, limit_s, submit, template
from trainmark.launch.node import node_script, pyxis_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

    Ask = Callable[..., tuple[int, str, str]]  # exit code, output and errors of a program

SCRIPT_FILE, NODE_FILE, LOG_FILE = "job.sh", "node.sh", "log.job.txt"
ENDED_FILE = "job.ended"  # the script's exit code
PROGRAMS = ("sbatch", "scontrol", "scancel")
PATIENCE_S = 20.0  # with a controller under load; Slurm's own MessageTimeout is 10 s
_POLL_S = 5.0

# JOB STATE CODES of https://slurm.schedmd.com/squeue.html (24.11, read 2026-11-22). A state that
# is not here, COMPLETING and STAGE_OUT among them, still has processes.
_WAITING = ("PENDING", "CONFIGURING", "REQUEUE", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_LOST = ("CANCELLED", "REVOKED", "TIMEOUT", "DEADLINE", "PREEMPTED")
# Of these the nodes' own events tell more: which did not report their end, or why a rank failed.
_ENDED = ("COMPLETED", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")
_KEYS = ("partition", "account", "qos", "time", "constraint", "reservation")
_OWN_OPTIONS = (
    "parsable", "job-name", "nodes", "ntasks", "ntasks-per-node", "no-requeue", "chdir", "output",
    "array", "exclusive", *_KEYS,
)  # fmt: skip


def _ask(*words: str, given: str | None = None) -> tuple[int, str, str]:
    """Return exit code, output and errors of one of Slurm's programs."""
    try:
        ended = subprocess.run(
            words, input=given, capture_output=True, text=True, check=False, errors="replace",
            timeout=PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return 255, "", str(error)
    return ended.returncode, ended.stdout, ended.stderr.strip()


class SlurmJob:
    """A job that was submitted.

    Args:
        ask: runs one of Slurm's programs.
        clock: seconds that only rise.
    """

    def __init__(
        self, number: str, run_dir: Path, ask: Ask = _ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.id, self._run_dir, self._ask, self._clock = number.strip(), run_dir, ask, clock
        self._last, self._cancelled = JobState(phase="waiting", said="submitted"), False
        self._next_s = clock()

    def state(self) -> JobState:
        """Return where it is; a controller that does not answer leaves it where it was."""
        now_s = self._clock()
        if now_s < self._next_s or self._last.phase in ("ended", "lost"):
            return self._last
        self._next_s = now_s + _POLL_S
        code, out, err = self._ask("scontrol", "show", "job", "--oneliner", self.id)
        if code == 0:
            self._last = self._known(out)
        elif "Invalid job id" in err:
            self._last = self._forgotten()
        else:
            self._last = JobState(phase=self._last.phase, said=err or "scontrol does not answer")
        return self._last

    def cancel(self) -> None:
        """Have Slurm end it: SIGTERM, and after the site's KillWait SIGKILL; then at once."""
        self._ask("scancel", *(("--full", "--signal=KILL") if self._cancelled else ()), self.id)
        self._cancelled, self._next_s = True, self._clock()

    def collect(self) -> None:
        """Do nothing: all nodes write into the run directory."""

    def _known(self, shown: str) -> JobState:
        """Return the state of a job that the controller still has; ``shown`` by scontrol."""
        state, reason = _field(shown, "JobState"), _field(shown, "Reason")
        said = state if reason in {"", "None"} else f"{state} ({reason})"
        if state.startswith(_WAITING):
            return JobState(phase="waiting", said=said)
        if state not in _ENDED + _LOST:
            return JobState(phase="running", said=said)
        code, _, signal = _field(shown, "ExitCode").partition(":")
        number = int(code or 0) or -int(signal or 0)
        return JobState(phase="ended" if state in _ENDED else "lost", said=said, exit_code=number)

    def _forgotten(self) -> JobState:
        """Return how a job ended that the controller no longer has, as its own file tells."""
        file = self._run_dir / ENDED_FILE
        code = int(file.read_text(encoding="utf-8")) if file.is_file() else None
        said = f"Slurm does not know job {self.id} any more"
        return JobState(phase="ended", said=said, exit_code=code)


def _field(shown: str, name: str) -> str:
    """Return a value of ``scontrol show job``; what users wrote stands behind those read here."""
    found = re.search(rf"(?:^|\s){name}=(\S*)", shown)
    return found[1] if found else ""


class Slurm:
    """Submits with sbatch."""

    name = "slurm"
    detaches = True

    def absent(self, site: Site) -> str | None:  # noqa: ARG002
        """Return which of Slurm's programs is missing."""
        missing = ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
        return f"{missing}: not on PATH" if missing else None

    def check(self, plan: Plan, site: Site) -> None:
        """Have sbatch try the options."""
        words = self.command(plan, site).argv[:-1]
        code, _, err = _ask(*words, "--test-only", given="#!/bin/sh\n")
        if code != 0:
            raise EnvironmentFault(
                err.replace("sbatch: ", "").replace("error: ", "") or "no reason",
                where="sbatch",
                rule="Slurm refused the job",
                remedy="use fewer --nnodes, or correct slurm in the site file; --dry-run prints it",
            )

    def command(self, plan: Plan, site: Site) -> Command:
        """Return sbatch with its options, which so outrank ``SBATCH_`` variables, and two scripts.

        Raises:
            UsageError: an option that is not the site's to set.
        """
        script = template(
            "slurm.sh.j2", plan=plan, container=pyxis_options(plan, site), node_file=NODE_FILE,
            ended_file=ENDED_FILE,
        )  # fmt: skip
        node = node_script(plan, site, node_rank="$SLURM_NODEID", master="$TRAINMARK_MASTER")
        argv = ("sbatch", *_options(plan, site), SCRIPT_FILE)
        return Command(argv=argv, files={SCRIPT_FILE: script, NODE_FILE: node}, prints_job=True)

    def start(self, command: Command, plan: Plan, site: Site) -> SlurmJob:  # noqa: ARG002
        """Submit the script and keep the job's number."""
        return SlurmJob(submit(command, Path(plan.run_dir)), Path(plan.run_dir))

    def attach(self, plan: Plan, site: Site) -> SlurmJob:  # noqa: ARG002
        """Return the job whose number the run directory has."""
        return SlurmJob(job_id(plan, r"\d+"), Path(plan.run_dir))


def _options(plan: Plan, site: Site) -> list[str]:
    """Return what sbatch is told of the job."""
    slurm, nodes = site.slurm, plan.nnodes
    words = [
        "--parsable", f"--job-name={plan.run_id}", f"--nodes={nodes}", f"--ntasks={nodes}",
        "--ntasks-per-node=1", "--no-requeue", f"--chdir={plan.run_dir}", f"--output={LOG_FILE}",
    ]  # fmt: skip
    words += [f"--{name}={value}" for name in _KEYS if (value := getattr(slurm, name)) is not None]
    words += [] if slurm.time else [f"--time={math.ceil(limit_s(plan) / 60)}"]  # minutes
    if slurm.exclusive:  # all memory of the node too, which is not implied
        memory = {"mem", "mem-per-cpu", "mem-per-gpu"} & set(slurm.options)
        words += ["--exclusive", *([] if memory else ["--mem=0"])]
    gpus = {"gpus-per-node": f"--gpus-per-node={plan.nproc}", "gres": f"--gres=gpu:{plan.nproc}"}
    words += [text for name, text in gpus.items() if name == slurm.gpus_option]
    for name, value in slurm.options.items():
        if name in _OWN_OPTIONS:
            where = f"site file, slurm.options.{name}"
            rule = "the launcher or another key of slurm sets it"
            raise UsageError(f"{name!r} cannot be set there", where=where, rule=rule)
        words.append(f"--{name}" if value == "true" else f"--{name}={value}")
    return words
