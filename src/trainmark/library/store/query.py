"""Questions to an index: runs that meet filters, in order, with the values of their columns.

A filter is a word such as ``case=toy``, ``device~H100``, ``p_core>100`` or ``since=2026-11-01``. A
value that is missing meets no condition. Values reach the database as parameters only.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from trainmark.errors import UsageError, nearest
from trainmark.library.store.columns import COLUMNS, column_name
from trainmark.library.store.database import RUNS
from trainmark.record.figures import FIGURES
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.library.store.database import Database

_WORD = re.compile(r'([^=!~<>\s"]+)(!=|>=|<=|=|~|>|<)(.+)', re.DOTALL)
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
_DATES = {"since": ">=", "until": "<"}
_LISTED = (*COLUMNS, "path", "kind", "configuration", "world", "work", *FIGURES)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip


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


def listing(
    database: Database,
    words: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    sort: str = "-started_utc",
    limit: int | None = None,
) -> Listing:
    """Return the runs that meet all filters.

    Args:
        columns: keys; None: those of an export, with all figures that any of the runs has.
        sort: a key, after ``-`` from the greatest; runs without a value come last.

    Raises:
        UsageError: an unknown key, or not a filter.
    """
    with database.reading() as connection:
        met = sa.and_(RUNS.c.kind != "unread", *(_condition(connection, word) for word in words))
        keys = list(_LISTED if columns is None else columns)
        by = _value(connection, sort.removeprefix("-"))
        order = (by.desc() if sort.startswith("-") else by).nulls_last()
        shown = [_value(connection, key) for key in keys]
        # The figures of cases' own are text to be parsed, row by row.
        more = RUNS.c.more if columns is None or {*keys} - {*RUNS.c.keys()} else sa.null()
        asked = sa.select(*(x.label(None) for x in shown), more, RUNS.c.final_result_unit)
        asked = asked.where(met).order_by(
            order, RUNS.c.started_utc.desc().nulls_last(), RUNS.c.path, RUNS.c.line
        )
        found = connection.execute(asked.limit(limit)).all()
        total = len(found)
        if limit is not None:
            total = connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(met)) or 0
    rows = [list(row) for *row, _, _ in found]
    owns = [(more or {}).get("figures", {}) for *_, more, _ in found]
    own = {name: of for figures in owns for name, of in figures.items()}
    if columns is None:
        keys += sorted(own)
        rows = [row + [of.get(x, [None])[0] for x in sorted(own)] for row, of in
                zip(rows, owns, strict=True)]  # fmt: skip
    if "path" in keys:
        at = keys.index("path")
        for row in rows:
            row[at] = database.place(row[at])
    units = {unit for *_, unit in found if unit}
    named = [_named(key, units, own) for key in keys]
    return Listing(total, keys, [head for head, _ in named], [unit for _, unit in named], rows)


def unread(database: Database) -> list[tuple[str, int, Message]]:
    """Return what could not be read: path, line (0: the whole file), and the reason."""
    asked = sa.select(RUNS.c.path, RUNS.c.line, RUNS.c.more).where(RUNS.c.kind == "unread")
    with database.reading() as connection:
        found = connection.execute(asked.order_by(RUNS.c.path, RUNS.c.line)).all()
    return [(database.place(path), line, Message(**more["reason"])) for path, line, more in found]


def _value(connection: sa.Connection, key: str) -> Any:
    """Return the column that a key is, or the figure of a case's own.

    Raises:
        UsageError: it is none, naming the nearest one.
    """
    if key in RUNS.c and key != "more":
        return RUNS.c[key]
    own = RUNS.c.more["figures", key, 0].as_float()
    if (
        '"' in key
        or connection.scalar(sa.select(RUNS.c.id).where(own.is_not(None)).limit(1)) is None
    ):
        names = {*RUNS.c.keys(), *_DATES}
        raise UsageError(f"unknown key {key!r}", where=key, remedy=nearest(key, names))
    return own


def _named(key: str, units: set[str], own: dict[str, list[Any]]) -> tuple[str, str]:
    """Return the name that an export gives a column, and its unit.

    Args:
        units: those of the rows' final result, which is each case's own.
        own: figures of cases' own, as the index holds them.
    """
    if spec := FIGURES.get(key):
        of_cases = next(iter(units)) if len(units) == 1 else ""
        return column_name(key, spec.unit, spec), of_cases if "{" in spec.unit else spec.unit
    _, unit, column = own.get(key, (None, "", key))
    return column, unit


def _condition(connection: sa.Connection, word: str) -> Any:
    """Return the condition that a word is.

    Raises:
        UsageError: not a filter, an unknown key, or a value or operator not of the key's type.
    """
    parts = _WORD.fullmatch(word)
    if parts is None:
        raise UsageError(
            f"not a filter: {word[:80]!r}",
            where="filter",
            rule=_RULE,
            remedy="name a folder with --store",
        )
    key, sign, value = parts.groups()
    if key in _DATES and sign == "=":
        return _COMPARE[_DATES[key]](RUNS.c.started_utc, _time(value, word))
    column, given = _value(connection, key), None
    kind = column.type.python_type
    if kind is str:
        rule = "text has = != ~; dates since=DATE, until=DATE"
        if sign == "~":
            return column.icontains(value, autoescape=True)
        given = value if sign in ("=", "!=") else None
    elif kind is bool:
        rule = "= or != true or false"
        given = {"true": True, "false": False}.get(value) if sign in ("=", "!=") else None
    else:
        rule = "numbers have = != > >= < <=, in the unit of the record"
        if sign != "~" and re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value):
            given = sa.literal(float(value), sa.Double())
    if given is None:
        raise UsageError(f"{word!r} is not a comparison", where=word, rule=rule)
    return _COMPARE[sign](column, given)


def _time(value: str, word: str) -> str:
    """Return a date or time as records write it; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(value)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        rule = "2026-11-01 or 2026-11-01T08:00, UTC"
        raise UsageError(f"{word!r} is not a date", where=word, rule=rule) from None
    return found.isoformat(timespec="seconds")
