"""The index of results: one wide table in a database, and how it follows the files.

SQLite in a folder's ``.index``, or a database by URL. A version of the program with other columns
makes a table of its own: everything in it can be read again from the files.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import ArgumentError, DatabaseError

from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.library.selection import select, stamp, walk
from trainmark.library.store.columns import INDEXED, of_record, of_row, of_unread
from trainmark.plan.plan import RUNS_DIR
from trainmark.record import record
from trainmark.record.rows import Row
from trainmark.record.verify import MOST_BYTES, checked
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from trainmark.library.selection import Stamp
    from trainmark.record.rows import Unread

VARIABLE = "TRAINMARK_STORE"
# In a folder of its own: SQLite makes and removes files beside it, which would change a folder of
# runs at each look at the index.
INDEX_FILE = ".index/results.sqlite"
_MEANING = 2  # to be raised when columns that stay get other values
_BATCH = 250  # records of a transaction
_PRAGMAS = (
    "busy_timeout=60000",  # ms that a writer waits for others
    "journal_mode=WAL",  # readers do not wait for writers
    "synchronous=NORMAL",  # safe when a process is killed; the files are the truth
)
_LOCK = 0x7472616D  # of PostgreSQL: held by the one that writes
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}

METADATA = sa.MetaData()
# Compared byte by byte in all databases, so that they give the same order and answers.
_TEXT: Any = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_TYPES: dict[type, Any] = {str: _TEXT, int: sa.BigInteger(), float: sa.Double(), bool: sa.Boolean()}
_FORM = sha256(f"{_MEANING} {sorted((key, of.__name__) for key, of in INDEXED.items())}".encode())
_SEARCHED = ("path", "run_id", "started_utc", "case")
RUNS = sa.Table(
    f"runs_{_FORM.hexdigest()[:8]}",
    METADATA,
    sa.Column("id", sa.Integer(), primary_key=True),
    *(sa.Column(key, _TYPES[kind], index=key in _SEARCHED) for key, kind in INDEXED.items()),
    # Figures of a case's own as value and unit, or why a file could not be read.
    sa.Column("more", sa.JSON()),
    sqlite_autoincrement=True,  # no id comes twice
)
# What was added from elsewhere, of all versions of the program.
SOURCES = sa.Table("sources", METADATA, sa.Column("path", _TEXT, primary_key=True))
_EMPTY = dict.fromkeys(INDEXED) | {"line": 0}


class Index:
    """The records and rows of a store, found by their files.

    Args:
        where: URL or folder; None: the variable ``TRAINMARK_STORE``, else ``./runs``.
        empty: whether to forget all but the names of sources: ``refresh`` reads them again.

    Raises:
        UsageError: not a URL of SQLite or PostgreSQL.
        EnvironmentFault: no such folder or server, or no driver.
    """

    def __init__(self, where: str | None = None, *, empty: bool = False) -> None:
        self.name = where or os.environ.get(VARIABLE) or str(RUNS_DIR)
        self.folder = None if "://" in self.name else Path(self.name)
        url = _url(self.name) if self.folder is None else self._file(self.folder)
        self.name = url.render_as_string(hide_password=True)
        self.engine = _engine(url)
        with self.writing() as connection:
            if empty:
                RUNS.drop(connection, checkfirst=True)
            METADATA.create_all(connection)

    def _file(self, folder: Path) -> sa.URL:
        """Return the URL of a folder's index; of a read-only folder, one that lasts as this."""
        if not folder.is_dir():
            remedy = "`trainmark run CASE` makes ./runs"
            raise EnvironmentFault("no such folder", where=str(folder), remedy=remedy)
        if not os.access(folder, os.W_OK):
            folder = Path(mkdtemp(prefix="trainmark-index-"))
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = (folder / INDEX_FILE).absolute()
        file.parent.mkdir(exist_ok=True)
        return sa.URL.create("sqlite", database=str(file))

    def place(self, path: str) -> str:
        """Return a path of the index as it can be named from here."""
        return path if self.folder is None else str(self.folder / path)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Give a connection that sees the database as it is at its first query.

        Raises:
            EnvironmentFault: the database cannot be reached or read.
        """
        with self._faults(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Give a connection whose changes are made at the end of the block, all or none.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        writer = self.engine.execution_options(writes=True)
        with self._faults(), writer.begin() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer by itself
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            what = f"the index cannot be used: {' '.join(str(error.orig).split())}"
            remedy = "check that it can be reached and written"
            if self.folder is not None:
                remedy += "; a damaged one can be removed: it is made anew from the records"
            raise EnvironmentFault(what, where=self.name, remedy=remedy) from error

    def refresh(self) -> list[str]:
        """Follow the store's own folder, and read sources that this table does not have.

        Returns:
            The sources that are not here, as when their disk is away.
        """
        if self.folder is not None:
            top, known = str(self.folder), self._known()
            there = {path[len(top) + 1 :]: found for path, found in walk(top)}
            self.take([path for path, found in there.items() if known.get(path) != found])
            self._put([], "", known.keys() - there.keys())
        unreached = []
        asked = sa.select(SOURCES.c.path).where(SOURCES.c.path.not_in(sa.select(RUNS.c.source)))
        with self.reading() as connection:
            unread = list(connection.scalars(asked.order_by(SOURCES.c.path)))
        for source in unread:
            try:
                self.add([source])
            except RecordError:
                if Path(source).parent.is_dir() and not Path(source).exists():
                    self._put([], source)  # its disk is there: it is gone for good
                else:
                    unreached.append(source)
        return unreached

    def add(self, words: Sequence[str]) -> None:
        """Take in what ``words`` name, and drop what the index held of them and is gone.

        Raises:
            RecordError: a word names nothing that can be read.
        """
        for word in words:
            source = str(Path(word).resolve())
            if self.folder and Path(source).is_relative_to(self.folder.resolve()):
                continue  # it follows its own folder by itself
            named = select([source])
            both = zip(named.records, named.places, strict=True)
            found = [of_record(one) | {"path": place} for one, place in both]
            for fault in named.skipped:
                why = message("record_unreadable", error=fault.what)
                found.append(of_unread(why) | {"path": fault.where or source})
            entries: list[Row | Unread] = [*named.rows, *named.unread]
            for entry in entries:
                made = of_row(entry) if isinstance(entry, Row) else of_unread(entry.reason)
                place = str(Path(source) / entry.file)
                found.append(made | {"path": place, "line": entry.line})
            self._put(found, source, self._known(source))

    def take(self, paths: Sequence[str]) -> None:
        """Read run directories and record files into the index."""
        # While this one is open, SQLite does not write back after each transaction.
        with self.engine.connect():
            for start in range(0, len(paths), _BATCH):
                self._put([self._read(x) for x in paths[start : start + _BATCH]], "")

    def _read(self, path: str) -> dict[str, Any]:
        """Return what the index holds of a run directory or record file."""
        full = (self.folder or Path()) / path
        file = full / record.RECORD_FILE if full.is_dir() else full
        size, mtime_ns = stamp(str(file)) or (None, None)  # before it is read: a change shows
        try:
            made = of_record(checked(record.read(file), file.parent, most_bytes=MOST_BYTES))
        except RecordError as error:
            made = of_unread(message("record_unreadable", error=error.what))
        return made | {"path": path, "bytes": size, "mtime_ns": mtime_ns}

    def _put(
        self, found: Sequence[dict[str, Any]], source: str, gone: Collection[str] = ()
    ) -> None:
        """Put rows in place of what the index held of the same files; drop ``gone``."""
        paths = sorted({made["path"] for made in found} | set(gone))
        with self.writing() as connection:
            for start in range(0, len(paths), _BATCH):
                some = paths[start : start + _BATCH]
                connection.execute(sa.delete(RUNS).where(RUNS.c.path.in_(some)))
            if found:
                rows = [_EMPTY | made | {"source": source} for made in found]
                connection.execute(sa.insert(RUNS), rows)
            if source:
                connection.execute(sa.delete(SOURCES).where(SOURCES.c.path == source))
            if source and found:
                connection.execute(sa.insert(SOURCES).values(path=source))

    def _known(self, source: str = "") -> dict[str, Stamp]:
        """Return the files of a source, with the stamps they had."""
        asked = sa.select(RUNS.c.path, RUNS.c.bytes, RUNS.c.mtime_ns)
        with self.reading() as connection:
            found = connection.execute(asked.where(RUNS.c.source == source)).all()
        return {path: (size, mtime_ns) for path, size, mtime_ns in found}

    def version(self) -> tuple[int, int]:
        """Return how many results there are, and what changes with every change of them."""
        asked = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(RUNS.c.id), 0))
        with self.reading() as connection:
            count, newest = connection.execute(asked).one()
        return count, newest


def _url(name: str) -> sa.URL:
    with suppress(ArgumentError, KeyError, ValueError):  # the last: of a port
        url = sa.make_url(name)
        return url.set(drivername=_DRIVERS[url.get_backend_name()])
    rule = "a folder, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
    raise UsageError("not a store that is known", where="--store", rule=rule)


def _engine(url: sa.URL) -> sa.Engine:
    """Return the engine; SQLite's with the transactions that are asked for, and no others."""
    try:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
    except ModuleNotFoundError as error:
        what, remedy = f"{error.name} is not installed", "pip install 'trainmark[postgres]'"
        raise EnvironmentFault(what, where="--store", remedy=remedy) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _set_up)
        sa.event.listen(engine, "begin", _begin)
    return engine


def _set_up(connection: Any, _: object) -> None:
    connection.isolation_level = None  # else the driver decides where transactions begin
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    # A reader that became a writer midway could not wait for other writers.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
