"""The process of one node of a run on several machines or in a container, and its start script.

The process starts the node's ranks and writes the node's event file. Launchers start it on every
node, as ``python -m trainmark.launch.node RUN_DIR …``. It makes no record: the process that
submitted the run does. It ends its ranks on SIGTERM, and with ``--heartbeat`` also when nothing
arrives on its standard input for a while.

``render_node_script`` returns the script that starts the process, in the cluster's container if
there is one, with mounts, devices, user, shared memory and the image's digest. It is a script of a
POSIX shell, because all but the mounts depends on the node: its user, its device files and its
image. Slurm's pyxis and Kubernetes start containers themselves, and use only ``list_mounts`` and
the variables. This module knows no vendor: ``container_needs`` of a vendor describes its needs.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from trainmark import __version__, cases, devices
from trainmark.errors import DataError, TrainmarkError, UsageError, escape_controls
from trainmark.events.schema import EventWriter, name_node_file
from trainmark.launch import environment, processes, run_dir
from trainmark.launch.launchers import render_template
from trainmark.launch.local import prepare_setup, run_ranks
from trainmark.launch.network import refuse_unusable_network
from trainmark.launch.processes import note_stop_signals
from trainmark.plan.plan import Plan
from trainmark.protocols import ContainerNeeds
from trainmark.rank.contract import DATA_VARIABLE, NODE_VARIABLE
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.local import FindStopReason
    from trainmark.plan.witness import Witness

MODULE = "trainmark.launch.node"
_MAX_SILENCE_S = 60.0  # of standard input; after that the launcher counts as lost
_FABRIC = "/dev/infiniband"  # device files of the network between nodes
# Variables that the start script sets on the node, and variables that it forwards.
_SET_BY_SCRIPT = (environment.DIGEST_VARIABLE, environment.VERSION_VARIABLE)
_FORWARDED = (*environment.VARIABLES, environment.NETWORK_VARIABLE)


def render_node_script(
    plan: Plan,
    cluster: Cluster,
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
        folder: the run's folder on the node; None: the run directory, which the nodes share.
        options: further options of the node process, such as ``--heartbeat``, with which it ends
            its ranks once nothing arrives on its standard input.
    """
    run_folder = str(folder or plan.run_dir)
    words = [run_folder]
    if cluster.data is not None:  # else the node uses the folder of data that the plan names
        words += ["--data", str(cluster.data)]
    words += ["--port", str(cluster.master_port), *options]
    # Apart from the other options, because the shell must replace variables in these two.
    rank_options = f'--node-rank "{node_rank}" --master "{master}"'
    return render_python_script(
        plan, cluster, ["-m", plan.node_module, *words], folder=run_folder, unquoted=rank_options
    )


def render_python_script(
    plan: Plan, cluster: Cluster, words: Sequence[str], *, folder: str, unquoted: str = ""
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
            container_values = _describe_container(plan, cluster, folder, variables)
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
    plan: Plan, cluster: Cluster, folder: str, exported: Iterable[str]
) -> dict[str, object]:
    """Return the template's values for a container that the node's script starts.

    Args:
        folder: the run's folder on the node.
        exported: names of further variables that the script sets: those of the cluster file, and
            the one with the image's name.
    """
    vendor = devices.list_vendors()[plan.device.vendor]
    needs: ContainerNeeds = getattr(vendor, "container_needs", ContainerNeeds())
    mounts = list_mounts(plan, cluster, folder)
    # Paths that the script mounts only if they exist on the node. The vendor's are patterns that
    # the shell expands, so a plain path must be quoted.
    optional_mounts = list(needs.mounts)
    if plan.data.origin == "generated":  # a node without the data generates it
        data = str(cluster.data or plan.data.folder)
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
        "plan": plan,
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


def list_mounts(plan: Plan, cluster: Cluster, run_dir: str) -> list[Mount]:
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
    data = cluster.data
    if plan.witness is not None:  # the ranks run a user's own program
        folder_mounts.append(Mount(plan.witness.folder, plan.witness.folder))
    else:
        data = data or Path(plan.data.folder)
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


def build_pyxis_options(plan: Plan, cluster: Cluster) -> list[str]:
    """Return the options of ``srun`` with which Slurm's plugin pyxis starts the container.

    They are those that ``srun --help`` lists if pyxis is installed (2026-11-22).
    """
    # Without pyxis there is no container, or the node's script starts it.
    if cluster.container is None or cluster.container.is_started_by_node:
        return []
    mounts = []
    for mount in list_mounts(plan, cluster, plan.run_dir):
        mode = ":ro" if mount.read_only else ""
        mounts.append(f"{mount.source}:{mount.target}{mode}")
    return [
        f"--container-image={cluster.container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={plan.run_dir}",  # the folder of the script that ``srun`` starts
        # As with docker and podman, the container sees only what is mounted above, not the home.
        "--no-container-mount-home",
        *cluster.container.arguments,
    ]


def locate_data(node: int, plan: Plan, data: Path | None) -> Path:
    """Return the folder of the data on this node.

    If the folder is missing and the case can generate its data, the data is generated in this
    node's cache, and that folder is returned.

    Args:
        node: number of this node, for the error's text.
        data: the folder, from the cluster file; None: the plan's folder.

    Raises:
        DataError: the folder holds other data than the plan was made for.
    """
    case = plan.load_case()
    recipe = plan.load_recipe()
    folder = data or Path(plan.data.folder)
    if plan.data.origin == "generated" and not folder.exists():
        folder = cases.ensure_generated_data(case, recipe, cases.get_cache_root())
    if cases.check_data(case.name, folder, recipe).content_id != plan.data.content_id:
        raise DataError(
            "the data differs from the data on the machine that planned the run",
            where=f"node {node}, {folder}",
            rule="all nodes must train on the same data",
            fix="copy the data to this node again",
        )
    return folder


class HeartbeatReader:
    """Reads what the launcher writes to the standard input of a node while it watches the node."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()  # time at which something arrived last

    def is_lost(self) -> bool:
        """Read standard input; tell whether the launcher counts as lost.

        It does if standard input has ended, or if nothing has arrived on it for too long.
        """
        while self._can_read():
            data = os.read(sys.stdin.fileno(), 4096)
            if not data:  # the end
                return True
            self._last_s = time.monotonic()
        return time.monotonic() - self._last_s > _MAX_SILENCE_S

    @staticmethod
    def _can_read() -> bool:
        """Tell whether standard input has data or has ended, without waiting."""
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(readable)


def _enter_program_folder(program: Witness, node: int) -> None:
    """Make the folder of a user's own program the current one.

    Args:
        node: number of this node, for the error's text.

    Raises:
        DataError: it cannot be entered.
    """
    folder = Path(program.folder)
    try:
        os.chdir(folder)
    except OSError as error:
        raise DataError(
            f"cannot start the program in this folder: {error.strerror}",
            where=f"node {node}, {folder}",
            rule="on every node, the program starts in the folder in which you run the command",
            fix="run the command in a folder that all nodes share, or copy the folder to this node",
        ) from None


def _run_node(
    options: argparse.Namespace, events: EventWriter, find_stop_reason: FindStopReason
) -> bool:
    """Run this node's ranks; return whether all succeeded.

    Args:
        options: the arguments of this module, as ``main`` has parsed them.
        events: gets the events of this node.
        find_stop_reason: called several times a second; returns why the ranks must be stopped, or
            None.

    Raises:
        TrainmarkError: this node cannot run its part; nothing was started.
    """
    directory = options.run_dir.absolute()
    node = options.node_rank
    plan = Plan.read(directory)
    program = plan.witness  # a program of the user's own; None: the ranks train a case
    data_folder = None  # a user's own program finds its data itself
    if program is None:
        data_folder = locate_data(node, plan, options.data)
    else:
        _enter_program_folder(program, node)  # in which its ranks start
    vendor = devices.choose_vendor(plan.device.vendor)
    setup = prepare_setup(
        vendor,
        plan.nproc,
        # All processes of this node's ranks have the mark in their environment: by it they are
        # found and killed.
        mark=processes.make_mark(plan.run_id, node),
        program_run_dir=None if program is None else directory,
    )
    refuse_unusable_network(
        setup.variables, vendor, world_size=plan.world_size, master=options.master
    )
    run_dir.emit_launch(events, [MODULE, str(node)], setup.environment, node)
    if data_folder is not None:  # only ranks that train a case read these variables
        # The ranks get the versions of their node: the first rank compares those of all nodes.
        packages = {"trainmark": __version__, "python": setup.environment["python"]}
        packages |= setup.environment["packages"]
        setup.variables[NODE_VARIABLE] = json.dumps({"node": node, "packages": packages})
        setup.variables[DATA_VARIABLE] = str(data_folder)
    return run_ranks(
        plan,
        directory,
        setup,
        events,
        find_stop_reason,
        node=node,
        master=(options.master, options.port),
    )


def main(arguments: list[str]) -> int:
    """Run this node's part of the plan in the run directory; 0 if all its ranks succeeded."""
    parser = argparse.ArgumentParser(prog="trainmark.launch.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    # Host and port of the first node, where all ranks meet.
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    # Folder of the data on this node; absent: that of the plan.
    parser.add_argument("--data", type=Path)
    # Whether the launcher writes to standard input for as long as it lives.
    parser.add_argument("--heartbeat", action="store_true")
    options = parser.parse_args(arguments)
    node = options.node_rank
    heartbeat = HeartbeatReader() if options.heartbeat else None
    with note_stop_signals() as stop:

        def find_stop_reason() -> dict[str, Any] | None:
            """Return the signal that was noted, as a reason to stop; None: there is none.

            A lost launcher counts as SIGHUP, the signal that a closed terminal sends.
            """
            signal_name = stop.signal_name
            if signal_name is None and heartbeat is not None and heartbeat.is_lost():
                signal_name = "SIGHUP"
            return None if signal_name is None else {"reason": "signal", "signal": signal_name}

        events = EventWriter(options.run_dir / name_node_file(node), time.perf_counter_ns)
        succeeded = False
        try:
            succeeded = _run_node(options, events, find_stop_reason)
        except TrainmarkError as fault:
            print(escape_controls(f"node {node}: {fault}"), file=sys.stderr, flush=True)
            # The text of the fault without its fix, which is a field of its own in the message.
            text = str(TrainmarkError(fault.what, where=fault.where, rule=fault.rule))
            refusal = message("node_refused", node=node, text=text, fix=fault.fix)
            events.emit("refused", message=refusal.as_dict())
        events.emit("finished")  # after a refusal too: a node without this event counts as lost
        events.close()
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
