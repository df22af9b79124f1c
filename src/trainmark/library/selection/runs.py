"""Find the runs that a folder holds, each as the folders of its launches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.launch.run_dir import complete
from trainmark.plan.plan import RUNS_DIR
from trainmark.record import record

if TYPE_CHECKING:
    from pathlib import Path


_DEPTH = 3  # a repeat of a run of a plan
_REPEAT = re.compile(r"r\d+")


def newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record; the whole series of a repeat.

    Raises:
        RecordError: there is none.
    """
    launches = (path / record.RECORD_FILE for run in find_runs(RUNS_DIR) for path in run)
    found = [path for path in launches if path.exists()]
    if not found:
        raise RecordError(
            "no run there yet", where=str(RUNS_DIR), remedy="`trainmark run CASE`, or name a run"
        )
    newest = max(found, key=lambda path: path.stat().st_mtime_ns).parent
    return newest.parent if record.read(newest).plan.repeat_count > 1 else newest


def find_runs(folder: Path) -> list[list[Path]]:
    """Return the runs that ``folder`` is or holds, each as the directories of its launches.

    A run is its own launch or has repeats ``r1``, ``r2`` …; those of a plan file lie one
    down. Where there is no record, ``folder`` alone is returned: reading it says so. Runs whose
    launcher was killed get their record first.

    Raises:
        RecordError: ``folder`` is a run that is still running.
    """
    complete(folder)
    if folder.is_file() or (folder / record.RECORD_FILE).exists():
        return [[folder]]
    return _below(folder, _DEPTH) or [[folder]]


def _below(folder: Path, depth: int) -> list[list[Path]]:
    """Return the runs that ``folder``, which is none itself, holds."""
    found: list[list[Path]] = []
    for child in sorted(folder.glob("*")):
        if (child / record.RECORD_FILE).exists():
            found.append([child])
        # A link may lead round in a circle.
        elif depth > 1 and child.is_dir() and not folder.resolve().is_relative_to(child.resolve()):
            found += _below(child, depth - 1)
    # A plan file may call a run r1: repeats are alone in their folder.
    paths = [path for run in found for path in run]
    if found and all(path.parent == folder and _REPEAT.fullmatch(path.name) for path in paths):
        return [sorted(paths, key=lambda path: int(path.name[1:]))]
    return found
