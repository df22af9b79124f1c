"""Keep the index of results: one wide table in SQLite, which is updated from the files.

It is in the ``.index`` of a folder of runs. A version of the program with other columns makes
another table: everything in it can be read again from the files.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.plan.plan import RUNS_DIR
from trainmark.record import record
from trainmark.record.messages import render
from trainmark.record.verify import MAX_BYTES, check_record
from trainmark.results.selection import FileStamp, read_stamp, walk_runs
from trainmark.results.store.columns import (
    IMPORTED,
    INDEX_COLUMNS,
    make_record_entry,
    make_row_entry,
    make_unreadable_entry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


STORE_VARIABLE = "TRAINMARK_STORE"  # environment variable with the default folder of runs
# In a separate folder: SQLite makes and removes files beside it, and a query must not change the
# folder of runs.
INDEX_FILE = ".index/results.sqlite"
_VERSION = 4  # raise it if values of existing columns change
_RECORDS_PER_TRANSACTION = 250
_TIMEOUT_S = 60  # of a writer that waits for others
_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for writers
    "synchronous=NORMAL",  # safe when a process is killed; the files are the truth
    "cache_size=-65536",  # KiB
    f"mmap_size={1 << 30}",
)
_TYPES: dict[type, str] = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "BOOLEAN"}
# SQLite stores truth values as numbers; they are read as bool again.
sqlite3.register_converter("BOOLEAN", lambda stored: stored == b"1")
_COLUMN_TYPES = sorted((key, kind.__name__) for key, kind in INDEX_COLUMNS.items())
# Its name changes with the columns, so that each version of the program has a table of its own.
TABLE = f"runs_{sha256(f'{_VERSION} {_COLUMN_TYPES}'.encode()).hexdigest()[:8]}"
_COLUMNS = ", ".join(f'"{key}" {_TYPES[kind]}' for key, kind in INDEX_COLUMNS.items())
_SCHEMA = (
    # AUTOINCREMENT: the id of a deleted entry is never used again.
    f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY AUTOINCREMENT, {_COLUMNS})",
    *(
        f'CREATE INDEX IF NOT EXISTS {TABLE}_{key} ON {TABLE} ("{key}")'
        for key in ("path", "run_id", "started_utc", "case")
    ),
)
# SQL function that puts the store's folder in front of a path of the index.
FULL_PATH_FUNCTION = "make_full_path"
_INSERT = f"INSERT INTO {TABLE} VALUES (NULL{', ?' * len(INDEX_COLUMNS)})"


class IndexVersion(NamedTuple):
    """Two numbers of which at least one changes whenever the entries of an index change.

    Args:
        num_entries: number of entries.
        newest_id: id of the entry that was added last; 0: there is none.
    """

    num_entries: int
    newest_id: int


class Index:
    """The index of the records below a folder: a database with an entry for each of them.

    Lists of runs are read from it, so that not every record must be read each time. Results that
    others published have entries too.

    Attributes:
        folder: the folder with the runs.
    """

    def __init__(self, where: str | None = None) -> None:
        """Open the index of a folder of runs, or make an empty one.

        Args:
            where: the folder; None: the one that ``TRAINMARK_STORE`` names, else ``./runs``.

        Raises:
            EnvironmentFault: there is no such folder, or the index cannot be used.
        """
        self.folder = Path(where or os.environ.get(STORE_VARIABLE) or RUNS_DIR)
        if not self.folder.is_dir():
            fix = "`trainmark run CASE` creates ./runs"
            raise EnvironmentFault("no such folder", where=str(self.folder), fix=fix)
        index_folder = self.folder
        if not os.access(index_folder, os.W_OK):
            # Nothing can be written beside the runs: a temporary index is removed with this object.
            index_folder = Path(mkdtemp(prefix="trainmark-index-"))
            finalize(self, shutil.rmtree, index_folder, ignore_errors=True)
        self._file = (index_folder / INDEX_FILE).absolute()
        self._file.parent.mkdir(exist_ok=True)  # ``.index``, the folder in ``INDEX_FILE``
        with self.open_connection(writes=True) as connection:
            for statement in _SCHEMA:
                connection.execute(statement)

    def make_full_path(self, path: str) -> str:
        """Return a path of the index with the store's folder in front."""
        return str(self.folder / path)

    @contextmanager
    def open_connection(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection whose changes are committed together at the end of the block.

        If the block raises an error, no change is committed, and the connection is closed.

        Args:
            writes: the block writes. It then waits for other writers now, because a transaction
                that began as a reader may not be able to write later.

        Raises:
            EnvironmentFault: the database cannot be read or written.
        """
        try:
            connection_to_close = sqlite3.connect(
                self._file,
                timeout=_TIMEOUT_S,
                detect_types=sqlite3.PARSE_DECLTYPES,  # values of BOOLEAN columns become ``bool``
                isolation_level=None,  # transactions begin and end by the statements below
            )
            with closing(connection_to_close) as connection:
                connection.create_function(
                    FULL_PATH_FUNCTION, 1, self.make_full_path, deterministic=True
                )
                for pragma in _PRAGMAS:
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            what = f"the index cannot be used: {error}"
            fix = (
                "make sure that the index is writable, or remove it: it is rebuilt from the records"
            )
            raise EnvironmentFault(what, where=str(self._file), fix=fix) from error

    def refresh(self) -> None:
        """Update the index from the files of the store's folder."""
        top = str(self.folder)
        with self.open_connection() as connection:
            cursor = connection.execute(f"SELECT path, bytes, mtime_ns FROM {TABLE}")
            indexed = {path: FileStamp(size, mtime_ns) for path, size, mtime_ns in cursor}
        # By the path relative to the store's folder, as in the index.
        # A stamp is the size and the time of change of a record, by which a change is noticed.
        present = {path[len(top) + 1 :]: run_stamp for path, run_stamp in walk_runs(top)}
        for file in (self.folder / IMPORTED).rglob("*"):  # results that others published
            file_stamp = read_stamp(str(file)) if file.is_file() else None
            if file_stamp is not None:
                present[str(file.relative_to(self.folder))] = file_stamp
        changed = [  # new, changed or removed
            path
            for path in present.keys() | indexed.keys()
            if present.get(path) != indexed.get(path)
        ]
        self.update(changed)

    def update(self, paths: Sequence[str]) -> None:
        """Read run directories and files again; remove the entries of those that are gone.

        Args:
            paths: relative to the store's folder.
        """
        # In batches, so that an update that is interrupted keeps what it has read.
        for start in range(0, len(paths), _RECORDS_PER_TRANSACTION):
            batch = paths[start : start + _RECORDS_PER_TRANSACTION]
            entries = [entry for path in batch for entry in self._read_entries(path)]
            rows = [[entry.get(key) for key in INDEX_COLUMNS] for entry in entries]
            with self.open_connection(writes=True) as connection:
                connection.executemany(f"DELETE FROM {TABLE} WHERE path = ?", [(x,) for x in batch])
                connection.executemany(_INSERT, rows)

    def _read_entries(self, path: str) -> list[dict[str, Any]]:
        """Return the entries of a run directory, or of a file that others published."""
        place = self.folder / path
        is_imported = place.is_file()  # a run is a directory
        file = place if is_imported else place / record.RECORD_FILE
        # Before reading, so that a change meanwhile is noticed at the next refresh.
        file_stamp = read_stamp(str(file))
        if file_stamp is None:  # it was removed
            return []
        try:
            if is_imported:
                # Imported here, because it needs packages of an extra.
                from trainmark.published.importers import files

                imported = files.read_files([file])
                entries = [make_row_entry(row, path) for row in imported.rows]
                if not entries:  # the first part that cannot be read tells why
                    entries = [make_unreadable_entry(render(imported.unread[0].reason, "en"))]
            else:
                # With more evidence than this the record stays unchecked: a list must not wait.
                loaded = check_record(record.read_record(file), place, max_bytes=MAX_BYTES)
                entries = [make_record_entry(loaded)]
        except RecordError as error:
            entries = [make_unreadable_entry(error.what)]
        place_columns = {
            "path": path,
            "bytes": file_stamp.num_bytes,
            "mtime_ns": file_stamp.mtime_ns,
        }
        return [entry | place_columns for entry in entries]

    def read_version(self) -> IndexVersion:
        """Return the version of the entries, by which a change of them is noticed.

        A new or changed entry gets a higher id than all before it; if entries are only removed,
        their number changes.
        """
        with self.open_connection() as connection:
            cursor = connection.execute(f"SELECT count(*), coalesce(max(id), 0) FROM {TABLE}")
            num_entries, newest_id = cursor.fetchone()
        return IndexVersion(num_entries, newest_id)
