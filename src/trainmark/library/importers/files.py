"""Read files and folders of other people's results: which form a file has; nothing is lost.

Owns text encodings and rows that are printed twice. A file that holds no result is listed with the
reason.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.library.importers import documents, logs, pages
from trainmark.library.importers.table import Page
from trainmark.record.record import RECORD_FILE
from trainmark.record.rows import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

MAX_BYTES = 32 << 20  # of a file that is no log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")
_OWN_PAGE = re.compile(r"page(\.[a-z]+)?\.(md|html)")  # what it shows is beside it as records
_TABLE = re.compile(r"^[ \t>]*\|.*\r?\n[ \t>]*\|[ \t]*:?-", re.MULTILINE)
_TEXT_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SAME_FIGURES = 2  # rows that agree in fewer may do so by chance


@dataclass(slots=True)
class Imported:
    """What was read, in order, and what could not be."""

    rows: list[Row] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


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
    rows = _duplicates_noted(one for one in found if isinstance(one, Row))
    return Imported(list(rows), [one for one in found if isinstance(one, Unread)])


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
    if path.exists() and not path.is_file():  # a pipe would be waited for
        yield page.unread(0, "file", message("file_unreadable", why="not a regular file"))
        return
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        yield page.unread(0, "file", message("file_unreadable", why=why))
        return
    suffix, (text, encoding) = path.suffix.lower(), decoded(content)
    is_page = suffix in {".md", ".markdown"}
    quotes = is_page or suffix in {".csv", ".tsv", ".json", ".jsonl"}  # perhaps lines of a log
    if suffix == ".log" or (not quotes and _LOG_MARK.search(content)):
        yield from logs.read(path, page)
    elif len(content) > MAX_BYTES:
        yield page.unread(0, "file", message("file_too_large", megabytes=MAX_BYTES >> 20))
    elif text is None:
        yield page.unread(0, "file", message("file_is_no_text"))
    elif suffix in {".csv", ".tsv"}:
        yield from documents.read_csv(text, page)
    elif suffix in {".json", ".jsonl"} or (not is_page and text.lstrip()[:1] in {"{", "["}):
        yield from documents.read_json(text, page)
    elif is_page or _TABLE.search(text):
        notes = (message("read_as", encoding=encoding),) if encoding == "gb18030" else ()
        printed = Page(file=page.file, form="flagperf", evidence="C", notes=notes)
        yield from pages.read(text, pages.placed(printed, path))
    else:
        yield page.unread(0, "file", message("file_of_unknown_form"))


def decoded(content: bytes) -> tuple[str | None, str]:
    """Return a text with its encoding: UTF-8, UTF-16 with its mark, or GB 18030; None: no text."""
    marked = next((name for mark, name in _TEXT_MARKS.items() if content.startswith(mark)), None)
    for encoding in [marked] if marked else ["utf-8", "gb18030"]:
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text, encoding
    return None, ""


def _duplicates_noted(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows; one that repeats an earlier one, label and figures, says which."""
    seen: dict[tuple[object, ...], Row] = {}
    for row in rows:
        known = {
            name: found.value for name, found in row.figures.items() if found.value is not None
        }
        key = (row.configuration, row.precision, *row.changes.items(), *known.items())
        counted = [name for name in known if not name.endswith(("_target", "_total"))]
        first = seen.setdefault(key, row) if len(counted) >= _SAME_FIGURES else row
        if first is not row:
            note = message("row_is_duplicate", file=first.file, line=first.line)
            row = row.model_copy(update={"notes": [*row.notes, note]})  # noqa: PLW2901
        yield row
