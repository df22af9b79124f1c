"""What is particular to a cluster of machines: one YAML file, read before anything is planned.

Owns its keys. Must not know how launchers use them. Values go into scripts and manifests;
``docs/launchers.md`` describes each key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field, PrivateAttr

from trainmark import documents
from trainmark.documents import Frozen
from trainmark.errors import UsageError, suggest_nearest
from trainmark.plan.choosing import RemoteTarget
from trainmark.protocols.tested import REAL_RUNS
from trainmark.spec import Text
from trainmark.validation import require_form

LOCAL = "local"  # this machine: ``launch.local`` starts its ranks without an engine
CONTAINER = "container"  # this machine, in the cluster's container
_ONE_HOST = Text("two nodes of one host, no cluster yet", "一台主机上的两个节点，尚无集群")
# The launchers and what each was tested on: cluster files and verbs name engines that they never
# load.
TESTED = {
    LOCAL: REAL_RUNS,
    CONTAINER: Text(
        "real runs with podman and docker; apptainer: its command alone",
        "podman 与 docker 真实运行；apptainer 只检查过命令",
    ),
    "slurm": _ONE_HOST,
    "ssh": _ONE_HOST,
    "kubernetes": Text("a stand-in server, no cluster yet", "模拟的服务器，尚无集群"),
    "ray": _ONE_HOST,
}
NAMES = tuple(TESTED)
Port = Annotated[int, Ge(1), Le(65_535)]
Count = Annotated[int, Ge(1), Le(1_000_000)]


Variable = Annotated[
    str, require_form(r"[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and _, no digit first")
]
Host = Annotated[
    str, require_form(r"([\w.][\w.-]*@)?(\w[\w.-]*|\[[\w:.]+\])(:\d{1,5})?", "[user@]host[:port]")
]
MountText = Annotated[
    str,
    require_form(
        r"/[^:,]*:/[^:,]*(:r[ow])?", "HOST:CONTAINER[:ro], both paths from the root without comma"
    ),
]


class ContainerSettings(Frozen):
    """The container in which nodes run; the engine's own way where it has one.

    Args:
        runtime: None: the engine's own (pyxis for Slurm, the pod for Kubernetes).
        mounts: ``HOST:CONTAINER[:ro]`` each, paths from the root without comma.
        shared_memory: size of ``/dev/shm``, for example ``16g``; None: the host's.
        arguments: further ones of the runtime, before the image.
        python: interpreter in the image.
    """

    image: str
    runtime: Literal["docker", "podman", "apptainer", "pyxis"] | None = None
    mounts: tuple[MountText, ...] = ()
    shared_memory: str | None = None
    arguments: tuple[str, ...] = ()
    python: str = "python"

    @property
    def of_node(self) -> bool:
        """Tell whether a node starts the container itself, without an engine's help."""
        return self.runtime not in (None, "pyxis")


class SlurmSettings(Frozen):
    """What ``sbatch`` is told.

    Args:
        exclusive: whether to ask for whole nodes, with all their memory.
        options: further ones of sbatch, without their dashes, for example ``partition``; those
            without a value are ``true``, and ``{nproc}`` is the number of ranks on a node.
    """

    exclusive: bool = True
    options: dict[str, str] = Field(default_factory=dict)


class KubernetesSettings(Frozen):
    """What the manifest says.

    Args:
        resources: limits of a pod by name (``cpu``, ``memory``, …), beside as many of the vendor's
            own devices as ranks, or in place of these, which ``0`` leaves out.
        volumes: source by folder of the pods, as Kubernetes describes it.
    """

    namespace: str = "default"
    context: str | None = None
    resources: dict[str, str] = Field(default_factory=dict)
    shared_memory: str = "16Gi"
    volumes: dict[str, dict[str, dict[str, str]]] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)


class RaySettings(Frozen):
    """The cluster.

    Args:
        address: URL of its dashboard, ``http://HOST:8265``; None: the local cluster.
        resources: amount by name, that each node is asked for beside CPU and GPU of its ranks.
    """

    address: Annotated[str, require_form(r"https?://[!-~]+", "http://HOST:8265")] | None = None
    resources: dict[str, float] = Field(default_factory=dict)


class SshSettings(Frozen):
    """Bare hosts.

    Args:
        hosts: ``[user@]host[:port]`` each; the first nodes' are used.
        run_root: folder on the hosts for their files, which are copied back; None: the run
            directory is on a file system that all hosts share.
    """

    hosts: tuple[Host, ...] = ()
    options: dict[str, str] = Field(default_factory=dict)
    run_root: Path | None = None


class Cluster(Frozen):
    """Settings of one cluster.

    Args:
        launcher: what ``--launcher`` is where it is not given.
        device: vendor of the nodes' devices, where this machine has others.
        devices_per_node: of a node; a plan that asks for more is refused.
        nodes: that a run may have; a plan that asks for more is refused.
        python: interpreter on the nodes that has this program.
        data: folder on the nodes that holds what ``--data`` names here; None: the same path.
        setup: lines of a shell before anything else on each node (``module load …``).
        environment: variables of the ranks.
        master_port: where ranks meet on the first node.
    """

    launcher: str = "local"
    device: str | None = None
    devices_per_node: Count | None = None
    nodes: Count | None = None
    python: str = sys.executable
    data: Path | None = None
    setup: tuple[str, ...] = ()
    environment: dict[Variable, str] = Field(default_factory=dict)
    master_port: Port = 29_500
    container: ContainerSettings | None = None
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    ssh: SshSettings = Field(default_factory=SshSettings)
    _file: Path | None = PrivateAttr(None)  # from which the settings were read

    def fault(
        self, key: str, what: str, *, rule: str | None = None, fix: str | None = None
    ) -> UsageError:
        """Return the error of a setting that a launcher cannot use.

        Args:
            key: of the setting, with dots.
        """
        if self._file is None and not self.model_fields_set:
            write = fix or f"write {key}"
            return UsageError(
                f"{what}, and no cluster file is given",
                where=f"--cluster, {key}",
                rule=rule,
                fix=f"{write} into a file and name it: --cluster cluster.yaml; "
                "docs/launchers.md has the keys",
            )
        place = "cluster file" if self._file is None else str(self._file)
        return UsageError(what, where=f"{place}, {key}", rule=rule, fix=fix)

    def find_remote_target(self, launcher: str | None) -> RemoteTarget | None:
        """Return the machines that ``--launcher`` or this file names; None: this one."""
        name = launcher or self.launcher
        if name == LOCAL and self.container is not None and self.container.of_node:
            name = CONTAINER
        if name == LOCAL:
            return None
        if name not in NAMES:
            raise UsageError(
                f"unknown launcher {name!r}", where="--launcher", fix=suggest_nearest(name, NAMES)
            )
        return RemoteTarget(
            launcher=name,
            tested=TESTED[name],
            device=self.device,
            nodes=1 if name == CONTAINER else self.nodes,
            devices_per_node=self.devices_per_node,
            has_our_files=name == CONTAINER,
        )


def find_default_file() -> Path | None:
    """Return the file that is read without ``--cluster``; None if it is not there."""
    # ``Path.home`` raises for a user id without a name, as containers have.
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    file = Path(base) / "trainmark" / "cluster.yaml"
    return file if os.access(file, os.R_OK) else None


def read_cluster(path: Path | None) -> Cluster:
    """Return the settings of a file; the defaults where none is named and none is there.

    Args:
        path: as ``--cluster`` names it; None: ``find_default_file``.

    Raises:
        UsageError: with file, line and key: no YAML, an unknown key, a value of another type.
    """
    file = path or find_default_file()
    if file is None:
        return Cluster()
    document = documents.read_yaml(file)
    cluster = documents.validate_document(
        Cluster, {} if document is None else document, file, fix="docs/launchers.md has the keys"
    )
    cluster._file = file
    return cluster
