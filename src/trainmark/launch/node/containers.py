"""Run a node's command in the container of the site: docker, podman or apptainer.

Owns mounts, devices, user, shared memory and the image's digest. What is returned is text for a
POSIX shell, because all but the mounts is the node's own, which may be another machine: its user,
its device files, the image that it has. Slurm's pyxis and Kubernetes start containers themselves,
and take ``mounts`` and ``variables``. Must not know vendors: their ``container_needs`` tell.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.protocols import ContainerNeeds
from trainmark.record import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.launch.site import ContainerSite, Site
    from trainmark.plan.plan import Plan
    from trainmark.protocols import Vendor

_PATIENCE_S = 60.0  # with docker's service
_FABRIC = "/dev/infiniband"  # of the network between nodes, whatever the devices
_FOUND = (environment.DIGEST_VARIABLE, environment.VERSION_VARIABLE)  # on the node
_FORWARDED = (*environment.VARIABLES, environment.NETWORK_VARIABLE)
# The digest in a registry, where the image has one, else that of its configuration.
_DIGEST = "{{if .RepoDigests}}{{index .RepoDigests 0}}{{else}}{{.Id}}{{end}}"
_ROOT = (
    "root of this node would be root in the container: be another user, or name one in arguments"
)


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
    paths = PurePosixPath(source), PurePosixPath(target)
    if not all(path.is_absolute() and ".." not in path.parts for path in paths) or "," in text:
        raise _refused(text, "paths begin at the root and have no '..' and no comma")
    return Mount(str(paths[0]), str(paths[1]), mode == "ro")


def _refused(mount: str, rule: str) -> UsageError:
    return UsageError(f"cannot mount {mount!r}", where="the site's container.mounts", rule=rule)


def variables(site: Site) -> dict[str, str]:
    """Return what the container's environment tells of it, whoever starts it."""
    if site.container is None:
        return {}
    index = site.container.pip_index
    told = {environment.IMAGE_VARIABLE: site.container.image}
    return told | ({} if index is None else {environment.PIP_VARIABLE: index})


def pyxis_options(plan: Plan, site: Site, run_dir: str) -> list[str]:
    """Return the options of ``srun`` with which Slurm's plugin starts the site's container.

    As ``srun --help`` lists them where pyxis is installed, 2026-11-22.
    """
    if site.container is None or site.container.of_node:
        return []
    given = [":".join(one[:2]) + ":ro" * one.read_only for one in mounts(plan, site, run_dir)]
    return [
        f"--container-image={site.container.image}", f"--container-mounts={','.join(given)}",
        f"--container-workdir={run_dir}", "--no-container-mount-home", *site.container.arguments,
    ]  # fmt: skip


def check_script(plan: Plan, site: Site) -> str:
    """Return lines of a shell that say why a node cannot run the container, and then end it.

    Raises:
        UsageError: a mount is wrong.
    """
    container = _of_node(site)
    paths = [_mount(text).source for text in container.mounts]
    if plan.data.origin == "real":  # generated data is made where it is not
        paths.append(str(site.data or plan.data.folder))
    present = f"{container.runtime} image inspect {shlex.quote(container.image)} >/dev/null"
    if container.runtime == "apptainer":
        paths.append(container.image)
        present = "apptainer version >/dev/null"
    lines = ["set -e", 'fail() { echo "container: $1" >&2; exit 2; }', present]
    lines += [f"test -e {path} || fail {path}' is not here'" for path in map(shlex.quote, paths)]
    if not any(word.startswith("--user") for word in container.arguments):
        lines.append(f"test \"$(id -u)\" != 0 || fail '{_ROOT}'")
    return "\n".join(lines) + "\n"


def lines_to_run(
    plan: Plan, site: Site, vendor: Vendor, run_dir: str, *, exported: Iterable[str]
) -> list[str]:
    """Return lines of a shell that run the command in ``"$@"`` in the site's container.

    Signals and standard input reach the command.

    Args:
        run_dir: of the node.
        exported: variables of the shell that the container has too, beside those that are recorded.

    Raises:
        UsageError: a mount is wrong.
    """
    container = _of_node(site)
    runtime = str(container.runtime)
    needs: ContainerNeeds = getattr(vendor, "container_needs", ContainerNeeds())
    image, inspect = shlex.quote(container.image), f"{runtime} image inspect --format"
    mounted = mounts(plan, site, run_dir)
    where_there = [*needs.mounts]
    if plan.data.origin == "generated":
        data = str(site.data or plan.data.folder)
        where_there.append(shlex.quote(data))
        mounted = [one for one in mounted if one != Mount(data, data, read_only=True)]
    given = _given(where_there, Mount("$path", "$path", read_only=True).option())
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
        *check_script(plan, site).splitlines(),
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


def _of_node(site: Site) -> ContainerSite:
    assert site.container is not None
    assert site.container.of_node, "the engine starts it"
    return site.container


def check_here(plan: Plan, site: Site) -> None:
    """Look whether this machine can run the site's container, before there is a run.

    Raises:
        EnvironmentFault: runtime, image or the source of a mount is missing, or the user is root.
    """
    argv = ["timeout", f"{_PATIENCE_S:g}", "sh", "-c", check_script(plan, site)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFault(
            done.stderr.strip() or f"no answer in {_PATIENCE_S:g} s",
            where="the site's container",
            remedy="pull or build the image here first; docs/launchers.md has the keys",
        )
