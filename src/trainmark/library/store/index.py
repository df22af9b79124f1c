"""The index of results: one wide table in SQLite, and how it follows the files.

It lies in the ``.index`` of a folder of runs. A version of the program with other columns makes a
table of its own: everything in it can be read again from the files.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from trainmark.errors import EnvironmentFault, RecordError
from trainmark.library.selection import stamp, walk
from trainmark.library.store.columns import IMPORTED, INDEXED, of_record, of_row, of_unread
from trainmark.plan.plan import RUNS_DIR
from trainmark.record import record
from trainmark.record.messages import render
from trainmark.record.verify import MAX_BYTES, checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


VARIABLE = "TRAINMARK_STORE"
# In a folder of its own: SQLite makes and removes files beside it, which would change a folder of
# runs at each look at the index.
INDEX_FILE = ".index/results.sqlite"
_MEANING = 3  # to be raised when columns that stay get other values
_BATCH = 250  # records of a transaction
_WAIT_S = 60  # that a writer waits for others
_PRAGMAS = (
    "journal_mode=WAL",  # readers do not wait for writers
    "synchronous=NORMAL",  # safe when a process is killed; the files are the truth
    "cache_size=-65536",  # KiB
    f"mmap_size={1 << 30}",
)
_TYPES: dict[type, str] = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "BOOLEAN"}
sqlite3.register_converter("BOOLEAN", lambda stored: stored == b"1")
_FORM = sha256(f"{_MEANING} {sorted((key, of.__name__) for key, of in INDEXED.items())}".encode())
TABLE = f"runs_{_FORM.hexdigest()[:8]}"
_COLUMNS = ", ".join(f'"{key}" {_TYPES[kind]}' for key, kind in INDEXED.items())
_SCHEMA = (
    # No id comes twice.
    f"CREATE TABLE IF NOT EXISTS {TABLE} (id INTEGER PRIMARY KEY AUTOINCREMENT, {_COLUMNS})",
    *(
        f'CREATE INDEX IF NOT EXISTS {TABLE}_{key} ON {TABLE} ("{key}")'
        for key in ("path", "run_id", "started_utc", "case")
    ),
)
_INSERT = f"INSERT INTO {TABLE} VALUES (NULL{', ?' * len(INDEXED)})"


class Index:
    """The records of a store, found by their files.

    Args:
        where: folder of runs; None: the variable ``TRAINMARK_STORE``, else ``./runs``.

    Raises:
        EnvironmentFault: no such folder, or an index that cannot be used.
    """

    def __init__(self, where: str | None = None) -> None:
        self.folder = place = Path(where or os.environ.get(VARIABLE) or RUNS_DIR)
        if not place.is_dir():
            fix = "`trainmark run CASE` makes ./runs"
            raise EnvironmentFault("no such folder", where=str(place), fix=fix)
        if not os.access(place, os.W_OK):  # its index lasts as long as this
            place = Path(mkdtemp(prefix="trainmark-index-"))
            finalize(self, shutil.rmtree, place, ignore_errors=True)
        self._file = (place / INDEX_FILE).absolute()
        self._file.parent.mkdir(exist_ok=True)
        with self.opened(writes=True) as connection:
            for statement in _SCHEMA:
                connection.execute(statement)

    def place(self, path: str) -> str:
        """Return a path of the index as it can be named from here."""
        return str(self.folder / path)

    @contextmanager
    def opened(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Give a connection whose changes are made at the end of the block, all or none.

        Args:
            writes: whether to wait for other writers now. A reader that became a writer midway
                could not.

        Raises:
            EnvironmentFault: the database cannot be read or written.
        """
        kinds = sqlite3.PARSE_DECLTYPES
        try:
            with closing(sqlite3.connect(self._file, _WAIT_S, kinds, None)) as connection:
                for pragma in _PRAGMAS:
                    connection.execute(f"PRAGMA {pragma}")
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                yield connection
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            what, where = f"the index cannot be used: {error}", str(self._file)
            fix = "see that it can be written, or remove it: it is made anew from the records"
            raise EnvironmentFault(what, where=where, fix=fix) from error

    def refresh(self) -> None:
        """Follow the files of the store's folder."""
        top = str(self.folder)
        with self.opened() as connection:
            found = connection.execute(f"SELECT path, bytes, mtime_ns FROM {TABLE}")
            known = {path: (size, mtime_ns) for path, size, mtime_ns in found}
        there = {path[len(top) + 1 :]: found for path, found in walk(top)}
        others = [x for x in (self.folder / IMPORTED).rglob("*") if x.is_file()]
        there |= {str(x.relative_to(self.folder)): seen for x in others if (seen := stamp(str(x)))}
        self.take([x for x in there.keys() | known.keys() if there.get(x) != known.get(x)])

    def take(self, paths: Sequence[str]) -> None:
        """Read run directories and files anew, as paths below its folder; drop what is gone."""
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            found = [one for path in batch for one in self._read(path)]
            rows = [[made.get(key) for key in INDEXED] for made in found]
            with self.opened(writes=True) as connection:
                connection.executemany(f"DELETE FROM {TABLE} WHERE path = ?", [(x,) for x in batch])
                connection.executemany(_INSERT, rows)

    def _read(self, path: str) -> list[dict[str, Any]]:
        """Return what the index holds of a run directory, or of a file that others published."""
        place = self.folder / path
        imported = place.is_file()
        file = place if imported else place / record.RECORD_FILE
        if (found := stamp(str(file))) is None:
            return []
        try:
            if imported:
                from trainmark.library.importers import files  # an extra brings what it needs

                read = files.read([file])
                made = [of_row(row, path) for row in read.rows]
                made = made or [of_unread(render(read.unread[0].reason, "en"))]
            else:
                made = [of_record(checked(record.read(file), place, max_bytes=MAX_BYTES))]
        except RecordError as error:
            made = [of_unread(error.what)]
        size, mtime_ns = found  # of before it was read: a change shows
        return [one | {"path": path, "bytes": size, "mtime_ns": mtime_ns} for one in made]

    def version(self) -> tuple[int, int]:
        """Return how many results there are, and what changes with every change of them."""
        with self.opened() as connection:
            asked = connection.execute(f"SELECT count(*), coalesce(max(id), 0) FROM {TABLE}")
            count, newest = asked.fetchone()
        return count, newest
