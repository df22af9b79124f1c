"""The index's database: its table, where it is, and its transactions.

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

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.library.store.columns import KINDS
from trainmark.plan.plan import RUNS_DIR
from trainmark.record.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "TRAINMARK_STORE"
# In a folder of its own: SQLite makes and removes files beside it, which would change a folder of
# runs at each look at the index.
INDEX_FILE = ".index/results.sqlite"
_MEANING = 2  # to be raised when columns that stay get other values
_PRAGMAS = (
    "busy_timeout=60000",  # ms that a writer waits for others
    "journal_mode=WAL",  # readers do not wait for writers
    "synchronous=NORMAL",  # safe when a process is killed; the files are the truth
    "cache_size=-65536",  # KiB
    f"mmap_size={1 << 30}",
)
_LOCK = 0x7472616D  # of PostgreSQL: held by the one that writes
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}

METADATA = sa.MetaData()
# Compared byte by byte in all databases, so that they give the same order and answers.
_TEXT: Any = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_TYPES: dict[type, Any] = {str: _TEXT, int: sa.BigInteger(), float: sa.Double(), bool: sa.Boolean()}
# Of a result, besides the columns of records: ``path`` is relative to the store's folder, or
# absolute; ``source`` is what it was added with, empty for the folder's own; ``kind`` is record,
# row (figures that others printed) or unread.
_OTHERS: dict[str, type] = (
    dict.fromkeys(("source", "path", "kind", "configuration", "notes", "work", "comparable"), str)
    | dict.fromkeys(("torch", "driver", "cpu"), str)
    | dict.fromkeys(("line", "bytes", "mtime_ns", "world"), int)
)
_KINDS = _OTHERS | KINDS | dict.fromkeys(FIGURES, float)
_FORM = sha256(f"{_MEANING} {sorted((key, of.__name__) for key, of in _KINDS.items())}".encode())
_INDEXED = ("path", "run_id", "started_utc", "case")
RUNS = sa.Table(
    f"runs_{_FORM.hexdigest()[:8]}",
    METADATA,
    sa.Column("id", sa.Integer(), primary_key=True),
    *(sa.Column(key, _TYPES[kind], index=key in _INDEXED) for key, kind in _KINDS.items()),
    # Figures of a case's own as value, unit and column, or why a file could not be read.
    sa.Column("more", sa.JSON()),
    sqlite_autoincrement=True,  # no id comes twice
)
# What was added from elsewhere, of all versions of the program.
SOURCES = sa.Table("sources", METADATA, sa.Column("path", _TEXT, primary_key=True))


class Database:
    """The index's database.

    Args:
        where: URL or folder; None: the variable ``TRAINMARK_STORE``, else ``./runs``.
        empty: whether to remove all that it holds but the names of sources.

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
        try:
            file.parent.mkdir(exist_ok=True)
        except OSError as error:
            what, where = f"the index cannot be made: {error.strerror}", str(file.parent)
            raise EnvironmentFault(what, where=where) from None
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
