"""Runs as jobs of a Ray cluster: ``ray job submit``, a node process in each bundle.

``ray_driver`` is what the job runs inside the cluster. Here the program ``ray`` is needed, not the
package: the cluster is asked by its HTTP interface, which answers within a bound.
"""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch import processes
from trainmark.launch.contract import JOB_FILE, Command, Ending, JobState, Phase
from trainmark.launch.launchers.ray_driver import ASKED_FILE, MASTER, PORT, RANK, TOLD
from trainmark.launch.node.command import node_script, run_dir_on_nodes
from trainmark.launch.node.files import names_of, receive
from trainmark.launch.run_dir import RESERVE_FILE
from trainmark.launch.submission import submit
from trainmark.plan.plan import PLAN_FILE

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

CLUSTER_VARIABLE = "TRAINMARK_RAY_CLUSTER"  # of a local cluster of the run's own: the run's id
LOCAL_URL = "http://127.0.0.1:8265"  # where `ray start` puts a cluster's interface
# The wait is longer than the driver's own for its nodes; the file only reserves space.
_RUNTIME = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}, "excludes": [RESERVE_FILE]}
_START = "ray start --head --port=0 --disable-usage-stats"
_ENDINGS: dict[str, Ending] = {"SUCCEEDED": "completed", "STOPPED": "cancelled"}


@dataclass
class RayJob:
    """The job of a plan in the cluster of a site.

    Args:
        silences: answers missed one after another; after 60 the cluster counts as gone.
    """

    plan: Plan
    site: Site
    id: str
    phase: Phase = "waiting"
    silences: int = 0

    def state(self) -> JobState:
        """Return what the cluster says, and what the driver says in the job's log."""
        try:
            job = _asked(self.site, self.id)
            known = job["status"] == "RUNNING" and self.phase == "running"
            log = "" if known else _asked(self.site, f"{self.id}/logs")["logs"]
        except EnvironmentFault as fault:
            self.silences += 1
            if self.silences > 60:
                return JobState(phase="ended", said=str(fault), ending="unknown")
            return JobState(phase=self.phase, said=str(fault))
        self.silences, status = 0, job["status"]
        lines = [line.removeprefix(TOLD) for line in log.splitlines() if line.startswith(TOLD)]
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {"phase": self.phase}
        # Of what our program printed the last line, of what Ray has to say the first.
        message = job["message"].strip().splitlines()[-1 if job["driver_exit_code"] else 0]
        said = f"{status}: {told.get('said') or message}"
        if status in ("PENDING", "RUNNING"):
            self.phase = "waiting" if told["phase"] == "waiting" else "running"
            return JobState(phase=self.phase, said=said)
        guess: Ending = "out_of_memory" if "running low on memory" in message else "failed"
        return JobState(
            phase="ended", said=said, ending=_ENDINGS.get(status) or told.get("ending", guess),
            exit_code=job["driver_exit_code"], lost=tuple(told.get("lost", ())),
        )  # fmt: skip

    def cancel(self) -> None:
        """Have the cluster stop the driver, which ends the nodes; as ``ray job stop`` does."""
        with suppress(EnvironmentFault):  # the next state says that it does not answer
            _asked(self.site, f"{self.id}/stop", method="POST")

    def collect(self) -> None:
        """Bring the nodes' files, which are in the job's log; end a cluster of the run's own.

        Raises:
            EnvironmentFault: the cluster does not give the log, or a file in it is not whole.
        """
        try:
            if self.site.run_root is not None:
                lines = _asked(self.site, f"{self.id}/logs")["logs"].splitlines()
                lines.sort(key=lambda line: line.partition("]")[0])  # one node after another
                names = [name for k in range(self.plan.nnodes) for name in names_of(k, self.plan)]
                receive(lines, Path(self.plan.run_dir), expected=names)
        finally:
            processes.kill_run(self.id, CLUSTER_VARIABLE)


class Ray:
    """Runs as jobs of a Ray cluster: one that is there, or a local one of the run's own."""

    name, detaches = "ray", True

    def absent(self, site: Site) -> str | None:  # noqa: ARG002
        """Return why it cannot be used here, None if it can."""
        return None if which("ray") else "no program `ray`: pip install 'ray[default]'"

    def check(self, plan: Plan, site: Site) -> None:  # noqa: ARG002
        """Ask the cluster that the site names; what it has, the driver finds out.

        Raises:
            UsageError: a container that Ray would have to start.
            EnvironmentFault: it does not answer.
        """
        if site.container is not None and not site.container.of_node:
            raise UsageError("a container on Ray needs a runtime", where="site file, container")
        if site.ray.address is not None:
            _asked(site)

    def command(self, plan: Plan, site: Site) -> Command:
        """Return the submission; its entry point runs the nodes inside the cluster."""
        # Names in Ray 2.60 (2026-11-22); what it does not find, `ray start --num-gpus` tells it.
        # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
        vendor = devices.all_vendors()[plan.device.vendor]
        own = getattr(vendor, "ray_resource", "GPU")
        bundle = {"CPU": plan.nproc, own: plan.nproc} | site.ray.resources
        options = ["--port", PORT, "--heartbeat"] + ["--send-files"] * (site.run_root is not None)
        there = shlex.quote(str(run_dir_on_nodes(plan, site)))
        # Ray brings the run directory to the nodes; where they see it too, the plan is there. Ray
        # sets the variable to the number of cores; the node divides its cores itself.
        bring = f"[ -e {there}/{PLAN_FILE} ] || {{ mkdir -p {there}; cp {PLAN_FILE} {there}; }}"
        script = node_script(plan, site, node_rank=RANK, master=MASTER, options=tuple(options))
        asked = {
            "nnodes": plan.nnodes, "bundle": {name: n for name, n in bundle.items() if n},
            "may_grow": site.ray.may_grow, "script": f"unset OMP_NUM_THREADS\n{bring}\n{script}",
        }  # fmt: skip
        argv: tuple[str, ...] = (
            "ray", "job", "submit", "--no-wait", f"--submission-id={plan.run_id}",
            "--working-dir=.", f"--runtime-env-json={json.dumps(_RUNTIME)}",
            "--", site.python, "-m", "trainmark.launch.launchers.ray_driver",
        )  # fmt: skip
        if site.ray.address is None:  # one command starts a cluster where there is none
            begin = f"ray job list > /dev/null 2>&1 || {CLUSTER_VARIABLE}={plan.run_id} {_START}"
            argv = ("sh", "-c", f"{begin}; exec {shlex.join(argv)}")
        address = {"RAY_API_SERVER_ADDRESS": site.ray.address or LOCAL_URL}
        return Command(argv=argv, env=address, files={ASKED_FILE: json.dumps(asked, indent=2)})

    def start(self, command: Command, plan: Plan, site: Site) -> RayJob:
        """Submit the job, to a local cluster of its own where there is none.

        Raises:
            EnvironmentFault: a cluster cannot be started, or it refuses the job.
        """
        job = self.attach(plan, site)
        try:
            submit(command, Path(plan.run_dir))
        except EnvironmentFault:
            processes.kill_run(job.id, CLUSTER_VARIABLE)
            raise
        (Path(plan.run_dir) / JOB_FILE).write_text(job.id, encoding="utf-8")
        return job

    def attach(self, plan: Plan, site: Site) -> RayJob:
        """Return the job that was submitted for ``plan``, by the run's id."""
        return RayJob(plan, site, plan.run_id)


def _asked(site: Site, what: str = "", method: str = "GET") -> Any:
    """Return what the cluster's interface for jobs answers.

    Raises:
        EnvironmentFault: nothing, or an error.
    """
    url = f"{site.ray.address or LOCAL_URL}/api/jobs/{what}"
    headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")  # as `ray job` takes them
    try:
        with urlopen(Request(url, headers=headers, method=method), timeout=10) as answer:
            return json.load(answer)
    except OSError as fault:
        raise EnvironmentFault(f"the Ray cluster does not answer: {fault}", where=url) from None
