"""One node of a run on several machines or in a container: its ranks and its event file.

Launchers start this module on every node, as ``python -m trainmark.launch.node RUN_DIR …``. It
makes no record: that is for the process that submitted the run. It ends its ranks on SIGTERM, and
with ``--heartbeat`` also when nobody writes to its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmark import __version__, cases, devices
from trainmark.data.generated import default_root
from trainmark.errors import DataError, TrainmarkError, escaped
from trainmark.launch import processes
from trainmark.launch.local import run_ranks, set_up
from trainmark.launch.stopping import stop_signals_noted
from trainmark.plan.plan import Plan
from trainmark.rank.events import EventWriter, node_file
from trainmark.rank.worker import DATA_VARIABLE, NODE_VARIABLE
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.launch.local import StopReason

_SILENCE_S = 60.0  # of standard input, after which the launcher counts as lost


def _data_folder(node: int, plan: Plan, given: Path | None) -> Path:
    """Return the folder of the data on this node; generated data is made where it is not.

    Raises:
        DataError: it does not hold what the plan was made for.
    """
    case, recipe = plan.load_case(), plan.load_recipe()
    folder = given or Path(plan.data.folder)
    if plan.data.origin == "generated" and not folder.exists():
        folder = cases.generated_folder(case, recipe, default_root())
    if cases.part(case.name, "data").check(folder, recipe).content_id != plan.data.content_id:
        raise DataError(
            "other data than where the run was planned",
            where=f"node {node}, {folder}",
            rule="all nodes train on the same data",
            remedy="copy the data to this node again",
        )
    return folder


def _input_lost(last_s: list[float]) -> bool:
    """Read what came on standard input; tell whether it ended or was silent for too long.

    Args:
        last_s: when something came last; updated.
    """
    while select.select([sys.stdin], [], [], 0)[0]:
        if not os.read(sys.stdin.fileno(), 4096):
            return True
        last_s[0] = time.monotonic()
    return time.monotonic() - last_s[0] > _SILENCE_S


def _run_node(asked: argparse.Namespace, events: EventWriter, reason_to_stop: StopReason) -> bool:
    """Run this node's ranks; return whether all succeeded.

    Raises:
        TrainmarkError: this node cannot run its part; nothing was started.
    """
    run_dir, number = asked.run_dir.absolute(), asked.node_rank
    plan = Plan.read(run_dir)
    folder = _data_folder(number, plan, asked.data)
    setup = set_up(
        devices.choose(plan.device.vendor), plan.nproc, processes.mark(plan.run_id, number)
    )
    events.emit(
        "launch",
        unix_ns=time.time_ns(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=["trainmark.launch.node", str(number)],
        environment=setup.described,
        node=number,
    )
    packages = {"trainmark": __version__, "python": setup.described["python"]}
    packages |= setup.described["packages"]
    setup.variables[NODE_VARIABLE] = json.dumps({"node": number, "packages": packages})
    setup.variables[DATA_VARIABLE] = str(folder)
    master = asked.master, asked.port
    return run_ranks(plan, run_dir, setup, events, reason_to_stop, node=number, master=master)


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
    with stop_signals_noted() as request:

        def reason_to_stop() -> dict[str, Any] | None:
            lost = request.signal_name is None and asked.heartbeat and _input_lost(last_s)
            name = "SIGHUP" if lost else request.signal_name
            return None if name is None else {"reason": "signal", "signal": name}

        events = EventWriter(asked.run_dir / node_file(number), time.perf_counter_ns)
        succeeded = False
        try:
            succeeded = _run_node(asked, events, reason_to_stop)
        except TrainmarkError as fault:
            print(escaped(f"node {number}: {fault}"), file=sys.stderr, flush=True)
            text = str(TrainmarkError(fault.what, where=fault.where, rule=fault.rule))
            said = message("node_refused", node=number, text=text, remedy=fault.remedy)
            events.emit("refused", unix_ns=time.time_ns(), message=said.as_dict())
        events.emit("finished")
        events.close()
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
