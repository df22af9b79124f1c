"""The process of one node of a run on several machines or in a container.

The process starts the node's ranks and writes the node's event file. Launchers start it on every
node, as ``python -m trainmark.launch.node RUN_DIR …``. It makes no record: the process that
submitted the run does. It ends its ranks on SIGTERM, and with ``--heartbeat`` also when nothing
arrives on its standard input for a while.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases, devices
from trainmark.errors import DataError, TrainmarkError, escape_controls
from trainmark.events.schema import EventWriter, name_node_file
from trainmark.launch import processes, run_dir
from trainmark.launch.job_spec import NODE_MODULE
from trainmark.launch.local import prepare_setup, run_ranks
from trainmark.launch.network import refuse_unusable_network
from trainmark.launch.processes import note_stop_signals
from trainmark.plan.plan import Plan
from trainmark.rank.contract import DATA_VARIABLE, NODE_VARIABLE
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.launch.local import FindStopReason
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.witness import Witness

_MAX_SILENCE_S = 60.0  # of standard input; after that the launcher counts as lost


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


def poll_stop_signal(stop: StopRequest, heartbeat: HeartbeatReader | None) -> str | None:
    """Note SIGHUP in ``stop`` if the launcher is gone; return the name of the noted signal.

    A launcher that is gone counts as a closed terminal, which sends SIGHUP. The signal stays noted,
    even if the launcher is heard again. None: nothing asks to stop.

    Args:
        stop: holds the first signal that asked to stop.
        heartbeat: reads what the launcher writes to standard input; None: it writes nothing, and
            only signals count.
    """
    if stop.signal_name is None and heartbeat is not None and heartbeat.is_lost():
        stop.signal_name = "SIGHUP"
    return stop.signal_name


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
    run_dir.emit_launch(events, [NODE_MODULE, str(node)], setup.environment, node)
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
    parser = argparse.ArgumentParser(prog=NODE_MODULE, description=__doc__)
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
            """Return the signal that asks to stop, as a reason to stop; None: there is none."""
            signal_name = poll_stop_signal(stop, heartbeat)
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
