"""Read files and folders of other people's results: which form a file has; nothing is lost.

Owns CSV tables, JSON records of one case, rows as ``import --json`` writes them, text encodings.
A file that holds no result is listed with the reason.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.library.importers import logs, pages
from trainmark.library.importers.cells import Column, columns, with_commas
from trainmark.library.importers.table import Page, no_results, row
from trainmark.library.store.columns import column_name
from trainmark.record.figures import FIGURES
from trainmark.record.index_record import INDEXES, IndexRecord
from trainmark.record.messages import render
from trainmark.record.record import RECORD_FILE
from trainmark.record.rows import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trainmark.spec import Message

MAX_BYTES = 32 << 20  # of a file that is no log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")
_OWN_PAGE = re.compile(r"page(\.[a-z]+)?\.(md|html)")  # what it shows is beside it as records
_TABLE = re.compile(r"^[ \t>]*\|.*\r?\n[ \t>]*\|[ \t]*:?-", re.MULTILINE)
_NAME = re.compile(r"(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_BETWEEN = re.compile(r"[\s,\[\]]*")  # documents in a row or an array
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Imported:
    """What was read, in order, and what could not be."""

    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return it as ``import --json`` prints it; a reason is its sentence and its code."""
        return {
            "rows": [
                one.model_dump(mode="json")
                | {"notes": [_worded(note, "note") for note in one.notes]}
                for one in self.rows
            ],
            "unread": [
                one.model_dump(mode="json") | _worded(one.reason, "reason") for one in self.unread
            ],
        }


def _worded(found: Message, name: str) -> dict[str, Any]:
    return {name: render(found, "en"), "code": found.code, "args": dict(found.args)}


def read(places: Sequence[Path]) -> Imported:
    """Return the rows of files and folders; of a folder's files all but hidden ones are read.

    Raises:
        UsageError: there is no such file or folder.
    """
    found: list[Row | Unread] = []
    for place in places:
        if not place.exists():
            remedy = "name one that exists"
            raise UsageError("no such file or folder", where=str(place), remedy=remedy)
        for path in _files(place) if place.is_dir() else [place]:
            page = Page(file=os.fsencode(path).decode("utf-8", "replace"), form="")
            none = page.unread(0, "file", message("file_without_results"))
            found += list(_entries(path, page, in_folder=path != place)) or [none]
    rows = [one for one in found if isinstance(one, Row)]
    return Imported(rows, [one for one in found if isinstance(one, Unread)])


def _files(place: Path) -> Iterator[Path]:
    """Yield each file below a folder; a link to a folder is not followed."""
    for path in sorted(place.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        if not hidden and not path.is_dir():
            yield path


def _entries(path: Path, page: Page, *, in_folder: bool) -> Iterator[Row | Unread]:
    """Yield the rows of one file and what cannot be read of it."""
    of_run = any((path.parent / launch / RECORD_FILE).exists() for launch in ("", "r1"))
    if in_folder and of_run and _OWN_PAGE.fullmatch(path.name):
        yield page.unread(0, "file", message("page_of_a_run"))
        return
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield page.unread(0, "file", message("file_unreadable", why=why))
        return
    suffix, text = path.suffix.lower(), _decoded(content)
    is_page = suffix in {".md", ".markdown"}
    quotes = is_page or suffix in {".csv", ".tsv", ".json", ".jsonl"}  # perhaps lines of a log
    if suffix == ".log" or (not quotes and _LOG_MARK.search(content)):
        yield from logs.read(path, page)
    elif len(content) > MAX_BYTES:
        yield page.unread(0, "file", message("file_too_large", megabytes=MAX_BYTES >> 20))
    elif text is None:
        yield page.unread(0, "file", message("file_is_no_text"))
    elif suffix in {".csv", ".tsv"}:
        yield from _csv(text, page)
    elif suffix in {".json", ".jsonl"} or (not is_page and text.lstrip()[:1] in {"{", "["}):
        yield from _json(text, page)
    elif is_page or _TABLE.search(text):
        printed = replace(page, form="flagperf", evidence="C")
        yield from pages.read(text, pages.placed(printed, path))
    else:
        yield page.unread(0, "file", message("file_of_unknown_form"))


def _decoded(content: bytes) -> str | None:
    """Return a text, in UTF-8 or GB 18030; None: it is no text."""
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r\n?|\n", text)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    ours = {column_name(name, spec.unit, spec): spec for name, spec in FIGURES.items()}
    try:
        headers, rows, start = next(reader, []), [], reader.line_num
        for printed in reader:
            rows += [(start, reader.line_num, printed)] if any(printed) else []
            start = reader.line_num
    except csv.Error as error:
        yield page.unread(reader.line_num, "row", message("csv_malformed", why=str(error)))
        return
    known = [
        Column(name, "figure", ours[name].name, unit=ours[name].unit) if name in ours else other
        for name, other in zip(headers, columns(headers, unknown="ignored"), strict=True)
    ]
    known = with_commas(known, [printed for *_, printed in rows])
    why = no_results(known)
    # `1.234,5` is German for what is `1,234.5` here, and `12,345` would be read as either.
    decimal = any(column.decimal_comma for column in known)
    if why is None and delimiter != "," and not decimal and re.search("[0-9],[0-9]", text):
        why = message("csv_with_decimal_commas", delimiter=delimiter)
    if why is not None:
        yield page.unread(1, "table", why, lines[0])
        return
    for start, end, printed in rows:
        yield from row(printed, known, page, start + 1, table=1, raw="\n".join(lines[start:end]))


def _json(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of a document, or of one a line: records of one case, or rows as we write."""
    at = _BETWEEN.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        line, end = 1 + text.count("\n", 0, at), text.find("\n{", at) % (len(text) + 1)
        try:
            document, end = _DECODER.raw_decode(text, at)
            yield from _of_document(document, page, line, text[at:end])
        except (ValueError, TypeError, KeyError, UsageError, RecursionError) as error:
            why = message("json_malformed", why=str(error).partition("\n")[0][:120])
            yield page.unread(line, "row", why, text[at:end].rstrip())
        at = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]


def _of_document(document: Any, page: Page, line: int, raw: str) -> Iterator[Row | Unread]:
    keys = document.keys() if isinstance(document, dict) else set()
    if {"rows", "unread"} <= keys:  # as `Imported.document` has it
        for item in document["rows"]:
            notes = [{key: note[key] for key in ("code", "args")} for note in item["notes"]]
            yield Row.model_validate(item | {"notes": notes})
        for item in document["unread"]:
            reason = {key: item.pop(key) for key in ("code", "args")}
            yield Unread.model_validate(item | {"reason": reason})
    elif "FINAL_RESULT" in keys:
        yield from _of_index(IndexRecord(**document), page, line, raw)
    elif {"run_id", "plan", "figures"} <= keys:
        yield page.unread(line, "file", message("file_is_record"))
    else:
        yield page.unread(line, "row", message("json_of_unknown_form"), raw)


def _of_index(record: IndexRecord, page: Page, line: int, raw: str) -> Iterator[Row | Unread]:
    """Yield a record of one case as a row; a failed job has no figure."""
    values = {key: str(value) for key, value in asdict(record).items() if value is not None}
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
