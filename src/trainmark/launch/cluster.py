"""The settings of a cluster: one YAML file, read before anything is planned.

Defines the keys of the file, but not how launchers use them. Values go into scripts and manifests;
``docs/launchers.md`` describes each key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import Field, PrivateAttr
from typing_extensions import Self

from trainmark import documents
from trainmark.documents import Frozen
from trainmark.errors import UsageError, suggest_nearest
from trainmark.plan.choosing import RemoteTarget
from trainmark.protocols.tested import REAL_RUNS
from trainmark.spec import Text
from trainmark.validation import require_form

LOCAL = "local"  # this machine: ``launch.local`` starts its ranks without an engine
CONTAINER = "container"  # this machine, in the cluster's container
_ONE_HOST = Text(
    "two nodes on one host, but no real cluster yet", "一台主机上的两个节点，尚未在集群上测试"
)
# The launchers and what each was tested on, listed here because cluster files and commands name
# launchers whose modules they never import.
TESTED = {
    LOCAL: REAL_RUNS,
    CONTAINER: Text(
        "real runs with podman and docker; for apptainer, only the command",
        "podman 与 docker 已实际运行；apptainer 只检查过命令",
    ),
    "slurm": _ONE_HOST,
    "ssh": _ONE_HOST,
    "kubernetes": Text(
        "a simulated server, but no real cluster yet", "模拟的服务器，尚未在集群上测试"
    ),
    "ray": _ONE_HOST,
}
NAMES = tuple(TESTED)
Port = Annotated[int, Ge(1), Le(65_535)]
ClusterCount = Annotated[int, Ge(1), Le(1_000_000)]


Variable = Annotated[
    str,
    require_form(
        r"[A-Za-z_][A-Za-z0-9_]*",
        "a name of letters, digits and _ that does not start with a digit",
    ),
]
Host = Annotated[
    str, require_form(r"([\w.][\w.-]*@)?(\w[\w.-]*|\[[\w:.]+\])(:\d{1,5})?", "[user@]host[:port]")
]
MountText = Annotated[
    str,
    require_form(
        r"/[^:,]*:/[^:,]*(:r[ow])?", "HOST:CONTAINER[:ro], two absolute paths without commas"
    ),
]


class ContainerSettings(Frozen):
    """The container in which node processes run.

    Args:
        runtime: None: the engine's own containers (pyxis for Slurm, the pod for Kubernetes).
        mounts: ``HOST:CONTAINER[:ro]`` each, absolute paths without comma.
        shared_memory: size of ``/dev/shm``, for example ``16g``; None: that of the host.
        arguments: further arguments of the runtime, before the image.
        python: interpreter in the image.
    """

    image: str
    runtime: Literal["docker", "podman", "apptainer", "pyxis"] | None = None
    mounts: tuple[MountText, ...] = ()
    shared_memory: str | None = None
    arguments: tuple[str, ...] = ()
    python: str = "python"

    @property
    def is_started_by_node(self) -> bool:
        """Tell whether the node's script starts the container, rather than the cluster's engine.

        The engine that runs the job starts the container in two cases: Kubernetes in a pod, with
        the runtime None, and Slurm with its plugin ``pyxis``.
        """
        return self.runtime not in (None, "pyxis")


class SlurmSettings(Frozen):
    """Options of ``sbatch``.

    Args:
        exclusive: whether to request whole nodes, with all their memory.
        options: further options of sbatch without dashes, for example ``partition``. The value of
            a flag is ``true``, and ``{nproc}`` stands for the number of ranks on a node.
    """

    exclusive: bool = True
    options: dict[str, str] = Field(default_factory=dict)


class KubernetesSettings(Frozen):
    """Values of the Kubernetes manifest.

    Args:
        resources: limits of a pod by name (``cpu``, ``memory``, …), in addition to one device of
            the vendor for each rank. An entry for the vendor's device replaces that number; ``0``
            leaves it out.
        volumes: the volume's source, as Kubernetes describes it, by the folder in the pods.
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
    """The Ray cluster.

    Args:
        address: URL of its dashboard, ``http://HOST:8265``; None: the cluster on this machine.
        resources: amounts by name that each node needs, in addition to CPU and GPU of its ranks.
    """

    address: Annotated[str, require_form(r"https?://[!-~]+", "http://HOST:8265")] | None = None
    resources: dict[str, float] = Field(default_factory=dict)


class SshSettings(Frozen):
    """Hosts that ssh reaches, without an engine.

    Args:
        hosts: ``[user@]host[:port]`` each; a run on N nodes uses the first N.
        run_root: folder on the hosts for their files, which are copied back; None: the run
            directory is on a file system that all hosts share.
    """

    hosts: tuple[Host, ...] = ()
    options: dict[str, str] = Field(default_factory=dict)
    run_root: Path | None = None


class Cluster(Frozen):
    """Settings of one cluster.

    Args:
        launcher: the default of ``--launcher``.
        device: vendor of the nodes' devices, if this machine has other devices.
        devices_per_node: maximum of a node; a plan that asks for more is refused.
        nodes: maximum of a run; a plan that asks for more is refused.
        python: interpreter on the nodes that can import this program.
        data: folder on the nodes with the data that ``--data`` names here; None: the same path.
        setup: shell lines that each node runs first (``module load …``).
        environment: variables of the ranks.
        master_port: port of the first node at which the ranks meet.
    """

    launcher: str = "local"
    device: str | None = None
    devices_per_node: ClusterCount | None = None
    nodes: ClusterCount | None = None
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

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Return the settings of a file; later errors about these settings name the file.

        Raises:
            UsageError: with file, line and key: not YAML, an unknown key, a value of a wrong type.
        """
        document = documents.read_yaml(file)
        cluster = documents.validate_document(
            cls,
            {} if document is None else document,  # None: the file is empty
            file,
            fix="see docs/launchers.md for the valid keys",
        )
        cluster._file = file
        return cluster

    def build_error(
        self, key: str, what: str, *, rule: str | None = None, fix: str | None = None
    ) -> UsageError:
        """Return the error for a setting that a launcher cannot use.

        Args:
            key: the setting's key, with dots.
            what: the problem.
            rule: what is valid.
            fix: what to do in the file, beginning with a verb. None: the error names no remedy,
                unless all settings are defaults; then the remedy is to set the key in a file.
        """
        # Nobody wrote a setting: all are defaults.
        if self._file is None and not self.model_fields_set:
            instruction = fix or f"set {key}"
            return UsageError(
                f"{what}, and there is no cluster file",
                where=f"--cluster, {key}",
                rule=rule,
                fix=(
                    f"{instruction} in a file, and pass the file with --cluster cluster.yaml; "
                    "see docs/launchers.md for the keys"
                ),
            )
        # Settings without a file were read from a run's folder, or given from Python.
        place = "cluster file" if self._file is None else str(self._file)
        return UsageError(what, where=f"{place}, {key}", rule=rule, fix=fix)

    def find_remote_target(self, launcher: str | None) -> RemoteTarget | None:
        """Return the machines that ``--launcher`` or this file names.

        None: this machine, without a container.

        Raises:
            UsageError: there is no such launcher.
        """
        name = launcher or self.launcher
        # The launcher CONTAINER, and not LOCAL, runs a container on this machine: its ranks have
        # the Python and the packages of the image, as on another machine. A container that only an
        # engine can start is ignored: a local run has no engine.
        if name == LOCAL and self.container is not None and self.container.is_started_by_node:
            name = CONTAINER
        if name == LOCAL:
            return None
        if name not in NAMES:
            raise UsageError(
                f"unknown launcher {name!r}", where="--launcher", fix=suggest_nearest(name, NAMES)
            )
        return RemoteTarget(
            launcher=name,
            tested=TESTED[name],  # on what the launcher was tested
            device=self.device,
            nodes=1 if name == CONTAINER else self.nodes,
            devices_per_node=self.devices_per_node,
            has_our_files=name == CONTAINER,  # it can mount any folder of this machine
        )


def find_default_file() -> Path | None:
    """Return the file that is read without ``--cluster``; None if it is absent or unreadable."""
    # Not ``Path.home``, which raises if the user's id has no name, as in many containers.
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    file = Path(base) / "trainmark" / "cluster.yaml"
    return file if os.access(file, os.R_OK) else None


def read_cluster(path: Path | None) -> Cluster:
    """Return the settings of a file, or the defaults if there is no file.

    Args:
        path: the value of ``--cluster``; None: the file that ``find_default_file`` returns.

    Raises:
        UsageError: with file, line and key: not YAML, an unknown key, a value of a wrong type.
    """
    file = path or find_default_file()
    return Cluster() if file is None else Cluster.from_file(file)
