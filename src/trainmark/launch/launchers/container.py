"""This machine, with the node process in the container that the site's file describes.

What ``--launcher local`` is with a site that has a ``container``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.contract import Command, Ending, JobState
from trainmark.launch.local import RANKS_LOG
from trainmark.launch.node import containers
from trainmark.launch.node.command import node_script
from trainmark.launch.node.probe import network_faults

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

SCRIPT = "node.sh"
_MASTER = "127.0.0.1"
_NO_RUNTIME = "the site's file names no docker, podman or apptainer"
_HOW_TO_NAME = "write container: {image: IMAGE, runtime: podman} into it; see docs/launchers.md"
# The runtime passes the signal on, so that the container ends with the process that started it.
_WITH_US = ("setpriv", "--pdeathsig", "TERM")


class Container:
    """Docker, podman or apptainer on this machine."""

    name = "container"
    detaches = False

    def absent(self, site: Site) -> str | None:
        """Return why it cannot be used here, None if it can."""
        if site.container is None or not site.container.of_node:
            return _NO_RUNTIME
        runtime = str(site.container.runtime)
        return None if shutil.which(runtime) else f"the program {runtime} is not installed"

    def check(self, plan: Plan, site: Site) -> None:
        """Look for what the container needs, and for the port on which its ranks meet."""
        containers.check_here(plan, site)
        for what, remedy in network_faults(_MASTER, site.master_port):
            raise EnvironmentFault(what, where="this machine", remedy=remedy)

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what starts the container.

        Raises:
            UsageError: the site names none.
        """
        if site.container is None or not site.container.of_node:
            raise UsageError(_NO_RUNTIME, where="site file, container", remedy=_HOW_TO_NAME)
        script = node_script(plan, site, node_rank="0", master=_MASTER)
        return Command(argv=(*_WITH_US, "sh", SCRIPT), files={SCRIPT: script})

    def start(self, command: Command, plan: Plan, site: Site) -> ContainerJob:  # noqa: ARG002
        """Run ``command``; what the runtime says goes to the launcher's log."""
        log = Path(plan.run_dir) / RANKS_LOG
        with log.open("wb") as output:
            process = subprocess.Popen(
                command.argv, env=os.environ | dict(command.env), cwd=plan.run_dir,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return ContainerJob(str(process.pid), log, process)

    def attach(self, plan: Plan, site: Site) -> ContainerJob:  # noqa: ARG002
        """Return the container that ended with the process that started it."""
        return ContainerJob("", Path(plan.run_dir) / RANKS_LOG)


@dataclass
class ContainerJob:
    """The runtime's process.

    Args:
        process: None after the process ended that started it.
    """

    id: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def state(self) -> JobState:
        """Return whether it runs, or its last words."""
        code = self.process.poll() if self.process else None
        if self.process and code is None:
            return JobState(phase="running", said="container")
        words = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        ending: Ending = "unknown" if code is None else "failed" if code else "completed"
        # The last of docker's words is about its help.
        said = "; ".join(filter(None, words[-3:])) if code else ""
        return JobState(phase="ended", said=said, ending=ending, exit_code=code)

    def cancel(self) -> None:
        """End it; the runtime passes the signal on to the node process."""
        if self.process:
            self.process.terminate()

    def collect(self) -> None:
        """Do nothing: the container wrote into the run directory."""
