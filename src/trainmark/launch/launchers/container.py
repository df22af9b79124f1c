"""Run on this machine, with the node process in the container that the cluster file describes.

``--launcher local`` becomes this launcher if the cluster file has a ``container``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault
from trainmark.launch.launchers import NO_RUNTIME, EngineCommand, Launcher, run_program
from trainmark.launch.node_script import render_node_script

if TYPE_CHECKING:
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

SCRIPT = "node.sh"
_FIX = "write container: {image: IMAGE, runtime: podman}"


class Container(Launcher):
    """Docker, podman or apptainer on this machine."""

    def check(self, spec: JobSpec, cluster: Cluster) -> None:
        """Check that the image is on this machine: the start script never pulls it."""
        self.build_command(spec, cluster)  # only for its errors
        assert cluster.container is not None, "build_command has refused such a cluster"
        runtime = str(cluster.container.runtime)
        image = cluster.container.image
        subcommand = ("inspect",) if runtime == "apptainer" else ("image", "inspect")
        try:
            run_program(runtime, *subcommand, image)
        except EnvironmentFault as fault:
            fix = (
                "pull or build the image on this machine first; see docs/launchers.md for the keys"
            )
            where = f"container image {image}"
            raise EnvironmentFault(fault.what, where=where, fix=fix) from fault

    def build_command(self, spec: JobSpec, cluster: Cluster) -> EngineCommand:
        """Return the command that starts the container; the runtime forwards signals to it.

        Raises:
            UsageError: the cluster file names no container runtime.
        """
        if cluster.container is None or not cluster.container.is_started_by_node:
            raise cluster.build_error("container", NO_RUNTIME, fix=_FIX)
        # This machine is the only node.
        script = render_node_script(spec, cluster, node_rank="0", master="127.0.0.1")
        return EngineCommand(argv=("sh", SCRIPT), files={SCRIPT: script})
