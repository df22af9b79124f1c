"""Slurm: a batch script with one task a node, and the states of the job it becomes.

Owns what sbatch is told and what the answers of scontrol mean.
Slurm queues, starts and ends everything; run directory and data are on a file system that all
nodes see. Must not know what a node's process does.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import (
    LOG_FILE,
    Command,
    EngineJob,
    JobState,
    Launcher,
    compute_job_limit_s,
    render_template,
    run_program,
)
from trainmark.launch.node import build_pyxis_options, render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan

SCRIPT_FILE, NODE_FILE = "job.sh", "node.sh"

# JOB STATE CODES of https://slurm.schedmd.com/squeue.html (24.11, read 2026-11-22). A state that
# is not here, COMPLETING and STAGE_OUT among them, still has processes.
_WAITING = ("PENDING", "CONFIGURING", "REQUEUE", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_LOST = ("CANCELLED", "REVOKED", "TIMEOUT", "DEADLINE", "PREEMPTED")
# Of these the nodes' own events tell more: which did not report their end, or why a rank failed.
_ENDED = ("COMPLETED", "FAILED", "LAUNCH_FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL")


def _parse_state(shown: str) -> JobState:
    """Return the state of a job that the controller still has; ``shown`` by scontrol."""
    state, reason = _read_field(shown, "JobState"), _read_field(shown, "Reason")
    description = state if reason in {"", "None"} else f"{state} ({reason})"
    if state.startswith(_WAITING):
        return JobState(phase="waiting", said=description)
    if state not in _ENDED + _LOST:
        return JobState(phase="running", said=description)
    return JobState(phase="ended" if state in _ENDED else "lost", said=description)


def _read_field(shown: str, name: str) -> str:
    """Return a value of ``scontrol show job``; what users wrote stands behind those read here."""
    match = re.search(rf"(?:^|\s){name}=(\S*)", shown)
    return match[1] if match else ""


class Slurm(Launcher):
    """Submits with sbatch."""

    programs = ("sbatch", "scontrol", "scancel")
    poll_s = 5.0

    def check(self, plan: Plan, cluster: Cluster) -> None:
        """Have sbatch try the options."""
        try:
            run_program(*self.command(plan, cluster).argv[:-1], "--test-only", given="#!/bin/sh\n")
        except EnvironmentFault as fault:
            raise EnvironmentFault(
                fault.what.replace("sbatch: ", "").replace("error: ", ""),
                where="sbatch",
                rule="Slurm refused the job",
                fix="use fewer --nnodes, or correct `slurm` in the file; --dry-run prints it",
            ) from fault

    def command(self, plan: Plan, cluster: Cluster) -> Command:
        """Return sbatch with its options, which so outrank ``SBATCH_`` variables, and two scripts.

        Raises:
            UsageError: an option that is not the cluster's to set.
        """
        script = render_template(
            "slurm.sh.j2",
            plan=plan,
            container=build_pyxis_options(plan, cluster),
            node_file=NODE_FILE,
        )
        node = render_node_script(
            plan, cluster, node_rank="$SLURM_NODEID", master="$TRAINMARK_MASTER"
        )
        argv = ("sbatch", *_build_options(plan, cluster), SCRIPT_FILE)
        return Command(argv=argv, files={SCRIPT_FILE: script, NODE_FILE: node}, submits=True)

    def state(self, job: EngineJob) -> JobState:
        """Return what the controller says; a job that it has forgotten ended long ago."""
        try:
            return _parse_state(run_program("scontrol", "show", "job", "--oneliner", job.id))
        except EnvironmentFault as fault:
            if "Invalid job id" not in fault.what:
                raise
        return JobState(phase="ended", said=f"Slurm does not know job {job.id} any more")

    def cancel(self, job: EngineJob) -> None:
        """Have Slurm end it: SIGTERM, and after the cluster's KillWait SIGKILL; then at once."""
        run_program("scancel", *(("--full", "--signal=KILL") if job.cancels > 1 else ()), job.id)


def _build_options(plan: Plan, cluster: Cluster) -> list[str]:
    """Return what sbatch is told of the job."""
    slurm, nodes = cluster.slurm, str(plan.nnodes)
    options = {
        "parsable": "true",
        "job-name": plan.run_id,
        "nodes": nodes,
        "ntasks": nodes,
        "ntasks-per-node": "1",
        "no-requeue": "true",
        "chdir": plan.run_dir,
        "output": LOG_FILE,
    }
    if both := options.keys() & slurm.options.keys():
        raise cluster.fault(
            f"slurm.options.{min(both)}",
            f"{min(both)!r} cannot be set",
            rule="the launcher sets it",
            fix="remove it",
        )
    options["time"] = str(math.ceil(compute_job_limit_s(plan) / 60))  # minutes
    if slurm.exclusive:  # all memory of the node too, which is not implied
        memory = {"mem", "mem-per-cpu", "mem-per-gpu"} & slurm.options.keys()
        options |= {"exclusive": "true"} | ({} if memory else {"mem": "0"})
    given = {
        name: value.replace("{nproc}", str(plan.nproc)) for name, value in slurm.options.items()
    }
    return [
        f"--{name}" if value == "true" else f"--{name}={value}"
        for name, value in (options | given).items()
    ]
