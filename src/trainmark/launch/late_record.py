"""Find the launches whose record can still be written after launcher and keeper were killed.

Distinguishes them from runs that are still running, have a record, or never began.
``run_dir.finish_for_another`` writes the record.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.launch import processes
from trainmark.launch.run_dir import finish_for_another
from trainmark.plan.plan import PLAN_FILE, Plan
from trainmark.rank.events import LAUNCHER_FILE, EventFile
from trainmark.record.record import RECORD_FILE

if TYPE_CHECKING:
    from pathlib import Path

_KEEPER_PATIENCE_S = 60.0
_POLL_S = 0.2


def unrecorded(run: Path) -> list[Path]:
    """Return the folders of the launches of ``run`` that lack a record and can get one.

    Args:
        run: the folder of a run, or of a series of launches.

    Raises:
        RecordError: not a run, it has a record, it never began, or it is still running.
    """
    if (run / RECORD_FILE).exists():
        raise _recorded(run)
    launches = [run] if (run / PLAN_FILE).exists() else launches_of_series(run)
    if not launches:
        raise RecordError("not a run directory", where=str(run), rule=f"it needs {PLAN_FILE}")
    lacking = [folder for folder in launches if not (folder / RECORD_FILE).exists()]
    if not lacking:
        raise _recorded(run)
    for folder in lacking:
        _check(folder)
    return lacking


def launches_of_series(run: Path) -> list[Path]:
    """Return the folders ``r1``, ``r2`` … of a series, in order."""
    found = [path.parent for path in run.glob(f"r*/{PLAN_FILE}")]
    numbered = [path for path in found if path.name[1:].isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name[1:]))


def finish_killed(folder: Path) -> None:
    """Leave the record of a launch whose launcher was killed, unless it never began.

    Waits while its keeper ends the ranks and writes the record.

    Raises:
        RecordError: its processes do not end.
    """
    deadline = time.monotonic() + _KEEPER_PATIENCE_S
    while not (folder / RECORD_FILE).exists() and processes.is_running(Plan.read(folder).run_id):
        if time.monotonic() > deadline:
            raise RecordError("its processes do not end", where=str(folder), remedy="end them")
        time.sleep(_POLL_S)
    with suppress(RecordError):  # never began, has one by now, or is past reading: another launch
        for launch in unrecorded(folder):
            finish_for_another(launch)


def _recorded(run: Path) -> RecordError:
    return RecordError(
        "the record exists already",
        where=str(run),
        rule="records never change",
        remedy="`trainmark show` prints it, `trainmark report` makes its page",
    )


def _check(folder: Path) -> None:
    try:
        plan = Plan.read(folder)
        if plan.node_processes:
            raise RecordError(
                f"a run of launcher {plan.launcher}, whose job may still be running",
                where=str(folder),
                remedy=f"`trainmark run --attach {folder}` waits for it and makes the record",
            )
        run_id = plan.run_id
        began = any(event["event"] == "launch" for event in EventFile(folder / LAUNCHER_FILE))
    except FileNotFoundError:
        began = False
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise RecordError(f"cannot be read: {first}", where=str(folder)) from None
    if not began:
        raise RecordError(
            "the run never began: it has no events of its launcher",
            where=str(folder),
            remedy="delete the folder and run it again",
        )
    if processes.is_running(run_id):
        raise RecordError(
            "the run is still running",
            where=str(folder),
            remedy="wait for its end, when it writes the record, or stop it with Ctrl-C",
        )
