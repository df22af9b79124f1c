"""Read CSV tables, JSON records of one case, and rows that ``import -o`` wrote.

Owns how our own CSV calls its columns, and what a JSON record of one case says as a row.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from trainmark.data.json_documents import parse
from trainmark.errors import UsageError
from trainmark.library.importers.cells import Column, columns
from trainmark.library.importers.table import row
from trainmark.library.importers.written import entries
from trainmark.pages.exports.tables import table
from trainmark.record.figures import FIGURES
from trainmark.record.index_record import INDEXES, IndexRecord
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread

_NAME = re.compile(r"(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_BETWEEN = re.compile(r"(?:[\s,]|\[(?!\[)|\](?!\]))*")  # documents in a row or an array
_TO_NEXT = re.compile(r".*(?:\n(?!\s*[{\[]).*)*")
_LINE_END = re.compile(r"\\[ \t\r]*(?:#.*)?$", re.MULTILINE)  # as the fifth document prints them
_DECODER = json.JSONDecoder()


def read_csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r\n?|\n", text)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    start = 0
    try:
        headers = next(reader, [])
        ours = dict(zip(table([])[0][-len(FIGURES) :], FIGURES.values(), strict=True))
        known = columns(headers, unknown="ignored")
        for at, spec in ((at, ours[name]) for at, name in enumerate(headers) if name in ours):
            known[at] = Column(headers[at], "figure", spec.name, unit=spec.unit)
        if not any(column.is_figure for column in known):
            why = message("table_without_results", columns=", ".join(headers)[:120])
            yield page.unread(1, "table", why, lines[0])
            return
        start = reader.line_num
        # `1.234,5` is German for what is `1,234.5` here, and `12,345` would be read as either.
        if delimiter != "," and re.search("[0-9],[0-9]", text):
            why = message("csv_with_decimal_commas", delimiter=delimiter)
            yield page.unread(1, "table", why, lines[0])
            return
        for printed in reader:
            raw = "\n".join(lines[start : reader.line_num])
            if any(printed):
                yield from row(printed, known, page, start + 1, table=1, raw=raw)
            start = reader.line_num
    except csv.Error as error:
        yield page.unread(start + 1, "row", message("csv_malformed", why=str(error)))


def read_json(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of a document, or of one a line: records of one case, or rows as we write."""
    for line, raw, found in _parsed(text):
        try:
            if isinstance(found, ValueError):
                raise found
            found = found if isinstance(found, dict) else {}  # noqa: PLW2901
            if found.keys() >= {"rows", "unread"}:
                yield from entries(found)
            elif "FINAL_RESULT" in found:
                yield from _index_row(IndexRecord(**found), page, line, raw)
            elif found.keys() >= {"run_id", "plan", "figures"}:
                yield page.unread(line, "file", message("file_is_record"))
            else:
                yield page.unread(line, "row", message("json_of_unknown_form"), raw)
        except (ValueError, TypeError, AttributeError, KeyError, UsageError) as error:
            why = str(error).partition("\n")[0][:120]
            yield page.unread(line, "row", message("json_malformed", why=why), raw)


def _parsed(text: str) -> Iterator[tuple[int, str, Any]]:
    """Yield line, text and value of each document; the fault in place of what cannot be parsed."""
    continued = _LINE_END.sub(lambda end: " " * len(end[0]), text)
    line, last, at = 1, 0, _end_of(_BETWEEN, text, 0)
    while at < len(text):
        found: Any = None
        for source in (text, continued):
            try:
                end = _DECODER.raw_decode(source, at)[1]
                found = parse(source[at:end].encode())
                break
            except (ValueError, RecursionError) as error:
                # Go on behind the fault: from the next line, each of many could be read to the end.
                found, fault = ValueError(*error.args), getattr(error, "pos", at)
                end = _end_of(_TO_NEXT, text, max(at, text.rfind("\n", at, fault)))
                end = len(text) if isinstance(error, RecursionError) else end
        line, last = line + text.count("\n", last, at), at
        yield line, text[at:end].rstrip(), found
        at = _end_of(_BETWEEN, text, end)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _index_row(record: IndexRecord, page: Page, line: int, raw: str) -> Iterator[Row | Unread]:
    """Yield a record of one case as a row; a failed job has no figure."""
    values = {key: str(value) for key, value in asdict(record).items()}
    if name := _NAME.fullmatch(record.model_name):
        own = {"fix_hp": f"bs={name['bs']}", "model": name["model"].partition("_")[2]}
        values |= own | {"precision": name["precision"]}
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
