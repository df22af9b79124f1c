"""Make the record of a run whose launcher was killed, from the events that it left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

from trainmark.errors import RecordError
from trainmark.launch import processes, run_dir
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import LAUNCHER_FILE, EventFile, EventWriter
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from pathlib import Path

_END_PATIENCE_S = 2.0  # for a sampler whose launcher died


def complete(folder: Path) -> None:
    """Make the missing records in the folder of a run, of its launches or of several runs.

    Launches that still run, or never began, are left alone.

    Raises:
        RecordError: ``folder`` is a run itself and can get no record.
    """
    for below in ("", "*/", "*/*/", "*/*/*/"):
        for plan in sorted(folder.glob(f"{below}{PLAN_FILE}")):
            if (plan.parent / RECORD_FILE).exists():
                continue
            try:
                make_record(plan.parent)
            except RecordError:
                if plan.parent == folder:
                    raise


def make_record(folder: Path) -> None:
    """End what is left of a launch and make its record, if its launcher did not.

    Raises:
        RecordError: it is still running, is an engine's job, never began, or cannot be read.
    """
    try:
        plan = Plan.read(folder)
        with run_dir.locked(folder):
            if not (folder / RECORD_FILE).exists():
                _make(plan, folder)
    except BlockingIOError:
        raise RecordError(
            "the run is still running",
            where=str(folder),
            remedy="wait for its end, when it writes the record, or stop it with Ctrl-C",
        ) from None
    except (OSError, ValueError) as error:
        raise RecordError(
            f"cannot be read: {str(error).splitlines()[0]}", where=str(folder)
        ) from None


def _make(plan: Plan, folder: Path) -> None:
    if plan.node_processes:
        raise RecordError(
            f"a run of launcher {plan.launcher}, whose job may still be running",
            where=str(folder),
            remedy=f"`trainmark run --attach {folder}` waits for it and makes the record",
        )
    path = folder / LAUNCHER_FILE
    names = {event["event"] for event in EventFile(path)} if path.exists() else set()
    if "launch" not in names:
        raise RecordError(
            "the run never began: it has no events of its launcher",
            where=str(folder),
            remedy="delete the folder and run it again",
        )
    psutil.wait_procs(processes.of_run(plan.run_id), timeout=_END_PATIENCE_S)
    processes.kill_run(plan.run_id)
    events = EventWriter(path, time.perf_counter_ns)
    if not names & {"stop", "agent_exit"}:
        events.emit("stop", reason="launcher_killed")
    run_dir.finish(folder, events)
