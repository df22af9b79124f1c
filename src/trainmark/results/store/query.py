"""List the runs of an index that match filters, in order, with the values of their columns.

A filter is a word such as ``case=toy``, ``device~H100``, ``p_core>100``, ``started_utc>=2026-11``.
Texts are compared byte by byte. A date, or the beginning of one, stands for a period of time: the
year, month, day, hour, minute or second. Missing values never match. Fields of recipes are keys
too, by name or short name: ``bs=32``, ``compile=true``.
Values reach the database as parameters only.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from trainmark import cases
from trainmark.errors import UsageError, find_nearest, suggest_nearest
from trainmark.recipe import FIELD_ALIASES, Precision
from trainmark.record.figures import FIGURES
from trainmark.record.record import Grade, Status, Verification
from trainmark.results.store.columns import COLUMNS, IMPORTED, INDEX_COLUMNS, INTERNAL_COLUMNS
from trainmark.results.store.index import FULL_PATH_FUNCTION, TABLE
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trainmark.results.store.index import Index

_FILTER = re.compile(r"([^=!~<>\s]+)(!=|>=|<=|=|~|>|<)(.+)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?")
# A date with a time, or the beginning of it. An offset from UTC may follow any time.
_TIME = re.compile(
    r"(?P<year>\d{4})(-(?P<month>\d\d)(-(?P<day>\d\d)([T ](?P<hour>\d\d)(:(?P<minute>\d\d)"
    r"(:(?P<second>\d\d))?)?(?P<offset>Z|[-+]\d\d:\d\d)?)?)?)?",
    re.ASCII,
)
# All values of columns that have only a few.
_CLOSED_SETS: dict[str, Collection[str]] = {
    "status": (*get_args(Status), IMPORTED),
    "trust": get_args(Grade),
    "verification": get_args(Verification),
}
_RULE = (
    "a filter is KEY OPERATOR VALUE, where OPERATOR is one of = != ~ > >= < <=, for example "
    "case=toy, device~H100 or 'p_core>100'; a shell needs quotes around filters with > or <"
)
_DEFAULT_KEYS = (*COLUMNS, "path", "world", "work", *FIGURES)
# Column that is read besides the selected ones: the unit of ``final_result`` differs between cases.
_RESULT_UNIT = "final_result_unit"
_NO_LIMIT = -1  # of SQLite
_KEY_TYPES = {"id": int, **INDEX_COLUMNS}


@dataclass(frozen=True, slots=True)
class _Key:
    """A key that a user may name in a filter, or as a column or order of a list.

    Args:
        name: as the user named it.
        is_setting: it is a field of recipes, not a column of the index.
        expression: SQL expression of its value, by which runs are filtered and ordered.
    """

    name: str
    is_setting: bool
    expression: str

    @property
    def selected(self) -> str:
        """SQL expression that is read for a list.

        For a recipe field, the JSON with all fields of the recipe is read. SQLite would return a
        number for a truth value in it.
        """
        return "settings" if self.is_setting else self.expression


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
        words: filters, each a key, an operator and a value, such as ``case=toy`` or ``p_core>100``;
            a key is a column of the index or a recipe field.
        columns: keys whose values are listed; None: those of an export.
        sort: a key; with ``-`` before it in descending order. Runs without a value come last.
        limit: number of runs to list, of all that match; None: all of them.

    Raises:
        UsageError: a key is unknown, or a word is not a filter.
    """
    keys = [_find_key(name) for name in (_DEFAULT_KEYS if columns is None else columns)]
    # Of each run also the unit of its result, which differs between cases.
    selected = ", ".join([*(key.selected for key in keys), f'"{_RESULT_UNIT}"'])
    order = _make_order(sort)
    conditions = ["unreadable IS NULL"]  # of a record that cannot be read only the path is known
    parameters: list[str | float | bool] = []
    for word in words:
        condition, values_of_condition = _make_condition(index, word)
        conditions.append(condition)
        parameters += values_of_condition
    source = f"FROM {TABLE} WHERE {' AND '.join(conditions)}"
    query = f"SELECT {selected} {source} ORDER BY {order} LIMIT ?"
    max_rows = _NO_LIMIT if limit is None else limit
    with index.open_connection() as connection:
        entries = connection.execute(query, [*parameters, max_rows]).fetchall()
        total = connection.execute(f"SELECT count(*) {source}", parameters).fetchone()[0]
    rows = []
    result_units = set()
    for *values, result_unit in entries:
        rows.append([_read_value(key, value) for key, value in zip(keys, values, strict=True)])
        if result_unit:
            result_units.add(result_unit)
    unit_of = {spec.name: spec.unit for spec in FIGURES.values()}
    # Each case has its own unit of work: listed together they have none in common.
    unit_of["final_result"] = result_units.pop() if len(result_units) == 1 else ""
    return Listing(
        total,
        columns=[key.name for key in keys],
        units=[unit_of.get(key.name, "") for key in keys],
        rows=rows,
        settings=[key.name for key in keys if key.is_setting],
    )


def _make_order(sort: str) -> str:
    """Return the SQL order of a list.

    Args:
        sort: a key; with ``-`` before it in descending order.
    """
    direction = "DESC" if sort.startswith("-") else "ASC"
    key = _find_key(sort.removeprefix("-"))
    # Runs with the same value: the newest first, then by path.
    return f"{key.expression} {direction} NULLS LAST, started_utc DESC NULLS LAST, path"


def _read_value(key: _Key, value: Any) -> Any:
    """Return the value that a list of runs shows for a key.

    Args:
        value: from the database; for a recipe field, all fields of the recipe as JSON.
    """
    if not key.is_setting:
        return value
    return json.loads(value or "{}").get(FIELD_ALIASES.get(key.name, key.name))


def list_unreadable(index: Index) -> list[tuple[str, Message]]:
    """Return the path of each record that cannot be read, and the reason."""
    query = f"SELECT path, unreadable FROM {TABLE} WHERE unreadable IS NOT NULL ORDER BY path"
    with index.open_connection() as connection:
        entries = connection.execute(query).fetchall()
    return [
        (index.make_full_path(path), message("record_unreadable", error=reason))
        for path, reason in entries
    ]


def _find_key(name: str) -> _Key:
    """Return the key with this name: a column of the index, or a field of recipes.

    Raises:
        UsageError: it is neither; the error names the closest key.
    """
    if name == "path":  # of the index, below the store's folder, which a user sees in front of it
        return _Key(name, is_setting=False, expression=f'{FULL_PATH_FUNCTION}("path")')
    if name in _KEY_TYPES:
        return _Key(name, is_setting=False, expression=f'"{name}"')
    field = FIELD_ALIASES.get(name, name)
    known_fields = _list_recipe_fields()
    if field in known_fields:  # so that the name is safe in SQL
        return _Key(name, is_setting=True, expression=f"json_extract(settings, '$.{field}')")
    # Columns that an error may suggest. The id and internal columns are accepted, not suggested.
    columns = _KEY_TYPES.keys() - {"id", *INTERNAL_COLUMNS}
    all_keys = {*columns, *known_fields, *FIELD_ALIASES}
    if find_nearest(name, all_keys) is not None:
        fix = suggest_nearest(name, all_keys)
    else:  # lists all columns; the fields of all recipes would be too many
        fix = f"{suggest_nearest(name, columns)}, and recipe fields (`trainmark list fields`)"
    raise UsageError(f"unknown key {name!r}", where=name, fix=fix)


def _list_recipe_fields() -> set[str]:
    """Return the names of the recipe fields of all installed cases."""
    loaded_cases, _ = cases.load_all()  # without those that cannot be loaded
    return {field.name for case in loaded_cases for field in fields(case.recipe_type)}


def _get_setting_type(key: str, value: str) -> type:
    """Return the type with which a value of a recipe field is compared.

    Recipes of different cases may declare a field with different types. If one of them is text, the
    value is compared as a truth value or a number only if it is written as one.

    Args:
        key: name or short name of the field.
    """
    field = FIELD_ALIASES.get(key, key)
    types: set[type] = set()
    for case in cases.load_all()[0]:
        annotation = get_type_hints(case.recipe_type).get(field)
        if annotation is not None:
            types |= _list_types(annotation)
    if bool in types and (value in ("true", "false") or str not in types):
        return bool
    is_numeric = bool(types & {int, float})
    if is_numeric and (_NUMBER.fullmatch(value) or str not in types):
        return float
    return str


def _list_types(annotation: Any) -> set[type]:
    """Return the types of the values that the annotation of a recipe field allows."""
    if get_origin(annotation) is Literal:
        return {type(value) for value in get_args(annotation)}
    # Recipe fields have plain types, literals and unions of these. Only a union has arguments here.
    members = get_args(annotation)
    if not members:
        return {annotation}
    return {value_type for member in members for value_type in _list_types(member)}


def _refuse_impossible_text(index: Index, word: str, key: str, sign: str, value: str) -> None:
    """Refuse a text with which ``=`` or ``!=`` would match no run or all runs.

    This is a text that the column ``key`` never has. Other operators take any text.

    Args:
        word: the whole filter.
        sign: the operator.

    Raises:
        UsageError: the text is refused; the error names what the column can have.
    """
    if sign not in ("=", "!="):
        return
    known = _CLOSED_SETS.get(key)
    # Imported results and runs of cases that are not installed may have values of their own.
    if key == "case":
        known = {case.name for case in cases.load_all()[0]} | _list_stored_values(index, key)
    elif key == "precision":
        known = {*get_args(Precision)} | _list_stored_values(index, key)
    if known is not None and value not in known:
        raise UsageError(
            f"{value!r} is not a known value of {key}",
            where=word,
            rule="the operators = and != need a known value; ~ also accepts part of a value",
            fix=suggest_nearest(value, known),
        )


def _list_stored_values(index: Index, column: str) -> set[str]:
    """Return the texts that a column has in the runs of the index."""
    with index.open_connection() as connection:
        entries = connection.execute(f'SELECT DISTINCT "{column}" FROM {TABLE}').fetchall()
    return {value for (value,) in entries if value is not None}


def _make_time_condition(word: str, sign: str, value: str) -> tuple[str, list[str]]:
    """Return the SQL condition of a filter of the start time, and its parameters.

    Args:
        word: the whole filter.
        sign: the operator, but not ``~``, which compares parts of texts.
        value: a date with a time, or the beginning of it; it stands for a period of time.

    Raises:
        UsageError: the value is not a date.
    """
    try:
        begin, end = _parse_period(value)
    except (ValueError, OverflowError):  # the latter: after the year 9999
        raise UsageError(
            f"{value!r} is not a date",
            where=word,
            rule="started_utc must be a complete or shortened date and time, such as 2026-11 "
            "or 2026-11-05T14:30",
            fix="write, for example, started_utc>=2026-11-05",
        ) from None
    match sign:
        case "=":
            return "(started_utc >= ? AND started_utc < ?)", [begin, end]
        case "!=":
            return "(started_utc < ? OR started_utc >= ?)", [begin, end]
        case "<=":  # in the period or before it
            return "started_utc < ?", [end]
        case ">":  # after the whole period
            return "started_utc >= ?", [end]
        case _:  # ``<`` or ``>=``
            return f"started_utc {sign} ?", [begin]


def _parse_period(value: str) -> tuple[str, str]:
    """Return the begin of the period that a date stands for, and that of the period after it.

    ``2026-11`` is a month and ``2026-11-05T08:30`` a minute. Both times are in UTC and are written
    as those of records, without the offset at their end, so that they compare with these as texts.

    Raises:
        ValueError, OverflowError: the value is not a date.
    """
    parts = _TIME.fullmatch(value)
    if parts is None:
        raise ValueError(value)
    texts = parts.groupdict()
    offset = datetime.strptime(texts.pop("offset") or "Z", "%z").utcoffset()
    assert offset is not None, "%z reads an offset"
    numbers = {unit: int(text) for unit, text in texts.items() if text is not None}
    begin = datetime(
        numbers["year"],
        numbers.get("month", 1),
        numbers.get("day", 1),
        numbers.get("hour", 0),
        numbers.get("minute", 0),
        numbers.get("second", 0),
    )
    shortest_unit = list(numbers)[-1]  # they are in the order of the text
    if shortest_unit == "year":
        end = begin.replace(year=begin.year + 1)
    elif shortest_unit == "month":
        end = (begin + timedelta(days=31)).replace(day=1)  # ``begin`` is the first of a month
    else:
        end = begin + timedelta(**{f"{shortest_unit}s": 1})
    return (begin - offset).isoformat(), (end - offset).isoformat()


def _make_condition(index: Index, word: str) -> tuple[str, Sequence[str | float | bool]]:
    """Return the SQL condition of a filter, and its parameters.

    Args:
        word: the filter: a key, an operator and a value, such as ``p_core>100``; or the name of a
            case.

    Raises:
        UsageError: the word is not a filter, its key is unknown, or its value or operator does not
            fit the type of the key.
    """
    with suppress(UsageError):  # the name of a case alone stands for `case=NAME`
        word = f"case={cases.load(word).name}"
    parts = _FILTER.fullmatch(word)
    if parts is None:
        names = [case.name for case in cases.load_all()[0]]
        # A path among the filters is often meant as the store.
        fix = f"set --store to a folder, or name a case: {suggest_nearest(word, names)}"
        raise UsageError(f"{word[:80]!r} is not a filter", where="filter", rule=_RULE, fix=fix)
    key, sign, value = parts.groups()
    column = _find_key(key).expression
    kind = _KEY_TYPES.get(key) or _get_setting_type(key, value)
    parameter: str | float | bool | None = None  # None: the value or the operator does not fit
    what = "not a valid comparison"
    if kind is str:
        if sign == "~":
            return f"instr(lower({column}), lower(?))", [value]
        if key == "started_utc":
            return _make_time_condition(word, sign, value)
        _refuse_impossible_text(index, word, key, sign, value)
        parameter = value
    elif kind is bool:
        rule = "the value of this key must be compared with true or false by = or !="
        if sign in ("=", "!="):
            parameter = {"true": True, "false": False}.get(value)
    else:
        rule = "numbers must be compared by = != > >= < or <=, in the unit of the record"
        if _NUMBER.fullmatch(value) is None:
            what = f"{value!r} is not a number"
        elif sign != "~":
            parameter = float(value)
    if parameter is None:
        raise UsageError(what, where=word, rule=rule)
    return f"{column} {sign} ?", [parameter]
