"""Run on Slurm: a batch script with one task per node, and the states of its job.

Chooses the options of sbatch and interprets the output of scontrol. Slurm queues, starts and ends
the job; the run directory and the data are on a file system that all nodes see.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import (
    LOG_FILE,
    EngineCommand,
    EngineJob,
    JobState,
    Launcher,
    render_template,
    run_program,
)
from trainmark.launch.node_script import build_pyxis_options, render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

SCRIPT_FILE = "job.sh"
NODE_FILE = "node.sh"

# JOB STATE CODES of https://slurm.schedmd.com/squeue.html (24.11, read 2026-11-22). A job in any
# other state, such as COMPLETING or STAGE_OUT, still has processes.
_WAITING = ("PENDING", "CONFIGURING", "REQUEUE", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_LOST = ("CANCELLED", "REVOKED", "TIMEOUT", "DEADLINE", "PREEMPTED")
# For these the nodes' events tell more: which node did not report its end, or why a rank failed.
_ENDED = ("COMPLETED", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")


def _parse_state(output: str) -> JobState:
    """Return the state of a job from the output of ``scontrol show job``.

    A job is ``lost`` if somebody or Slurm ended it before its program did. It has ``ended`` if it
    ended by itself, or failed with a node; the files of the nodes then tell why.
    """
    state = _read_field(output, "JobState")  # empty if the answer has none
    reason = _read_field(output, "Reason")
    description = state if reason in {"", "None"} else f"{state} ({reason})"
    # Some states have variants with a longer name, such as REQUEUE_HOLD.
    if state.startswith(_WAITING):
        return JobState(phase="waiting", description=description)
    # In every other state, such as COMPLETING, the job still has processes. An answer without a
    # state counts as running, too: a job has ended only if Slurm says so.
    if state not in _ENDED + _LOST:
        return JobState(phase="running", description=description)
    return JobState(phase="ended" if state in _ENDED else "lost", description=description)


def _read_field(output: str, name: str) -> str:
    """Return the first value of a field in the output of ``scontrol show job``; else empty.

    Text of users may look like a field, but it comes after the fields that are read here.
    """
    match = re.search(rf"(?:^|\s){name}=(\S*)", output)
    return match[1] if match else ""


def _split_job_id(job_id: str) -> tuple[str, list[str]]:
    """Return the number of a job, and the options by which Slurm's programs find its cluster.

    Args:
        job_id: as ``sbatch --parsable`` prints it: the number, and after a semicolon the name of
            the cluster if ``--clusters`` or ``SLURM_CLUSTERS`` named one to sbatch.
    """
    number, _, cluster_name = job_id.partition(";")
    return number, [f"--clusters={cluster_name}"] if cluster_name else []


def read_time_option_s(cluster: Cluster) -> float | None:
    """Return the time limit that the cluster file sets for jobs, in seconds.

    None: it sets none, or one that sbatch refuses or takes as no limit. The forms are those of
    ``--time`` (https://slurm.schedmd.com/sbatch.html, 24.11): minutes, minutes:seconds,
    hours:minutes:seconds, days-hours, days-hours:minutes and days-hours:minutes:seconds.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", cluster.slurm.options.get("time", ""))
    if match is None:
        return None
    days, clock = match.groups()
    numbers = [int(number) for number in clock.split(":")]
    if days is None and len(numbers) < 3:  # minutes come first, and no hours
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    limit_s = float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
    return limit_s or None  # sbatch takes 0 as no limit


class Slurm(Launcher):
    """Submits with sbatch."""

    programs = ("sbatch", "scontrol", "scancel")
    poll_s = 5.0

    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Let sbatch test the options, without submitting."""
        try:
            # Without the job's script, which is not written yet: sbatch reads one from its input.
            run_program(
                *self.build_command(spec, cluster).argv[:-1],
                "--test-only",
                input_text="#!/bin/sh\n",
            )
        except EnvironmentFault as fault:
            raise EnvironmentFault(
                fault.what.replace("sbatch: ", "").replace("error: ", ""),
                where="sbatch",
                rule="Slurm must accept the job",
                fix=(
                    "use a smaller --nnodes, or correct `slurm` in the cluster file; --dry-run "
                    "prints the job script"
                ),
            ) from fault

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the sbatch command and its two scripts.

        Options are arguments, not lines of the script: ``SBATCH_`` variables cannot override them.

        Raises:
            UsageError: the cluster file sets an option that only the launcher may set.
        """
        # Starts the node script on each node, with the first node's address in TRAINMARK_MASTER.
        script = render_template(
            "slurm.sh.j2",
            spec=spec,
            container=build_pyxis_options(spec, cluster),
            node_file=NODE_FILE,
        )
        node = render_node_script(
            spec, cluster, node_rank="$SLURM_NODEID", master="$TRAINMARK_MASTER"
        )
        argv = ("sbatch", *_build_options(spec, cluster), SCRIPT_FILE)
        return EngineCommand(argv=argv, files={SCRIPT_FILE: script, NODE_FILE: node}, submits=True)

    def read_state(self, job: EngineJob) -> JobState:
        """Return the state that the controller reports; it forgets jobs that ended long ago."""
        try:
            number, cluster_options = _split_job_id(job.id)
            return _parse_state(
                run_program("scontrol", *cluster_options, "show", "job", "--oneliner", number)
            )
        except EnvironmentFault as fault:
            if "Invalid job id" not in fault.what:
                raise
        return JobState(phase="ended", description=f"Slurm no longer knows job {job.id}")

    def cancel(self, job: EngineJob) -> None:
        """Let Slurm end the job.

        On the first call Slurm sends SIGTERM, and SIGKILL after the cluster's KillWait. From the
        second call on, it sends SIGKILL at once.
        """
        # The number includes this call. --full: also the batch script, and what it started.
        options = ("--full", "--signal=KILL") if job.num_cancels > 1 else ()
        number, cluster_options = _split_job_id(job.id)
        run_program("scancel", *cluster_options, *options, number)


def _build_options(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Return the options of sbatch."""
    slurm = cluster.slurm
    nodes = str(spec.nnodes)
    options = {
        "parsable": "true",  # sbatch prints only the job's id, which `_split_job_id` reads
        "job-name": spec.run_id,
        "nodes": nodes,
        "ntasks": nodes,
        "ntasks-per-node": "1",
        # A job that Slurm starts again would write into the same run directory as at first.
        "no-requeue": "true",
        "chdir": str(spec.run_dir),
        "output": LOG_FILE,
    }
    conflicts = options.keys() & slurm.options.keys()
    if conflicts:
        raise cluster.build_error(
            f"slurm.options.{min(conflicts)}",
            f"{min(conflicts)!r} cannot be set",
            rule="the launcher sets this option itself",
            fix=f"remove {min(conflicts)!r}",
        )
    # The options that follow are defaults, which the cluster file may replace.
    options["time"] = str(math.ceil(spec.engine_limit_s / 60))  # minutes
    if slurm.exclusive:
        options["exclusive"] = "true"
        if not {"mem", "mem-per-cpu", "mem-per-gpu"} & slurm.options.keys():
            options["mem"] = "0"  # all memory of the node, which --exclusive does not imply
    # An option of the cluster file may contain {nproc}, the number of ranks of each node.
    for name, value in slurm.options.items():
        options[name] = value.replace("{nproc}", str(spec.nproc))
    # Options with the value ``true`` take none on the command line.
    return [
        f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()
    ]
