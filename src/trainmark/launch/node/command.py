"""The text with which every launcher starts the node process, as a shell on a node runs it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark import devices
from trainmark.launch.node import containers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan

MODULE = "trainmark.launch.node"


def run_dir_on_nodes(plan: Plan, site: Site) -> Path:
    """Return the folder of a run on each node."""
    return Path(plan.run_dir) if site.run_root is None else site.run_root / plan.run_id


def node_script(
    plan: Plan, site: Site, *, node_rank: str, master: str, options: tuple[str, ...] = ()
) -> str:
    """Return the lines of a POSIX shell that run one node's part of ``plan``.

    Args:
        node_rank: a number, or an expression of the shell such as ``$SLURM_NODEID``.
        master: host of the first node, or such an expression.
        options: ``--send-files``, ``--heartbeat``.
    """
    folder = run_dir_on_nodes(plan, site)
    words = [str(folder)]
    if site.data is not None:
        words += ["--data", str(site.data)]
    words += ["--port", str(site.master_port), *options]
    own = f'--node-rank "{node_rank}" --master "{master}"'
    return module_script(plan, site, MODULE, words, folder=folder, unquoted=own)


def module_script(
    plan: Plan, site: Site, module: str, words: Sequence[str], *, folder: Path, unquoted: str = ""
) -> str:
    """Return the lines of a POSIX shell that run a module of this program on a node.

    Args:
        words: its arguments.
        folder: of the node, in which it writes; a container has it under the same path.
        unquoted: further ones, in which the shell replaces its variables.
    """
    variables = containers.variables(site) | site.environment
    if site.interface is not None:
        # torch's own connections are gloo's; collective libraries of devices follow the same form.
        backends = ("gloo", plan.device.collective_backend)
        variables |= {f"{name.upper()}_SOCKET_IFNAME": site.interface for name in backends}
    lines = ["set -e", *site.setup]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    python = site.python if site.container is None else site.container.python
    command = f"{shlex.join([python, '-m', module, *words])} {unquoted}".rstrip()
    if site.container is None or not site.container.of_node:
        lines.append(f"exec {command}")
    else:
        vendor = devices.all_vendors()[plan.device.vendor]
        lines.append(f"set -- {command}")
        lines += containers.lines_to_run(plan, site, vendor, str(folder), exported=variables)
    return "\n".join(lines) + "\n"
