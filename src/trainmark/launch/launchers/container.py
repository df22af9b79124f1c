"""This machine, with the node process in the container that the site's file describes.

What ``--launcher local`` is with a site that has a ``container``.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.launchers import ChildJob, Command, child
from trainmark.launch.node import node_script

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

SCRIPT, LOG_FILE = "node.sh", "log.launcher.txt"
_NO_RUNTIME = "the site's file names no docker, podman or apptainer"
_HOW_TO_NAME = "write container: {image: IMAGE, runtime: podman} into it; see docs/launchers.md"
_PATIENCE_S = 60.0  # with docker's service


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

    def check(self, plan: Plan, site: Site) -> None:  # noqa: ARG002
        """Look whether the image is here."""
        box = site.container
        assert box is not None, "``absent`` told"
        argv = [str(box.runtime), "image", "inspect", box.image]
        if box.runtime == "apptainer":
            argv = ["apptainer", "inspect", box.image]
        done = subprocess.run(
            ["timeout", f"{_PATIENCE_S:g}", *argv], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise EnvironmentFault(
                done.stderr.strip() or f"no answer in {_PATIENCE_S:g} s",
                where="the site's container",
                remedy="pull or build the image here first; docs/launchers.md has the keys",
            )

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what starts the container.

        Raises:
            UsageError: the site names none.
        """
        if site.container is None or not site.container.of_node:
            raise UsageError(_NO_RUNTIME, where="site file, container", remedy=_HOW_TO_NAME)
        script = node_script(plan, site, node_rank="0", master="127.0.0.1")
        return Command(argv=("sh", SCRIPT), files={SCRIPT: script})

    def start(self, command: Command, plan: Plan, site: Site) -> ChildJob:  # noqa: ARG002
        """Run ``command``; the runtime passes on the signal that ends it."""
        log = Path(plan.run_dir) / LOG_FILE
        return ChildJob(child(command, log), log)

    def attach(self, plan: Plan, site: Site) -> ChildJob:  # noqa: ARG002
        """Return the container that ended with the process that started it."""
        return ChildJob(None, Path(plan.run_dir) / LOG_FILE)
