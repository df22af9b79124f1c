"""List the runs of an index that match filters, in order, with the values of their columns.

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
from trainmark.errors import UsageError, suggest_nearest
from trainmark.recipe import FIELD_ALIASES
from trainmark.record.figures import FIGURES
from trainmark.results.store.columns import COLUMNS, INDEX_COLUMNS, INTERNAL_COLUMNS
from trainmark.results.store.index import TABLE
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.results.store.index import Index

_FILTER = re.compile(r"([^=!~<>\s]+)(!=|>=|<=|=|~|>|<)(.+)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?")
_RULE = "KEY OPERATOR VALUE, as case=toy, device~H100, p_core>100; operators = != ~ > >= < <="
_DEFAULT_KEYS = (*COLUMNS, "path", "world", "work", *FIGURES)
_KEY_TYPES = {"id": int, **INDEX_COLUMNS}


@dataclass(slots=True)
class Listing:
    """The runs that match filters.

    Args:
        total: number of matching runs; ``rows`` may have only the first ones.
        columns: the key of each column.
        units: the unit of each column; empty: it has none, or the runs differ in it.
        rows: a value for each column; None: not known.
        settings: the columns that are fields of recipes.
    """

    total: int
    columns: list[str]
    units: list[str]
    rows: list[list[Any]]
    settings: Sequence[str] = ()

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary by the keys of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def list_runs(
    index: Index,
    words: Sequence[str] = (),
    *,
    columns: Sequence[str] | None = None,
    sort: str = "-started_utc",
    limit: int | None = None,
) -> Listing:
    """Return the runs that match all filters.

    Args:
        words: filters, as the module describes them.
        columns: keys; None: those of an export.
        sort: a key; with ``-`` before it in descending order. Runs without a value come last.

    Raises:
        UsageError: a key is unknown, or a word is not a filter.
    """
    keys = list(_DEFAULT_KEYS if columns is None else columns)
    expressions = [_make_expression(key) for key in [*keys, "final_result_unit"]]
    # The value of a recipe field is read from the settings below: JSON in SQL lacks true and false.
    selected = ", ".join(x if x.startswith('"') else "settings" for x in expressions)
    sort_key = (
        f"{_make_expression(sort.removeprefix('-'))} {'DESC' if sort.startswith('-') else 'ASC'}"
    )
    conditions, values = ["unreadable IS NULL"], []
    for word in words:
        condition, value = _make_condition(word)
        conditions.append(condition)
        values.append(value)
    source = f"FROM {TABLE} WHERE {' AND '.join(conditions)}"
    order = f"{sort_key} NULLS LAST, started_utc DESC NULLS LAST, path"
    query = f"SELECT {selected} {source} ORDER BY {order} LIMIT ?"
    with index.open_connection() as connection:
        entries = connection.execute(query, [*values, -1 if limit is None else limit]).fetchall()
        total = connection.execute(f"SELECT count(*) {source}", values).fetchone()[0]
    units = {spec.name: spec.unit for spec in FIGURES.values()}
    result_units = {unit for *_, unit in entries if unit}
    units["final_result"] = result_units.pop() if len(result_units) == 1 else ""
    rows = [
        [_read_value(index, key, value) for key, value in zip(keys, entry, strict=False)]
        for entry in entries
    ]
    settings = [key for key in keys if key not in _KEY_TYPES]
    return Listing(total, keys, [units.get(key, "") for key in keys], rows, settings)


def _read_value(index: Index, key: str, value: Any) -> Any:
    """Return the value of a key in a list.

    Args:
        value: from the database; for a recipe field, all settings as JSON.
    """
    if key == "path":
        return index.make_full_path(value)
    if key in _KEY_TYPES:
        return value
    return json.loads(value or "{}").get(FIELD_ALIASES.get(key, key))


def list_unreadable(index: Index) -> list[tuple[str, Message]]:
    """Return the path of each record that cannot be read, and the reason."""
    query = f"SELECT path, unreadable FROM {TABLE} WHERE unreadable IS NOT NULL ORDER BY path"
    with index.open_connection() as connection:
        entries = connection.execute(query).fetchall()
    return [
        (index.make_full_path(path), message("record_unreadable", error=reason))
        for path, reason in entries
    ]


def _make_expression(key: str) -> str:
    """Return the SQL expression of a key: a column, or a field of the recipe.

    Raises:
        UsageError: it is neither; the error names the closest key.
    """
    if key in _KEY_TYPES:
        return f'"{key}"'
    field, known_fields = FIELD_ALIASES.get(key, key), _list_recipe_fields()
    if field not in known_fields:
        columns = _KEY_TYPES.keys() - {"id", *INTERNAL_COLUMNS}
        all_keys = {*columns, *known_fields, *FIELD_ALIASES}
        if get_close_matches(key, all_keys):
            fix = suggest_nearest(key, all_keys)
        else:
            fix = f"{suggest_nearest(key, columns)}, and recipe fields (`trainmark list fields`)"
        raise UsageError(f"unknown key {key!r}", where=key, fix=fix)
    return f"json_extract(settings, '$.{field}')"  # a name of a dataclass field


def _list_recipe_fields() -> set[str]:
    """Return the names of the recipe fields of all installed cases."""
    return {field.name for case in cases.load_all()[0] for field in fields(case.recipe_type)}


def _get_setting_type(value: str) -> type:
    """Return the type with which a value of a recipe field is compared."""
    if value in ("true", "false"):
        return bool
    return float if _NUMBER.fullmatch(value) else str


def _make_condition(word: str) -> tuple[str, str | float | bool]:
    """Return the SQL condition of a filter, and its parameter.

    Raises:
        UsageError: the word is not a filter, its key is unknown, or its value or operator does not
            fit the type of the key.
    """
    with suppress(UsageError):
        word = f"case={cases.load(word).name}"
    parts = _FILTER.fullmatch(word)
    if parts is None:
        what, fix = f"not a filter: {word[:80]!r}", "name a folder with --store"
        raise UsageError(what, where="filter", rule=_RULE, fix=fix)
    key, sign, value = parts.groups()
    column = _make_expression(key)
    kind = _KEY_TYPES.get(key) or _get_setting_type(value)
    parameter: str | float | bool | None = None
    if kind is str:
        if sign == "~":
            return f"instr(lower({column}), lower(?))", value
        parameter = value
    elif kind is bool:
        rule = "= or != true or false"
        if sign in ("=", "!="):
            parameter = {"true": True, "false": False}.get(value)
    else:
        rule = "numbers have = != > >= < <=, in the unit of the record"
        if sign != "~" and _NUMBER.fullmatch(value):
            parameter = float(value)
    if parameter is None:
        raise UsageError(f"{word!r} is not a comparison", where=word, rule=rule)
    return f"{column} {sign} ?", parameter
