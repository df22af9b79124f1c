"""Run one node process in each bundle of a placement group, inside a Ray cluster.

The entry point of the job that ``launchers.ray`` submits, in a copy of the run directory. What
it tells the launcher are lines of the job's log that begin with ``TOLD``; the other lines are what
the nodes print. Imports Ray only to run: the launcher, which reads those lines, needs none.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainmark.launch.contract import BEAT_S

ASKED_FILE = "ray.json"
TOLD = "trainmark-job "  # then fields of a JobState
RANK, MASTER, PORT = "@RANK@", "@MASTER@", "@PORT@"  # in the script of a node
# Of the process that starts a node. Ray lowers the priority of what it runs, and kills the children
# of a process that it ends; a node ends its ranks before itself.
_WORKER_VARIABLES = {"RAY_worker_niceness": "0", "RAY_kill_child_processes_on_worker_exit": "0"}


def _tell(phase: str, **facts: Any) -> None:
    print(TOLD + json.dumps({"phase": phase, **facts}), flush=True)


class Node:
    """The node process of one machine: an actor, for which Ray starts a process there.

    Uses the standard library and Ray only: Ray brings the class itself to that machine.
    """

    def place(self) -> tuple[str, str, str]:
        """Return Ray's id of the machine, its address and a free port."""
        import ray

        with socket.create_server(("", 0)) as free:
            port = str(free.getsockname()[1])
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port

    def run(self, script: str) -> Any:
        """Yield the lines that the node process prints, and its exit code at last."""
        # Ray calls again if it lost the connection but not the actor.
        assert not hasattr(self, "process"), "the connection to the node was lost"
        self.process = subprocess.Popen(
            ["sh", "-c", script], start_new_session=True, text=True, errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        threading.Thread(target=self._beat, daemon=True).start()
        # Ray sends to its generators, which a file does not take.
        yield from (line for line in self.process.stdout or ())
        yield self.process.wait()

    def _beat(self) -> None:
        """Write to the node process while this one lives; without, it ends its ranks."""
        with suppress(BrokenPipeError):  # it ended between the look and the write
            while self.process.poll() is None:
                print(file=self.process.stdin, flush=True)
                time.sleep(BEAT_S)

    def stop(self) -> None:
        """Ask the node process to end its ranks."""
        self.process.terminate()


async def run(*, nnodes: int, bundle: dict[str, float], may_grow: bool, script: str) -> int:
    """Run all nodes to their end; return the exit code of the job.

    Args:
        bundle: amount by resource of Ray, on each node.
        may_grow: whether to wait where the cluster has too few nodes with that.
        script: what a shell on each node runs.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Bundle

    ray.init(log_to_driver=False)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    group = await _reserved(ray, [dict(bundle)] * nnodes, stop, may_grow=may_grow)
    node = ray.remote(
        num_cpus=bundle.pop("CPU", 0), num_gpus=bundle.pop("GPU", 0), resources=bundle,
        max_concurrency=2, max_task_retries=-1, runtime_env={"env_vars": _WORKER_VARIABLES},
    )(Node)  # fmt: skip
    actors = [node.options(scheduling_strategy=Bundle(group, k)).remote() for k in range(nnodes)]
    places = await asyncio.gather(*(actor.place.remote() for actor in actors))
    _tell("running")
    script = script.replace(MASTER, places[0][1]).replace(PORT, places[0][2])
    lines = [one.run.remote(script.replace(RANK, str(k))) for k, one in enumerate(actors)]
    failures: dict[int, dict[str, str]] = {}
    follows = [_follow(number, own, failures, stop) for number, own in enumerate(lines)]
    both: list[asyncio.Future[Any]] = [asyncio.gather(*follows), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    for actor in actors if stop.is_set() else ():
        actor.stop.remote()
    await asyncio.wait(both[:1], timeout=50)  # the ends of ranks, and the nodes' files
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    lost = [number for number in failures if places[number][0] not in alive]
    if failures:  # the first, but a lost one before others
        first = failures[(lost or list(failures))[0]]
        _tell("ended", **first | ({"ending": "node_lost"} if lost else {}), lost=lost)
    return 1 if stop.is_set() else 0


async def _reserved(ray: Any, bundles: list[Any], stop: asyncio.Event, *, may_grow: bool) -> Any:
    """Return the placement group once it is there.

    Raises:
        SystemExit: it never will be, or the job is stopped.
    """

    def listed(amounts: dict[str, float]) -> str:
        return ", ".join(f"{name} {amounts.get(name, 0):g}" for name in bundles[0])

    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    needed = f"{len(bundles)} nodes with {listed(bundles[0])} each"
    while not await asyncio.to_thread(group.wait, 3):
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = sum(all(has.get(k, 0) >= n for k, n in bundles[0].items()) for has in alive)
        if fit < len(bundles) and not may_grow:
            has = "; ".join(map(listed, alive[:8]))
            said = f"needs {needed}; {fit} of the cluster's {len(alive)} have that ({has})"
            _tell("ended", ending="refused", said=said)
            stop.set()
        if stop.is_set():
            sys.exit(1)
        _tell("waiting", said=f"waits for {needed}; free: {listed(ray.available_resources())}")
    return group


async def _follow(number: int, lines: Any, failures: dict[int, Any], stop: asyncio.Event) -> None:
    """Print what a node prints; note how it failed, and have the others stopped."""
    from ray.exceptions import OutOfMemoryError, RayError

    ending, said = "failed", ""
    try:
        async for reference in lines:
            item = await reference
            if isinstance(item, str):
                print(f"[node {number}]", item.rstrip(), flush=True)
            elif item:
                said = f"exit code {item}"
    except RayError as error:
        ending = "out_of_memory" if isinstance(error, OutOfMemoryError) else "failed"
        said = " ".join(str(error).split())[:1_000]
    if said:
        failures[number] = {"ending": ending, "said": f"node {number}: {said}"}
        stop.set()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(**json.loads(Path(ASKED_FILE).read_text(encoding="utf-8")))))
