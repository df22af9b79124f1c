"""What words name, as ``report``, ``compare`` and ``audit`` take them: runs and others' results.

Owns which kinds of words there are: a run directory, a ``record.json``, a folder of runs, a bundle;
files and folders of others' results; ``reference:CASE``. Owns how runs lie in a folder.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json

from trainmark.errors import RecordError
from trainmark.launch.run_dir import make_record
from trainmark.library.archive import ENDING, unpacked
from trainmark.plan.plan import PLAN_FILE, RUNS_DIR
from trainmark.plan.reference import REFERENCE
from trainmark.record import record, trust
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import check_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.record.record import Record
    from trainmark.record.work import Row, Unread

_DEPTH = 3  # a repeat of a run of a plan
_REPEAT = re.compile(r"r\d+")
Stamp = tuple[int, int]  # bytes and time of change: tells that a file is another than before


@dataclass(slots=True)
class Selection:
    """What words named.

    Args:
        records: one a launch, checked once: their trust says what contradicts them.
        places: the path each record was read from.
        rows: figures that others published, with what could not be read in ``unread``.
        skipped: the records that cannot be read.
    """

    records: list[Record] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    skipped: list[RecordError] = field(default_factory=list)

    @property
    def refuted(self) -> list[Path]:
        """Return the paths of the records that are contradicted."""
        both = zip(self.records, self.places, strict=True)
        return [Path(place) for record, place in both if trust.is_refuted(record.trust)]

    @property
    def folders(self) -> list[Path | None]:
        """Return the run directory of each record; None where it is in a bundle."""
        paths = [Path(place) for place in self.places]
        found = [path.parent if path.is_file() else path for path in paths]
        return [path if path.is_dir() else None for path in found]

    def add(self, places: Mapping[Path, str], *, verify: bool) -> None:
        """Read records, and check them unless ``verify`` is false; skip those that are damaged.

        Raises:
            RecordError: a path has no record.
        """
        for path, place in places.items():
            file = path / RECORD_FILE if path.is_dir() else path
            try:
                found = record.read_record(file)
            except RecordError as error:
                if not file.exists():
                    raise
                self.skipped.append(error)
                continue
            self.records.append(check_record(found, file.parent) if verify else found)
            self.places.append(place)


def newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record; the whole series of a repeat.

    Raises:
        RecordError: there is none.
    """
    files = {path / RECORD_FILE: run for run in find_runs(RUNS_DIR) for path in run}
    there = [file for file in files if file.exists()]
    if not there:
        fix = "`trainmark run CASE`, or name a run"
        raise RecordError("no runs found", where=str(RUNS_DIR), fix=fix)
    run = files[max(there, key=lambda file: file.stat().st_mtime_ns)]
    return run[0].parent if len(run) > 1 else run[0]


def find_runs(folder: Path) -> list[list[Path]]:
    """Return the runs that ``folder`` is or holds, each as the directories of its launches.

    A run is its own launch or has repeats ``r1``, ``r2`` …; those of a plan file lie one
    down. Where there is no record, ``folder`` alone is returned: reading it says so. Runs whose
    launcher was killed get their record first.

    Raises:
        RecordError: ``folder`` is a run that is still running.
    """
    if (folder / PLAN_FILE).exists():
        make_record(folder)
    if folder.is_file() or (folder / RECORD_FILE).exists():
        return [[folder]]
    runs: dict[Path, list[Path]] = {}
    for path in sorted(Path(path) for path, _ in walk(str(folder))):
        runs.setdefault(path.parent if _REPEAT.fullmatch(path.name) else path, []).append(path)
    # `r10` comes after `r9`.
    return [sorted(run, key=lambda path: len(path.name)) for run in runs.values()] or [[folder]]


def stamp(file: str) -> Stamp | None:
    """Return what tells that a file has changed; None: it is not there."""
    with suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - of 100,000 files, half the time
        return found.st_size, found.st_mtime_ns
    return None


def walk(folder: str, depth: int = _DEPTH) -> Iterator[tuple[str, Stamp]]:
    """Yield each run directory below, with its record's stamp; unreadable folders are as empty."""
    with suppress(OSError):
        with os.scandir(folder) as inside:
            # What a link leads to shows when it is looked into: some lead round in a circle.
            below = [x.path for x in inside if x.name[0] != "." and (x.is_symlink() or x.is_dir())]
        for path in below:
            found = stamp(f"{path}/{RECORD_FILE}")
            if found is None and stamp(f"{path}/{PLAN_FILE}"):  # its launcher was killed
                with suppress(RecordError):  # or it runs still
                    make_record(Path(path))
                    found = stamp(f"{path}/{RECORD_FILE}")
            if found:
                yield path, found
            elif depth > 1:
                yield from walk(path, depth - 1)


def select(words: Sequence[str], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return what ``words`` name, in their order; without any, the newest run under ``./runs``.

    Args:
        verify: whether to compare records with their evidence.
        rows: whether words may name figures of others; otherwise only records are read.

    Raises:
        RecordError: a word names no run and no results, or nothing at all can be read.
        UsageError: ``reference:CASE`` names no case.
    """
    found = Selection()
    for word in words or [str(newest_run())]:
        if word.endswith(ENDING):
            with unpacked(Path(word)) as bundle:
                places = {bundle.folder / place: f"{word}/{place}" for place in bundle.launches}
                found.add(places, verify=verify)
        elif word.startswith(REFERENCE):
            from trainmark.library.importers.table import references

            if not rows:
                fix = "name runs; `audit` and `report --against` take published rows"
                raise RecordError("published rows, and no record", where=word, fix=fix)
            found.rows += references(word.removeprefix(REFERENCE))
        else:
            launches = [launch for run in find_runs(Path(word)) for launch in run]
            if not (rows and launches == [Path(word)] and _imported(Path(word), found)):
                found.add({launch: str(launch) for launch in launches}, verify=verify)
    if found.skipped and not found.records and not found.rows:
        raise found.skipped[0]
    return found


def _imported(path: Path, found: Selection) -> bool:
    """Add the rows that a file or folder holds, if it holds any and no record of ours."""
    from trainmark.library.importers import files
    from trainmark.record.messages import render

    if path.name == RECORD_FILE or (path / RECORD_FILE).exists() or not path.exists():
        return False
    imported = files.read([path])
    if imported.rows:
        found.rows += imported.rows
        found.unread += imported.unread
        return True
    if not imported.unread or _is_record(path):
        return False  # reading it as a record says why it is none
    first = imported.unread[0]
    why, where = (
        render(first.reason, "en"),
        f"{first.file}:{first.line}" if first.line else first.file,
    )
    if path.is_dir():
        files_read = len({entry.file for entry in imported.unread})
        raise RecordError(
            f"no run and no results in this folder: {files_read} files read",
            where=str(path),
            rule=f"the first is {where}: {why}",
            fix="name a folder with runs, result pages, tables or logs",
        )
    fix = "add what is missing, or name another page, table or log"
    raise RecordError(why, where=where, fix=fix)


def _is_record(path: Path) -> bool:
    """Tell whether a file is meant to be a record, by its keys."""
    if path.suffix != ".json":
        return False
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and {"run_id", "plan"} <= document.keys()
