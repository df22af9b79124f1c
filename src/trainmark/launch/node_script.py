"""The shell text that starts the node process, in the container of the site where it has one.

Owns mounts, devices, user, shared memory and the image's digest. The text is for a POSIX shell,
because all but the mounts is the node's own, which may be another machine: its user, its device
files, the image that it has. Slurm's pyxis and Kubernetes start containers themselves, and take
``mounts`` and the variables. Must not know vendors: their ``container_needs`` tell.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from trainmark import devices
from trainmark.errors import UsageError
from trainmark.protocols import ContainerNeeds
from trainmark.record import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trainmark.launch.site import ContainerSite, Site
    from trainmark.plan.plan import Plan

MODULE = "trainmark.launch.node"
_FABRIC = "/dev/infiniband"  # of the network between nodes, whatever the devices
_FOUND = (environment.DIGEST_VARIABLE, environment.VERSION_VARIABLE)  # on the node
_FORWARDED = (*environment.VARIABLES, environment.NETWORK_VARIABLE)
# The digest in a registry, where the image has one, else that of its configuration.
_DIGEST = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"


def node_script(
    plan: Plan,
    site: Site,
    *,
    node_rank: str,
    master: str,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
) -> str:
    """Return the lines of a POSIX shell that run one node's part of ``plan``.

    Args:
        node_rank: a number, or an expression of the shell such as ``$SLURM_NODEID``.
        master: host of the first node, or such an expression.
        folder: of the run on the node; None: the run directory itself.
        options: further ones of the node process, such as ``--heartbeat``.
    """
    words = [str(folder or plan.run_dir)]
    if site.data is not None:
        words += ["--data", str(site.data)]
    words += ["--port", str(site.master_port), *options]
    own = f'--node-rank "{node_rank}" --master "{master}"'
    return python_script(plan, site, ["-m", MODULE, *words], folder=words[0], unquoted=own)


def python_script(
    plan: Plan, site: Site, words: Sequence[str], *, folder: str, unquoted: str = ""
) -> str:
    """Return the lines of a POSIX shell that run Python on a node.

    Args:
        words: its arguments.
        folder: of the node, in which it writes; a container has it under the same path.
        unquoted: further ones, in which the shell replaces its variables.
    """
    variables = _container_variables(site) | site.environment
    if site.interface is not None:
        # torch's own connections are gloo's; collective libraries of devices follow the same form.
        backends = ("gloo", plan.device.collective_backend)
        variables |= {f"{name.upper()}_SOCKET_IFNAME": site.interface for name in backends}
    lines = ["set -e", *site.setup]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    python = site.python if site.container is None else site.container.python
    command = f"{shlex.join([python, *words])} {unquoted}".rstrip()
    if site.container is None or not site.container.of_node:
        lines.append(f"exec {command}")
    else:
        lines.append(f"set -- {command}")
        lines += _lines_to_run(plan, site, site.container, folder, exported=variables)
    return "\n".join(lines) + "\n"


def _container_variables(site: Site) -> dict[str, str]:
    """Return what the container's environment tells of it, whoever starts it."""
    if site.container is None:
        return {}
    index = site.container.pip_index
    image = {environment.IMAGE_VARIABLE: site.container.image}
    return image | ({} if index is None else {environment.PIP_VARIABLE: index})


class Mount(NamedTuple):
    """A file or folder of the node in the container."""

    source: str
    target: str
    read_only: bool = False

    def option(self) -> str:
        """Return it as docker, podman and apptainer take it."""
        mode = ",readonly" if self.read_only else ""
        return f"--mount=type=bind,source={self.source},target={self.target}{mode}"


def mounts(plan: Plan, site: Site, run_dir: str) -> list[Mount]:
    """Return what the container of a node is given, outer folders before those within them.

    Run directory and data have the same path in the container as on the node.

    Args:
        run_dir: of the node.

    Raises:
        UsageError: a mount of the site is none, or two have the same target.
    """
    data = site.data or plan.data.folder
    found: dict[str, Mount] = {}
    given = site.container.mounts if site.container else ()
    for text in (f"{run_dir}:{run_dir}", f"{data}:{data}:ro", *given):
        mount = _mount(text)
        if found.setdefault(mount.target, mount).source != mount.source:
            raise _refused(text, f"{mount.target} is the target of another mount")
    return sorted(found.values(), key=lambda mount: PurePosixPath(mount.target).parts)


def _mount(text: str) -> Mount:
    source, target, mode = (*text.split(":"), "", "")[:3]
    if text.count(":") - bool(mode) != 1 or mode not in ("", "ro", "rw"):
        raise _refused(text, "a mount is HOST:CONTAINER or HOST:CONTAINER:ro")
    if not (source.startswith("/") and target.startswith("/")) or "," in text:
        raise _refused(text, "paths begin at the root and have no comma")
    return Mount(source, target, mode == "ro")


def _refused(mount: str, rule: str) -> UsageError:
    return UsageError(f"cannot mount {mount!r}", where="the site's container.mounts", rule=rule)


def pyxis_options(plan: Plan, site: Site) -> list[str]:
    """Return the options of ``srun`` with which Slurm's plugin starts the site's container.

    As ``srun --help`` lists them where pyxis is installed, 2026-11-22.
    """
    if site.container is None or site.container.of_node:
        return []
    given = [":".join(one[:2]) + ":ro" * one.read_only for one in mounts(plan, site, plan.run_dir)]
    return [
        f"--container-image={site.container.image}", f"--container-mounts={','.join(given)}",
        f"--container-workdir={plan.run_dir}", "--no-container-mount-home",
        *site.container.arguments,
    ]  # fmt: skip


def _lines_to_run(
    plan: Plan, site: Site, container: ContainerSite, run_dir: str, *, exported: Iterable[str]
) -> list[str]:
    """Return lines of a shell that run the command in ``"$@"`` in the site's container.

    Signals and standard input reach the command.

    Args:
        run_dir: of the node.
        exported: variables of the shell that the container has too, beside those that are recorded.

    Raises:
        UsageError: a mount is wrong.
    """
    vendor = devices.all_vendors()[plan.device.vendor]
    runtime = str(container.runtime)
    needs: ContainerNeeds = getattr(vendor, "container_needs", ContainerNeeds())
    image, inspect = shlex.quote(container.image), f"{runtime} image inspect --format"
    mounted = mounts(plan, site, run_dir)
    if_there = [*needs.mounts]
    if plan.data.origin == "generated":  # made where it is not
        data = str(site.data or plan.data.folder)
        if_there.append(shlex.quote(data))
        mounted = [one for one in mounted if one != Mount(data, data, read_only=True)]
    given = _given(if_there, Mount("$path", "$path", read_only=True).option())
    if runtime == "apptainer":  # has the node's network, memory, devices, user and variables
        digest, version = f"sha256:$(sha256sum <{image} | cut -d ' ' -f 1)", "apptainer version"
        options = ["exec", f"--pwd={run_dir}", "--env=PYTHONNOUSERSITE=1"]
    else:
        digest = f"$({inspect} {shlex.quote(_DIGEST)} {image})"
        part = "Server" if runtime == "docker" else "Client"
        version = f"{runtime} version --format '{{{{.{part}.Version}}}}'"
        image = f"\"$({inspect} '{{{{.Id}}}}' {image})\""  # what was inspected, by its content
        names = (*_FOUND, *_FORWARDED, *vendor.recorded_variables, *exported)
        options = _oci_options(container, run_dir)
        options += [f"--env={name}" for name in dict.fromkeys(names) if name != "LD_PRELOAD"]
        given += _given((*needs.devices, _FABRIC), "--device=$path")
        given.append(f'set -- "--name=trainmark-{plan.run_id}-$$" "$@"')
    if runtime == "docker":  # rootless podman's root is the user of the node
        given.append('for group in $(id -G); do set -- "--group-add=$group" "$@"; done')
        given.append('set -- "--user=$(id -u):$(id -g)" "$@"')
        given += _given((_FABRIC,), "--ulimit=memlock=-1")  # its memory must not be paged out
    options += [*(mount.option() for mount in mounted), *needs.options.get(runtime, ())]
    return [
        f"mkdir -p {shlex.quote(run_dir)}",
        f"{environment.DIGEST_VARIABLE}={digest}",
        f"{environment.VERSION_VARIABLE}=$({version})",
        f"export {' '.join(_FOUND)}",
        f'set -- {" ".join([*map(shlex.quote, container.arguments), image])} "$@"',
        *given,
        f'exec {runtime} {shlex.join(options)} "$@"',
    ]


def _oci_options(container: ContainerSite, run_dir: str) -> list[str]:
    """Return verb and options of docker and podman that are the same on every node."""
    memory = container.shared_memory
    return [
        "run", "--rm", "--init", "--interactive", "--pull=never", "--network=host",
        "--ipc=host" if memory is None else f"--shm-size={memory}", f"--workdir={run_dir}",
        "--cap-drop=ALL", "--security-opt=no-new-privileges", "--security-opt=label=disable",
        # A user of the node has no name in the image, and torch asks for one.
        "--env=HOME=/tmp", "--env=USER=trainmark",
    ]  # fmt: skip


def _given(patterns: Sequence[str], option: str) -> list[str]:
    """Return a line that puts ``option`` before the arguments for each path that is on the node."""
    found = f'test ! -e "$path" || set -- "{option}" "$@"'
    return [f"for path in {' '.join(patterns)}; do {found}; done"] if patterns else []
