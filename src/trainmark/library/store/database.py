"""Open the index's database: where it is, its schema, and its transactions.

SQLite in a folder's ``.index``, or a database by URL. A process that is killed leaves whole
transactions; several may write at once, one after another.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from trainmark.errors import EnvironmentFault, UsageError
from trainmark.library.store.tables import HEAD, METADATA
from trainmark.plan.plan import RUNS_DIR

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "TRAINMARK_STORE"
# In a folder of its own: SQLite makes and removes files beside it, which would change a folder of
# runs at each look at the index.
INDEX_FILE = ".index/results.sqlite"
_PRAGMAS = (
    "busy_timeout=60000",  # ms that a writer waits for others
    "journal_mode=WAL",  # readers do not wait for writers
    "synchronous=NORMAL",  # safe when a process is killed; the files are the truth
    "cache_size=-65536",  # KiB
    f"mmap_size={1 << 30}",
)
_MIGRATIONS = Path(__file__).with_name("migrations")
_LOCK = 0x7472616D  # of PostgreSQL: held by the one that writes
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
_RULE = "a folder, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"


class Database:
    """The index's database, with the newest schema.

    Args:
        where: URL or folder; None: the variable ``TRAINMARK_STORE``, else ``./runs``.
        migrate: whether to bring tables of an older version up to date; those of a folder always
            are.
        replace: whether to remove a folder's index that is damaged.

    Raises:
        UsageError: not a URL of SQLite or PostgreSQL.
        EnvironmentFault: no such folder or server, no driver, or tables of a newer version.
    """

    def __init__(
        self, where: str | None = None, *, migrate: bool = False, replace: bool = False
    ) -> None:
        self.name = where or os.environ.get(VARIABLE) or str(RUNS_DIR)
        self.folder = None if "://" in self.name else Path(self.name)
        place = self.folder
        if place is not None and place.is_dir() and not os.access(place, os.W_OK):
            place = Path(mkdtemp(prefix="trainmark-index-"))
            finalize(self, shutil.rmtree, place, ignore_errors=True)  # goes with this object
        url = _url(self.name) if place is None else _file(place)
        self.name = url.render_as_string(hide_password=True) if self.folder is None else self.name
        self.engine = _engine(url)
        self._migrates = migrate or self.folder is not None
        if replace and self.folder is not None and not self._sound():
            shutil.rmtree((self.folder / INDEX_FILE).parent)
            _file(self.folder)  # the folder of it again
        with self.reading() as connection:
            current = self._current(connection)
        if not current:
            with self.writing() as connection:
                self._prepare(connection)

    def place(self, path: str) -> str:
        """Return a path of the index as it can be named from here."""
        return path if self.folder is None else str(self.folder / path)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Give a connection that sees the database as it is at its first query.

        Raises:
            EnvironmentFault: the database cannot be reached or read.
        """
        with self._plainly(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Give a connection whose changes are made at the end of the block, all or none.

        Raises:
            EnvironmentFault: the database cannot be reached or written.
        """
        writer = self.engine.execution_options(writes=True)
        with self._plainly(), writer.begin() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer by itself
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            there = isinstance(error, OperationalError) or self.folder is None
            raise EnvironmentFault(
                f"the index cannot be used: {' '.join(str(error.orig).split())}",
                where=self.name,
                remedy="check that it can be reached and written, or name another --store"
                if there
                else "`trainmark results rebuild` makes it anew from the records",
            ) from error

    def _sound(self) -> bool:
        with self._plainly():
            try:
                with self.engine.connect() as connection:
                    return connection.exec_driver_sql("PRAGMA quick_check").scalar() == "ok"
            except OperationalError:
                raise
            except DatabaseError:
                return False

    def _current(self, connection: sa.Connection) -> bool:
        """Tell whether the tables are there and of the newest version, without alembic."""
        known = sa.inspect(connection).has_table("alembic_version")
        asked = sa.text("SELECT version_num FROM alembic_version")
        return known and connection.scalar(asked) == HEAD

    def _prepare(self, connection: sa.Connection) -> None:
        """Create the tables in an empty database, or bring older ones up to date."""
        from alembic import command
        from alembic.config import Config
        from alembic.runtime.migration import MigrationContext
        from alembic.script import ScriptDirectory

        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        found = MigrationContext.configure(connection).get_current_revision()
        if found is None:
            METADATA.create_all(connection)
            command.stamp(config, HEAD)
        elif found in known and self._migrates:
            command.upgrade(config, HEAD)
        elif found != HEAD:  # another process may have been first
            age, way = ("older", f"trainmark results migrate --store '{self.name}'")
            if found not in known:
                age, way = ("newer", "use that version, or another --store")
            raise EnvironmentFault(
                f"the index has schema {found}, of a version {age} than this one, which has {HEAD}",
                where=self.name,
                remedy=way,
            )


def _file(folder: Path) -> sa.URL:
    """Return the URL of a folder's index."""
    if not folder.is_dir():
        raise EnvironmentFault(
            "no such folder", where=str(folder), remedy="`trainmark run CASE` makes ./runs"
        )
    file = (folder / INDEX_FILE).absolute()
    try:
        file.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"the index cannot be made: {error.strerror}",
            where=str(file.parent),
            remedy="remove what is there, or name another --store",
        ) from None
    return sa.URL.create("sqlite", database=str(file))


def _url(name: str) -> sa.URL:
    try:
        url = sa.make_url(name)
        return url.set(drivername=_DRIVERS[url.get_backend_name()])
    except (ArgumentError, KeyError, ValueError):  # the last: of a port
        raise UsageError("not a store that is known", where="--store", rule=_RULE) from None


def _engine(url: sa.URL) -> sa.Engine:
    """Return the engine; SQLite's with the transactions that are asked for, and no others."""
    try:
        style = "named" if url.get_backend_name() == "sqlite" else "pyformat"
        # Nothing stays open between two transactions.
        engine = sa.create_engine(url, paramstyle=style, poolclass=sa.NullPool)
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"the driver {error.name} is not installed",
            where="--store",
            remedy="pip install 'trainmark[postgres]'",
        ) from None
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _as_we_need)
        sa.event.listen(engine, "begin", _begin)
    return engine


def _as_we_need(connection: Any, _: object) -> None:
    connection.isolation_level = None  # else the driver decides where transactions begin
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    # A reader that became a writer midway could not wait for other writers.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
