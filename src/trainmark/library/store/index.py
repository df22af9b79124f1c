"""The index of a store: which records and rows are in it, and how it follows the files.

Owns what is read again and when. All of a record is in one transaction.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from trainmark.data import json_documents
from trainmark.errors import RecordError
from trainmark.launch.run_dir import make_record
from trainmark.library.store import entries
from trainmark.library.store.tables import ENVIRONMENTS, FIGURE_NAMES, FORM, RUNS, SOURCES
from trainmark.plan.plan import PLAN_FILE
from trainmark.record import record
from trainmark.record.verify import MOST_BYTES, checked
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trainmark.library.store.database import Database

_DEPTH = 3  # a repeat of a run of a plan
_BATCH = 250  # records of a transaction
_NULLS = dict.fromkeys(set(RUNS.c.keys()) - {"id"})


class Stamp(NamedTuple):
    """What tells that a file is another than before."""

    bytes: int | None = None
    mtime_ns: int | None = None


class Found(NamedTuple):
    """A file, or a line of one, and what the index holds of it."""

    path: str
    entry: entries.Entry
    stamp: Stamp = Stamp()
    line: int = 0


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
        found = checked(found, file.parent, most_bytes=MOST_BYTES)
        return Found(path, entries.of_record(found), stamp)
    except RecordError as error:
        reason = message("record_unreadable", error=entries.stored(error.what))
        return Found(path, entries.of_unread(reason), stamp)


def _stamp(file: str) -> Stamp | None:
    with suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - of 100,000 files, half the time
        return Stamp(found.st_size, found.st_mtime_ns)
    return None


def _write(connection: sa.Connection, found: Sequence[Found], source: str) -> None:
    """Put files and rows in place of what the index held of the same files."""
    _forget(connection, {item.path for item in found})
    made = [
        _NULLS | item.entry.row | item.stamp._asdict()
        | {"source": source, "path": item.path, "line": item.line}
        for item in found
    ]  # fmt: skip
    connection.execute(sa.insert(RUNS), made)
    _environments(connection, found)
    names = {name for item in found for name in item.entry.names}
    names -= {tuple(row) for row in connection.execute(sa.select(FIGURE_NAMES))}
    if names:
        keys = FIGURE_NAMES.c.keys()
        values = [dict(zip(keys, name, strict=True)) for name in names]
        connection.execute(sa.insert(FIGURE_NAMES), values)


def _environments(connection: sa.Connection, found: Sequence[Found]) -> None:
    facts = {x.entry.row["environment_id"]: x.entry.facts for x in found if x.entry.facts}
    known = sa.select(ENVIRONMENTS.c.id).where(ENVIRONMENTS.c.id.in_(facts))
    if new := facts.keys() - set(connection.scalars(known)):
        rows = [{"id": ident, "facts": facts[ident]} for ident in new]
        connection.execute(sa.insert(ENVIRONMENTS), rows)


def _forget(connection: sa.Connection, paths: Collection[str]) -> None:
    """Remove all that the index holds of files."""
    listed = sorted(paths)
    for start in range(0, len(listed), _BATCH):
        some = listed[start : start + _BATCH]
        connection.execute(sa.delete(RUNS).where(RUNS.c.path.in_(some)))


def _followed(found: os.DirEntry[str]) -> bool:
    """Tell whether it may be a folder; no database holds a name that is not UTF-8."""
    if found.name[0] == "." or found.name.encode(errors="ignore").decode() != found.name:
        return False
    # What a link leads to shows when it is looked into: some lead round in a circle.
    return found.is_symlink() or found.is_dir()


def _walk(folder: str, depth: int = _DEPTH) -> Iterator[tuple[str, Stamp]]:
    """Yield each run directory with its record's stamp; unreadable folders are as empty."""
    with suppress(OSError):
        with os.scandir(folder) as inside:
            below = [x.path for x in inside if _followed(x)]
        for path in below:
            stamp = _stamp(f"{path}/{record.RECORD_FILE}")
            if stamp is None and _stamp(f"{path}/{PLAN_FILE}"):  # its launcher was killed
                with suppress(RecordError):  # or it runs still
                    make_record(Path(path))
                    stamp = _stamp(f"{path}/{record.RECORD_FILE}")
            if stamp:
                yield path, stamp
            elif depth > 1:
                yield from _walk(path, depth - 1)


class Index:
    """The records and rows of a store, found by their files.

    Args:
        database: where it is kept; paths of its folder are kept relative to it.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def put(self, found: Sequence[Found], source: str = "") -> None:
        """Put files and rows in place of what the index held of the same files, all or none."""
        if found:
            with self.database.writing() as connection:
                _write(connection, found, source)

    def take(self, paths: Sequence[str], source: str = "") -> None:
        """Read run directories and record files into the index."""
        folder = self.database.folder or Path()
        # While this one is open, SQLite does not write back after each transaction.
        with self.database.engine.connect():
            for start in range(0, len(paths), _BATCH):
                some = paths[start : start + _BATCH]
                self.put([read(folder, path) for path in some], source)

    def known(self, source: str = "") -> dict[str, Stamp]:
        """Return the files of a source, with the stamps they had."""
        asked = sa.select(RUNS.c.path, RUNS.c.bytes, RUNS.c.mtime_ns)
        with self.database.reading() as connection:
            found = connection.execute(asked.where(RUNS.c.source == source)).all()
        return {path: Stamp(*stamp) for path, *stamp in found}

    def keep(self, source: str, paths: Collection[str]) -> None:
        """Drop what the index holds of a source but for ``paths``; without any, the source too."""
        gone, named = self.known(source).keys() - set(paths), SOURCES.c.path == source
        with self.database.writing() as connection:
            _forget(connection, gone)
            connection.execute(sa.delete(SOURCES).where(named))
            if source and paths:
                connection.execute(sa.insert(SOURCES).values(path=source, form=FORM))

    def sources(self, *, unread: bool = False) -> list[str]:
        """Return what was added from elsewhere; ``unread``: and lost as the index was emptied."""
        asked = sa.select(SOURCES.c.path).order_by(SOURCES.c.path)
        with self.database.reading() as connection:
            return list(
                connection.scalars(asked.where(SOURCES.c.form.is_(None)) if unread else asked)
            )

    def version(self) -> tuple[int, int]:
        """Return what changes with every change of the runs."""
        asked = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(RUNS.c.id), 0))
        with self.database.reading() as connection:
            count, newest = connection.execute(asked).one()
        return count, newest

    def refresh(self) -> None:
        """Follow the store's own folder: take in records that are new or changed, drop the gone."""
        if self.database.folder is None:
            return
        top, known = str(self.database.folder), self.known()
        there = {path[len(top) + 1 :]: stamp for path, stamp in _walk(top)}
        self.take([path for path, stamp in there.items() if known.get(path) != stamp])
        if gone := known.keys() - there.keys():  # not what was put in since
            with self.database.writing() as connection:
                _forget(connection, gone)
