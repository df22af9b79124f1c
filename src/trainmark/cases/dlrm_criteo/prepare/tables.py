"""The stages of ``prepare``: read and count a log, number categories, encode rows, write them.

All stages work in a scratch database, which keeps to a memory limit and spills to disk.

The names of its tables end in numbers:

    read_0    of a source (a log): its rows in input order
    counts_0  of a source: the frequency of each of its categories
    ids_0     of a categorical column: the ids of its categories
    part_0    of a part, see ``RowRange``: its encoded rows, sorted by ``key``

Rows have the columns ``label``, ``i0`` to ``i12`` (numbers) and ``c0`` to ``c25`` (categories).
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from time import sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.affinity import count_allowed_cores
from trainmark.data.prepared import require_whole_gzip
from trainmark.errors import EnvironmentFault
from trainmark.extras import import_extra

from ..data.layout import CATEGORY_BYTES, NUM_NUMERICAL, FeatureSpec
from .sources import (
    NUM_CATEGORIES,
    ROW_PATTERN,
    RowRange,
    count_rows,
    describe_first_fault,
    is_gzip,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    Rules = Mapping[str, Any]  # the options of ``prepare`` by name, except the number of workers

SCRATCH_FILE = "scratch.duckdb"
INTERRUPT_INTERVAL_S = 0.05  # between two interrupts of statements that nobody needs any more
THREAD_BYTES = 1 << 30  # memory of the database for each core
ENTRY_BYTES = 256  # memory of a category in a join, rounded up generously
NUM_HASH_KEYS = 1 << 64  # keys of shuffled rows are hashes of 8 bytes
BATCH_ROWS = 1 << 17  # rows of an Arrow batch, which are written to the files at once
INTEGER_COLUMNS = [f"i{number}" for number in range(NUM_NUMERICAL)]
CATEGORY_COLUMNS = [f"c{number}" for number in range(NUM_CATEGORIES)]
LOGARITHM_SQL = {
    3: "CASE WHEN {0} > -3 THEN ln(({0} + 3)::DOUBLE) ELSE 0 END",  # an empty cell is not > -3
    1: "ln((greatest({0}, 0) + 1)::DOUBLE)",  # `greatest` ignores an empty cell
}
# Read each line as one field that is never null: the two control characters occur in no row. Lines
# that the reader skips or splits are noticed by the number of rows.
LINES_SQL = (
    "(SELECT line, string_split(line, '\t') AS f FROM read_csv($file, compression = $packing, "
    "auto_detect = false, columns = {'line': 'VARCHAR'}, header = false, delim = '\x01', nullstr = "
    "'\x02', quote = '', escape = '', new_line = '\\n', strict_mode = false, ignore_errors = true))"
)


def choose_memory_limit() -> int:
    """Return the database's memory limit in bytes.

    It is 1 GiB for each core, because the threads of the database need memory; at least 2 GiB, but
    at most half of the machine's memory.
    """
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_cores = count_allowed_cores()
    return min(machine_bytes // 2, max(2, num_cores) * THREAD_BYTES)


@contextmanager
def open_database(folder: Path, threads: int) -> Iterator[Any]:
    """Open the scratch database in ``folder``; create it if it is missing.

    Args:
        folder: an existing folder for the database alone. The database writes ``SCRATCH_FILE`` and
            the subfolder ``spill`` into it.
        threads: maximum number of threads of the database.

    Raises:
        EnvironmentFault: memory or disk space is not sufficient, or the database is damaged.
    """
    duckdb = import_extra("duckdb", where=folder)
    limit = choose_memory_limit()
    max_threads = 2 * limit // THREAD_BYTES  # each needs at least half of ``THREAD_BYTES``
    config = {
        "threads": max(1, min(threads, max_threads)),
        "memory_limit": f"{limit}B",
        "temp_directory": f"{folder}/spill",
    }
    shutil.rmtree(folder / "spill", ignore_errors=True)  # left by a call that was killed
    try:
        with duckdb.connect(folder / SCRATCH_FILE, config=config) as database:
            yield database
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # so the library reports Ctrl-C
            raise KeyboardInterrupt from error
        raise
    except (duckdb.OperationalError, duckdb.FatalException) as error:
        raise EnvironmentFault(
            f"duckdb: {str(error).splitlines()[0]}",
            where=str(folder),
            rule=(
                f"the database can use at most {limit >> 20} MiB of memory and the free disk space"
            ),
            fix="free up memory or disk space, or set workers= to a smaller number; then run the "
            f"command again (to start over, remove {folder} first)",
        ) from error


def read_logs(db: Any, logs: Mapping[int, Path], threads: int) -> Iterator[tuple[int, int]]:
    """Read logs into their tables; yield the number of each log and the number of its rows.

    The logs are yielded in the order of ``logs``, each when it is read.

    The database reads a plain log with all its threads, but a gzip log with a single thread;
    therefore several gzip logs are read at the same time.

    Args:
        db: the scratch database.
        logs: the files by their number among all sources, with which the names of their tables end.
        threads: maximum number of logs that are read at the same time.

    Raises:
        DataError: a file is damaged or changes, or a row is invalid; the error names file and row.
    """
    num_gzip = sum(is_gzip(path) for path in logs.values())
    stop = Event()  # tells the threads that no result is needed any more
    cursors = {number: db.cursor() for number in logs}  # each is used by one thread at a time
    num_readers = max(1, min(threads, num_gzip))  # 1: plain logs are read one after the other
    pool = ThreadPoolExecutor(num_readers, "dlrm-read")
    futures = {
        number: pool.submit(read_log, cursors[number], number, path, stop)
        for number, path in logs.items()
    }
    try:
        for number, future in futures.items():
            yield number, future.result()
    finally:  # also if a log is faulty, or the caller stops early
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        # An interrupt ends only a statement that is running, and a thread of the pool may be about
        # to begin one. So they are repeated until all threads have ended.
        while not all(future.done() for future in futures.values()):
            for cursor in cursors.values():
                cursor.interrupt()
            sleep(INTERRUPT_INTERVAL_S)
        for cursor in cursors.values():
            cursor.close()


def read_log(db: Any, number: int, path: Path, stop: Event) -> int:
    """Read a log into its tables ``read_`` and ``counts_``; return its number of rows.

    The table ``read_`` has the rows of the log in their order, ``counts_`` the number of times that
    each value occurs in each categorical column (also the empty cell, which is null).

    Args:
        db: a cursor of the scratch database.
        number: of the source, with which the names of its tables end.
        stop: set by another thread when the result is no longer needed. Reading then ends early,
            and the result, or the error, means nothing.

    Raises:
        DataError: the file is damaged or changes, or a row is invalid; the error names file and
            row.
    """
    with require_whole_gzip(path):  # the database does not notice all damage
        rows = count_rows(path, stop)
    if stop.is_set():  # a number of rows that is too small must not be taken for a fault below
        return rows
    # ``LINES_SQL`` reads ``$file``. Its columns are ``line`` and ``f``, the list of its fields.
    # The label is the first character of a line, and null if the line is not a row.
    columns = ["CASE WHEN regexp_full_match(line, $row) THEN line[1] = '1' END AS label"]
    # SQL counts from 1, and the first field is the label.
    for field, name in enumerate(INTEGER_COLUMNS + CATEGORY_COLUMNS, start=2):
        cast = f"f[{field}] AS BIGINT"
        if name in CATEGORY_COLUMNS:  # which a log writes as hexadecimal numbers
            cast = f"'0x' || f[{field}] AS UINTEGER"
        columns.append(f"TRY_CAST({cast}) AS {name}")  # null if the field is empty
    # Here and below, REPLACE: an interrupted call may have left the table.
    query = f"CREATE OR REPLACE TABLE read_{number} AS SELECT {', '.join(columns)} FROM {LINES_SQL}"
    packing = "gzip" if is_gzip(path) else "none"
    db.execute(query, {"row": ROW_PATTERN, "file": str(path), "packing": packing})
    db.execute(f"SELECT count(*), count(label) FROM read_{number}")  # of labels that are not null
    if db.fetchone() != (rows, rows):
        raise describe_first_fault(path)
    db.execute(f"CREATE OR REPLACE TABLE counts_{number}(col TINYINT, value UINTEGER, n BIGINT)")
    for column, name in enumerate(CATEGORY_COLUMNS):
        counts = f"SELECT {column}, {name}, count(*) FROM read_{number} GROUP BY ALL"
        db.execute(f"INSERT INTO counts_{number} {counts}")
    return rows


def assign_category_ids(db: Any, num_sources: int, rules: Rules) -> list[int]:
    """Give ids from 1 to the frequent categories of each column; return the cardinalities.

    Ids ascend by descending frequency, then by value; they are stored in the tables ``ids_``. Rare
    categories and empty cells share id 0. The cardinality of a column is its number of ids,
    including 0.

    Args:
        num_sources: number of logs.
        rules: options of ``prepare``, of which ``frequency_threshold`` decides what is frequent.
    """
    # The table ``counts_`` of a log has the frequency ``n`` of each value of each column ``col``.
    counts = " UNION ALL ".join(f"FROM counts_{number}" for number in range(num_sources))
    cardinalities = []
    for column in range(NUM_CATEGORIES):
        frequent = (
            f"FROM ({counts}) WHERE col = {column} AND value IS NOT NULL GROUP BY value "
            f"HAVING sum(n) >= {rules['frequency_threshold']}"
        )
        order = "ORDER BY sum(n) DESC, value"
        ids = f"SELECT value, (row_number() OVER ({order}))::INTEGER AS id {frequent}"
        db.execute(f"CREATE OR REPLACE TABLE ids_{column} AS {ids}")
        num_frequent = db.execute(f"SELECT count(*) FROM ids_{column}").fetchone()[0]
        cardinalities.append(1 + num_frequent)  # 1: id 0
    return cardinalities


def build_row_key(part: RowRange, rules: Rules) -> str:
    """Return the SQL expression of a row's key, by which the rows of a split are ordered.

    Training rows are shuffled: their key is the first 8 bytes, little endian, of the MD5 of
    ``seed:source:row``, with source and row counted from 0. The key of other rows is their number
    within the split.

    Args:
        rules: options of ``prepare``, of which ``seed`` decides the order of training rows.
    """
    if part.split == "train":
        # The database's function for these 8 bytes; ``rowid`` is its number of the row, from 0.
        return f"md5_number_upper('{rules['seed']}:{part.source}:' || rowid)"
    # The part begins at the source's row ``start``, which is the split's row ``first``.
    return f"(rowid - {part.start} + {part.first})::UBIGINT"


def group_columns(cardinalities: Sequence[int]) -> list[list[int]]:
    """Group neighbouring categorical columns for joins with the tables of their ids.

    One statement joins the columns of a group, with the categories of all of them in memory.
    Without its last column, a group always fits. If it does not fit with its last column, the
    statement spills to disk.

    Args:
        cardinalities: number of ids of each column.
    """
    max_entries = choose_memory_limit() // ENTRY_BYTES  # categories that fit into the memory
    groups: list[list[int]] = []
    num_entries = 0  # categories of all columns before this one
    previous_slot: int | None = None
    for column, cardinality in enumerate(cardinalities):
        # The categories of all columns, one after the other, are cut into slots of ``max_entries``.
        # The columns that begin in the same slot are a group.
        slot = num_entries // max_entries
        if slot != previous_slot:
            groups.append([])
        groups[-1].append(column)
        num_entries += cardinality
        previous_slot = slot
    return groups


def encode_rows(
    db: Any, number: int, parts: dict[int, RowRange], cardinalities: list[int], rules: Rules
) -> None:
    """Copy the rows of a log, with ids instead of categories, into the table of each of its parts.

    Categorical columns are named ``c0``, ``c1`` and so on. The table ``read_`` of the log before is
    dropped: that log is already encoded, so its space can be used again.

    Args:
        number: of the log among the sources, with which the names of its tables end.
        parts: those of this log, by their number, with which the names of their tables end.
        cardinalities: number of ids of each categorical column.
        rules: options of ``prepare``, of which ``seed`` decides the keys of training rows. Rows are
            sorted by their key.
    """
    # Quoted, because the first source asks for "read_-1", which never exists.
    db.execute(f'DROP TABLE IF EXISTS "read_{number - 1}"')
    # Each group is joined by a statement of its own: all joins at once may exceed the memory.
    groups = group_columns(cardinalities)
    # In SQL, ``rowid`` is the number of a row in the log, from 0.
    for part_number, part in parts.items():
        source = (
            f"(SELECT {build_row_key(part, rules)} AS key, rowid AS row, * FROM read_{number} "
            f"WHERE rowid >= {part.start} AND rowid < {part.end})"
        )
        for group in groups:
            # The tables ``ids_`` have the id of each frequent category. Id 0: the cell is empty, or
            # its category is too rare to be there.
            ids = ", ".join(f"coalesce(ids_{k}.id, 0) AS c{k}" for k in group)
            joins = " ".join(f"LEFT JOIN ids_{k} ON rows.c{k} = ids_{k}.value" for k in group)
            # Joins lose the order of rows, so sorting once, in the last statement, is enough.
            order = "ORDER BY key, row" if group is groups[-1] else ""
            encoded = f"SELECT rows.* REPLACE ({ids}) FROM {source} AS rows {joins} {order}"
            db.execute(f"CREATE OR REPLACE TABLE part_{part_number} AS {encoded}")
            source = f"part_{part_number}"  # the next group replaces its columns in this table


def read_encoded_rows(
    db: Any, parts: list[int], spec: FeatureSpec, rules: Rules, keys: range
) -> Any:
    """Return an Arrow reader of the rows of ``parts`` with keys in ``keys``, sorted by key.

    Its columns are the label, 13 logarithms (double) and 26 categories in their types. All rows
    that are returned are sorted at once; ``keys`` limits their number.

    Args:
        parts: numbers of the parts, with which the names of their tables end.
        spec: has the types of the categories.
        rules: options of ``prepare``, of which ``log_offset`` selects the logarithm.
        keys: not empty.
    """
    # The last key is compared, not the one after it, which may be 2^64 and no UBIGINT.
    where = f"WHERE key >= {keys.start}::UBIGINT AND key <= {keys.stop - 1}::UBIGINT"
    rows = " UNION ALL ".join(
        f"SELECT {part} AS part, * FROM part_{part} {where}" for part in parts
    )
    logarithms = [LOGARITHM_SQL[rules["log_offset"]].format(name) for name in INTEGER_COLUMNS]
    typed_categories = [  # INT1, INT2 and INT4 are the database's integers of so many bytes
        f"{name}::INT{CATEGORY_BYTES[dtype]}"
        for name, dtype in zip(CATEGORY_COLUMNS, spec.category_dtypes, strict=True)
    ]
    columns = ", ".join(["label::UTINYINT", *logarithms, *typed_categories])
    # Shuffled rows may have equal keys; the numbers of part and row make their order unique.
    query = f"SELECT {columns} FROM ({rows}) ORDER BY key, part, row"
    return db.sql(query).to_arrow_reader(BATCH_ROWS)


def write_rows(
    files: Sequence[Path], batches: Iterable[Any], advance: Callable[[int], None]
) -> int:
    """Write the rows of a split into its files; return the number of rows.

    Args:
        files: label, numerical values, then one for each categorical column.
        batches: Arrow record batches from ``read_encoded_rows``: label, logarithms of the numbers,
            then categories.
        advance: called with the number of rows of each batch.
    """
    rows = 0
    with ExitStack() as stack:
        streams = [stack.enter_context(file.open("wb")) for file in files]
        for batch in batches:
            rows += len(batch)
            advance(len(batch))
            label, *columns = (column.to_numpy() for column in batch.columns)
            logarithms = columns[:NUM_NUMERICAL]
            categories = columns[NUM_NUMERICAL:]
            # The query has given label and categories the types of their files. The database has no
            # float16, in which the numerical file stores the 13 logarithms of each row.
            arrays = [label, np.stack(logarithms, axis=1).astype("<f2"), *categories]
            for stream, array in zip(streams, arrays, strict=True):
                stream.write(array.tobytes())
        for stream in streams:  # a finished stage must be on disk
            stream.flush()
            os.fsync(stream.fileno())
    return rows
