"""Runs as jobs of a Ray cluster: ``ray job submit``, a node process in each bundle.

The job runs this module inside the cluster, whose nodes share the run directory: it reserves a
bundle on each node and starts the node process there. It reports its state to the launcher in lines
of the job's log that begin with ``STATE_PREFIX``. The launcher needs the program ``ray``, not the
package: it uses the cluster's HTTP interface.
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
from http.client import HTTPException
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from trainmark import devices
from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import EngineCommand, EngineJob, JobPhase, JobState, Launcher
from trainmark.launch.node_script import render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

LOCAL_URL = "http://127.0.0.1:8265"  # where `ray start` puts a cluster's interface
REQUEST_FILE = "ray.json"
# Prefix of a line that reports the state of the job: its phase, and a description.
STATE_PREFIX = "trainmark-job "
# Placeholders in the script of a node.
NODE_RANK = "@RANK@"
MASTER = "@MASTER@"
PORT = "@PORT@"
_BEAT_S = 1.0  # interval of the lines that tell a node that it is still watched
_END_PATIENCE_S = 50.0  # for nodes that are asked to end their ranks
# Variables of the process that starts a node. By default Ray lowers the priority of its processes
# and kills the children of a process that it ends; a node ends its ranks itself.
_WORKER_VARIABLES = {"RAY_worker_niceness": "0", "RAY_kill_child_processes_on_worker_exit": "0"}
# How long Ray waits for the driver after it has asked it to stop: longer than _END_PATIENCE_S.
_DRIVER_RUNTIME_ENV = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}


class Ray(Launcher):
    """Runs as jobs of a Ray cluster."""

    programs = ("ray",)

    def check(self, spec: JobSpec, cluster: Cluster) -> None:  # noqa: ARG002
        """Check that the cluster answers; the job waits later until its resources are free.

        Raises:
            UsageError: the container has no runtime; Ray does not start containers itself.
            EnvironmentFault: the cluster does not answer.
        """
        if cluster.container is not None and not cluster.container.is_started_by_node:
            raise cluster.build_error(
                "container.runtime",
                "a container on Ray needs a runtime",
                fix="set runtime: podman, docker or apptainer",
            )
        _request_jobs_api(cluster)

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the command that submits the job.

        The program of the job, which Ray calls its driver, is this module. It reads
        ``REQUEST_FILE`` in the run directory, and starts the nodes.
        """
        # Names of resources as in Ray 2.60 (2026-11-22). A vendor without a resource of its own
        # uses GPU: if Ray does not detect its devices, the user gives their number to `ray start`
        # with --num-gpus.
        # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html
        vendor = devices.list_vendors()[spec.vendor]
        device_resource = getattr(vendor, "ray_resource", "GPU")
        # What Ray reserves on each node: a core and a device for each rank, unless the cluster file
        # sets other amounts.
        bundle = {"CPU": spec.nproc, device_resource: spec.nproc} | cluster.ray.resources
        # NODE_RANK, MASTER and PORT are placeholders, which `run_nodes` replaces once it knows the
        # nodes. The script has an option --port with the cluster file's port already; this one
        # comes later and therefore counts. It gives a port that is free on the first node. With
        # --heartbeat, a node ends its ranks once nothing arrives on its standard input.
        options = ("--port", PORT, "--heartbeat")
        script = render_node_script(
            spec, cluster, node_rank=NODE_RANK, master=MASTER, options=options
        )
        request = {
            "nnodes": spec.nnodes,
            # The cluster file may set an amount of 0, so that a node does not need the resource.
            "bundle": {name: amount for name, amount in bundle.items() if amount},
            # Ray sets OMP_NUM_THREADS to the bundle's number of cores; the node process divides
            # the cores among its ranks itself.
            "script": f"unset OMP_NUM_THREADS\n{script}",
        }
        # How long Ray waits for the driver's end after it has asked the driver to stop.
        runtime_env = json.dumps(_DRIVER_RUNTIME_ENV)
        job_options = (
            "--no-wait",
            f"--address={cluster.ray.address or LOCAL_URL}",
            f"--submission-id={spec.run_id}",
            f"--runtime-env-json={runtime_env}",
        )
        driver = (cluster.python, "-m", "trainmark.launch.launchers.ray", str(spec.run_dir))
        argv = ("ray", "job", "submit", *job_options, "--", *driver)
        files = {REQUEST_FILE: json.dumps(request, indent=2)}
        return EngineCommand(argv=argv, files=files, submits=True)

    def read_state(self, job: EngineJob) -> JobState:
        """Return the state of the job, with the last report of its driver.

        The driver is the program of the job: it starts the nodes, and ``_report_phase`` writes its
        reports into the job's log.
        """
        submission = _request_jobs_api(job.cluster, job.spec.run_id)
        log = _request_jobs_api(job.cluster, f"{job.spec.run_id}/logs")["logs"]
        status = submission["status"]
        reports = [
            line.removeprefix(STATE_PREFIX)
            for line in log.splitlines()
            if line.startswith(STATE_PREFIX)
        ]
        report: dict[str, Any] = json.loads(reports[-1]) if reports else {"phase": "waiting"}
        # Ray gives every status a message, PENDING too.
        lines = submission["message"].strip().splitlines()
        # If the driver failed, the message ends with the driver's output, whose last line names the
        # reason. Otherwise it is Ray's own, and its first line sums it up.
        message = lines[-1] if submission["driver_exit_code"] else lines[0]
        # The driver's report says more about the phase, but may have no description.
        text = f"{status}: {report.get('description') or message}"
        if status in ("PENDING", "RUNNING"):
            # RUNNING means that the driver runs; its report says whether the nodes run too.
            is_waiting = report["phase"] == "waiting"
            return JobState(phase="waiting" if is_waiting else "running", description=text)
        # STOPPED: somebody stopped the job. If it SUCCEEDED or FAILED, it ended by itself, and the
        # nodes' events tell how.
        phase: JobPhase = "lost" if status == "STOPPED" else "ended"
        return JobState(phase=phase, description=text)

    def cancel(self, job: EngineJob) -> None:
        """Have the cluster stop the driver, which ends the nodes, as ``ray job stop`` does."""
        _request_jobs_api(job.cluster, f"{job.spec.run_id}/stop", method="POST")


def _request_jobs_api(cluster: Cluster, path: str = "", method: str = "GET") -> Any:
    """Return the answer of the cluster's HTTP interface for jobs.

    Args:
        path: what follows ``/api/jobs/``: a job's id, or its id and a resource of the job, such as
            ``ID/logs``; empty: the list of all jobs.

    Raises:
        EnvironmentFault: the cluster does not answer, or answers with an error or with a text that
            is not JSON; or the variable with the headers is not JSON.
    """
    url = f"{cluster.ray.address or LOCAL_URL}/api/jobs/{path}"
    try:
        headers = json.loads(os.environ.get("RAY_JOB_HEADERS") or "{}")  # as `ray job` reads them
    except ValueError as error:
        raise EnvironmentFault(
            f"not JSON: {error}",
            where="environment variable RAY_JOB_HEADERS",
            rule="the variable must contain the headers of requests to Ray as a JSON object",
        ) from None
    try:
        with urlopen(Request(url, headers=headers, method=method), timeout=10) as answer:
            return json.load(answer)
    except (OSError, HTTPException, ValueError) as fault:
        raise EnvironmentFault(f"the Ray cluster does not respond: {fault}", where=url) from None


def _report_phase(phase: str, description: str = "") -> None:
    """Print a line that ``Ray.read_state`` reads from the job's log.

    Args:
        phase: ``waiting`` for nodes, ``running`` or ``ended``.
        description: what the phase waits for, or how a node failed.
    """
    report = {"phase": phase}
    if description:
        report["description"] = description
    print(STATE_PREFIX + json.dumps(report), flush=True)


class NodeActor:
    """The node process of one machine: an actor, for which Ray starts a process there.

    Uses the standard library and Ray only: Ray brings the class itself to that machine.
    """

    def find_address(self) -> tuple[str, str]:
        """Return the machine's address, and a port that is free at this moment."""
        import ray

        with socket.create_server(("", 0)) as listening:
            port = str(listening.getsockname()[1])
        return ray.util.get_node_ip_address(), port

    def run(self, script: str, log: str) -> int:
        """Run the node process to its end; return its exit code.

        The node process ends its ranks when this actor dies.

        Args:
            script: what the shell runs; it starts the node process.
            log: path of the file that gets its output.
        """
        # In a session of its own, so that signals to the actor's process group do not reach it.
        with Path(log).open("wb") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", script],
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
            )
        # A line every ``_BEAT_S``: the node process ends its ranks once none arrives.
        with suppress(BrokenPipeError):  # the process ended between poll and write
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
        folder: the run directory, which gets the log of each node.
        nnodes: number of nodes, each on a machine of its own.
        bundle: amount of each resource of Ray that every node gets.
        script: what a shell on each node runs; it has placeholders for the node's number and for
            the address and port of the first node.
    """
    import ray

    # Ray sends SIGTERM to stop the job. The waits below end the nodes once this list has a signal.
    stop_signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
    # What the actors print stays out of this process's output, which is the log of the job.
    ray.init(log_to_driver=False)
    # Each bundle on a machine of its own.
    group = ray.util.placement_group([dict(bundle)] * nnodes, strategy="STRICT_SPREAD")
    if not _wait_for_nodes(group, nnodes, bundle, stop_signals):  # the job was stopped
        return 1
    actors = _create_actors(group, nnodes, bundle)
    addresses = ray.get([actor.find_address.remote() for actor in actors])
    host, port = addresses[0]  # the ranks meet on the first node
    _report_phase("running")
    script = script.replace(MASTER, host).replace(PORT, port)
    nodes: dict[Any, int] = {}  # number of each node by Ray's reference to its exit code
    for number, actor in enumerate(actors):
        log = str(folder / f"log.ray{number}.txt")
        nodes[actor.run.remote(script.replace(NODE_RANK, str(number)), log)] = number
    failures = _wait_for_ends(nodes, actors, stop_signals)
    if failures:  # else Ray's own message says how the job ended
        _report_phase("ended", failures[0])
    return 1 if failures or stop_signals else 0


def _wait_for_nodes(
    group: Any, nnodes: int, bundle: dict[str, float], stop_signals: list[int]
) -> bool:
    """Wait until Ray has reserved the nodes; return False if the job is stopped before.

    Args:
        group: the placement group, which reserves ``bundle`` on each node.
        bundle: amount of each resource of Ray that every node gets.
        stop_signals: a signal handler adds to it while this function waits; not empty: the job is
            stopped.
    """
    resources = ", ".join(f"{name} {amount:g}" for name, amount in bundle.items())
    while not group.wait(3):  # seconds
        if stop_signals:
            return False
        _report_phase("waiting", f"waiting for {nnodes} nodes with {resources} each")
    return True


def _create_actors(group: Any, nnodes: int, bundle: dict[str, float]) -> list[Any]:
    """Start a ``NodeActor`` on each node, and return them in the order of the nodes.

    Args:
        group: the placement group, which has reserved ``bundle`` on each of the ``nnodes`` nodes.
        bundle: amount of each resource that every node gets.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resources = dict(bundle)
    # Ray takes CPU and GPU as arguments of their own, and refuses them among other resources.
    remote_class = ray.remote(
        num_cpus=resources.pop("CPU", 0),
        num_gpus=resources.pop("GPU", 0),
        resources=resources,
        max_concurrency=2,  # ``stop`` is called while ``run`` runs
        # Keeps Ray from lowering the actor's priority, and from killing the node process with it.
        runtime_env={"env_vars": _WORKER_VARIABLES},
    )(NodeActor)
    # Each strategy places an actor on one of the nodes that the group has reserved.
    strategies = [PlacementGroupSchedulingStrategy(group, number) for number in range(nnodes)]
    return [remote_class.options(scheduling_strategy=strategy).remote() for strategy in strategies]


def _wait_for_ends(nodes: dict[Any, int], actors: list[Any], stop_signals: list[int]) -> list[str]:
    """Wait until all nodes have ended; return how nodes failed, the first failure first.

    Once one fails or the job is stopped, the others are asked to end. One that still runs after
    ``_END_PATIENCE_S`` is not among the failures.

    Args:
        nodes: number of each node by Ray's reference to its exit code.
        actors: the ``NodeActor`` of each node.
        stop_signals: a signal handler adds to it while this function waits; not empty: the job is
            stopped.
    """
    import ray

    running = dict(nodes)
    failures: list[str] = []
    deadline_s = inf
    while running and time.monotonic() < deadline_s:
        # Returns after 1 s at the latest, so that a stop signal is noticed.
        ended_references, _ = ray.wait(list(running), timeout=1)
        for reference in ended_references:
            node_number = running.pop(reference)
            failure = _find_failure(reference)
            if failure:
                failures.append(f"node {node_number}: {failure}")
        if deadline_s == inf and (failures or stop_signals):
            deadline_s = time.monotonic() + _END_PATIENCE_S
            for actor in actors:
                actor.stop.remote()
    return failures


def _find_failure(reference: Any) -> str:
    """Return how a node that has ended failed; empty if it succeeded.

    Args:
        reference: Ray's reference to the exit code of the node process.
    """
    import ray
    from ray.exceptions import RayError

    try:
        exit_code = ray.get(reference)
    except RayError as error:  # the actor or its machine was lost
        # Shortened to one line, because it becomes a part of a line in the job's log.
        return " ".join(str(error).split())[:1_000]
    return f"exit code {exit_code}" if exit_code else ""


if __name__ == "__main__":
    run_folder = Path(sys.argv[1])
    node_request = json.loads((run_folder / REQUEST_FILE).read_text(encoding="utf-8"))
    sys.exit(run_nodes(run_folder, **node_request))
