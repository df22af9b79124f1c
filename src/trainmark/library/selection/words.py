"""What words name, as ``report``, ``compare`` and ``audit`` take them: runs and others' results.

Owns which kinds of words there are: a run directory, a ``record.json``, a folder of runs, a bundle;
files and folders of others' results; ``reference:CASE``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.launch.run_dir import complete
from trainmark.library.bundle.archive import ENDING, unpacked
from trainmark.plan.plan import RUNS_DIR
from trainmark.plan.reference import REFERENCE
from trainmark.record import record, trust
from trainmark.record.record import RECORD_FILE
from trainmark.record.rows import Row
from trainmark.record.verify import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.record.rows import Unread

_DEPTH = 3  # a repeat of a run of a plan
_REPEAT = re.compile(r"r\d+")


@dataclass(slots=True)
class Selection:
    """What words named.

    Args:
        records: one a launch, checked once: their trust says what contradicts them.
        places: the path each record was read from.
        rows: figures that others published, with what could not be read in ``unread``.
    """

    records: list[Record] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def refuted(self) -> list[Path]:
        """Return the paths of the records that are contradicted."""
        both = zip(self.records, self.places, strict=True)
        return [Path(place) for record, place in both if trust.refuted(record.trust)]

    @property
    def folders(self) -> list[Path | None]:
        """Return the run directory of each record; None where it is in a bundle."""
        paths = [Path(place) for place in self.places]
        found = [path.parent if path.is_file() else path for path in paths]
        return [path if path.is_dir() else None for path in found]

    def add(self, path: Path, place: str, *, verify: bool) -> None:
        """Read a record, and check it unless ``verify`` is false.

        Raises:
            RecordError: no such file, or not a record of this schema.
        """
        found = record.read(path)
        folder = path if path.is_dir() else path.parent
        self.records.append(checked(found, folder) if verify else found)
        self.places.append(place)


def newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record; the whole series of a repeat.

    Raises:
        RecordError: there is none.
    """
    launches = (path / RECORD_FILE for run in find_runs(RUNS_DIR) for path in run)
    found = [path for path in launches if path.exists()]
    if not found:
        remedy = "`trainmark run CASE`, or name a run"
        raise RecordError("no run there yet", where=str(RUNS_DIR), remedy=remedy)
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
    if folder.is_file() or (folder / RECORD_FILE).exists():
        return [[folder]]
    return _below(folder, _DEPTH) or [[folder]]


def _below(folder: Path, depth: int) -> list[list[Path]]:
    """Return the runs that ``folder``, which is none itself, holds."""
    found: list[list[Path]] = []
    for child in sorted(folder.glob("*")):
        if (child / RECORD_FILE).exists():
            found.append([child])
        elif depth > 1 and child.is_dir():
            found += _below(child, depth - 1)
    # A plan file may call a run r1: repeats are alone in their folder.
    paths = [path for run in found for path in run]
    if found and all(path.parent == folder and _REPEAT.fullmatch(path.name) for path in paths):
        return [sorted(paths, key=lambda path: int(path.name[1:]))]
    return found


def select(words: Sequence[str], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return what ``words`` name, in their order; without any, the newest run under ``./runs``.

    Args:
        verify: whether to compare records with their evidence.
        rows: whether words may name figures of others; otherwise only records are read.

    Raises:
        RecordError: a word names nothing that can be read.
        UsageError: ``reference:CASE`` names no case.
    """
    found = Selection()
    for word in words or [str(newest_run())]:
        if word.endswith(ENDING):
            with unpacked(Path(word)) as bundle:
                for place in bundle.launches:
                    found.add(bundle.folder / place, f"{word}/{place}", verify=verify)
        elif word.startswith(REFERENCE):
            _add_references(found, word, rows=rows)
        else:
            launches = [launch for run in find_runs(Path(word)) for launch in run]
            if not (rows and launches == [Path(word)] and _imported(Path(word), found)):
                for launch in launches:
                    found.add(launch, str(launch), verify=verify)
    return found


def _add_references(found: Selection, word: str, *, rows: bool) -> None:
    """Add the published rows of a case."""
    from trainmark.library.importers.table import references

    if not rows:
        remedy = "name runs; compare and audit take published rows"
        raise RecordError("published rows, and no record", where=word, remedy=remedy)
    for entry in references(word.removeprefix(REFERENCE)):
        (found.rows if isinstance(entry, Row) else found.unread).append(entry)  # type: ignore[arg-type]


def _imported(path: Path, found: Selection) -> bool:
    """Add the rows that a file or folder holds, if it holds any and no record of ours."""
    from trainmark.library.importers import files
    from trainmark.record.messages import render

    if path.name == RECORD_FILE or (path / RECORD_FILE).exists() or not path.exists():
        return False
    imported = files.read([path])
    if not imported.rows:
        if path.is_dir() or path.suffix == ".json" or not imported.unread:
            return False  # reading it as a record says why it is none
        first, remedy = imported.unread[0], "`trainmark import` lists all of it"
        why, where = render(first.reason, "en"), f"{first.file}:{first.line}"
        raise RecordError(why, where=where, remedy=remedy)
    found.rows += imported.rows
    found.unread += imported.unread
    return True
