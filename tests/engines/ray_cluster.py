"""A Ray cluster of two nodes on this host, for as long as a ``with`` block lasts.

Two raylets with a processor each, held by a process of their own, so that nothing of Ray is loaded
into the tests. All its processes carry a variable, by which they are found and ended.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.real_runs import find_processes_with

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARIABLE = "TRAINMARK_TEST_RAY"
_STORE_BYTES = 80 << 20  # of a node's object store: little more than the least that Ray takes
_START_S = 90.0  # how long a part of the cluster may take to start
# Holds a cluster until its input ends; its arguments: bytes of a store, port of the dashboard, and
# the port of the dashboard's agent on each node.
_HOLD = """
import sys
from ray.cluster_utils import Cluster

store, port, *agents = map(int, sys.argv[1:])
cluster = Cluster()
head = dict(include_dashboard=True, dashboard_port=port)
first, second = [
    dict(num_cpus=1, object_store_memory=store, dashboard_agent_listen_port=agent)
    for agent in agents
]
cluster.add_node(**first, **head)
cluster.add_node(**second)
print("up", flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def find_program_folder() -> str | None:
    """Return the folder of ``ray``, beside the interpreter or on the path; None if it is absent."""
    python_folder = Path(sys.executable).parent
    ray_path = shutil.which("ray", path=f"{python_folder}:{os.environ.get('PATH', '')}")
    return str(Path(ray_path).parent) if ray_path else None


def _wait_until_port_listens(port: int) -> None:
    """Wait until a process of this machine listens on a port; fail after 90 s."""
    # ``_START_S`` is 90 s: how long a part of the cluster may take to start.
    deadline = time.monotonic() + _START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens on {port}"
        time.sleep(0.2)


class EndedEarlyError(Exception):
    """The process that runs the cluster ended."""


class RayCluster:
    """The cluster: where its interface is, and the process that holds it.

    Args:
        folder: for Ray's files; its name marks the processes of this cluster.
    """

    def __init__(self, folder: str) -> None:
        # Ports of the dashboard and of its agent on each node.
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [str(opened.getsockname()[1]) for opened in sockets]
        for opened in sockets:
            opened.close()
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.id = Path(folder).name
        (Path(folder) / "ray").mkdir(exist_ok=True)  # where Ray keeps everything
        # The script ``_HOLD`` holds the cluster until its input ends, and prints "up" once both
        # nodes run; each has 80 MiB for objects (``_STORE_BYTES``). By the variable ``_VARIABLE``
        # the processes of this cluster are found again, to end them.
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(_STORE_BYTES), *ports],
            env=os.environ | {_VARIABLE: self.id, "RAY_TMPDIR": folder},
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout
        is_up = any(line == "up\n" for line in self.process.stdout)
        if not is_up:  # the output ended without this line
            self.stop()
            raise EndedEarlyError
        for port in ports:  # a job is refused while no agent of a node listens
            _wait_until_port_listens(int(port))

    def stop(self) -> None:
        """Kill all processes of the cluster, again until none is found: some start others anew."""
        # All processes of the cluster have its id in the environment variable ``_VARIABLE``.
        processes = find_processes_with(_VARIABLE, self.id)
        while processes:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=5)
            processes = find_processes_with(_VARIABLE, self.id)
        self.process.communicate()


@contextmanager
def start_ray_cluster() -> Iterator[RayCluster]:
    """Yield a cluster with two nodes.

    ``EndedEarlyError`` says that the process which holds the cluster ended before it was up; it is
    then started once more.
    """
    folder = tempfile.mkdtemp(prefix="tm-ray-", dir="/tmp")  # short: it holds sockets
    try:
        cluster = RayCluster(folder)
    except EndedEarlyError:  # on a busy machine Ray gives its own processes up
        cluster = RayCluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
