"""Read runs that an index has: by their ids, with the launches beside them, redacted."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from trainmark.errors import RecordError
from trainmark.library.bundle.archive import ENDING, unpacked
from trainmark.library.redaction import redacted_record
from trainmark.library.store.query import NEWEST_FIRST
from trainmark.library.store.tables import RUNS
from trainmark.record.record import RECORD_FILE, read
from trainmark.record.verify import MOST_BYTES, checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.library.store.database import Database
    from trainmark.record.record import Record

_REPEAT = re.compile(r"(.*/)r([0-9]{1,6})", re.DOTALL)


class Stored(NamedTuple):
    """A run of an index: its place there, and the digest of its work."""

    run_id: str
    path: str
    work: str


def every(database: Database) -> list[Stored]:
    """Return all runs, the newest first."""
    asked = sa.select(RUNS.c.run_id, RUNS.c.path, RUNS.c.work).where(RUNS.c.kind == "record")
    with database.reading() as connection:
        return [Stored(*row) for row in connection.execute(asked.order_by(*NEWEST_FIRST))]


def launches(runs: Iterable[Stored]) -> dict[Stored, list[Stored]]:
    """Return for each launch of a run that has repeats all of them, in their order."""
    found: dict[str, list[tuple[int, Stored]]] = {}
    for run in runs:
        if place := _REPEAT.fullmatch(run.path):
            found.setdefault(place[1], []).append((int(place[2]), run))
    series = [[run for _, run in sorted(some)] for some in found.values()]
    return {run: some for some in series for run in some}


def sides(database: Database, run_ids: Sequence[str]) -> list[list[Record]]:
    """Return the launches of each run; of launches of one run that are told apart, each alone.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    runs = every(database)
    newest, beside = {run.run_id: run for run in reversed(runs)}, launches(runs)
    for run_id in run_ids:
        if run_id not in newest:
            raise RecordError("no such run", where=run_id[:200], remedy="the list has all runs")
    found = [beside.get(newest[run_id], [newest[run_id]]) for run_id in run_ids]
    if any(set(one) & set(other) for one, other in combinations(found, 2)):
        found = [[newest[run_id]] for run_id in run_ids]
    return [[opened(database.place(run.path)) for run in some] for some in found]


def opened(path: str) -> Record:
    """Return the record of a run, redacted, and held against its evidence where that is small.

    Args:
        path: as the index has it, placed: a run directory, a record, or one within a bundle.

    Raises:
        RecordError: the record is gone or cannot be read.
    """
    bundle, inside, place = path.partition(f"{ENDING}/")
    try:
        if inside:
            with unpacked(Path(bundle + ENDING)) as files:
                return _read(files.folder / place)
        return _read(Path(path))
    except FileNotFoundError:  # since the index was asked
        raise RecordError("its files are gone", where=path) from None


def _read(path: Path) -> Record:
    file = path / RECORD_FILE if path.is_dir() else path
    return redacted_record(checked(read(file), file.parent, most_bytes=MOST_BYTES))
