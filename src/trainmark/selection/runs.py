"""Find the runs that a folder holds, and read their records, each compared with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.planning.plan import RUNS_DIR
from trainmark.results import record, trust
from trainmark.results.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.results.record import Record


@dataclass(slots=True)
class Reader:
    """Read records and remember which of them their evidence contradicts.

    Args:
        verify: whether to look at the evidence at all.
    """

    verify: bool = True
    refuted: list[Path] = field(default_factory=list)

    def read(self, path: Path) -> Record:
        """Return the record of a run directory or a file, with its evidence in its trust.

        Raises:
            RecordError: no such file, or not a record of this schema.
        """
        found = record.read(path)
        if not self.verify:
            return found
        findings = verify(found, path if path.is_dir() else path.parent)
        found = trust.with_findings(found, findings)
        if trust.refuted(found.trust):
            self.refuted.append(path)
        return found


def newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record; the whole series of a repeat.

    Raises:
        RecordError: there is none.
    """
    # A run of its own, one of a plan or of a series, a repeat of a plan's run.
    found = [
        path
        for below in ("*", "*/*", "*/*/*")
        for path in RUNS_DIR.glob(f"{below}/{record.RECORD_FILE}")
    ]
    if not found:
        raise RecordError(
            "no run there yet", where=str(RUNS_DIR), remedy="`trainmark run CASE`, or name a run"
        )
    newest = max(found, key=lambda path: path.stat().st_mtime_ns).parent
    return newest.parent if record.read(newest).plan.repeat_count > 1 else newest


def find_runs(folder: Path) -> list[list[Path]]:
    """Return the runs that ``folder`` is or holds, each as the directories of its launches.

    A run is its own launch or has repeats ``r1``, ``r2`` …; the runs of a plan file lie one
    down. Where there is no record, ``folder`` alone is returned: reading it says so.
    """
    repeats = _launches(folder)
    if folder.is_file() or repeats == [folder]:
        return [[folder]]
    below = [found for child in sorted(folder.glob("*")) if (found := _launches(child))]
    # A plan file may call a run r1: repeats are alone in their folder.
    if repeats and len(repeats) == len(below):
        return [repeats]
    return below or [[folder]]


def _launches(run: Path) -> list[Path]:
    """Return the directories of a run's launches; none where there is no record."""
    if (run / record.RECORD_FILE).exists():
        return [run]
    found = (path.parent for path in run.glob(f"r*/{record.RECORD_FILE}"))
    repeats = [path for path in found if path.name[1:].isdecimal()]
    return sorted(repeats, key=lambda path: int(path.name[1:]))
