"""Read files and folders of other people's results, each by the form of the file.

Owns text encodings, CSV, and what a file's folder says about its rows. A file without results is
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
from trainmark.events.schema import LAUNCHER_FILE
from trainmark.published.importers import json_records, logs, table
from trainmark.published.importers.cells import mark_decimal_commas
from trainmark.published.importers.headers import read_headers
from trainmark.published.importers.markdown import read_page
from trainmark.published.importers.page import Page, TableLine
from trainmark.published.importers.vocabulary import WORDS
from trainmark.record.record import RECORD_FILE, is_acceptance_folder
from trainmark.record.work import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


MAX_BYTES = 32 << 20  # of a file that is not a log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")  # a gzip file, or events of a log
_TABLE_MARK = re.compile(r"^[^|\n]*\|[^\n]*\r?\n[^|\n]*\|", re.MULTILINE)  # two lines with pipes
_OWN_CSV_COLUMNS = {"run_id", "case_key"}  # that only the CSV of this program has


@dataclass(slots=True)
class Imported:
    """The rows that were read, and the parts of files that could not be, both in order."""

    rows: list[Row]
    unread: list[Unread]

    def as_dict(self) -> dict[str, Any]:
        """Return the rows and the unread parts in the form that ``import --json`` prints."""
        return {
            "rows": [row.model_dump(mode="json") for row in self.rows],
            "unread": [entry.model_dump(mode="json") for entry in self.unread],
        }


def read_files(places: Sequence[Path]) -> Imported:
    """Return the rows of files and folders, and the parts of them that could not be read.

    A row is one published result: the figures of one configuration.

    Records of this program's own runs are not read: they are not results of others. In a folder,
    all files of such runs and of acceptance tests are left out, and hidden files too; a folder in
    which no file remains is listed as unread.

    Raises:
        UsageError: there is no such file or folder.
    """
    entries: list[Row | Unread] = []
    for place in places:
        if not place.exists():
            fix = "choose an existing path"
            raise UsageError("no such file or folder", where=str(place), fix=fix)
        paths = _list_files(place) if place.is_dir() else [place]
        if not paths:
            page = _make_page(place)
            entries.append(page.make_unread_file(message("folder_without_files_of_others")))
        for path in paths:
            page = _make_page(path)
            entries_of_file = list(_read_file(path, page))
            if not entries_of_file:
                reason = message("file_without_results")
                entries_of_file = [page.make_unread_file(reason)]
            entries += entries_of_file
    rows = [entry for entry in entries if isinstance(entry, Row)]
    return Imported(rows, [entry for entry in entries if isinstance(entry, Unread)])


def _make_page(path: Path) -> Page:
    """Return what all rows of a file share. Its form is set by the reader chosen for the file."""
    # A name may have bytes that are not UTF-8, which JSON could not represent.
    return Page(file=os.fsencode(path).decode("utf-8", "replace"), form="")


def _list_files(place: Path) -> list[Path]:
    """Return each file below a folder that is to be read; a link to a folder is not followed.

    Hidden files are left out, and those of this program's own runs and acceptance tests: they are
    not results of others. The plans of an acceptance test, for example, contain published rows.
    """
    paths = sorted(place.rglob("*"))
    folders = [place, *(path for path in paths if path.is_dir())]
    acceptance_folders = {folder for folder in folders if is_acceptance_folder(folder)}
    return [
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(place).parts)
        and not _is_of_own_run(path)
        and acceptance_folders.isdisjoint(path.parents)
        and not path.is_dir()
    ]


def _is_of_own_run(path: Path) -> bool:
    """Return whether the folder of a file is that of a run of this program.

    A run has a record in its folder, or in ``r1`` if it has several launches. While it is in
    progress, there are only the events of the launcher.
    """
    return any(
        (path.parent / name).exists()
        for name in (RECORD_FILE, f"r1/{RECORD_FILE}", LAUNCHER_FILE, f"r1/{LAUNCHER_FILE}")
    )


def _read_file(path: Path, page: Page) -> Iterator[Row | Unread]:
    """Yield the rows of one file, and what of it cannot be read.

    Args:
        path: of the file; its suffix decides how it is read, or its content if no reader is for
            this suffix.
        page: what all rows of the file share: its name, its form.
    """
    if path.name == RECORD_FILE:  # of this program
        yield page.make_unread_file(message("file_is_own_record"))
        return
    try:
        if not path.is_file():  # reading a pipe would wait
            raise OSError("not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # one byte more shows that the file is too large
    except OSError as error:
        why = error.strerror or str(error)
        yield page.make_unread_file(message("file_unreadable", why=why))
        return
    suffix = path.suffix.lower()
    text = _decode(content)
    reader = _READERS.get(suffix)
    # `_LOG_MARK` also matches the first bytes of a gzip file, which is read as a log. A Markdown,
    # CSV or JSON file may quote lines of a log: its content is not searched for them.
    if suffix == ".log" or (reader is None and _LOG_MARK.search(content)):
        yield from logs.read_log(path, page)  # line by line, so it may be of any size
    elif len(content) > MAX_BYTES:
        yield page.make_unread_file(message("file_too_large", megabytes=MAX_BYTES >> 20))
    elif text is None:
        yield page.make_unread_file(message("file_is_no_text"))
    elif reader is not None:
        # Collections of results name vendor and model by the folders of their pages, which have the
        # suffix `.md`. Of the files that are read otherwise, no such collection is known.
        yield from reader(text, _add_folder_names(page, path))
    elif text.startswith("{"):  # JSON in a file of another suffix, such as `.txt`
        yield from json_records.read_json(text, page)
    elif _TABLE_MARK.search(text):  # a Markdown table in a file of another suffix
        yield from read_page(text, page)
    else:
        yield page.make_unread_file(message("file_of_unknown_form"))


def _decode(content: bytes) -> str | None:
    """Decode UTF-16 with a byte-order mark, UTF-8 or GB 18030; return None if none of them fits."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encodings = ("utf-16",) if is_utf16 else ("utf-8-sig", "gb18030")
    for encoding in encodings:
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            is_binary = "\0" in text
            return None if is_binary else text
    return None


def _add_folder_names(page: Page, path: Path) -> Page:
    """Return a page with vendor, model and framework by its path.

    In collections of results, the path has the form ``VENDOR/MODEL-FRAMEWORK/README.md``. If its
    vendor is not a known one, the path has another form, and the page is returned unchanged.

    Args:
        page: what all rows of the file share.
        path: of the file.
    """
    folder = path.absolute().parent
    model, _, framework = folder.name.partition("-")
    vendor = folder.parent.name.casefold()
    if vendor not in WORDS["names"]["vendors"]:
        return page
    return replace(page, model=model, framework=framework, vendor=vendor)


def _read_csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row for each line below the headers: those of this program's CSV, or any others.

    If the file is malformed, or its commas may be decimal commas or separators of thousands, only
    the reason is yielded.

    Args:
        text: of the file.
        page: what all rows of the file share.
    """
    page = replace(page, form="csv")
    lines = re.split(r"\r?\n", text)
    num_comments = 0  # lines above the headers that are empty, or begin with `#` and have one cell
    while num_comments < len(lines) and re.fullmatch(r"#[^,;\t]*|", lines[num_comments]):
        num_comments += 1
    lines = lines[num_comments:] or [""]  # a file of comments alone is read as an empty one
    delimiter = max(",;\t", key=lines[0].count)  # the one that is most frequent in the headers
    # With their ends, by which the reader separates the lines of one cell.
    complete_lines = [f"{line}\n" for line in lines]
    reader = csv.reader(complete_lines, delimiter=delimiter, strict=True)
    table_lines = []
    try:
        for printed_cells in reader:
            cells = [cell.replace("\n", " ") for cell in printed_cells]
            if any(cells):
                raw = lines[reader.line_num - 1]  # of cells over several lines the last line
                table_lines.append(TableLine(num_comments + reader.line_num, cells, raw))
    except csv.Error as error:
        number = num_comments + reader.line_num
        yield page.make_unread(number, "row", message("csv_malformed", why=str(error)))
        return
    # An empty file is read as a table without columns, which is reported as such.
    head, *body = table_lines or [TableLine(number=1, cells=[], raw="")]
    if delimiter != "," and _has_unclear_commas(text, head, body):
        reason = message("csv_with_decimal_commas", delimiter=delimiter)
        yield page.make_unread(line=head.number, kind="table", reason=reason, raw=head.raw)
        return
    is_own_csv = set(head.cells) >= _OWN_CSV_COLUMNS
    # This program's own CSV has columns that are not read, which are not reported as unknown.
    unknown_role = "ignored" if is_own_csv else "unknown"
    yield from table.read_table(head, body, page, unknown_role=unknown_role)


def _has_unclear_commas(text: str, head: TableLine, body: Sequence[TableLine]) -> bool:
    """Tell whether commas inside numbers may be decimal commas as well as separators of thousands.

    ``12,345`` may be either. The commas of the whole table are clear if one of its columns prints
    decimal commas, for example ``0,5``, and no points.

    Args:
        text: the file, in which commas do not separate cells.
        head: the line of the headers.
        body: the lines below.
    """
    # In a line with too few cells, it is not known to which columns they belong.
    complete_rows = [line.cells for line in body if len(line.cells) >= len(head.cells)]
    columns = mark_decimal_commas(read_headers(head.cells, complete_rows), complete_rows)
    has_decimal_commas = any(column.decimal_comma for column in columns)
    return not has_decimal_commas and re.search("[0-9],[0-9]", text) is not None


_READERS = {
    ".md": read_page,
    ".markdown": read_page,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": json_records.read_json,
    ".jsonl": json_records.read_json,
}
