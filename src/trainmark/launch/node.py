"""One node of a run on several machines or in a container: its process, and what starts that.

The process has the node's ranks and its event file. Launchers start it on every node, as ``python
-m trainmark.launch.node RUN_DIR …``. It makes no record: that is for the process that submitted
the run. It ends its ranks on SIGTERM, and with ``--heartbeat`` also when nobody writes to its
standard input.

``render_node_script`` returns the text that starts it, in the cluster's container if there is one:
mounts, devices, user, shared memory and the image's digest. It is for a POSIX shell, because all
but the mounts depends on the node, which may be another machine: its user, its device files and its
image. Slurm's pyxis and Kubernetes start containers themselves, and take ``list_mounts`` and the
variables. This module must not know vendors: their ``container_needs`` describe what they need.
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
from trainmark.errors import DataError, TrainmarkError, escape_controls
from trainmark.events.schema import EventWriter, name_node_file
from trainmark.launch import environment, processes, run_dir
from trainmark.launch.launchers import render_template
from trainmark.launch.local import prepare_setup, run_ranks
from trainmark.launch.network import refuse_unusable_network
from trainmark.launch.processes import note_stop_signals
from trainmark.plan.plan import Plan
from trainmark.protocols import ContainerNeeds
from trainmark.rank.worker import DATA_VARIABLE, NODE_VARIABLE
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.local import StopReason
    from trainmark.plan.witness import Witness

MODULE = "trainmark.launch.node"
_SILENCE_S = 60.0  # of standard input, after which the launcher counts as lost
_FABRIC = "/dev/infiniband"  # of the network between nodes, whatever the devices
_FOUND = (environment.DIGEST_VARIABLE, environment.VERSION_VARIABLE)  # on the node
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
        folder: of the run on the node; None: the run directory itself.
        options: further ones of the node process, such as ``--heartbeat``.
    """
    words = [str(folder or plan.run_dir)]
    if cluster.data is not None:
        words += ["--data", str(cluster.data)]
    words += ["--port", str(cluster.master_port), *options]
    rank_options = f'--node-rank "{node_rank}" --master "{master}"'
    return render_python_script(
        plan, cluster, ["-m", plan.node_module, *words], folder=words[0], unquoted=rank_options
    )


def render_python_script(
    plan: Plan, cluster: Cluster, words: Sequence[str], *, folder: str, unquoted: str = ""
) -> str:
    """Return the lines of a POSIX shell that run Python on a node.

    Args:
        words: its arguments.
        folder: of the node, in which it writes; a container has it under the same path.
        unquoted: further ones, in which the shell replaces its variables.
    """
    variables, python = dict(cluster.environment), cluster.python
    more: dict[str, object] = {"in_container": False}
    if cluster.container is not None:  # it is told of itself, whoever starts it
        python = cluster.container.python
        variables = {environment.IMAGE_VARIABLE: cluster.container.image} | variables
        if cluster.container.of_node:
            more = _describe_container(plan, cluster, folder, variables)
    command = f"{shlex.join([python, *words])} {unquoted}".rstrip()
    return render_template(
        "node.sh.j2", cluster=cluster, variables=variables, command=command, folder=folder, **more
    )


def _describe_container(
    plan: Plan, cluster: Cluster, folder: str, exported: Iterable[str]
) -> dict[str, object]:
    """Return what the script says of the container that a node starts.

    Args:
        exported: variables of the shell that the container has too, beside those that are recorded.
    """
    vendor = devices.list_vendors()[plan.device.vendor]
    needs: ContainerNeeds = getattr(vendor, "container_needs", ContainerNeeds())
    mounted, if_there = list_mounts(plan, cluster, folder), [*needs.mounts]
    if plan.data.origin == "generated":  # made where it is not
        data = str(cluster.data or plan.data.folder)
        if_there.append(shlex.quote(data))
        mounted = [mount for mount in mounted if mount != Mount(data, data, read_only=True)]
    wanted = dict.fromkeys((*_FOUND, *_FORWARDED, *vendor.recorded_variables, *exported))
    names = [name for name in wanted if name != "LD_PRELOAD" and not name.endswith("*")]
    patterns = [name for name in wanted if name.endswith("*")]
    return {
        "in_container": True,
        "plan": plan,
        "needs": needs,
        "mounts": mounted,
        "if_there": if_there,
        "fabric": _FABRIC,
        "names": names,
        "patterns": patterns,
    }


class Mount(NamedTuple):
    """A file or folder of the node in the container."""

    source: str
    target: str
    read_only: bool = False

    def option(self) -> str:
        """Return it as docker, podman and apptainer take it."""
        mode = ",readonly" if self.read_only else ""
        return f"--mount=type=bind,source={self.source},target={self.target}{mode}"


def list_mounts(plan: Plan, cluster: Cluster, run_dir: str) -> list[Mount]:
    """Return what the container of a node is given, outer folders before those within them.

    Run directory, data and the folder of a user's own program have the same path in the container
    as on the node, unless the cluster's file puts something else there. A program may write into
    its folder.

    Args:
        run_dir: of the node.
    """
    folders = [f"{run_dir}:{run_dir}"]
    data = cluster.data
    if plan.witness is not None:
        folders.append(f"{plan.witness.folder}:{plan.witness.folder}")
    else:
        data = data or Path(plan.data.folder)
    if data is not None:
        folders.append(f"{data}:{data}:ro")
    mounts: dict[str, Mount] = {}
    given = cluster.container.mounts if cluster.container else ()
    for text in (*folders, *given):
        source, target, *mode = text.split(":")
        mounts[target] = Mount(source, target, mode == ["ro"])
    return sorted(mounts.values(), key=lambda mount: PurePosixPath(mount.target).parts)


def build_pyxis_options(plan: Plan, cluster: Cluster) -> list[str]:
    """Return the options of ``srun`` with which Slurm's plugin starts the cluster's container.

    As ``srun --help`` lists them where pyxis is installed, 2026-11-22.
    """
    if cluster.container is None or cluster.container.of_node:
        return []
    mounts = [
        f"{source}:{target}:ro" if is_read_only else f"{source}:{target}"
        for source, target, is_read_only in list_mounts(plan, cluster, plan.run_dir)
    ]
    return [
        f"--container-image={cluster.container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={plan.run_dir}",
        "--no-container-mount-home",
        *cluster.container.arguments,
    ]


def locate_data(node: int, plan: Plan, given: Path | None) -> Path:
    """Return the folder of the data on this node; generated data is made where it is not.

    Raises:
        DataError: it does not hold what the plan was made for.
    """
    case, recipe = plan.load_case(), plan.load_recipe()
    folder = given or Path(plan.data.folder)
    if plan.data.origin == "generated" and not folder.exists():
        folder = cases.ensure_generated_data(case, recipe, cases.get_cache_root())
    if cases.check_data(case.name, folder, recipe).content_id != plan.data.content_id:
        raise DataError(
            "other data than where the run was planned",
            where=f"node {node}, {folder}",
            rule="all nodes train on the same data",
            fix="copy the data to this node again",
        )
    return folder


def is_input_lost(last_s: list[float]) -> bool:
    """Read what came on standard input; tell whether it ended or was silent for too long.

    Args:
        last_s: when something came last; updated.
    """
    while select.select([sys.stdin], [], [], 0)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            return True
        last_s[0] = time.monotonic()
    return time.monotonic() - last_s[0] > _SILENCE_S


def _enter_program_folder(program: Witness, node: int) -> Path:
    """Make the folder of a user's own program the current one, and return it.

    Raises:
        DataError: it cannot be entered.
    """
    folder = Path(program.folder)
    try:
        os.chdir(folder)
    except OSError as error:
        raise DataError(
            f"cannot start the program there: {error.strerror}",
            where=f"node {node}, {folder}",
            rule="the program starts in the folder in which you are, on every node",
            fix="start it from a folder that all nodes share, or copy the folder to this node",
        ) from None
    return folder


def _run_node(asked: argparse.Namespace, events: EventWriter, reason_to_stop: StopReason) -> bool:
    """Run this node's ranks; return whether all succeeded.

    Raises:
        TrainmarkError: this node cannot run its part; nothing was started.
    """
    there, number = asked.run_dir.absolute(), asked.node_rank
    plan = Plan.read(there)
    program = plan.witness
    if program is None:
        folder = locate_data(number, plan, asked.data)
    else:
        folder = _enter_program_folder(program, number)
    vendor = devices.choose_vendor(plan.device.vendor)
    setup = prepare_setup(
        vendor,
        plan.nproc,
        processes.make_mark(plan.run_id, number),
        witnessed=None if program is None else there,
    )
    refuse_unusable_network(
        setup.variables, vendor, world_size=plan.world_size, master=asked.master
    )
    run_dir.emit_launch(events, [MODULE, str(number)], setup.described, number)
    packages = {"trainmark": __version__, "python": setup.described["python"]}
    packages |= setup.described["packages"]
    setup.variables[NODE_VARIABLE] = json.dumps({"node": number, "packages": packages})
    setup.variables[DATA_VARIABLE] = str(folder)
    master = asked.master, asked.port
    return run_ranks(plan, there, setup, events, reason_to_stop, node=number, master=master)


def main(words: list[str]) -> int:
    """Run this node's part of the plan in the run directory; 0 if all its ranks succeeded."""
    parser = argparse.ArgumentParser(prog="trainmark.launch.node", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heartbeat", action="store_true")
    asked = parser.parse_args(words)
    number = asked.node_rank
    last_s = [time.monotonic()]
    with note_stop_signals() as request:

        def reason_to_stop() -> dict[str, Any] | None:
            lost = request.signal_name is None and asked.heartbeat and is_input_lost(last_s)
            name = "SIGHUP" if lost else request.signal_name
            return None if name is None else {"reason": "signal", "signal": name}

        events = EventWriter(asked.run_dir / name_node_file(number), time.perf_counter_ns)
        succeeded = False
        try:
            succeeded = _run_node(asked, events, reason_to_stop)
        except TrainmarkError as fault:
            print(escape_controls(f"node {number}: {fault}"), file=sys.stderr, flush=True)
            text = str(TrainmarkError(fault.what, where=fault.where, rule=fault.rule))
            refusal = message("node_refused", node=number, text=text, fix=fault.fix)
            events.emit("refused", message=refusal.as_dict())
        events.emit("finished")
        events.close()
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
