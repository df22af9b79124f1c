"""Read JSON: records of one case, one a line, and objects whose keys are the headers of a table.

In the functions of this module, ``number`` is the line at which a document begins, from 1, and
``raw`` is the text of the document. Where one object of a document with several is read, ``raw`` is
only that object, written as JSON.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, fields, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from trainmark.errors import UsageError
from trainmark.published.importers import table
from trainmark.published.importers.headers import remove_precision_words
from trainmark.published.importers.page import TableLine
from trainmark.published.importers.units import parse_unit
from trainmark.published.importers.vocabulary import WORDS, find_precisions
from trainmark.record.index_record import INDEXES, IndexRecord, parse_record
from trainmark.record.work import Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trainmark.published.importers.page import Page
    from trainmark.record.work import Row

# `nlp_gpt_mp_bs8_fp16_1`: the model, the batch size and the precision.
_RECORD_NAME = re.compile(r".*?_(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_KEY_WITH_RANK = re.compile(r"(.*):([0-9]+)")  # `throughput_train_fp16:3`
_CASE_RECORD_KEYS = {field.name for field in fields(IndexRecord)}
# Records of the public log analyzer may lack the unit.
_REQUIRED_KEYS = {x.name for x in fields(IndexRecord) if x.default is MISSING} - {"UNIT"}
# Keys that only records of one case have.
_KEYS_OF_CASE_RECORDS_ONLY = {"FINAL_RESULT", "JOB_FAIL_FLAG", "model_name"}
_HOST_KEYS = {"node", "host", "hostname"}
_NUM_SHOWN_KEYS = 6
_MAX_KEYS = 100  # of one row; an object with more is a vocabulary or a settings file
# Reasons that are reported only once of a file.
_CODES_REPORTED_ONCE = {
    "table_without_results",
    "table_without_configuration",
    "json_without_objects",
}
_MAX_REASON = 120  # characters of an error's text
_MAX_RAW = 1000  # characters of the file's text


def read_json(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of JSON text, and what cannot be read.

    The text is one document with objects in it, or has an object a line. Files hold many objects
    that are no results: they have no figure, or nothing that names a row. Only the first of them,
    or of documents without an object, is reported.

    Args:
        text: of the file.
        page: what all rows of the file share.
    """
    has_reported = False
    for entry in _read_text(text, page):
        if isinstance(entry, Unread) and entry.reason.code in _CODES_REPORTED_ONCE:
            if has_reported:
                continue
            has_reported = True
        yield entry


def _read_text(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of a text that is one JSON document, else of the documents in its lines.

    Args:
        text: of the file.
        page: what all rows of the file share.
    """
    if not text.strip():
        return
    try:
        document = from_json(text)
    except ValueError:
        yield from _read_lines(text, page)
    else:
        if document is not None:  # `null` alone has nothing to report
            yield from _read_document(document, page, number=1, raw=text.strip())


def _read_lines(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of a text with a JSON document a line; report each line that is none.

    Args:
        text: of the file.
        page: what all rows of the file share.
    """
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        if not line.strip():
            continue
        try:
            document = from_json(line)
        except ValueError as error:
            first_line = str(error).partition("\n")[0]
            reason = message("json_malformed", why=first_line[:_MAX_REASON])
            yield page.make_unread(number, "row", reason, line[:_MAX_RAW])
            # One broken document over several lines is reported once, not for each of them.
            if line.strip() in {"{", "["}:
                return
        else:
            yield from _read_document(document, page, number, line)


def _read_document(document: Any, page: Page, number: int, raw: str) -> Iterator[Row | Unread]:
    """Yield the rows of a parsed document that begins in line ``number``.

    A record of one case, the form that collections of results import, has fixed keys, by which it
    is recognised. Keys of any other object are read as the headers of a table.

    Args:
        document: as parsed from JSON.
        page: what all rows of the file share.
        number: line at which the document begins, from 1.
        raw: text of the document.
    """
    records = list(_flatten_objects(document))
    if not records:
        yield page.make_unread(number, "row", message("json_without_objects"), raw[:_MAX_RAW])
    for record in records:
        if len(records) > 1:  # the whole text for each of many rows would grow with its square
            raw = json.dumps(record, ensure_ascii=False)
        if record.keys() >= _KEYS_OF_CASE_RECORDS_ONLY:
            yield from _read_case_record(record, page, number, raw)
        else:
            yield from _read_object(record, page, number, raw)


def _flatten_objects(document: Any) -> Iterator[dict[str, Any]]:
    """Yield each row of a document as an object of scalars, which are its texts and numbers.

    - An object in a list is a row. It also has the scalars of the objects around the list.
    - An object under a key is a part of the object around it. Both are one row:
      ``{"model": "gpt", "result": {"speed": 5}}`` is a row of ``model`` and ``speed``. A list in
      the part, such as the devices of its machine, gives no rows: its objects join this row, too.
    - If any two parts of an object have a key in common, they are taken for results of different
      models. Then each part is a row, and its key names the model: ``a`` and ``b`` of
      ``{"a": {"speed": 5}, "b": {"speed": 6}}``.
    """
    if isinstance(document, list):
        for item in document:
            yield from _flatten_objects(item)
    if not isinstance(document, dict):
        return
    scalars, parts = _split_object(document)
    row_objects = []  # the objects in this one that are rows of their own
    for value in document.values():
        if isinstance(value, list):
            row_objects += [item for item in value if isinstance(item, dict)]
    if _have_common_keys(parts.values()):
        # If a part states its model itself, this counts.
        row_objects += [{"model": name, **part} for name, part in parts.items()]
    else:
        for part in parts.values():
            for record in _flatten_objects(part):
                # The values of a part join those of the object around it. If both have a key, the
                # outer value counts; if several objects of a list in the part have one, the first.
                scalars = record | scalars
    has_rows = False
    for row_object in row_objects:  # each may have parts and lists in turn
        for record in _flatten_objects(row_object):
            has_rows = True
            yield scalars | record  # if both have a key, the inner value counts
    # The object is itself a row if it has no lists of rows. Objects without scalars are no rows.
    if scalars and not has_rows:
        yield scalars


def _split_object(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the texts and numbers of an object by key, and the objects in it by key.

    An object of a value and its unit is one text. Lists, null and truth values are left out.
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


def _have_common_keys(parts: Iterable[dict[str, Any]]) -> bool:
    """Tell whether two of the objects have a key in common."""
    return any(first.keys() & second.keys() for first, second in combinations(parts, 2))


def _read_object(
    record: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield a row for each path in an object's keys: ``model/throughput`` has the path ``model``.

    The last part of the path is the model of the row. Values under keys without a path belong to
    all rows. The keys, without their paths, are read as the headers of a table. (The keys of the
    benchmark SuperBench, which its paths show, have no units and are replaced by such with units.)

    Args:
        record: an object of texts and numbers.
        page: what all rows of the file share.
        number: line at which the document begins, from 1.
        raw: text of the document, or of the record if the document has several.
    """
    page = replace(page, form="json")
    shared_values: dict[str, Any] = {}
    values_by_path: dict[str, dict[str, Any]] = {}
    for key, value in record.items():
        path, name = _split_path(key)
        if not path:  # the header of a host's name, such as `node`, becomes that of the row's label
            shared_values[_make_shared_header(key)] = value
            continue
        row_path = path
        rank_match = _KEY_WITH_RANK.fullmatch(name)
        if rank_match:  # `throughput:3` is of rank 3; each rank has a row of its own
            name, rank = rank_match.groups()
            row_path = f"{path}:{rank}"
        values_by_path.setdefault(row_path, {})[_make_header(name, path)] = value
    if not values_by_path:  # no key has a path: the whole object is one row
        yield from _read_values(shared_values, page, number, raw)
    for path, values in values_by_path.items():
        model = path.rpartition("/")[2]  # the last part of the path, with the rank if it has one
        yield from _read_values({**shared_values, "model": model, **values}, page, number, raw)


def _split_path(key: str) -> tuple[str, str]:
    """Return the path and the name of a key: ``model`` and ``speed`` of ``model/speed``.

    The path is empty if the key has none. A slash in a unit or in brackets does not separate them:
    ``tokens/s``, ``speed (it/s)``.
    """
    if parse_unit(key):
        return "", key
    # Slashes outside brackets: no closing bracket follows without an opening one before it.
    slashes = [match.start() for match in re.finditer(r"/(?![^(\[]*[)\]])", key)]
    if not slashes:
        return "", key
    separator = slashes[-1]
    for slash in slashes:
        if parse_unit(key[slash + 1 :]):  # `model/tokens/s`: the later slashes are in the unit
            separator = slash
            break
    return key[:separator], key[separator + 1 :]


def _make_shared_header(key: str) -> str:
    """Return a key as a header; the name of a host labels the row."""
    return "configuration" if key.casefold() in _HOST_KEYS else key


def _make_header(name: str, path: str) -> str:
    """Return the words of a key as a header of a table.

    SuperBench prints keys without units, such as ``throughput_train_fp16``; its documentation
    has the units. So ``columns.toml`` lists its keys, in words and without a precision, each with
    a header that has the unit. Keys that are not listed there keep their words.

    Args:
        name: the part of the key behind its path: ``throughput_train_fp16``.
        path: the part before it, by which SuperBench is recognised.
    """
    text = name.replace("_", " ")
    is_of_superbench = any(part in f"{path}/{name}" for part in WORDS["superbench"]["paths"])
    if not is_of_superbench:
        return text
    header_with_unit = WORDS["superbench"]["keys"].get(remove_precision_words(text))
    if header_with_unit is None:
        return text
    precisions = " ".join(find_precisions(text))  # the row's precision is read from the header
    return f"{header_with_unit} {precisions}"


def _read_values(
    values: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield the row whose headers are the keys of ``values``, and what of it cannot be read.

    An object of more than ``_MAX_KEYS`` keys, such as a vocabulary or a settings file, is no row:
    it is reported as a table without results.

    Args:
        page: what all rows of the file share.
        number: line at which the object's document begins.
        raw: text of the document, or of the object if the document has several; of headers and of
            what cannot be read, only its beginning is kept.
    """
    if len(values) > _MAX_KEYS:
        shown = ", ".join(list(values)[:_NUM_SHOWN_KEYS])
        why = message("table_without_results", columns=f"{shown} …")
        yield page.make_unread(number, "table", why, raw[:_MAX_RAW])
        return
    head = TableLine(number, list(values), raw[:_MAX_RAW])
    line = TableLine(number, [str(value) for value in values.values()], raw)
    # Numbers under keys of unknown meaning are reported as not read.
    yield from table.read_table(head, [line], page, unknown_role="unknown")


def _read_case_record(
    record: dict[str, Any], page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield the row of a record of one case, or why it cannot be read.

    Args:
        record: one figure of one case, with the keys of an ``IndexRecord``, such as
            ``FINAL_RESULT``; collections of results import this form.
        page: what all rows of the file share.
        number: line at which the document begins, from 1.
        raw: text of the document, or of the record if the document has several.
    """
    try:
        _refuse_wrong_keys(record)  # raises a UsageError
        parsed = parse_record(record)
    except (TypeError, ValueError, UsageError) as error:
        reason = error.what if isinstance(error, UsageError) else "a value has the wrong type"
        why = message("json_malformed", why=reason[:_MAX_REASON])
        yield page.make_unread(number, "row", why, raw[:_MAX_RAW])
        return
    yield from _read_index_record(parsed, page, number, raw)


def _refuse_wrong_keys(record: dict[str, Any]) -> None:
    """Raise a UsageError if a record has keys that IndexRecord lacks, or lacks required ones.

    The error names the first ``_NUM_SHOWN_KEYS`` of these keys.
    """
    unknown = record.keys() - _CASE_RECORD_KEYS
    missing = _REQUIRED_KEYS - record.keys()
    if unknown:
        raise UsageError(f"unknown keys: {', '.join(sorted(unknown)[:_NUM_SHOWN_KEYS])}")
    if missing:
        raise UsageError(f"missing keys: {', '.join(sorted(missing)[:_NUM_SHOWN_KEYS])}")


def _read_index_record(
    record: IndexRecord, page: Page, number: int, raw: str
) -> Iterator[Row | Unread]:
    """Yield the row of a record, which has one figure of one case; a failed job has no figure.

    The record is read as a table of one line, whose headers are the keys of ``values``.

    Args:
        record: its fields are the keys of the JSON: ``model_name`` is what ran, ``FINAL_RESULT``
            its figure in ``UNIT``, ``gpu_num`` the devices, ``JOB_FAIL_FLAG`` 1 if it failed.
        page: what all rows of the file share.
        number: line at which the document begins, from 1.
        raw: text of the document, or of the record if the document has several.
    """
    values = {key: str(value) for key, value in asdict(record).items() if value is not None}
    values["configuration"] = values.pop("model_name")  # the header of the label of a row
    # `nlp_gpt_mp_bs8_fp16_1` has model, batch size and precision. A name in another form is only
    # the label of the row.
    name_parts = _RECORD_NAME.fullmatch(record.model_name)
    if name_parts:
        values["fix_hp"] = f"bs={name_parts['bs']}"  # the header of hyper-parameters that differ
        values["model"] = name_parts["model"]
        values["precision"] = name_parts["precision"]
    # One device is on one machine; of several, the number of machines is not known.
    if record.gpu_num == 1:
        values |= {"nnodes": "1", "nproc": "1"}
    # A column `gpu_num` would be read as a number of devices, and divided into machines by a guess.
    del values["gpu_num"]
    printed_result = values.pop("FINAL_RESULT")
    result = "/" if record.JOB_FAIL_FLAG else printed_result  # "/": no value
    # `index` is a code for what the result is: a speed, a memory, a profile or the largest batch.
    # Rows have no figure for a profile and the largest batch.
    kind_of_result = INDEXES[record.index]
    if kind_of_result == "mem":
        values["mem"] = result if record.JOB_FAIL_FLAG else f"{result} {record.UNIT}"
    elif kind_of_result == "speed":
        values |= {"final_result": result, "final_result_unit": record.UNIT}
    notes = (message("run_not_successful"),) if record.JOB_FAIL_FLAG else ()
    # The model of the page counts if the row names none.
    page = replace(page, form="index", model=record.model_name, notes=notes)
    head = TableLine(number=0, cells=list(values), raw="")  # 0: the file has no line of headers
    line = TableLine(number, list(values.values()), raw)
    # Keys that say nothing about a row, such as `mission_name`, are ignored.
    yield from table.read_table(head, [line], page, unknown_role="ignored")
