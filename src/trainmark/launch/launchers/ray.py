"""Runs as jobs of a Ray cluster: ``ray job submit``, a node process in each bundle.

The job runs this module inside the cluster, whose nodes share the run directory: it reserves a
bundle on each node and starts the node process there. What it tells the launcher are lines of the
job's log that begin with ``STATE``. The launcher needs the program ``ray``, not the package: it
asks the cluster by its HTTP interface.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from trainmark import devices
from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import Command, EngineJob, JobState, Launcher, Phase
from trainmark.launch.node import render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.plan.plan import Plan

LOCAL_URL = "http://127.0.0.1:8265"  # where `ray start` puts a cluster's interface
REQUEST_FILE = "ray.json"
STATE = "trainmark-job "  # then fields of a JobState
RANK, MASTER, PORT = "@RANK@", "@MASTER@", "@PORT@"  # in the script of a node
_BEAT_S = 1.0
_END_PATIENCE_S = 50.0
# Of the process that starts a node. Ray lowers the priority of what it runs, and kills the children
# of a process that it ends; a node ends its ranks before itself.
_WORKER_VARIABLES = {"RAY_worker_niceness": "0", "RAY_kill_child_processes_on_worker_exit": "0"}
_RUNTIME = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}  # the driver's own wait is shorter


class Ray(Launcher):
    """Runs as jobs of a Ray cluster."""

    programs = ("ray",)

    def check(self, plan: Plan, cluster: Cluster) -> None:  # noqa: ARG002
        """Ask whether the cluster is there; what it has, the driver finds out.

        Raises:
            UsageError: a container that Ray would have to start.
            EnvironmentFault: it does not answer.
        """
        if cluster.container is not None and not cluster.container.of_node:
            raise cluster.fault(
                "container.runtime",
                "a container on Ray needs a runtime",
                fix="write runtime: podman, docker or apptainer",
            )
        _request_jobs_api(cluster)

    def command(self, plan: Plan, cluster: Cluster) -> Command:
        """Return the submission; its entry point runs the nodes inside the cluster."""
        # Names in Ray 2.60 (2026-11-22); what it does not find, `ray start --num-gpus` tells it.
        # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
        vendor = devices.all_vendors()[plan.device.vendor]
        own = getattr(vendor, "ray_resource", "GPU")
        bundle = {"CPU": plan.nproc, own: plan.nproc} | cluster.ray.resources
        options = ("--port", PORT, "--heartbeat")
        script = render_node_script(plan, cluster, node_rank=RANK, master=MASTER, options=options)
        asked = {
            "nnodes": plan.nnodes, "bundle": {name: n for name, n in bundle.items() if n},
            # Ray sets it to the number of cores; the node divides its cores itself.
            "script": f"unset OMP_NUM_THREADS\n{script}",
        }  # fmt: skip
        argv = (
            "ray", "job", "submit", "--no-wait", f"--address={cluster.ray.address or LOCAL_URL}",
            f"--submission-id={plan.run_id}", f"--runtime-env-json={json.dumps(_RUNTIME)}",
            "--", cluster.python, "-m", "trainmark.launch.launchers.ray", plan.run_dir,
        )  # fmt: skip
        return Command(argv=argv, files={REQUEST_FILE: json.dumps(asked, indent=2)}, submits=True)

    def state(self, job: EngineJob) -> JobState:
        """Return what the cluster says, and what the driver says in the job's log."""
        known = _request_jobs_api(job.cluster, job.plan.run_id)
        log = _request_jobs_api(job.cluster, f"{job.plan.run_id}/logs")["logs"]
        status = known["status"]
        lines = [line.removeprefix(STATE) for line in log.splitlines() if line.startswith(STATE)]
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {"phase": "waiting"}
        # Of what our program printed the last line, of what Ray has to say the first.
        message = known["message"].strip().splitlines()[-1 if known["driver_exit_code"] else 0]
        said = f"{status}: {told.get('said') or message}"
        if status in ("PENDING", "RUNNING"):
            waits = told["phase"] == "waiting"
            return JobState(phase="waiting" if waits else "running", said=said)
        phase: Phase = "lost" if status == "STOPPED" else "ended"
        return JobState(phase=phase, said=said)

    def cancel(self, job: EngineJob) -> None:
        """Have the cluster stop the driver, which ends the nodes; as ``ray job stop`` does."""
        _request_jobs_api(job.cluster, f"{job.plan.run_id}/stop", method="POST")


def _request_jobs_api(cluster: Cluster, what: str = "", method: str = "GET") -> Any:
    """Return what the cluster's interface for jobs answers.

    Raises:
        EnvironmentFault: nothing, or an error.
    """
    url = f"{cluster.ray.address or LOCAL_URL}/api/jobs/{what}"
    headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")  # as `ray job` takes them
    try:
        with urlopen(Request(url, headers=headers, method=method), timeout=10) as answer:
            return json.load(answer)
    except OSError as fault:
        raise EnvironmentFault(f"the Ray cluster does not answer: {fault}", where=url) from None


def _report_phase(phase: str, **facts: Any) -> None:
    print(STATE + json.dumps({"phase": phase, **facts}), flush=True)


class NodeActor:
    """The node process of one machine: an actor, for which Ray starts a process there.

    Uses the standard library and Ray only: Ray brings the class itself to that machine.
    """

    def place(self) -> tuple[str, str]:
        """Return the machine's address and a free port."""
        import ray

        with socket.create_server(("", 0)) as free:
            port = str(free.getsockname()[1])
        return ray.util.get_node_ip_address(), port

    def run(self, script: str, log: str) -> int:
        """Run the node process to its end; it ends its ranks when this actor dies."""
        with Path(log).open("wb") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", script], start_new_session=True, stdin=subprocess.PIPE, stdout=output,
                stderr=output, text=True,
            )  # fmt: skip
        with suppress(BrokenPipeError):  # it ended between the look and the write
            while self.process.poll() is None:
                print(file=self.process.stdin, flush=True)
                time.sleep(_BEAT_S)
        return self.process.wait()

    def stop(self) -> None:
        """Ask the node process to end its ranks."""
        self.process.terminate()


def run_nodes(folder: Path, *, nnodes: int, bundle: dict[str, float], script: str) -> int:
    """Run all nodes to their end; return the exit code of the job.

    Args:
        bundle: amount by resource of Ray, on each node.
        script: what a shell on each node runs.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Bundle

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    ray.init(log_to_driver=False)
    group = ray.util.placement_group([dict(bundle)] * nnodes, strategy="STRICT_SPREAD")
    wanted = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    while not group.wait(3):
        if stopped:
            return 1
        _report_phase("waiting", said=f"waits for {nnodes} nodes with {wanted} each")
    node = ray.remote(
        num_cpus=bundle.pop("CPU", 0), num_gpus=bundle.pop("GPU", 0), resources=bundle,
        max_concurrency=2, runtime_env={"env_vars": _WORKER_VARIABLES},
    )(NodeActor)  # fmt: skip
    actors = [node.options(scheduling_strategy=Bundle(group, k)).remote() for k in range(nnodes)]
    host, port = ray.get([actor.place.remote() for actor in actors])[0]
    _report_phase("running")
    script = script.replace(MASTER, host).replace(PORT, port)
    left = {
        actor.run.remote(script.replace(RANK, str(k)), str(folder / f"log.ray{k}.txt")): k
        for k, actor in enumerate(actors)
    }
    failures: list[str] = []
    deadline_s: float | None = None
    while left and (deadline_s is None or time.monotonic() < deadline_s):
        for reference in ray.wait(list(left), timeout=1)[0]:
            number = left.pop(reference)
            try:
                code = ray.get(reference)
                said = f"exit code {code}" if code else ""
            except RayError as error:
                said = " ".join(str(error).split())[:1_000]
            if said:
                failures.append(f"node {number}: {said}")
        if deadline_s is None and (failures or stopped):
            deadline_s = time.monotonic() + _END_PATIENCE_S
            for actor in actors:
                actor.stop.remote()
    if failures:
        _report_phase("ended", said=failures[0])
    return 1 if failures or stopped else 0


if __name__ == "__main__":
    at = Path(sys.argv[1])
    sys.exit(run_nodes(at, **json.loads((at / REQUEST_FILE).read_text(encoding="utf-8"))))
