"""The index of a store: what it holds of records and rows, and how it follows the files.

All of a record is in one transaction.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic_core import to_json

from trainmark.errors import RecordError, escaped
from trainmark.launch.run_dir import make_record
from trainmark.library.store.columns import COLUMNS, column_name
from trainmark.library.store.database import RUNS, SOURCES
from trainmark.plan.plan import PLAN_FILE
from trainmark.record import figures, record
from trainmark.record.figures import FIGURES
from trainmark.record.verify import MOST_BYTES, checked
from trainmark.record.work import work
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from trainmark.library.store.database import Database
    from trainmark.record.record import FigureEntry, Record
    from trainmark.record.rows import Reading, Row
    from trainmark.spec import FigureSpec, Message

_DEPTH = 3  # a repeat of a run of a plan
_BATCH = 250  # records of a transaction
_MOST_TEXT = 1000  # characters: the index is for finding, the record has the whole
_EMPTY = dict.fromkeys(set(RUNS.c.keys()) - {"id"}) | {"line": 0}
Stamp = tuple[int, int]  # bytes and time of change: tells that a file is another than before


def of_record(found: Record) -> dict[str, Any]:
    """Return what the index holds of a record."""
    environment, done = found.environment, work(found)
    made = {
        "kind": "record",
        "world": found.plan.world_size,
        "work": _digest(done),
        "comparable": _digest(done | {"device_products": None}),  # on whatever device
        "torch": (environment.get("packages") or {}).get("torch"),
        "driver": environment.get("driver"),
        "cpu": environment.get("cpu"),
        "notes": " ".join(sorted({x.code for x in (*found.notes, *found.findings)})),
    }
    made |= {name: column(found) for name, column in COLUMNS.items()}
    return _stored(made, found.figures, figures.specs(found.plan.about.page))


def of_row(row: Row) -> dict[str, Any]:
    """Return what the index holds of a row that others printed."""
    same = ("case", "vendor", "device", "nnodes", "nproc", "precision", "configuration")
    made = {name: getattr(row, name) for name in same} | {
        "kind": "row",
        "world": row.world_size,
        "quality_metric": row.metric,
        "quality_value": row.figure(row.metric) if row.metric else None,
        "notes": " ".join(sorted({x.code for x in row.notes})),
    }
    return _stored(made, row.figures, FIGURES)


def of_unread(reason: Message) -> dict[str, Any]:
    """Return what the index holds of a file, or a line of one, that cannot be read."""
    return {"kind": "unread", "more": {"reason": reason.as_dict()}}


def _stored(
    made: dict[str, Any],
    found: Mapping[str, FigureEntry] | Mapping[str, Reading],
    specs: Mapping[str, FigureSpec],
) -> dict[str, Any]:
    """Return a row with its figures, and with text that any database takes."""
    own = {}
    for name, figure in found.items():
        if name in FIGURES:
            made[name] = figure.value
        elif figure.value is not None and name not in RUNS.c:
            key, unit = _text(name), _text(figure.unit)
            own[key] = [figure.value, unit, column_name(key, unit, specs.get(name))]
    made = {key: _text(value) if isinstance(value, str) else value for key, value in made.items()}
    return made | {"more": {"figures": own}}


def _digest(value: Any) -> str:
    return blake2b(to_json(value), digest_size=8).hexdigest()


def _text(text: str) -> str:
    return escaped(text[:_MOST_TEXT])[:_MOST_TEXT]


def _stamp(file: str) -> Stamp | None:
    with suppress(OSError):
        found = os.stat(file)  # noqa: PTH116 - of 100,000 files, half the time
        return found.st_size, found.st_mtime_ns
    return None


def _read(folder: Path, path: str) -> dict[str, Any]:
    """Return what the index holds of a run directory or record file."""
    full = folder / path
    file = full / record.RECORD_FILE if full.is_dir() else full
    size, mtime_ns = _stamp(str(file)) or (None, None)  # before it is read: a later change shows
    try:
        made = of_record(checked(record.read(file), file.parent, most_bytes=MOST_BYTES))
    except RecordError as error:
        made = of_unread(message("record_unreadable", error=_text(error.what)))
    return made | {"path": path, "bytes": size, "mtime_ns": mtime_ns}


def _forget(connection: sa.Connection, paths: Collection[str]) -> None:
    """Remove all that the index holds of files."""
    listed = sorted(paths)
    for start in range(0, len(listed), _BATCH):
        some = listed[start : start + _BATCH]
        connection.execute(sa.delete(RUNS).where(RUNS.c.path.in_(some)))


def _walk(folder: str, depth: int = _DEPTH) -> Iterator[tuple[str, Stamp]]:
    """Yield each run directory with its record's stamp; unreadable folders are as empty."""
    with suppress(OSError):
        with os.scandir(folder) as inside:
            # What a link leads to shows when it is looked into: some lead round in a circle.
            below = [x.path for x in inside if x.name[0] != "." and (x.is_symlink() or x.is_dir())]
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

    def put(self, found: Sequence[dict[str, Any]], source: str = "") -> None:
        """Put rows in place of what the index held of the same files, all or none."""
        if found:
            with self.database.writing() as connection:
                _forget(connection, {made["path"] for made in found})
                rows = [_EMPTY | made | {"source": source} for made in found]
                connection.execute(sa.insert(RUNS), rows)

    def take(self, paths: Sequence[str], source: str = "") -> None:
        """Read run directories and record files into the index."""
        folder = self.database.folder or Path()
        # While this one is open, SQLite does not write back after each transaction.
        with self.database.engine.connect():
            for start in range(0, len(paths), _BATCH):
                self.put([_read(folder, x) for x in paths[start : start + _BATCH]], source)

    def _known(self, source: str = "") -> dict[str, Stamp]:
        """Return the files of a source, with the stamps they had."""
        asked = sa.select(RUNS.c.path, RUNS.c.bytes, RUNS.c.mtime_ns)
        with self.database.reading() as connection:
            found = connection.execute(asked.where(RUNS.c.source == source)).all()
        return {path: (size, mtime_ns) for path, size, mtime_ns in found}

    def keep(self, source: str, paths: Collection[str]) -> None:
        """Drop what the index holds of a source but for ``paths``; without any, the source too."""
        gone = self._known(source).keys() - set(paths)
        with self.database.writing() as connection:
            _forget(connection, gone)
            connection.execute(sa.delete(SOURCES).where(SOURCES.c.path == source))
            if paths:
                connection.execute(sa.insert(SOURCES).values(path=source))

    def sources(self, *, unread: bool = False) -> list[str]:
        """Return what was added from elsewhere; ``unread``: and is not in this table of runs."""
        asked = sa.select(SOURCES.c.path).order_by(SOURCES.c.path)
        if unread:
            asked = asked.where(SOURCES.c.path.not_in(sa.select(RUNS.c.source)))
        with self.database.reading() as connection:
            return list(connection.scalars(asked))

    def version(self) -> tuple[int, int]:
        """Return how many results there are, and what changes with every change of them."""
        asked = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(RUNS.c.id), 0))
        with self.database.reading() as connection:
            count, newest = connection.execute(asked).one()
        return count, newest

    def refresh(self) -> None:
        """Follow the store's own folder: take in records that are new or changed, drop the gone."""
        if self.database.folder is None:
            return
        top, known = str(self.database.folder), self._known()
        there = {path[len(top) + 1 :]: stamp for path, stamp in _walk(top)}
        self.take([path for path, stamp in there.items() if known.get(path) != stamp])
        if gone := known.keys() - there.keys():  # not what was put in since
            with self.database.writing() as connection:
                _forget(connection, gone)
