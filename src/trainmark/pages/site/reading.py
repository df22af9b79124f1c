"""Read runs that an index has: by their ids, with their evidence, and the launches beside them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from trainmark.errors import RecordError
from trainmark.library.bundle.archive import ENDING, unpacked
from trainmark.library.redaction import redacted_record
from trainmark.library.selection.runs import Reader
from trainmark.library.store.query import NEWEST_FIRST
from trainmark.library.store.tables import RUNS
from trainmark.record import trust
from trainmark.record.record import RECORD_FILE
from trainmark.record.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.library.store.database import Database
    from trainmark.record.record import Record

_MOST_BYTES = 32 << 20  # of evidence: a page is no place to wait for more
_REPEAT = re.compile(r"(.*/)r([0-9]{1,6})", re.DOTALL)


class Stored(NamedTuple):
    """A run of an index: its place there, and the digest of its work."""

    run_id: str
    path: str
    work: str


def every(database: Database, *met: sa.ColumnElement[bool]) -> list[Stored]:
    """Return all runs that meet conditions, the newest first."""
    asked = sa.select(RUNS.c.run_id, RUNS.c.path, RUNS.c.work).where(RUNS.c.kind == "record", *met)
    with database.reading() as connection:
        return [Stored(*row) for row in connection.execute(asked.order_by(*NEWEST_FIRST))]


def stored(database: Database, run_id: str) -> Stored:
    """Return the newest run with an id.

    Raises:
        RecordError: there is none.
    """
    for run in every(database, RUNS.c.run_id == run_id):
        return run
    raise RecordError("no such run", where=run_id[:200], remedy="the list has all runs")


def launches(database: Database, run: Stored) -> list[Stored]:
    """Return all launches of a run in their order; of a run that has no repeats, itself."""
    place = _REPEAT.fullmatch(run.path)
    if place is None:
        return [run]
    near = every(database, RUNS.c.path > f"{place[1]}r", RUNS.c.path < f"{place[1]}s")
    return series(near).get(place[1], [run])  # which may be gone since


def series(runs: Iterable[Stored]) -> dict[str, list[Stored]]:
    """Return the launches of each run that has repeats, in their order, by its place."""
    found: dict[str, list[tuple[int, Stored]]] = {}
    for run in runs:
        if place := _REPEAT.fullmatch(run.path):
            found.setdefault(place[1], []).append((int(place[2]), run))
    return {place: [run for _, run in sorted(some)] for place, some in found.items()}


def sides(database: Database, run_ids: Sequence[str]) -> list[list[Record]]:
    """Return the launches of each run; of launches of one run that are told apart, each alone.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    runs = [stored(database, run_id) for run_id in run_ids]
    found = [launches(database, run) for run in runs]
    if any(set(one) & set(other) for one, other in combinations(found, 2)):
        found = [[run] for run in runs]
    return [[_record(database.place(run.path)) for run in some] for some in found]


def _record(path: str) -> Record:
    with opened(path) as (record, _):
        return record


@contextmanager
def opened(path: str) -> Iterator[tuple[Record, Path]]:
    """Give the record of a run and its file; that of a bundle is unpacked meanwhile.

    The record is redacted, and held against its evidence, unless there is very much of it.

    Args:
        path: as the index has it, placed: a run directory, a record, or one within a bundle.

    Raises:
        RecordError: the record is gone or cannot be read.
    """
    bundle, inside, place = path.partition(f"{ENDING}/")
    try:
        if inside:
            with unpacked(Path(bundle + ENDING)) as files:
                yield _read(files.folder / place)
        else:
            yield _read(Path(path))
    except FileNotFoundError:  # since the index was asked
        raise RecordError("its files are gone", where=path) from None


def held(record: Record) -> bool:
    """Tell whether a record's evidence is read for its page: it is not very much."""
    return sum(entry.bytes for entry in record.evidence) <= _MOST_BYTES


def _read(path: Path) -> tuple[Record, Path]:
    file = path / RECORD_FILE if path.is_dir() else path
    found = Reader(verify=False).read(file)
    if held(found):
        found = trust.with_findings(found, verify(found, file.parent))
    return redacted_record(found), file
