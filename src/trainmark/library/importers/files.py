"""Read files and folders of other people's results: which form a file has; nothing is lost.

Owns CSV tables and text encodings. A file that holds no result is listed with the reason.
"""

from __future__ import annotations

import csv
import io
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.library.importers import logs, pages, table
from trainmark.library.importers.cells import columns, with_commas
from trainmark.library.importers.table import Line, Page
from trainmark.record.record import RECORD_FILE
from trainmark.record.rows import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


MAX_BYTES = 32 << 20  # of a file that is no log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")
_OWN_PAGE = re.compile(r"page(\.[a-z]+)?\.(md|html)")  # what it shows is beside it as records
_TABLE = re.compile(r"^[ \t>]*\|.*\r?\n[ \t>]*\|[ \t]*:?-", re.MULTILINE)


@dataclass(slots=True)
class Imported:
    """What was read, in order, and what could not be."""

    rows: list[Row]
    unread: list[Unread]

    def document(self) -> dict[str, Any]:
        """Return it as ``import --json`` prints it."""
        return {
            name: [one.model_dump(mode="json") for one in getattr(self, name)]
            for name in ("rows", "unread")
        }


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
        yield from reader(text, pages.placed(page, path))
    elif _TABLE.search(text):
        yield from _markdown(text, page)
    else:
        yield page.unread(0, "file", message("file_of_unknown_form"))


def _decoded(content: bytes) -> str | None:
    """Return a text, in UTF-8 or GB 18030; None: it is no text."""
    for encoding in ("utf-8-sig", "gb18030"):
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            return None if "\0" in text else text
    return None


def _markdown(text: str, page: Page) -> Iterator[Row | Unread]:
    return pages.read(text, replace(page, form="flagperf", evidence="C"))


def _csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r\n?|\n", text)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, start = [], 0
    try:
        for printed in reader:
            if any(printed):
                raw = "\n".join(lines[start : reader.line_num])
                rows.append(Line(start + 1, printed, raw))
            start = reader.line_num
    except csv.Error as error:
        yield page.unread(reader.line_num, "row", message("csv_malformed", why=str(error)))
        return
    head, *body = rows or [Line(1, [], "")]
    known = columns(head.cells, unknown="ignored")
    whole = [line.cells for line in body if len(line.cells) >= len(known)]
    decimal = any(column.decimal_comma for column in with_commas(known, whole))
    # `1.234,5` is German for what is `1,234.5` here, and `12,345` would be read as either.
    if delimiter != "," and not decimal and re.search("[0-9],[0-9]", text):
        why = message("csv_with_decimal_commas", delimiter=delimiter)
        yield page.unread(1, "table", why, head.raw)
    else:
        yield from table.read(head, body, page)


_READERS = {".md": _markdown, ".markdown": _markdown, ".csv": _csv, ".tsv": _csv}
