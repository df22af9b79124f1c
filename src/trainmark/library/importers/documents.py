"""Read CSV tables, JSON records of one case, and rows that ``import -o`` wrote."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.library.importers.cells import Column, columns
from trainmark.library.importers.table import row
from trainmark.library.importers.written import entries
from trainmark.library.store.columns import column_name
from trainmark.record.figures import FIGURES
from trainmark.record.index_record import INDEXES, IndexRecord
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread

_NAME = re.compile(r"(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_BETWEEN = re.compile(r"[\s,\[\]]*")  # documents in a row or an array
_LINE_END = re.compile(r"\\[ \t\r]*(?:#.*)?$", re.MULTILINE)  # as the fifth document prints them
_DECODER = json.JSONDecoder()


def read_csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r\n?|\n", text)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    ours = {column_name(name, spec.unit, spec): spec for name, spec in FIGURES.items()}
    start = 0
    try:
        headers = next(reader, [])
        known = [
            Column(name, "figure", ours[name].name, unit=ours[name].unit) if name in ours else other
            for name, other in zip(headers, columns(headers, unknown="ignored"), strict=True)
        ]
        why = None
        if not any(column.is_figure for column in known):
            why = message("table_without_results", columns=", ".join(headers)[:120])
        # `1.234,5` is German for what is `1,234.5` here, and `12,345` would be read as either.
        elif delimiter != "," and re.search("[0-9],[0-9]", text):
            why = message("csv_with_decimal_commas", delimiter=delimiter)
        if why is not None:
            yield page.unread(1, "table", why, lines[0])
            return
        start = reader.line_num
        for printed in reader:
            raw = "\n".join(lines[start : reader.line_num])
            if any(printed):
                yield from row(printed, known, page, start + 1, table=1, raw=raw)
            start = reader.line_num
    except csv.Error as error:
        yield page.unread(start + 1, "row", message("csv_malformed", why=str(error)))


def read_json(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of a document, or of one a line: records of one case, or rows as we write."""
    continued = _LINE_END.sub(lambda end: " " * len(end[0]), text)
    at = _BETWEEN.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        line, end = 1 + text.count("\n", 0, at), text.find("\n{", at) % (len(text) + 1)
        try:
            document, end = _DECODER.raw_decode(continued, at)
            yield from _rows(document, page, line, text[at:end])
        except (ValueError, TypeError, AttributeError, KeyError, UsageError,
                RecursionError) as error:  # fmt: skip
            why = str(error).partition("\n")[0][:120]
            yield page.unread(
                line, "row", message("json_malformed", why=why), text[at:end].rstrip()
            )
        at = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]


def _rows(document: Any, page: Page, line: int, raw: str) -> Iterator[Row | Unread]:
    keys = document.keys() if isinstance(document, dict) else ()
    if {"rows", "unread"} <= {*keys}:
        yield from entries(document)
    elif "FINAL_RESULT" in keys:
        yield from _index_row(IndexRecord(**document), page, line, raw)
    elif {"run_id", "plan", "figures"} <= {*keys}:
        yield page.unread(line, "file", message("file_is_record"))
    else:
        yield page.unread(line, "row", message("json_of_unknown_form"), raw)


def _index_row(record: IndexRecord, page: Page, line: int, raw: str) -> Iterator[Row | Unread]:
    """Yield a record of one case as a row; a failed job has no figure."""
    values = {key: str(value) for key, value in asdict(record).items()}
    if name := _NAME.fullmatch(record.model_name):
        values |= {"fix_hp": f"bs={name['bs']}", "model": name["model"].partition("_")[2]}
        values["precision"] = name["precision"]
    if record.gpu_num == 1:  # of more it does not say on how many machines
        values |= {"nnodes": "1", "nproc": "1"}
    kind = INDEXES[record.index]
    result = Column("FINAL_RESULT", "figure", kind, unit=record.UNIT)
    if kind == "speed":
        result = replace(result, name="final_result")
    elif kind == "mem":
        result = replace(result, reads="memory", unit="bytes")
        values["FINAL_RESULT"] += f" {record.UNIT}"
    known = columns(list(values), unknown="ignored")
    page = replace(page, form="index", model=record.model_name)
    if record.JOB_FAIL_FLAG:
        page = replace(page, notes=(message("run_not_successful"),))
    else:
        known[list(values).index("FINAL_RESULT")] = result
    yield from row(list(values.values()), known, page, line, table=0, raw=raw)
