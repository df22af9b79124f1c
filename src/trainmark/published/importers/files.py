"""Read files and folders of other people's results: which form a file has; nothing is lost.

Owns text encodings, CSV, and what a file's place says of its rows. A file that holds no result is
listed with the reason. Must not know cells.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.published.importers import json_records, logs, table
from trainmark.published.importers.cells import with_commas
from trainmark.published.importers.headers import read_headers
from trainmark.published.importers.markdown import read_page
from trainmark.published.importers.table import Page, TableLine
from trainmark.published.importers.vocabulary import WORDS
from trainmark.record.record import RECORD_FILE
from trainmark.record.work import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


MAX_BYTES = 32 << 20  # of a file that is no log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")
_TABLE = re.compile(r"^[^|\n]*\|[^\n]*\r?\n[^|\n]*\|", re.MULTILINE)  # two lines with pipes
_OWN_COLUMNS = {"run_id", "case_key"}  # of our own CSV


@dataclass(slots=True)
class Imported:
    """What was read, in order, and what could not be."""

    rows: list[Row]
    unread: list[Unread]

    def document(self) -> dict[str, Any]:
        """Return it as ``import --json`` prints it."""
        return {
            "rows": [row.model_dump(mode="json") for row in self.rows],
            "unread": [entry.model_dump(mode="json") for entry in self.unread],
        }


def read(places: Sequence[Path]) -> Imported:
    """Return the rows of files and folders.

    Of a folder's files all are read but hidden ones and those of runs, which have a record.

    Raises:
        UsageError: there is no such file or folder.
    """
    entries: list[Row | Unread] = []
    for place in places:
        if not place.exists():
            fix = "name one that exists"
            raise UsageError("no such file or folder", where=str(place), fix=fix)
        for path in _files(place) if place.is_dir() else [place]:
            page = Page(file=os.fsencode(path).decode("utf-8", "replace"), form="")
            of_file = list(_entries(path, page))
            entries += of_file or [page.unread(0, "file", message("file_without_results"))]
    rows = [entry for entry in entries if isinstance(entry, Row)]
    return Imported(rows, [entry for entry in entries if isinstance(entry, Unread)])


def _files(place: Path) -> Iterator[Path]:
    """Yield each file below a folder that is to be read; a link to a folder is not followed."""
    for path in sorted(place.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        is_of_run = any((path.parent / launch / RECORD_FILE).exists() for launch in ("", "r1"))
        if not is_hidden and not is_of_run and not path.is_dir():
            yield path


def _entries(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of one file and what cannot be read of it."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise OSError("not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = error.strerror or str(error)
        yield page.unread(0, "file", message("file_unreadable", why=why))
        return
    suffix, text = path.suffix.lower(), _decoded(content)
    reader = _READERS.get(suffix)  # what it reads may quote lines of a log
    if suffix == ".log" or (reader is None and _LOG_MARK.search(content)):
        yield from logs.read(path, page)
    elif len(content) > MAX_BYTES:
        yield page.unread(0, "file", message("file_too_large", megabytes=MAX_BYTES >> 20))
    elif text is None:
        yield page.unread(0, "file", message("file_is_no_text"))
    elif reader is not None:
        yield from reader(text, _placed(page, path))
    elif text.startswith("{"):
        yield from json_records.read(text, page)
    elif _TABLE.search(text):
        yield from read_page(text, page)
    else:
        yield page.unread(0, "file", message("file_of_unknown_form"))


def _decoded(content: bytes) -> str | None:
    """Decode UTF-16 with a byte-order mark, UTF-8 or GB 18030; return None if none of them fits."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding in ("utf-16",) if is_utf16 else ("utf-8-sig", "gb18030"):
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            return None if "\0" in text else text
    return None


def _placed(page: Page, path: Path) -> Page:
    """Return ``page`` with what its place says, ``VENDOR/MODEL-FRAMEWORK/README.md``."""
    folder = path.absolute().parent
    model, _, framework = folder.name.partition("-")
    vendor = folder.parent.name.casefold()
    if vendor not in WORDS["names"]["vendors"]:
        return page
    return replace(page, model=model, framework=framework, vendor=vendor)


def _csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r?\n", text)
    comments = 0  # lines above the headers, which begin with `#` and have one cell
    while comments < len(lines) and re.fullmatch(r"#[^,;\t]*|", lines[comments]):
        comments += 1
    lines = lines[comments:] or [""]
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        rows = [
            TableLine(comments + reader.line_num, x, lines[reader.line_num - 1])
            for x in reader
            if any(x)
        ]
    except csv.Error as error:
        number = comments + reader.line_num
        yield page.unread(number, "row", message("csv_malformed", why=str(error)))
        return
    head, *body = rows or [TableLine(1, [], "")]
    whole = [line.cells for line in body if len(line.cells) >= len(head.cells)]
    columns = read_headers(head.cells, whole)
    has_decimals = any(column.decimal_comma for column in with_commas(columns, whole))
    # `1.234,5` is German for what is `1,234.5` here, and `12,345` would be read as either.
    if delimiter != "," and not has_decimals and re.search("[0-9],[0-9]", text):
        why = message("csv_with_decimal_commas", delimiter=delimiter)
        yield page.unread(1, "table", why, head.raw)
        return
    is_own = {*head.cells} >= _OWN_COLUMNS
    yield from table.read(head, body, page, unknown="ignored" if is_own else "unknown")


_READERS = {
    ".md": read_page,
    ".markdown": read_page,
    ".csv": _csv,
    ".tsv": _csv,
    ".json": json_records.read,
    ".jsonl": json_records.read,
}
