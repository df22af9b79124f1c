"""Questions to an index: runs that meet filters, in order, with the values of their columns.

A filter is a word such as ``case=toy``, ``device~H100``, ``p_core>100`` or ``started_utc>2026-11``:
texts are compared byte by byte, as dates are written. Missing values never match. Fields of recipes
are keys too, by name or short name: ``bs=32``, ``compile=true``.
Values reach the database as parameters only.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.errors import UsageError, nearest
from trainmark.library.store.columns import COLUMNS, INDEXED, INTERNAL
from trainmark.library.store.index import TABLE
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.figures import FIGURES
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.library.store.index import Index

_WORD = re.compile(r"([^=!~<>\s]+)(!=|>=|<=|=|~|>|<)(.+)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?")
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
_LISTED = (*COLUMNS, "path", "world", "work", *FIGURES)
_KEYS = {"id": int, **INDEXED}


@dataclass(slots=True)
class Listing:
    """Runs that meet filters.

    Args:
        total: how many there are, of which ``rows`` has the first.
        columns: the keys of the columns; ``units``: a figure's, empty where runs differ in it.
        rows: a value a column; None: not known.
        settings: the columns that are fields of recipes.
    """

    total: int
    columns: list[str]
    units: list[str]
    rows: list[list[Any]]
    settings: Sequence[str] = ()

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
        columns: keys; None: those of an export.
        sort: a key, after ``-`` from the greatest; runs without a value come last.

    Raises:
        UsageError: an unknown key, or not a filter.
    """
    keys = list(_LISTED if columns is None else columns)
    columns_shown = [_column(key) for key in [*keys, "final_result_unit"]]
    # A recipe field is taken out of the settings below: JSON in SQL has no true and false.
    shown = ", ".join(x if x.startswith('"') else "settings" for x in columns_shown)
    by = f"{_column(sort.removeprefix('-'))} {'DESC' if sort.startswith('-') else 'ASC'}"
    conditions, values = ["unreadable IS NULL"], []
    for word in words:
        condition, value = _condition(word)
        conditions.append(condition)
        values.append(value)
    met = f"FROM {TABLE} WHERE {' AND '.join(conditions)}"
    order = f"{by} NULLS LAST, started_utc DESC NULLS LAST, path"
    with index.opened() as connection:
        asked = f"SELECT {shown} {met} ORDER BY {order} LIMIT ?"
        found = connection.execute(asked, [*values, -1 if limit is None else limit]).fetchall()
        total = connection.execute(f"SELECT count(*) {met}", values).fetchone()[0]
    units = {spec.name: spec.unit for spec in FIGURES.values()}
    of_cases = {unit for *_, unit in found if unit}  # of the final result
    units["final_result"] = of_cases.pop() if len(of_cases) == 1 else ""
    rows = [
        [_shown(index, key, value) for key, value in zip(keys, row, strict=False)] for row in found
    ]
    settings = [key for key in keys if key not in _KEYS]
    return Listing(total, keys, [units.get(key, "") for key in keys], rows, settings)


def _shown(index: Index, key: str, value: Any) -> Any:
    """Return the value of a key as a list has it, from what the database gave for it."""
    if key == "path":
        return index.place(value)
    if key in _KEYS:
        return value
    return json.loads(value or "{}").get(FIELD_ALIASES.get(key, key))


def unread(index: Index) -> list[tuple[str, Message]]:
    """Return the records that cannot be read: the path, and the reason."""
    asked = f"SELECT path, unreadable FROM {TABLE} WHERE unreadable IS NOT NULL ORDER BY path"
    with index.opened() as connection:
        found = connection.execute(asked).fetchall()
    return [(index.place(path), message("record_unreadable", error=why)) for path, why in found]


def _column(key: str) -> str:
    """Return what a key stands for in SQL: a column, or a field of the recipe.

    Raises:
        UsageError: it is neither, naming the nearest key.
    """
    if key in _KEYS:
        return f'"{key}"'
    field, known_fields = FIELD_ALIASES.get(key, key), _recipe_fields()
    if field not in known_fields:
        columns = _KEYS.keys() - {"id", *INTERNAL}
        every_key = {*columns, *known_fields, *FIELD_ALIASES}
        if get_close_matches(key, every_key):
            fix = nearest(key, every_key)
        else:
            fix = f"{nearest(key, columns)}, and recipe fields (`trainmark list fields`)"
        raise UsageError(f"unknown key {key!r}", where=key, fix=fix)
    return f"json_extract(settings, '$.{field}')"  # a name of a dataclass field


def _recipe_fields() -> set[str]:
    """Return the names of the recipe fields of all cases here."""
    return {field.name for case in cases.load_all()[0] for field in fields(case.recipe_type)}


def _kind_of_setting(value: str) -> type:
    """Return the type that a value of a recipe field is compared as."""
    if value in ("true", "false"):
        return bool
    return float if _NUMBER.fullmatch(value) else str


def _condition(word: str) -> tuple[str, str | float | bool]:
    """Return the condition that a word is, in SQL, and its parameter.

    Raises:
        UsageError: not a filter, an unknown key, or a value or operator not of the key's type.
    """
    with suppress(UsageError):
        word = f"case={cases.load(word).name}"
    parts = _WORD.fullmatch(word)
    if parts is None:
        what, fix = f"not a filter: {word[:80]!r}", "name a folder with --store"
        raise UsageError(what, where="filter", rule=_RULE, fix=fix)
    key, sign, value = parts.groups()
    column, kind = _column(key), _KEYS.get(key) or _kind_of_setting(value)
    given: str | float | bool | None = None
    if kind is str:
        if sign == "~":
            return f"instr(lower({column}), lower(?))", value
        given = value
    elif kind is bool:
        rule = "= or != true or false"
        given = {"true": True, "false": False}.get(value) if sign in ("=", "!=") else None
    else:
        rule = "numbers have = != > >= < <=, in the unit of the record"
        if sign != "~" and _NUMBER.fullmatch(value):
            given = float(value)
    if given is None:
        raise UsageError(f"{word!r} is not a comparison", where=word, rule=rule)
    return f"{column} {sign} ?", given
