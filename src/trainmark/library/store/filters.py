"""The filter language: ``case=toy device~H100 p_core>100 since=2026-11-01``.

Owns which keys and operators there are. A value that is missing meets no condition; of several
values, such as labels, ``=`` asks for one that is equal and ``!=`` for none that is. Values reach
the database as parameters only.
"""

from __future__ import annotations

import math
import operator
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from trainmark.errors import UsageError, nearest
from trainmark.library.store.entries import MOST_TEXT, stored
from trainmark.library.store.tables import ENVIRONMENT, FIGURE_NAMES, FIGURES, MARKS, RUNS
from trainmark.record.figures import FIGURES as SPECS

if TYPE_CHECKING:
    from collections.abc import Callable

_WORD = re.compile(r"([^=!~<>\s]+)(!=|>=|<=|=|~|>|<)(.+)", re.DOTALL)
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
# Other names of a column, and the operator that they stand for.
SHORT = {
    name: ("started_utc", sign) for name, sign in (("since", ">="), ("until", "<"), ("started", ""))
}
# Columns that ``text~VALUE`` looks into.
SEARCHED = ("run_id", "case", "recipe", "device", "precision", "labels", "configuration")
SETS = {"label": ("label",), "note": ("note", "finding")}  # kinds of marks
COLUMNS = {
    x.name: x
    for x in RUNS.columns
    if x.name not in ("id", "labels", "environment_id", "bytes", "mtime_ns", "document")
}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le,
}  # fmt: skip
_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}


class Known(NamedTuple):
    """The keys that an index has besides its columns: figures with their ids, the environment."""

    figures: dict[str, list[int]]
    environment: dict[str, list[str]]

    @classmethod
    def of(cls, connection: sa.Connection) -> Known:
        """Return those of a database; a name of the environment also stands for longer ones."""
        figures: dict[str, list[int]] = {name: [] for name in SPECS}
        for name, ident in connection.execute(sa.select(FIGURE_NAMES.c.name, FIGURE_NAMES.c.id)):
            figures.setdefault(name, []).append(ident)
        environment: dict[str, list[str]] = {}
        for name in connection.scalars(sa.select(ENVIRONMENT.c.name).distinct()):
            for key in {name, name.rpartition(".")[2]}:
                environment.setdefault(f"env.{key}", []).append(name)
        return cls(figures, environment)

    def check(self, key: str) -> str:
        """Return the column, figure, set or name of the environment that ``key`` is.

        Raises:
            UsageError: it is none, naming the nearest one.
        """
        names = {*COLUMNS, *SETS, *SHORT, *self.figures, *self.environment}
        if key not in names:
            listed = {name for name in names if name.startswith("env.") == key.startswith("env.")}
            raise UsageError(f"unknown key {key!r}", where=key, remedy=nearest(key, listed))
        return SHORT[key][0] if key in SHORT else key


def condition(word: str, known: Known) -> sa.ColumnElement[bool]:
    """Return the condition on ``runs`` that a word stands for.

    Raises:
        UsageError: not a filter, an unknown key, or a value or operator not of the key's type.
    """
    parts = _WORD.fullmatch(word)
    if parts is None or len(word) > MOST_TEXT:
        raise UsageError(f"not a filter: {word[:80]!r}", where="filter", rule=_RULE)
    named, sign, value = parts[1], parts[2], stored(parts[3])
    if (named, sign) == ("text", "~"):
        return sa.or_(*(_met(RUNS.c[name], sign, value, word) for name in SEARCHED))
    key = known.check(named)
    if named in SHORT:
        fixed = SHORT[named][1]
        if fixed and sign != "=":
            raise UsageError(f"{word!r}", where=word, rule="since=DATE, until=DATE")
        if sign not in _COMPARE:
            raise UsageError(f"{word!r}", where=word, rule="dates have = != > >= < <=")
        at: sa.ColumnElement[bool] = _COMPARE[fixed or sign](COLUMNS[key], _time(value, word))
        return at
    if key in COLUMNS:
        return _met(COLUMNS[key], sign, value, word)
    if key in SETS:
        met = _met(MARKS.c.value, "=" if sign == "!=" else sign, value, word)
        found = RUNS.c.id.in_(sa.select(MARKS.c.run_id).where(MARKS.c.kind.in_(SETS[key]), met))
        return sa.not_(found) if sign == "!=" else found
    either = []
    if key in known.environment:
        either.append(_environment(known.environment[key], sign, value, word))
    if key in known.figures and (not either or _as_number(value) is not None):
        named_so = FIGURES.c.name_id.in_(known.figures[key])
        met = _met(FIGURES.c.value, sign, value, word)
        either.append(RUNS.c.id.in_(sa.select(FIGURES.c.run_id).where(named_so, met)))
    return sa.or_(*either)


def _environment(names: list[str], sign: str, value: str, word: str) -> sa.ColumnElement[bool]:
    """Return the condition on facts, which are text or numbers."""
    asked = "=" if sign == "!=" else sign
    either = [_met(ENVIRONMENT.c.text, asked, value, word)] if asked in "=~" else []
    if asked not in "=~" or (asked == "=" and _as_number(value) is not None):
        either.append(_met(ENVIRONMENT.c.number, asked, value, word))
    there = sa.select(ENVIRONMENT.c.environment_id).where(ENVIRONMENT.c.name.in_(names))
    met = RUNS.c.environment_id.in_(there.where(sa.or_(*either)))
    return sa.and_(RUNS.c.environment_id.in_(there), sa.not_(met)) if sign == "!=" else met


def _met(column: sa.Column[Any], sign: str, value: str, word: str) -> sa.ColumnElement[bool]:
    """Return a comparison of a column with a value of its type."""
    given: Any = value
    if isinstance(column.type, sa.Text):
        if sign == "~":  # both sides in ASCII's lower case, which all databases agree on
            return sa.func.lower(column).contains(value.translate(_LOWER), autoescape=True)
        rule = None if sign in ("=", "!=") else "text has = != ~"
    elif isinstance(column.type, sa.Boolean):
        given = _BOOLS.get(value.lower())
        rule = None if sign in ("=", "!=") and given is not None else "= or != true or false"
    else:
        number = _as_number(value)
        given = sa.literal(number, sa.Double())
        rule = "numbers have = != > >= < <=, in the unit of the record"
        rule = rule if sign == "~" or number is None else None
    if rule:
        raise UsageError(f"{word!r} is not a comparison", where=word, rule=rule)
    found: sa.ColumnElement[bool] = _COMPARE[sign](column, given)
    return found


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
        raise UsageError(
            f"{word!r} is not a date", where=word, rule="2026-11-01 or 2026-11-01T08:00, UTC"
        ) from None
    return found.isoformat(timespec="seconds")
