"""Questions to an index: runs that meet filters, in order, with the values of their columns.

A filter is a word such as ``case=toy``, ``device~H100``, ``p_core>100`` or ``since=2026-11-01``. A
value that is missing meets no condition; of several values, such as labels, ``=`` asks for one that
is equal and ``!=`` for none that is. Values reach the database as parameters only.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from trainmark.errors import UsageError, nearest
from trainmark.library.store.columns import COLUMNS as OF_RECORDS
from trainmark.library.store.columns import column_name
from trainmark.library.store.entries import MOST_TEXT, stored
from trainmark.library.store.tables import ENVIRONMENTS, FIGURE_NAMES, RUNS
from trainmark.record.figures import FIGURES
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.library.store.database import Database

_WORD = re.compile(r"([^=!~<>\s]+)(!=|>=|<=|=|~|>|<)(.+)", re.DOTALL)
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
# Other names of a column, and the operator that they stand for.
_SHORT = {
    name: ("started_utc", sign) for name, sign in (("since", ">="), ("until", "<"), ("started", ""))
}
_SETS = ("label", "note")
_LISTED = (*OF_RECORDS, "path", "kind", "configuration", "world", "work")
_COLUMNS = {*_LISTED, *FIGURES, *_SETS, "source", "line"} - {"labels"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip
_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}
NEWEST_FIRST = (RUNS.c.started_utc.desc().nulls_last(), RUNS.c.path, RUNS.c.line, RUNS.c.id)


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
    first_of: Sequence[str] = (),
) -> Listing:
    """Return the runs that meet all filters.

    Args:
        columns: keys; None: those of an export, with all figures that any of the runs has.
        sort: a key, after ``-`` from the greatest; runs without a value come last.
        first_of: columns; of the runs with the same values in them, only the first counts.

    Raises:
        UsageError: an unknown key, or not a filter.
    """
    with database.reading() as connection:
        query = _Query(connection)
        keys = [*_LISTED, *FIGURES]
        if columns is not None:
            keys = [key if key in RUNS.c else query.key(key) for key in columns]
        met, order = query.met(words), query.order(sort)
        if first_of:
            same = [RUNS.c[key] for key in first_of]
            place = sa.func.row_number().over(partition_by=same, order_by=order)
            ranked = sa.select(RUNS.c.id, place.label("place")).where(met).subquery()
            met = RUNS.c.id.in_(sa.select(ranked.c.id).where(ranked.c.place == 1))
        beside = [RUNS.c.more if columns is None else sa.null(), RUNS.c.final_result_unit]
        values = [*(query.value(key) for key in keys), *beside]
        asked = sa.select(*(value.label(None) for value in values)).where(met)
        found = connection.execute(asked.order_by(*order).limit(limit)).all()
        total = len(found)
        if limit is not None:
            total = connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(met)) or 0
        rows = [[query.shown(x, key) for x, key in zip(row, keys, strict=False)] for row in found]
        if columns is None:
            own = [((more or {}).get("figures") or {}) for *_, more, _ in found]
            names = sorted({name for figures in own for name in figures} - {*RUNS.c.keys()})
            keys += (more := [name for name in names if not name.startswith("env.")])
            rows = [row + [of.get(x) for x in more] for row, of in zip(rows, own, strict=True)]
        if "path" in keys:
            at = keys.index("path")
            for row in rows:
                row[at] = database.place(row[at])
        units = {unit for *_, unit in found if unit}
        named = [query.named(key, units) for key in keys]
    return Listing(total, keys, [head for head, _ in named], [unit for _, unit in named], rows)


def counts(
    database: Database, keys: Sequence[str], words: Sequence[str] = ()
) -> list[tuple[tuple[Any, ...], int]]:
    """Return each combination of values of columns, in their order, and how many runs have it.

    Raises:
        UsageError: not a filter.
    """
    columns = [RUNS.c[key] for key in keys]
    with database.reading() as connection:
        asked = sa.select(*columns, sa.func.count()).where(_Query(connection).met(words))
        order = [column.nulls_last() for column in columns]
        found = connection.execute(asked.group_by(*columns).order_by(*order)).all()
    return [(tuple(values), count) for *values, count in found]


def unread(database: Database) -> list[tuple[str, int, Message]]:
    """Return what could not be read: path, line (0: the whole file), and the reason."""
    asked = sa.select(RUNS.c.path, RUNS.c.line, RUNS.c.more).where(RUNS.c.kind == "unread")
    with database.reading() as connection:
        found = connection.execute(asked.order_by(RUNS.c.path, RUNS.c.line)).all()
    return [(database.place(path), line, Message(**more["reason"])) for path, line, more in found]


class _Query:
    """What words mean in an index: its keys, conditions and orders."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    @cached_property
    def _own(self) -> dict[str, list[tuple[str, str]]]:
        """The units and columns of each figure of a case's own."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, unit, column in self._connection.execute(sa.select(FIGURE_NAMES)):
            found.setdefault(name, []).append((unit, column))
        return found

    @cached_property
    def _environments(self) -> dict[int, dict[str, list[Any]]]:
        """The facts of each environment; a name also stands for longer ones that end with it."""
        found: dict[int, dict[str, list[Any]]] = {}
        for ident, facts in self._connection.execute(sa.select(ENVIRONMENTS)):
            of = found[ident] = {}
            for name, values in facts.items():
                for key in {name, name.rpartition(".")[2]}:
                    of[f"env.{key}"] = of.get(f"env.{key}", []) + values
        return found

    def key(self, key: str) -> str:
        """Return the column, figure or name of the environment that ``key`` is.

        Raises:
            UsageError: it is none, naming the nearest one.
        """
        if key in _COLUMNS or key in self._own:
            return key
        if key in _SHORT:
            return _SHORT[key][0]
        names = {*_COLUMNS, *_SHORT, *self._own}
        if key.startswith("env."):
            names = {name for of in self._environments.values() for name in of}
        if key not in names:
            raise UsageError(f"unknown key {key!r}", where=key, remedy=nearest(key, names))
        return key

    def value(self, key: str) -> sa.ColumnElement[Any]:
        """Return what the database knows of a key."""
        if key in RUNS.c:
            return RUNS.c[key]
        own: sa.ColumnElement[Any] = RUNS.c.more["figures", key].as_float()
        return own if key in self._own else RUNS.c.environment_id

    def shown(self, value: Any, key: str) -> Any:
        """Return the value of a key out of what the database knows of it."""
        if key in _SETS:
            return (value or "").split()
        if key in RUNS.c or key in self._own:
            return value
        facts = self._environments.get(value, {}).get(key, [])
        return facts[0] if len(facts) == 1 else ", ".join(map(str, facts)) or None

    def named(self, key: str, units: set[str]) -> tuple[str, str]:
        """Return the name that an export gives a column, and its unit; empty: rows differ.

        Args:
            units: those of the rows' final result, which is each case's own.
        """
        if spec := FIGURES.get(key):
            of_cases = units.pop() if len(units) == 1 else ""
            unit = of_cases if "{" in spec.unit else spec.unit
            return column_name(key, spec.unit, spec), unit
        if key in self._own:
            unit, column = self._own[key][0]
            return column, unit if len(self._own[key]) == 1 else ""
        return key, ""

    def met(self, words: Sequence[str]) -> sa.ColumnElement[bool]:
        """Return the condition that all of ``words`` are met.

        Raises:
            UsageError: not a filter, an unknown key, or a value or operator not of the key's type.
        """
        return sa.and_(RUNS.c.kind != "unread", *map(self._condition, words))

    def _condition(self, word: str) -> sa.ColumnElement[bool]:
        parts = _WORD.fullmatch(word)
        if parts is None or len(word) > MOST_TEXT:
            raise UsageError(f"not a filter: {word[:80]!r}", where="filter", rule=_RULE)
        named, sign, value = parts[1], parts[2], stored(parts[3])
        key = self.key(named)
        if named in _SHORT:
            fixed = _SHORT[named][1]
            if sign == "~" or (fixed and sign != "="):
                rule = "since=DATE, until=DATE; started has = != > >= < <="
                raise UsageError(f"{word!r}", where=word, rule=rule)
            return _compared(RUNS.c[key], fixed or sign, _time(value, word))
        if key in _SETS:
            if sign == "~":
                return _contains(RUNS.c[key], value)
            found = RUNS.c[key].contains(f"\n{value}\n", autoescape=True)
            if sign not in ("=", "!="):
                raise UsageError(f"{word!r}", where=word, rule="labels and notes have = != ~")
            return found if sign == "=" else sa.not_(sa.func.coalesce(found, sa.false()))
        if key in RUNS.c or key in self._own:
            return _typed(self.value(key), sign, value, word)
        return self._of_environments(key, sign, value)

    def _of_environments(self, key: str, sign: str, value: str) -> sa.ColumnElement[bool]:
        number, ids = _as_number(value), []
        for ident, facts in self._environments.items():
            values = facts.get(key, [])
            texts = [str(one).translate(_LOWER) for one in values]
            if sign == "~":
                met = any(value.translate(_LOWER) in text for text in texts)
            elif sign in ("=", "!="):
                equal = any(one in (value, number) for one in values)
                met = equal if sign == "=" else bool(values) and not equal
            else:
                numbers = [one for one in values if not isinstance(one, str)]
                met = number is not None and any(_COMPARE[sign](one, number) for one in numbers)
            ids += [ident] if met else []
        # In the statement itself: there may be more than a database takes parameters.
        named: sa.BindParameter[Any] = sa.bindparam(
            "ids", ids, expanding=True, literal_execute=True, unique=True
        )
        return RUNS.c.environment_id.in_(named)

    def order(self, sort: str) -> list[sa.ColumnElement[Any]]:
        """Return what runs are sorted by: a key, then the newest, then the place.

        Raises:
            UsageError: an unknown key, or one that has no order.
        """
        key = self.key(sort.removeprefix("-"))
        if key in _SETS or (key not in RUNS.c and key not in self._own):
            rule = "a column or figure"
            raise UsageError(f"runs have no order by {key!r}", where="--sort", rule=rule)
        by = self.value(key)
        return [(by.desc() if sort.startswith("-") else by).nulls_last(), *NEWEST_FIRST]


def _typed(column: Any, sign: str, value: str, word: str) -> sa.ColumnElement[bool]:
    """Return a comparison of a column with a value of its type."""
    given: Any = value
    if isinstance(column.type, sa.Text):
        if sign == "~":
            return _contains(column, value)
        rule = None if sign in ("=", "!=") else "text has = != ~"
    elif isinstance(column.type, sa.Boolean):
        given = {"true": True, "false": False}.get(value.lower())
        rule = None if sign in ("=", "!=") and given is not None else "= or != true or false"
    else:
        number = _as_number(value)
        given = sa.literal(number, sa.Double())
        rule = "numbers have = != > >= < <=, in the unit of the record"
        rule = rule if sign == "~" or number is None else None
    if rule:
        raise UsageError(f"{word!r} is not a comparison", where=word, rule=rule)
    return _compared(column, sign, given)


def _compared(column: Any, sign: str, given: Any) -> sa.ColumnElement[bool]:
    found: sa.ColumnElement[bool] = _COMPARE[sign](column, given)
    return found


def _contains(column: sa.Column[Any], value: str) -> sa.ColumnElement[bool]:
    """Compare in ASCII's lower case, which all databases agree on."""
    return sa.func.lower(column).contains(value.translate(_LOWER), autoescape=True)


def _as_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _time(value: str, word: str) -> str:
    """Return a date or time as records write it; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(value)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = "2026-11-01 or 2026-11-01T08:00, UTC"
        raise UsageError(f"{word!r} is not a date", where=word, rule=rule) from None
    return found.isoformat(timespec="seconds")
