"""This machine, with the node process in the container that the site's file describes.

What ``--launcher local`` is with a site that has a ``container``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.launch.launchers import NO_RUNTIME, ChildJob, Command, Process, ask
from trainmark.launch.node import node_script

if TYPE_CHECKING:
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

SCRIPT = "node.sh"
_HOW_TO_NAME = "write container: {image: IMAGE, runtime: podman} into it; see docs/launchers.md"


class Container:
    """Docker, podman or apptainer on this machine."""

    programs = ()  # the runtime of the site

    def check(self, plan: Plan, site: Site) -> None:
        """Look whether the image is here."""
        self.command(plan, site)
        assert site.container is not None, "else there is no command"
        runtime, image = str(site.container.runtime), site.container.image
        words = ("inspect",) if runtime == "apptainer" else ("image", "inspect")
        try:
            ask(runtime, *words, image)
        except EnvironmentFault as fault:
            remedy = "pull or build the image here first; docs/launchers.md has the keys"
            where = "the site's container"
            raise EnvironmentFault(fault.what, where=where, remedy=remedy) from fault

    def command(self, plan: Plan, site: Site) -> Command:
        """Return what starts the container; the runtime passes on the signal that ends it.

        Raises:
            UsageError: the site names none.
        """
        if site.container is None or not site.container.of_node:
            raise UsageError(NO_RUNTIME, where="site file, container", remedy=_HOW_TO_NAME)
        script = node_script(plan, site, node_rank="0", master="127.0.0.1")
        return Command(argv=("sh", SCRIPT), files={SCRIPT: script})

    def job(self, plan: Plan, site: Site, process: Process | None) -> ChildJob:
        """Return the container, which ends with the process that started it."""
        return ChildJob(plan, site, process)
