"""Find the runs and published results that the arguments of a command name.

Owns what an argument may be: a run directory, a ``record.json``, a folder of runs, a bundle; a file
or a folder with results of others; ``reference:CASE``. Owns the layout of runs in a folder.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic_core import from_json

from trainmark.errors import RecordError
from trainmark.events.schema import LAUNCHER_FILE
from trainmark.launch.run_dir import make_record
from trainmark.plan.plan import PLAN_FILE, RUNS_DIR
from trainmark.plan.reference import REFERENCE
from trainmark.record import record, trust
from trainmark.record.record import RECORD_FILE, is_acceptance_folder
from trainmark.record.verify import check_record
from trainmark.results.archive import ENDING, unpack_temporarily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trainmark.record.record import Record
    from trainmark.record.work import Row, Unread

_MAX_DEPTH = 3  # of folders: a plan, a run, a repeat
_REPEAT = re.compile(r"r\d+")


class FileStamp(NamedTuple):
    """The size and the time of change of a file, by which a change of it is noticed."""

    num_bytes: int
    mtime_ns: int


@dataclass(slots=True)
class Selection:
    """The records and rows that the arguments of a command name.

    A launch is one measurement: a run that is repeated has several.

    Args:
        records: one for each launch, checked once; their trust has the contradictions.
        places: the path of each record.
        rows: figures that others published.
        unread: parts of their files that could not be read.
        skipped: errors of the records that cannot be read.
    """

    records: list[Record] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    skipped: list[RecordError] = field(default_factory=list)

    @property
    def refuted(self) -> list[Path]:
        """Return the paths of the records that are contradicted."""
        pairs = zip(self.records, self.places, strict=True)
        return [Path(place) for record, place in pairs if trust.is_refuted(record.trust)]

    @property
    def folders(self) -> list[Path | None]:
        """Return the run directory of each record; None: it is in a bundle.

        The place of a record in a bundle is ``BUNDLE/FOLDER``, which does not exist as a path.
        """
        paths = [Path(place) for place in self.places]
        folders = [path.parent if path.is_file() else path for path in paths]  # a `record.json`
        return [folder if folder.is_dir() else None for folder in folders]

    def add_records(self, places: Mapping[Path, str], *, verify: bool) -> None:
        """Read records and add them; of those that are damaged, only the error is kept.

        Args:
            places: by the path of a record or its folder, the path that the user sees.
            verify: check each record against the evidence in its folder.

        Raises:
            RecordError: a path has no record.
        """
        for path, place in places.items():
            file = path / RECORD_FILE if path.is_dir() else path
            try:
                loaded = record.read_record(file)
            except RecordError as error:
                if not file.exists():
                    raise
                self.skipped.append(error)
                continue
            self.records.append(check_record(loaded, file.parent) if verify else loaded)
            self.places.append(place)


def find_newest_run() -> Path:
    """Return the newest run under ``./runs`` that has a record.

    For a run with several launches this is the folder of all of them.

    Raises:
        RecordError: there is no such run.
    """
    # By the record of each launch, all launches of its run.
    launches_by_record = {path / RECORD_FILE: run for run in find_runs(RUNS_DIR) for path in run}
    # Without any run, ``find_runs`` returns the folder itself, which has no record.
    existing = [file for file in launches_by_record if file.exists()]
    if not existing:
        fix = "run `trainmark run CASE`, or pass a run"
        raise RecordError("no runs found", where=str(RUNS_DIR), fix=fix)
    newest_file = max(existing, key=lambda file: file.stat().st_mtime_ns)
    launches = launches_by_record[newest_file]
    # The launches of a repeated run are subfolders of one folder.
    return launches[0].parent if len(launches) > 1 else launches[0]


def find_runs(folder: Path) -> list[list[Path]]:
    """Return the runs that ``folder`` is or contains, each as the directories of its launches.

    A launch is one measurement. A run is a single launch, or has repeats in its subfolders ``r1``,
    ``r2`` … Three levels of subfolders are searched: one for the runs that a user started together,
    in it one for each run, and in that one for each repeat. If there is no record, only ``folder``
    is returned, and reading it raises the error. Runs whose launcher was killed get their record
    first.

    Raises:
        RecordError: ``folder`` is a run that is still running.
    """
    if (folder / PLAN_FILE).exists():  # ``folder`` is that of one launch, which wrote its plan
        make_record(folder)  # if it has none; raises for a run that is still running
    if folder.is_file() or (folder / RECORD_FILE).exists():
        return [[folder]]
    launches_by_run: dict[Path, list[Path]] = {}
    for path in sorted(Path(path) for path, _ in walk_runs(str(folder))):
        run = path.parent if _REPEAT.fullmatch(path.name) else path
        launches_by_run.setdefault(run, []).append(path)
    if not launches_by_run:
        return [[folder]]
    # By length, so that `r10` comes after `r9`.
    return [sorted(launches, key=lambda x: len(x.name)) for launches in launches_by_run.values()]


def read_stamp(file: str) -> FileStamp | None:
    """Return the size and time of change of a file; None: it does not exist or is inaccessible."""
    with suppress(OSError):
        status = os.stat(file)  # noqa: PTH116 - takes half as long, which counts for 100,000 files
        return FileStamp(status.st_size, status.st_mtime_ns)
    return None


def walk_runs(folder: str, depth: int = _MAX_DEPTH) -> Iterator[tuple[str, FileStamp]]:
    """Yield each run directory below a folder with the stamp of its record.

    A run whose launcher was killed gets its record first. Unreadable folders are skipped.

    Args:
        depth: levels of folders to search.
    """
    with suppress(OSError):
        with os.scandir(folder) as entries:
            # ``is_dir`` is not asked of links: for one in a circle it raises an error, and this
            # whole folder would be skipped. A link to no folder is skipped when it is read.
            subfolders = [
                entry.path
                for entry in entries
                if not entry.name.startswith(".") and (entry.is_symlink() or entry.is_dir())
            ]
        for path in subfolders:
            record_stamp = read_stamp(f"{path}/{RECORD_FILE}")
            # A run with a plan but no record: its launcher was killed, or it is still running.
            if record_stamp is None and read_stamp(f"{path}/{PLAN_FILE}"):
                with suppress(RecordError):  # raised for a run that is still running
                    make_record(Path(path))
                    record_stamp = read_stamp(f"{path}/{RECORD_FILE}")
            if record_stamp:
                yield path, record_stamp
            elif depth > 1:
                yield from walk_runs(path, depth - 1)


def select_results(words: Sequence[str], *, verify: bool = True, rows: bool = True) -> Selection:
    """Return the records and rows that arguments name, in order; by default the newest run.

    Args:
        words: the arguments; empty: the newest run.
        verify: compare records with their evidence.
        rows: arguments may also name published rows.

    Raises:
        RecordError: a word names no run and no results, or nothing at all can be read.
        UsageError: ``reference:CASE`` names no case.
    """
    selection = Selection()
    for word in words or [str(find_newest_run())]:
        if word.endswith(ENDING):
            with unpack_temporarily(Path(word)) as bundle:
                places = {bundle.folder / place: f"{word}/{place}" for place in bundle.launches}
                selection.add_records(places, verify=verify)
        elif word.startswith(REFERENCE):
            from trainmark.published.importers.reference_rows import read_references

            if not rows:
                fix = "choose runs; only `audit` and `report --against` accept published rows"
                raise RecordError("these are published rows, not a record", where=word, fix=fix)
            selection.rows += read_references(word.removeprefix(REFERENCE))
        else:
            path = Path(word)
            launches = [launch for run in find_runs(path) for launch in run]
            may_be_published = rows and launches == [path]  # there is no run below it
            if may_be_published and _add_published(path, selection):
                continue
            selection.add_records({launch: str(launch) for launch in launches}, verify=verify)
    if selection.skipped and not selection.records and not selection.rows:
        raise selection.skipped[0]
    return selection


def _add_published(path: Path, selection: Selection) -> bool:
    """Add the rows of a file or folder to a selection, and return whether it has rows.

    Raises:
        RecordError: it has neither rows nor a record; the reason is that of the first file or line
            that could not be read.
    """
    # Here, because most commands read no published rows.
    from trainmark.published.importers import files
    from trainmark.record.messages import render

    # A run, or a path that does not exist or has no results: the caller reads its record, or raises
    # the error.
    is_run = any((path / name).exists() for name in (RECORD_FILE, LAUNCHER_FILE))
    if path.name == RECORD_FILE or is_run or is_acceptance_folder(path) or not path.exists():
        return False
    imported = files.read_files([path])
    if imported.rows:
        selection.rows += imported.rows
        selection.unread += imported.unread
        return True
    # A damaged record under another name is recognised by its keys. This is tested only now,
    # because the test reads the whole file.
    if not imported.unread or _has_keys_of_record(path):
        return False  # the caller reads it as a record, which raises the error
    first = imported.unread[0]
    reason = render(first.reason, "en")
    where = f"{first.file}:{first.line}" if first.line else first.file
    if path.is_dir():
        files_read = len({entry.file for entry in imported.unread})
        raise RecordError(
            f"no runs or results in this folder (files read: {files_read}); the first error is "
            f"in {where}: {reason}",
            where=str(path),
            fix="choose a folder with runs, result pages, tables or logs",
        )
    fix = "add what is missing, or choose another page, table or log"
    raise RecordError(reason, where=where, fix=fix)


def _has_keys_of_record(path: Path) -> bool:
    """Tell whether a JSON file is meant to be a record, even if its content is not valid as one."""
    if path.suffix != ".json":
        return False
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError):
        return False
    # Each record has these two keys, and no published result has both.
    return isinstance(document, dict) and {"run_id", "plan"} <= document.keys()
