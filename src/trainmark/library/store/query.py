"""Questions to an index: runs that meet filters, in order, with the values of their columns."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa

from trainmark.errors import UsageError
from trainmark.library.store.filters import COLUMNS, SETS, Known, condition
from trainmark.library.store.tables import (
    ENVIRONMENT,
    FIGURE_NAMES,
    FIGURES,
    MARKS,
    RUNS,
    SERIES,
    UNREAD,
)  # fmt: skip
from trainmark.pages.exports.tables import COLUMNS as EXPORTED
from trainmark.pages.exports.tables import column_name
from trainmark.record.figures import FIGURES as SPECS
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainmark.library.store.database import Database

SERIES_COLUMNS = ("step_times", "losses")  # of at most 32 points, see ``entries.reduced_series``
_EXPORTED = (*EXPORTED, "path", "kind", "configuration", "world", "work")
NEWEST_FIRST = (RUNS.c.started_utc.desc().nulls_last(), RUNS.c.path, RUNS.c.line, RUNS.c.id)
_MOST_IDS = 20_000  # runs that a query names one by one


@dataclass(slots=True)
class Listing:
    """Runs that meet filters.

    Args:
        total: how many there are, of which ``rows`` has the first.
        columns: the keys of the columns; ``heads``: the names that an export gives them;
            ``units``: a figure's, empty where runs differ in it.
        rows: a value a column; None: not known.
    """

    total: int
    columns: list[str]
    heads: list[str]
    units: list[str]
    rows: list[list[Any]]

    def documents(self) -> list[dict[str, Any]]:
        """Return the rows by the keys of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def without(self, key: str) -> Listing:
        """Return the listing after it lost a column."""
        at = self.columns.index(key)
        for cells in (self.columns, self.heads, self.units, *self.rows):
            del cells[at]
        return self


def listing(
    database: Database,
    words: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    sort: str = "-started",
    limit: int | None = None,
    offset: int = 0,
    first_of: Sequence[str] = (),
) -> Listing:
    """Return the runs that meet all filters.

    Args:
        columns: keys; None: those of an export, with all figures that any of the runs has.
        sort: a key, after ``-`` from the greatest; runs without a value come last.
        offset: how many of the first to leave out.
        first_of: columns; of the runs with the same values in them, only the first counts.

    Raises:
        UsageError: an unknown key, or not a filter.
    """
    with database.reading() as connection:
        known = Known.of(connection)
        keys = list(_EXPORTED)
        if columns is not None:
            keys = [
                x if x in (*RUNS.c.keys(), *SERIES_COLUMNS) else known.check(x) for x in columns
            ]
        met, order = _met(words, known), _order(sort, known)
        if first_of:
            same = [RUNS.c[key] for key in first_of]
            place = sa.func.row_number().over(partition_by=same, order_by=order)
            ranked = sa.select(RUNS.c.id, place.label("place")).where(met).subquery()
            met = RUNS.c.id.in_(sa.select(ranked.c.id).where(ranked.c.place == 1))
        plain = [RUNS.c[key] for key in dict.fromkeys(keys) if key in RUNS.c]
        asked = sa.select(RUNS.c.id, RUNS.c.environment_id, *plain).where(met)
        found = connection.execute(asked.order_by(*order).limit(limit).offset(offset)).all()
        total = len(found)
        if limit is not None or offset:
            total = connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(met)) or 0
        ids = [row[0] for row in found]
        names = None if columns is None else [key for key in keys if key in known.figures]
        figures, used = _figures(connection, ids, names)
        if columns is None:
            taken = {*SPECS, *RUNS.c.keys()}  # a column is what its name stands for in filters too
            others = sorted(name for name in figures.keys() - taken if not name.startswith("env."))
            keys += [*SPECS, *others]
        values = {x.name: [row[at] for row in found] for at, x in enumerate(plain, start=2)}
        if "path" in values:
            values["path"] = [database.place(path) for path in values["path"]]
        for key in set(keys) - values.keys():
            if key in known.environment:
                facts = _facts(connection, known.environment[key])
                values[key] = [facts.get(row[1]) for row in found]
            elif key in known.figures:
                values[key] = [figures.get(key, {}).get(ident) for ident in ids]
            else:
                rows = (_series if key in SERIES_COLUMNS else _marks)(connection, ids, key)
                values[key] = [rows.get(ident, []) for ident in ids]
        named = _named(connection, used)
    return Listing(
        total,
        keys,
        [named[key][1] if key in named else key for key in keys],
        [named[key][0] if key in named else "" for key in keys],
        [list(row) for row in zip(*(values[key] for key in keys), strict=True)],
    )


def counts(
    database: Database, keys: Sequence[str], words: Sequence[str] = ()
) -> list[tuple[tuple[Any, ...], int]]:
    """Return each combination of values of columns, in their order, and how many runs have it.

    Raises:
        UsageError: not a filter.
    """
    columns = [RUNS.c[key] for key in keys]
    with database.reading() as connection:
        asked = sa.select(*columns, sa.func.count()).where(_met(words, Known.of(connection)))
        order = [column.nulls_last() for column in columns]
        found = connection.execute(asked.group_by(*columns).order_by(*order)).all()
    return [(tuple(values), count) for *values, count in found]


def unread(database: Database) -> list[tuple[str, int, Message]]:
    """Return what could not be read: path, line (0: the whole file), and the reason."""
    asked = sa.select(UNREAD.c.path, UNREAD.c.line, UNREAD.c.reason)
    with database.reading() as connection:
        found = connection.execute(asked.order_by(UNREAD.c.path, UNREAD.c.line)).all()
    return [(database.place(path), line, Message(**json.loads(text))) for path, line, text in found]


def _met(words: Sequence[str], known: Known) -> sa.ColumnElement[bool]:
    return sa.and_(sa.true(), *(condition(word, known) for word in words))


def _order(sort: str, known: Known) -> list[sa.ColumnElement[Any]]:
    """Return what runs are sorted by: a key, then the newest, then the place."""
    key = known.check(sort.removeprefix("-"))
    by: Any = COLUMNS.get(key)
    if key in known.figures:
        values = sa.select(sa.func.max(FIGURES.c.value)).where(FIGURES.c.run_id == RUNS.c.id)
        by = values.where(FIGURES.c.name_id.in_(known.figures[key])).scalar_subquery()
    if by is None:
        raise UsageError(
            f"runs have no order by {key!r}", where="--sort", rule="a column or figure"
        )
    first = by.desc() if sort.startswith("-") else by.asc()
    return [first.nulls_last(), *NEWEST_FIRST]


def _of_runs(asked: sa.Select[Any], run: sa.Column[Any], ids: Sequence[int]) -> sa.Select[Any]:
    """Return a query of few runs only, or of all where it would have to name very many."""
    return asked.where(run.in_(ids)) if len(ids) <= _MOST_IDS else asked


def _figures(
    connection: sa.Connection, ids: Sequence[int], names: Sequence[str] | None
) -> tuple[dict[str, dict[int, float]], set[int]]:
    """Return the values of figures by name and run, and the ids that the figures have.

    Args:
        names: of the figures; None: all that the runs have.
    """
    name = FIGURE_NAMES.c
    asked = sa.select(name.id, name.name, FIGURES.c.run_id, FIGURES.c.value)
    asked = asked.where(name.id == FIGURES.c.name_id)
    if names is not None:
        asked = asked.where(name.name.in_(names))
    found: dict[str, dict[int, float]] = {}
    used, listed = set(), set(ids)
    for ident, figure, run, value in connection.execute(_of_runs(asked, FIGURES.c.run_id, ids)):
        if run in listed:
            found.setdefault(figure, {})[run] = value
            used.add(ident)
    return found, used


def _facts(connection: sa.Connection, names: Sequence[str]) -> dict[int, str | float]:
    """Return the values of names of the environment by its id; several are joined."""
    facts = ENVIRONMENT.c
    asked = sa.select(facts.environment_id, facts.text, facts.number).where(facts.name.in_(names))
    found: dict[int, str | float] = {}
    for ident, text, number in connection.execute(asked.order_by(facts.place)):
        one = text if number is None else number
        found[ident] = f"{found[ident]}, {one}" if ident in found else one
    return found


def _series(connection: sa.Connection, ids: Sequence[int], key: str) -> Mapping[int, list[Any]]:
    """Return one of the two reduced series of steps by run."""
    found, place = {}, SERIES_COLUMNS.index(key)
    asked = _of_runs(sa.select(SERIES.c.run_id, SERIES.c.reduced), SERIES.c.run_id, ids)
    for run, reduced in connection.execute(asked):
        points = np.frombuffer(reduced, "<f4").reshape(2, -1)[place].tolist()
        found[run] = [value if math.isfinite(value) else None for value in points]
    return found


def _marks(connection: sa.Connection, ids: Sequence[int], key: str) -> Mapping[int, list[Any]]:
    """Return the labels, or codes of notes, by run."""
    found: dict[int, list[str]] = {}
    asked = sa.select(MARKS.c.run_id, MARKS.c.value).where(MARKS.c.kind.in_(SETS[key]))
    for run, value in connection.execute(_of_runs(asked, MARKS.c.run_id, ids).order_by("value")):
        found.setdefault(run, []).append(value)
    return found


def _named(connection: sa.Connection, used: set[int]) -> dict[str, tuple[str, str]]:
    """Return a figure's unit and exported name by its name; no unit where runs differ in it.

    Args:
        used: the ids of those that the runs have; a figure that none has is called as usual.
    """
    found = {
        x.name: ("" if "{" in x.unit else x.unit, column_name(x.name, x.unit, x))
        for x in SPECS.values()
    }
    name, seen = FIGURE_NAMES.c, set()
    asked = sa.select(name.id, name.name, name.unit, name.csv_column).order_by("name", "unit")
    for ident, figure, unit, column in connection.execute(asked):
        if ident not in used:
            found.setdefault(figure, (unit, column))
            continue
        found[figure] = ("" if figure in seen and found[figure][0] != unit else unit, column)
        seen.add(figure)
    return found
