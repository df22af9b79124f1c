"""Run one node process in each bundle of a placement group, inside a Ray cluster.

The entry point of the job that ``launchers.ray`` submits. What it tells the launcher are lines of
the job's log that begin with ``STATE``. Imports Ray only to run: the launcher, which reads those
lines, needs none.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ASKED_FILE = "ray.json"
STATE = "trainmark-job "  # then fields of a JobState
RANK, MASTER, PORT = "@RANK@", "@MASTER@", "@PORT@"  # in the script of a node
_BEAT_S = 1.0
_END_PATIENCE_S = 50.0
# Of the process that starts a node. Ray lowers the priority of what it runs, and kills the children
# of a process that it ends; a node ends its ranks before itself.
_WORKER_VARIABLES = {"RAY_worker_niceness": "0", "RAY_kill_child_processes_on_worker_exit": "0"}


def _tell(phase: str, **facts: Any) -> None:
    print(STATE + json.dumps({"phase": phase, **facts}), flush=True)


class Node:
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


def run(folder: Path, *, nnodes: int, bundle: dict[str, float], script: str) -> int:
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
        _tell("waiting", said=f"waits for {nnodes} nodes with {wanted} each")
    node = ray.remote(
        num_cpus=bundle.pop("CPU", 0), num_gpus=bundle.pop("GPU", 0), resources=bundle,
        max_concurrency=2, runtime_env={"env_vars": _WORKER_VARIABLES},
    )(Node)  # fmt: skip
    actors = [node.options(scheduling_strategy=Bundle(group, k)).remote() for k in range(nnodes)]
    host, port = ray.get([actor.place.remote() for actor in actors])[0]
    _tell("running")
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
        _tell("ended", said=failures[0])
    return 1 if failures or stopped else 0


if __name__ == "__main__":
    at = Path(sys.argv[1])
    sys.exit(run(at, **json.loads((at / ASKED_FILE).read_text(encoding="utf-8"))))
