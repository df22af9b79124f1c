"""The index of a store: which records and rows are in it, and how it follows the files.

Owns what is read again and when. All of a record is in one transaction.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.dialects import postgresql, sqlite

from trainmark.data import json_documents
from trainmark.devices.vendors.cpu import usable_cores
from trainmark.errors import RecordError
from trainmark.library.store import entries
from trainmark.library.store.tables import (
    ENVIRONMENT,
    FIGURE_NAMES,
    FIGURES,
    FOLDERS,
    MARKS,
    OF_A_RUN,
    RUNS,
    SERIES,
    UNREAD,
)  # fmt: skip
from trainmark.record import record
from trainmark.record.in_processes import mapped
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from trainmark.library.store.database import Database
    from trainmark.spec import Message

_DEPTH = 3  # a repeat of a run of a plan
_MOST_CHECKED = 10_000  # records whose files are looked at before each listing
_RACY_NS = 2 * 10**9  # a folder that changed so shortly ago may change again unnoticed
_BATCH, _MOST_ALONE = 250, 1_000  # records of a transaction; that one process reads
_NULLS = dict.fromkeys(RUNS.c.keys())


class Stamp(NamedTuple):
    """What tells that a file is another than before."""

    bytes: int | None = None
    mtime_ns: int | None = None


class Found(NamedTuple):
    """A file or row, and what the index holds of it: an entry, or why it cannot be read."""

    path: str
    entry: entries.Entry | Message
    stamp: Stamp = Stamp()
    line: int = 0
    kind: str = "file"

    def row(self, source: str) -> dict[str, Any]:
        """Return what the rows of all kinds have."""
        return {"source": source, "path": self.path, "line": self.line, **self.stamp._asdict()}


def read(folder: Path, path: str) -> Found:
    """Return what the index holds of a run directory or record file."""
    full = folder / path
    file = full / record.RECORD_FILE if full.is_dir() else full
    stamp = _stamp(str(file)) or Stamp()  # before it is read: a later change shows
    try:
        try:
            # Without what costs most of ``record.read``: whoever reads it later does that.
            found = record.Record.model_validate_json(json_documents.read_bytes(file), strict=True)
        except (OSError, ValueError):
            found = record.read(file)
        return Found(path, entries.of_record(found), stamp)
    except RecordError as error:
        return Found(path, message("record_unreadable", error=entries.stored(error.what)), stamp)


def read_all(folder: Path, paths: Sequence[str]) -> list[Found]:
    """Return what the index holds of several of them."""
    return [read(folder, path) for path in paths]


def _stamp(file: str) -> Stamp | None:
    with suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - of 100,000 files, half the time
        return Stamp(found.st_size, found.st_mtime_ns)
    return None


def _write(connection: sa.Connection, found: Sequence[Found], source: str, seen: set[int]) -> None:
    """Put files and rows in place of what the index held of the same files.

    Args:
        seen: ids of names and environments that need not be written again; gets those written.
    """
    _forget(connection, {item.path for item in found})
    read = [(item, item.entry) for item in found if isinstance(item.entry, entries.Entry)]
    # Only one process writes at a time.
    first = (connection.scalar(sa.select(sa.func.max(RUNS.c.id))) or 0) + 1
    runs = [(first + at, entry) for at, (_, entry) in enumerate(read)]
    of_all: dict[sa.Table, Iterable[dict[str, Any]]] = {
        RUNS: (
            _NULLS | entry.run | item.row(source) | {"id": first + at}
            for at, (item, entry) in enumerate(read)
        ),
        FIGURES: (
            {"name_id": name, "run_id": run, "value": value}
            for run, entry in runs
            for name, value in entry.figures.items()
        ),
        SERIES: (
            {"run_id": run, "steps": entry.series[0], "reduced": entry.series[1]}
            for run, entry in runs
            if entry.series
        ),
        MARKS: (mark | {"run_id": run} for run, entry in runs for mark in entry.marks),
        UNREAD: (
            x.row(source) | {"kind": x.kind, "reason": to_json(x.entry.as_dict()).decode()}
            for x in found
            if not isinstance(x.entry, entries.Entry)
        ),
    }
    for table, some in of_all.items():
        if listed := list(some):  # as the driver takes them: half of the time is saved
            statement = str(sa.insert(table).compile(dialect=connection.dialect))
            connection.exec_driver_sql(statement, listed)
    shared: dict[sa.Table, dict[int, list[dict[str, Any]]]] = {
        FIGURE_NAMES: {name["id"]: [name] for _, entry in runs for name in entry.names},
        ENVIRONMENT: {
            ident: [
                {"environment_id": ident, "place": at, "name": name, "text": text, "number": number}
                for at, (name, text, number) in enumerate(entry.environment)
            ]
            for _, entry in runs
            if (ident := entry.run.get("environment_id")) and ident not in seen
        },
    }
    dialect = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name]
    for table, rows in shared.items():
        if new := [row for ident in rows.keys() - seen for row in rows[ident]]:
            connection.execute(dialect.insert(table).on_conflict_do_nothing(), new)
            seen.update(rows)


def _forget(connection: sa.Connection, paths: Collection[str]) -> None:
    """Remove all that the index holds of files."""
    listed = sorted(paths)
    for start in range(0, len(listed), _BATCH):
        some = listed[start : start + _BATCH]
        ids = connection.scalars(sa.select(RUNS.c.id).where(RUNS.c.path.in_(some))).all()
        for table in OF_A_RUN if ids else ():
            connection.execute(sa.delete(table).where(table.c.run_id.in_(ids)))
        for table in (RUNS, UNREAD):
            connection.execute(sa.delete(table).where(table.c.path.in_(some)))


def _followed(found: os.DirEntry[str]) -> bool:
    """Tell whether it may be a folder; no database holds a name that is not UTF-8."""
    if found.name[0] == "." or found.name.encode(errors="ignore").decode() != found.name:
        return False
    # What a link leads to shows when it is looked into: some lead round in a circle.
    return found.is_symlink() or found.is_dir()


def _walk(folder: str, depth: int = _DEPTH) -> Iterator[tuple[str, Stamp | None, int]]:
    """Yield each folder without a record, each run directory with its record's stamp.

    The last value is when the folder changed; folders that cannot be read are as empty.
    """
    with suppress(OSError):
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116
        with os.scandir(folder) as inside:
            below = [x.path for x in inside if _followed(x)]
        yield folder, None, 0 if changed > time.time_ns() - _RACY_NS else changed
        for path in below:
            if stamp := _stamp(f"{path}/{record.RECORD_FILE}"):
                yield path, stamp, 0
            elif depth > 1:
                yield from _walk(path, depth - 1)


class Index:
    """The records and rows of a store, found by their files.

    Args:
        database: where it is kept; paths of its folder are kept relative to it.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._seen: set[int] = set()

    def put(self, found: Sequence[Found], source: str = "") -> None:
        """Put files and rows in place of what the index held of the same files, all or none."""
        seen = set(self._seen)
        with self.database.writing() as connection:
            _write(connection, found, source, seen)
        self._seen = seen  # only now: the transaction may have failed

    def take(self, paths: Sequence[str], source: str = "") -> None:
        """Read run directories and record files into the index, many of them with all cores."""
        folder = self.database.folder or Path()
        batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
        processes = usable_cores() if len(paths) > _MOST_ALONE else 1
        # While this one is open, SQLite does not write back after each transaction.
        with self.database.engine.connect():
            for found in mapped(partial(read_all, folder), batches, processes=processes):
                self.put(found, source)

    def known(self, source: str) -> dict[str, Stamp]:
        """Return the files of a source, with the stamps they had."""
        found: dict[str, Stamp] = {}
        with self.database.reading() as connection:
            for table in (RUNS, UNREAD):
                files = sa.select(table.c.path, table.c.bytes, table.c.mtime_ns)
                for path, *stamp in connection.execute(files.where(table.c.source == source)):
                    found[path] = Stamp(*stamp)
        return found

    def keep(self, source: str, paths: Collection[str]) -> None:
        """Drop what the index holds of a source but for ``paths``."""
        if gone := self.known(source).keys() - set(paths):
            with self.database.writing() as connection:
                _forget(connection, gone)

    def sources(self) -> list[str]:
        """Return what was added from elsewhere."""
        with self.database.reading() as connection:
            found = (
                connection.scalars(sa.select(table.c.source).distinct()) for table in (RUNS, UNREAD)
            )
            return sorted({source for some in found for source in some} - {""})

    def refresh(self, *, everything: bool = False) -> None:
        """Follow the store's own folder: take in records that are new or changed, drop the gone.

        Of very many, all are looked at only where a folder changed that holds them.

        Args:
            everything: read all of them again.
        """
        if self.database.folder is None:
            return
        with self.database.reading() as connection:
            watched = dict(connection.execute(sa.select(FOLDERS.c.path, FOLDERS.c.mtime_ns)).all())
            count = connection.scalar(sa.select(sa.func.count()).select_from(RUNS)) or 0
        top = str(self.database.folder)
        same = watched and all(
            (stamp := _stamp(f"{top}/{path}")) and stamp.mtime_ns == changed
            for path, changed in watched.items()
        )
        if same and count > _MOST_CHECKED and not everything:
            return
        known, found, folders = self.known(""), {}, {}
        for path, stamp, changed in _walk(top):
            if stamp is None:
                folders[path[len(top) + 1 :]] = changed
            else:
                found[path[len(top) + 1 :]] = stamp
        self.take([p for p, stamp in found.items() if everything or known.get(p) != stamp])
        if gone := known.keys() - found.keys():  # not what was put in since
            with self.database.writing() as connection:
                _forget(connection, gone)
        if folders != watched:
            with self.database.writing() as connection:
                connection.execute(sa.delete(FOLDERS))
                rows = [{"path": path, "mtime_ns": at} for path, at in folders.items()]
                connection.execute(sa.insert(FOLDERS), rows)
