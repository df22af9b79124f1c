"""The script that starts the process of one node, on the node itself or in its container.

``render_node_script`` returns the script of a job's Python module, in the cluster's container if
there is one, with mounts, devices, user, shared memory and the image's digest. It is a script of
a POSIX shell, because all but the mounts depends on the node: its user, its device files and its
image. Slurm's pyxis and Kubernetes start containers themselves, and use only ``list_mounts`` and
the variables. This module knows no vendor: ``container_needs`` of a vendor describes its needs.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from trainmark import devices
from trainmark.errors import UsageError
from trainmark.launch import environment
from trainmark.launch.launchers import render_template
from trainmark.protocols import ContainerNeeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.job_spec import JobSpec

_FABRIC = "/dev/infiniband"  # device files of the network between nodes
# Variables that the start script sets on the node, and variables that it forwards.
_SET_BY_SCRIPT = (environment.DIGEST_VARIABLE, environment.VERSION_VARIABLE)
_FORWARDED = (*environment.VARIABLES, environment.NETWORK_VARIABLE)


def render_node_script(
    spec: JobSpec,
    cluster: Cluster,
    *,
    node_rank: str,
    master: str,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
) -> str:
    """Return the lines of a POSIX shell that run one node's part of a job.

    Args:
        node_rank: a number, or an expression of the shell such as ``$SLURM_NODEID``.
        master: host of the first node, or such an expression.
        folder: the run's folder on the node; None: the run directory, which the nodes share.
        options: further options of the node process, such as ``--heartbeat``, with which it ends
            its ranks once nothing arrives on its standard input.
    """
    run_folder = str(folder or spec.run_dir)
    words = [run_folder]
    if cluster.data is not None:  # else the node uses the folder of data that the plan names
        words += ["--data", str(cluster.data)]
    words += ["--port", str(cluster.master_port), *options]
    # Apart from the other options, because the shell must replace variables in these two.
    rank_options = f'--node-rank "{node_rank}" --master "{master}"'
    return render_python_script(
        spec, cluster, ["-m", spec.node_module, *words], folder=run_folder, unquoted=rank_options
    )


def render_python_script(
    spec: JobSpec, cluster: Cluster, words: Sequence[str], *, folder: str, unquoted: str = ""
) -> str:
    """Return the lines of a POSIX shell that run Python on a node.

    Args:
        words: arguments of Python.
        folder: folder of the node into which the process writes; it has the same path in a
            container.
        unquoted: further arguments, in which the shell replaces its variables.
    """
    variables = dict(cluster.environment)
    python = cluster.python
    container_values: dict[str, object] = {"in_container": False}
    if cluster.container is not None:
        python = cluster.container.python
        # The record takes the image's name from this variable, because most containers do not tell
        # it inside. The cluster file may set the variable itself, to another name of the image.
        variables = {environment.IMAGE_VARIABLE: cluster.container.image} | variables
        if cluster.container.is_started_by_node:
            container_values = _describe_container(spec, cluster, folder, variables)
    command = f"{shlex.join([python, *words])} {unquoted}".rstrip()
    return render_template(
        "node.sh.j2",
        cluster=cluster,
        variables=variables,
        command=command,
        folder=folder,
        **container_values,
    )


def _describe_container(
    spec: JobSpec, cluster: Cluster, folder: str, exported: Iterable[str]
) -> dict[str, object]:
    """Return the template's values for a container that the node's script starts.

    Args:
        folder: the run's folder on the node.
        exported: names of further variables that the script sets: those of the cluster file, and
            the one with the image's name.
    """
    vendor = devices.list_vendors()[spec.vendor]
    needs: ContainerNeeds = getattr(vendor, "container_needs", ContainerNeeds())
    mounts = list_mounts(spec, cluster, folder)
    # Paths that the script mounts only if they exist on the node. The vendor's are patterns that
    # the shell expands, so a plain path must be quoted.
    optional_mounts = list(needs.mounts)
    if spec.generates_data:  # a node without the data generates it
        data = str(cluster.data or spec.data_folder)
        optional_mounts.append(shlex.quote(data))
        # The other mounts are made in any case, and a runtime refuses to mount a folder that does
        # not exist. So the data must not be among them.
        mounts = [mount for mount in mounts if mount != Mount(data, data, read_only=True)]
    # Variables that the container gets from the script's environment, each once; a name that ends
    # in `*` stands for all variables that begin with what is before it. Variables that the record
    # names are among them, because they configure torch and the vendor's libraries.
    variables = dict.fromkeys((*_SET_BY_SCRIPT, *_FORWARDED, *vendor.recorded_variables, *exported))
    # LD_PRELOAD names a library of the node, which the image need not have.
    names = [name for name in variables if name != "LD_PRELOAD" and not name.endswith("*")]
    patterns = [name for name in variables if name.endswith("*")]
    return {
        "in_container": True,
        "spec": spec,
        "needs": needs,
        "mounts": mounts,
        "optional_mounts": optional_mounts,
        "fabric": _FABRIC,  # device files of the network between nodes
        "names": names,
        "patterns": patterns,
    }


class Mount(NamedTuple):
    """A file or folder of the node that is mounted into the container."""

    source: str
    target: str
    read_only: bool = False

    def format_option(self) -> str:
        """Return the option that makes this mount, for docker, podman and apptainer."""
        mode = ",readonly" if self.read_only else ""
        return f"--mount=type=bind,source={self.source},target={self.target}{mode}"


def list_mounts(spec: JobSpec, cluster: Cluster, run_dir: str) -> list[Mount]:
    """Return the mounts of a node's container, outer folders before those within them.

    In the other order, the mount of an outer folder would hide those within it.

    The run directory, the data and the folder of a user's own program have the same path in the
    container as on the node, unless the cluster file mounts something else at that path. Of these
    three, only the data is read-only.

    Args:
        run_dir: the run's folder on the node.

    Raises:
        UsageError: the path of one of the three has a colon or a comma.
    """
    folder_mounts = [Mount(run_dir, run_dir)]
    if spec.program_folder is not None:  # the ranks run a user's own program
        folder_mounts.append(Mount(str(spec.program_folder), str(spec.program_folder)))
    data = cluster.data or spec.data_folder
    if data is not None:  # a user's own program has data only if the cluster file names some
        folder_mounts.append(Mount(str(data), str(data), read_only=True))
    mounts: dict[str, Mount] = {}
    for mount in folder_mounts:
        # These separate mounts and their parts in the options of docker, podman and pyxis.
        if ":" in mount.source or "," in mount.source:
            raise UsageError(
                "the path contains a colon or a comma",
                where=mount.source,
                rule="a container cannot mount a folder with such a path",
                fix="rename the folder, or choose another one",
            )
        mounts[mount.target] = mount
    mounts_of_cluster_file = cluster.container.mounts if cluster.container else ()
    for text in mounts_of_cluster_file:  # HOST:CONTAINER[:ro]
        source, target, *mode = text.split(":")
        # A mount of the cluster file replaces one of the above at the same target.
        mounts[target] = Mount(source, target, read_only=mode == ["ro"])
    return sorted(mounts.values(), key=lambda mount: PurePosixPath(mount.target).parts)


def build_pyxis_options(spec: JobSpec, cluster: Cluster) -> list[str]:
    """Return the options of ``srun`` with which Slurm's plugin pyxis starts the container.

    They are those that ``srun --help`` lists if pyxis is installed (2026-11-22).
    """
    # Without pyxis there is no container, or the node's script starts it.
    if cluster.container is None or cluster.container.is_started_by_node:
        return []
    mounts = []
    for mount in list_mounts(spec, cluster, str(spec.run_dir)):
        mode = ":ro" if mount.read_only else ""
        mounts.append(f"{mount.source}:{mount.target}{mode}")
    return [
        f"--container-image={cluster.container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={spec.run_dir}",  # the folder of the script that ``srun`` starts
        # As with docker and podman, the container sees only what is mounted above, not the home.
        "--no-container-mount-home",
        *cluster.container.arguments,
    ]
