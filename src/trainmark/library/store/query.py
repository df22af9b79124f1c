"""Questions to an index: runs that meet filters, in order, with the values of their columns.

A filter is a word such as ``case=toy``, ``device~H100``, ``p_core>100`` or ``started_utc>2026-11``:
texts are compared byte by byte, as dates are written. A value that is missing meets no condition.
Values reach the database as parameters only.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from trainmark.errors import UsageError, nearest
from trainmark.library.store.columns import COLUMNS, column_name
from trainmark.library.store.index import RUNS
from trainmark.record.figures import FIGURES
from trainmark.spec import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.library.store.index import Index

_WORD = re.compile(r'([^=!~<>\s"]+)(!=|>=|<=|=|~|>|<)(.+)', re.DOTALL)
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
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
    index: Index,
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
    keys = list(_LISTED if columns is None else columns)
    with index.reading() as connection:
        met = sa.and_(RUNS.c.kind != "unread", *(_condition(connection, word) for word in words))
        by = _value(connection, sort.removeprefix("-"))
        order = (by.desc() if sort.startswith("-") else by).nulls_last()
        shown = [_value(connection, key).label(None) for key in keys]
        # The figures of cases' own are text to be parsed, row by row.
        more = RUNS.c.more if columns is None or {*keys} - {*RUNS.c.keys()} else sa.null()
        asked = sa.select(*shown, more, RUNS.c.final_result_unit).where(met).order_by(
            order, RUNS.c.started_utc.desc().nulls_last(), RUNS.c.path, RUNS.c.line
        )  # fmt: skip
        found = connection.execute(asked.limit(limit)).all()
        total = len(found)
        if limit is not None:
            total = connection.scalar(sa.select(sa.func.count()).select_from(RUNS).where(met)) or 0
    owns = [(more or {}).get("figures", {}) for *_, more, _ in found]
    units = {spec.name: spec.unit for spec in FIGURES.values()}
    units |= {name: unit for figures in owns for name, (_, unit) in figures.items()}
    of_cases = {unit for *_, unit in found if unit}  # of the final result
    units["final_result"] = of_cases.pop() if len(of_cases) == 1 else ""
    own = sorted({name for figures in owns for name in figures} if columns is None else ())
    rows = [
        [*row, *(figures.get(name, [None])[0] for name in own)]
        for (*row, _, _), figures in zip(found, owns, strict=True)
    ]
    for at in (at for at, key in enumerate(keys) if key == "path"):
        for row in rows:
            row[at] = index.place(row[at])
    keys += own
    heads = [column_name(key, units.get(key, ""), FIGURES.get(key)) for key in keys]
    return Listing(total, keys, heads, [units.get(key, "") for key in keys], rows)


def unread(index: Index) -> list[tuple[str, int, Message]]:
    """Return what could not be read: path, line (0: the whole file), and the reason."""
    asked = sa.select(RUNS.c.path, RUNS.c.line, RUNS.c.more).where(RUNS.c.kind == "unread")
    with index.reading() as connection:
        found = connection.execute(asked.order_by(RUNS.c.path, RUNS.c.line)).all()
    return [(index.place(path), line, Message(**more["reason"])) for path, line, more in found]


def _value(connection: sa.Connection, key: str) -> Any:
    """Return the column that a key is, or the figure of a case's own.

    Raises:
        UsageError: it is none, naming the nearest one.
    """
    if key in RUNS.c and key != "more":
        return RUNS.c[key]
    own = RUNS.c.more["figures", key, 0].as_float()
    known = sa.select(RUNS.c.id).where(own.is_not(None)).limit(1)
    if '"' in key or connection.scalar(known) is None:
        raise UsageError(f"unknown key {key!r}", where=key, remedy=nearest(key, [*RUNS.c.keys()]))
    return own


def _condition(connection: sa.Connection, word: str) -> Any:
    """Return the condition that a word is.

    Raises:
        UsageError: not a filter, an unknown key, or a value or operator not of the key's type.
    """
    parts = _WORD.fullmatch(word)
    if parts is None:
        what, remedy = f"not a filter: {word[:80]!r}", "name a folder with --store"
        raise UsageError(what, where="filter", rule=_RULE, remedy=remedy)
    key, sign, value = parts.groups()
    column, given = _value(connection, key), None
    kind = column.type.python_type
    if kind is str:
        if sign == "~":
            return column.icontains(value, autoescape=True)
        given = value
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
