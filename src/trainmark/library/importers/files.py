"""Read files and folders of other people's results: which form a file has; nothing is lost.

Owns text encodings, CSV, JSON records of one case, and Markdown: where a page's tables are, and
what a page and its place say of all rows. A file that holds no result is listed with the reason.
Must not know cells.
"""

from __future__ import annotations

import csv
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from pydantic_core import from_json

from trainmark.errors import UsageError
from trainmark.library.importers import logs, table
from trainmark.library.importers.cells import WORDS, columns, folded, nothing, plain, with_commas
from trainmark.library.importers.table import Line, Page, known_model
from trainmark.record.index_record import INDEXES, IndexRecord
from trainmark.record.record import RECORD_FILE
from trainmark.record.work import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


MAX_BYTES = 32 << 20  # of a file that is no log
_LOG_MARK = re.compile(rb"\A\x1f\x8b|:::MLLOG|\[PerfLog\]")
_PIPE = re.compile(r"(?<!\\)\|")
_PREFIX = re.compile(r"^[\s>*+-]*\|")  # of a quote or a list, and the first pipe
# Only where tables begin and end matters: what is inside code, lists or quotes, not inline marks.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])
_NAME = re.compile(r".*?_(?P<model>.+)_(?:sp|mp)_bs(?P<bs>\d+)_(?P<precision>[^_]+)_\d+")
_TITLE = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
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
    """Return the rows of files and folders.

    Of a folder's files all are read but hidden ones and those of runs, which have a record.

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
            found += list(_entries(path, page)) or [none]
    rows = [one for one in found if isinstance(one, Row)]
    return Imported(rows, [one for one in found if isinstance(one, Unread)])


def _files(place: Path) -> Iterator[Path]:
    """Yield each file below a folder that is to be read; a link to a folder is not followed."""
    for path in sorted(place.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(place).parts)
        own = any((path.parent / launch / RECORD_FILE).exists() for launch in ("", "r1"))
        if not hidden and not own and not path.is_dir():
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
        yield from _json(text, page)
    elif _TABLE.search(text):
        yield from read_page(text, page)
    else:
        yield page.unread(0, "file", message("file_of_unknown_form"))


def _decoded(content: bytes) -> str | None:
    """Return a text, in UTF-8 or GB 18030; None: it is no text."""
    for encoding in ("utf-8-sig", "gb18030"):
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            return None if "\0" in text else text
    return None


def read_page(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom."""
    page, tables = replace(page, form="flagperf", evidence="C"), list(_tables(text))
    of_facts = [found for found in tables if folded(found[0].cells[0]) in WORDS["facts"]]
    facts = {folded(x.cells[0]): x.cells[1] for found in of_facts for x in found if x.cells[1:]}
    page, results = _with_facts(page, facts), False
    if not page.model:
        title = _TITLE.search(text)
        model = known_model(plain(title[1]) if title else "", PurePath(page.file).stem)
        page = replace(page, model=model)
    for head, *body in (found for found in tables if found not in of_facts):
        for entry in table.read(head, body, page, unknown="quality"):
            results = results or not (isinstance(entry, Unread) and entry.kind == "table")
            yield entry
    if not results:
        yield page.unread(0, "file", message("page_without_results", tables=len(tables)))


def _placed(page: Page, path: Path) -> Page:
    """Return ``page`` with what its place says, ``VENDOR/MODEL-FRAMEWORK/README.md``."""
    folder = path.absolute().parent
    model, _, framework = folder.name.partition("-")
    vendor = folder.parent.name.casefold()
    known = vendor in WORDS["vendors"]
    return replace(page, model=model, framework=framework, vendor=vendor) if known else page


def _with_facts(page: Page, facts: dict[str, str]) -> Page:
    """Return ``page`` with model, device and precision from its tables of facts."""

    def fact(kind: str) -> str:
        value = next((facts[name] for name in WORDS[kind] if name in facts), "")
        points = any(word in value for word in WORDS["pointer"])
        return "" if points or nothing(value) else plain(value)

    device, vendor = device_and_vendor(fact("device"))
    model, precision = page.model or fact("model"), fact("precision") or None
    vendor = page.vendor or vendor
    return replace(page, model=model, vendor=vendor, device=device, precision=precision)


def device_and_vendor(short_name: str) -> tuple[str | None, str | None]:
    """Return ``A100`` and ``nvidia`` of ``nvidia A100 (80G * 8)``."""
    text = plain(short_name).partition("(")[0].strip(" /")
    first, _, rest = text.partition(" ")
    known = first.casefold() in WORDS["vendors"]
    return (rest.strip(" /") if known else text) or None, first.casefold() if known else None


def _tables(text: str) -> Iterator[list[Line]]:
    """Yield the lines of each table, its headers first."""
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    for token in _MARKDOWN.parse(text):
        if token.type == "table_open" and token.map:
            start, end = token.map
            yield [
                Line(at + 1, _cells(lines[at]), lines[at]) for at in (start, *range(start + 2, end))
            ]


def _cells(line: str) -> list[str]:
    # Markdown would add missing cells and drop those under no header.
    inner = _PREFIX.sub("", line).rstrip().removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in _PIPE.split(inner)]


def _csv(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield a row a line, under headers that we know: our own, or those of pages."""
    page, lines = replace(page, form="csv"), re.split(r"\r\n?|\n", text)
    delimiter = max(",;\t", key=lines[0].count)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        rows = [Line(reader.line_num, x, lines[reader.line_num - 1]) for x in reader if any(x)]
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


def _json(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield the records of one case, one a line as the public tool and ours write them."""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield from _of_index(IndexRecord(**from_json(line)), page, number, line)
        except (ValueError, TypeError, UsageError) as error:
            why = message("json_malformed", why=str(error).partition("\n")[0][:120])
            yield page.unread(number, "row", why, line)
            if line.strip() == "{":  # of a document over several lines: told once
                return


def _of_index(record: IndexRecord, page: Page, number: int, raw: str) -> Iterator[Row | Unread]:
    """Yield a record of one case as a row; a failed job has no figure."""
    told = {key: str(value) for key, value in asdict(record).items() if value is not None}
    if name := _NAME.fullmatch(record.model_name):
        told |= {"fix_hp": f"bs={name['bs']}", "model": name["model"]}
        told["precision"] = name["precision"]
    if record.gpu_num == 1:  # of more it does not say on how many machines
        told |= {"nnodes": "1", "nproc": "1"}
    result = told.pop("FINAL_RESULT")
    if record.JOB_FAIL_FLAG:
        result = "/"
    if INDEXES[record.index] == "mem":
        told["mem"] = f"{result} {record.UNIT}"
    elif INDEXES[record.index] == "speed":
        told |= {"final_result": result, "final_result_unit": record.UNIT}
    notes = (message("run_not_successful"),) * record.JOB_FAIL_FLAG
    page = replace(page, form="index", model=record.model_name, notes=notes)
    yield from table.read(Line(0, [*told], ""), [Line(number, [*told.values()], raw)], page)


_READERS = {
    ".md": read_page, ".markdown": read_page, ".csv": _csv, ".tsv": _csv,
    ".json": _json, ".jsonl": _json,
}  # fmt: skip
