"""Runs as jobs of a Ray cluster: ``ray job submit``, a node process in each bundle.

``ray_driver`` is what the job runs inside the cluster, whose nodes share the run directory. Here
the program ``ray`` is needed, not the package: the cluster is asked by its HTTP interface.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from trainmark import devices
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.contract import JOB_FILE, Command, JobState, Phase
from trainmark.launch.launchers.ray_driver import ASKED_FILE, MASTER, PORT, RANK, STATE
from trainmark.launch.node_script import node_script
from trainmark.launch.submission import submit

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

LOCAL_URL = "http://127.0.0.1:8265"  # where `ray start` puts a cluster's interface
_MOST_SILENCES = 60  # answers missed one after another, after which the cluster counts as gone
_RUNTIME = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}  # the driver's own wait is shorter


@dataclass
class RayJob:
    """The job of a plan in the cluster of a site."""

    site: Site
    id: str
    phase: Phase = "waiting"
    silences: int = 0

    def state(self) -> JobState:
        """Return what the cluster says, and what the driver says in the job's log."""
        try:
            job = _asked(self.site, self.id)
            log = _asked(self.site, f"{self.id}/logs")["logs"]
        except EnvironmentFault as fault:
            self.silences += 1
            if self.silences > _MOST_SILENCES:
                return JobState(phase="lost", said=str(fault))
            return JobState(phase=self.phase, said=str(fault))
        self.silences, status = 0, job["status"]
        lines = [line.removeprefix(STATE) for line in log.splitlines() if line.startswith(STATE)]
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {"phase": self.phase}
        # Of what our program printed the last line, of what Ray has to say the first.
        message = job["message"].strip().splitlines()[-1 if job["driver_exit_code"] else 0]
        said = f"{status}: {told.get('said') or message}"
        if status in ("PENDING", "RUNNING"):
            self.phase = "waiting" if told["phase"] == "waiting" else "running"
            return JobState(phase=self.phase, said=said)
        phase: Phase = "lost" if status == "STOPPED" else "ended"
        return JobState(phase=phase, said=said, exit_code=job["driver_exit_code"])

    def cancel(self) -> None:
        """Have the cluster stop the driver, which ends the nodes; as ``ray job stop`` does."""
        with suppress(EnvironmentFault):  # the next state says that it does not answer
            _asked(self.site, f"{self.id}/stop", method="POST")

    def collect(self) -> None:
        """Do nothing: the nodes wrote into the run directory."""


class Ray:
    """Runs as jobs of a Ray cluster."""

    name, detaches = "ray", True

    def absent(self, site: Site) -> str | None:  # noqa: ARG002
        """Return why it cannot be used here, None if it can."""
        return None if which("ray") else "no program `ray`: pip install 'ray[default]'"

    def check(self, plan: Plan, site: Site) -> None:  # noqa: ARG002
        """Ask whether the cluster is there; what it has, the driver finds out.

        Raises:
            UsageError: a container that Ray would have to start.
            EnvironmentFault: it does not answer.
        """
        if site.container is not None and not site.container.of_node:
            raise UsageError("a container on Ray needs a runtime", where="site file, container")
        _asked(site)

    def command(self, plan: Plan, site: Site) -> Command:
        """Return the submission; its entry point runs the nodes inside the cluster."""
        # Names in Ray 2.60 (2026-11-22); what it does not find, `ray start --num-gpus` tells it.
        # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
        vendor = devices.all_vendors()[plan.device.vendor]
        own = getattr(vendor, "ray_resource", "GPU")
        bundle = {"CPU": plan.nproc, own: plan.nproc} | site.ray.resources
        options = ("--port", PORT, "--heartbeat")
        script = node_script(plan, site, node_rank=RANK, master=MASTER, options=options)
        asked = {
            "nnodes": plan.nnodes, "bundle": {name: n for name, n in bundle.items() if n},
            # Ray sets it to the number of cores; the node divides its cores itself.
            "script": f"unset OMP_NUM_THREADS\n{script}",
        }  # fmt: skip
        argv = (
            "ray", "job", "submit", "--no-wait", f"--submission-id={plan.run_id}",
            f"--runtime-env-json={json.dumps(_RUNTIME)}",
            "--", site.python, "-m", "trainmark.launch.launchers.ray_driver", plan.run_dir,
        )  # fmt: skip
        address = {"RAY_API_SERVER_ADDRESS": site.ray.address or LOCAL_URL}
        return Command(argv=argv, env=address, files={ASKED_FILE: json.dumps(asked, indent=2)})

    def start(self, command: Command, plan: Plan, site: Site) -> RayJob:
        """Submit the job."""
        submit(command, Path(plan.run_dir))
        (Path(plan.run_dir) / JOB_FILE).write_text(plan.run_id, encoding="utf-8")
        return self.attach(plan, site)

    def attach(self, plan: Plan, site: Site) -> RayJob:
        """Return the job that was submitted for ``plan``, by the run's id."""
        return RayJob(site, plan.run_id)


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
