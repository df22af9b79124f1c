"""Read JSON: records of one case, one a line, and objects whose keys are the heads of a table."""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from trainmark.errors import UsageError
from trainmark.published.importers import table
from trainmark.published.importers.headers import without_precision
from trainmark.published.importers.table import TableLine
from trainmark.published.importers.units import parse_unit
from trainmark.published.importers.vocabulary import WORDS, precisions
from trainmark.record.index_record import INDEXES, IndexRecord, parse_record
from trainmark.record.work import Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.published.importers.table import Page
    from trainmark.record.work import Row

_NAME = re.compile(r".*?_(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_RANK = re.compile(r"(.*):([0-9]+)")  # of a key, such as `throughput_train_fp16:3`
_KEYS = {field.name for field in fields(IndexRecord)}
_NEEDED = {field.name for field in fields(IndexRecord) if field.default is MISSING} - {"UNIT"}
_OF_CASE = {"FINAL_RESULT", "JOB_FAIL_FLAG", "model_name"}  # with one, a record of one case
_HOSTS = {"node", "host", "hostname"}
_SHOWN_KEYS = 6
_MAX_KEYS = 100  # of one row; an object with more is a vocabulary or a settings file
_WITHOUT_RESULTS = {"table_without_results", "table_without_configuration", "json_without_objects"}
_MAX_WHY, _MAX_RAW = 120, 1000


def read(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of JSON: of one document with objects in it, or of an object a line.

    That an object has no figure is said once of a file.
    """
    is_reported = False
    for entry in _entries(text, page):
        if isinstance(entry, Unread) and entry.reason.code in _WITHOUT_RESULTS:
            if is_reported:
                continue
            is_reported = True
        yield entry


def _entries(text: str, page: Page) -> Iterator[Row | Unread]:
    try:
        document = from_json(text) if text.strip() else None
    except ValueError:
        yield from _read_lines(text, page)
    else:
        if document is not None:
            yield from _read_document(document, page, 1, text.strip())


def _read_lines(text: str, page: Page) -> Iterator[Row | Unread]:
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        if not line.strip():
            continue
        try:
            document = from_json(line)
        except ValueError as error:
            why = message("json_malformed", why=str(error).partition("\n")[0][:_MAX_WHY])
            yield page.unread(number, "row", why, line[:_MAX_RAW])
            if line.strip() in {"{", "["}:  # of a broken document over several lines: once
                return
        else:
            yield from _read_document(document, page, number, line)


def _read_document(document: Any, page: Page, number: int, raw: str) -> Iterator[Row | Unread]:
    """Yield the rows of a parsed document that begins in line ``number``."""
    records = list(_records(document))
    if not records:
        yield page.unread(number, "row", message("json_without_objects"), raw[:_MAX_RAW])
    for record in records:
        if record.keys() >= _OF_CASE:
            yield from _read_case_record(record, page, number, raw)
        else:
            yield from _read_object(record, page, number, raw)


def _records(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a document, each with the scalars of the objects around it.

    Objects in one are parts of it, unless several have the same keys: then each is one by its name.
    """
    if isinstance(document, list):
        for item in document:
            yield from _records(item)
    if not isinstance(document, dict):
        return
    scalars, parts = _split(document)
    lists = [x for x in document.values() if isinstance(x, list)]
    items = [item for x in lists for item in x if isinstance(item, dict)]
    if _have_same_keys(parts.values()):
        items += [{"model": name, **part} for name, part in parts.items()]
    else:
        for part in parts.values():
            for record in _records(part):
                scalars = record | scalars
    for item in items:
        for record in _records(item):
            yield scalars | record
    if scalars and not items:
        yield scalars


def _split(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the texts and numbers of an object, and the objects in it.

    An object of a value and its unit is one text.
    """
    scalars: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        if isinstance(value, dict) and {"value", "unit"} <= value.keys():
            scalars[key] = f"{value['value']} {value['unit']}"
        elif isinstance(value, dict):
            parts[key] = value
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            scalars[key] = value
    return scalars, parts


def _have_same_keys(parts: Iterable[dict[str, Any]]) -> bool:
    keys = [part.keys() for part in parts]
    return any(first & second for first, second in combinations(keys, 2))


def _read_object(
    record: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield a row for each path of an object's keys; keys without one hold for all of them."""
    page = replace(page, form="json")
    paths = {key: _split_path(key) for key in record}
    shared = {_shared_head(key): value for key, value in record.items() if not paths[key][0]}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in record.items():
        path, name = paths[key]
        if path:
            ranked = _RANK.fullmatch(name)
            name, rank = (ranked[1], f":{ranked[2]}") if ranked else (name, "")
            groups.setdefault(path + rank, {})[_head(name, path)] = value
    if not groups:
        yield from _read_group(shared, page, number, raw)
    for path, values in groups.items():
        model = path.rpartition("/")[2]
        yield from _read_group({**shared, "model": model, **values}, page, number, raw)


def _split_path(key: str) -> tuple[str, str]:
    """Return the path and the name of a key; ``tokens/s`` and what is in brackets has no path."""
    places = [match.start() for match in re.finditer(r"/(?![^(\[]*[)\]])", key)]
    for start in [-1, *places]:
        if parse_unit(key[start + 1 :]):
            return key[: max(start, 0)], key[start + 1 :]
    return (key[: places[-1]], key[places[-1] + 1 :]) if places else ("", key)


def _shared_head(key: str) -> str:
    return "configuration" if key.casefold() in _HOSTS else key


def _head(name: str, path: str) -> str:
    """Return a key as a header: its words, or the unit that a known program documents."""
    text = name.replace("_", " ")
    if not any(part in f"{path}/{name}" for part in WORDS["superbench"]["paths"]):
        return text
    named = precisions(text)
    known = WORDS["superbench"]["keys"].get(without_precision(text))
    return f"{known} {' '.join(named)}" if known else text


def _read_group(
    values: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    if len(values) > _MAX_KEYS:
        shown = ", ".join(list(values)[:_SHOWN_KEYS])
        why = message("table_without_results", columns=f"{shown} …")
        yield page.unread(number, "table", why, raw[:_MAX_RAW])
        return
    head = TableLine(number, list(values), raw[:_MAX_RAW])
    line = TableLine(number, [str(value) for value in values.values()], raw)
    yield from table.read(head, [line], page, unknown="unknown")


def _read_case_record(
    record: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield the row of a record of one case, or why it is none."""
    unknown, missing = record.keys() - _KEYS, _NEEDED - record.keys()
    try:
        if unknown or missing:
            keys = ", ".join(sorted(unknown or missing)[:_SHOWN_KEYS])
            raise UsageError(f"{'unknown' if unknown else 'missing'} keys: {keys}")
        parsed = parse_record(record)
    except (TypeError, ValueError, UsageError) as error:
        reason = error.what if isinstance(error, UsageError) else "a value has another type"
        yield page.unread(number, "row", message("json_malformed", why=reason[:_MAX_WHY]), raw)
        return
    yield from _of_index(parsed, page, number, raw)


def _of_index(record: IndexRecord, page: Page, number: int, raw: str) -> Iterator[Row | Unread]:
    """Yield a record of one case as a row; a failed job has no figure."""
    values = {key: str(value) for key, value in asdict(record).items() if value is not None}
    values["configuration"] = values.pop("model_name")
    if name := _NAME.fullmatch(record.model_name):
        values |= {"fix_hp": f"bs={name['bs']}", "model": name["model"]}
        values["precision"] = name["precision"]
    if record.gpu_num == 1:  # of more it does not say on how many machines
        values |= {"nnodes": "1", "nproc": "1"}
    del values["gpu_num"]
    result = "/" if record.JOB_FAIL_FLAG else values["FINAL_RESULT"]
    del values["FINAL_RESULT"]
    if INDEXES[record.index] == "mem":
        values["mem"] = f"{result} {record.UNIT}"
    elif INDEXES[record.index] == "speed":
        values |= {"final_result": result, "final_result_unit": record.UNIT}
    notes = (message("run_not_successful"),) if record.JOB_FAIL_FLAG else ()
    page = replace(page, form="index", model=record.model_name, notes=notes)
    head, line = TableLine(0, list(values), ""), TableLine(number, list(values.values()), raw)
    yield from table.read(head, [line], page)
