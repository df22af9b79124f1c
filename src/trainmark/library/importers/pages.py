"""Read the result tables of a Markdown page, with the facts that its other tables state.

Owns which tables hold results, which of their lines are rows, and what a page and its place
say of all of them. Must not know cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from trainmark.library.importers.cells import WORDS, columns, folded, nothing, plain
from trainmark.library.importers.table import device_and_vendor, read_label, row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.library.importers.cells import Column
    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread
    from trainmark.spec import Message

_OTHER_TABLE = re.compile(r"^[ \t]*\|.*\|[ \t]*$|<table\b", re.MULTILINE | re.IGNORECASE)
_PIPE = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"-{2,}")
# Only where tables begin and end matters: what is inside code, lists or quotes, not inline marks.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])
_Lines = list[tuple[int, list[str]]]  # of a table: line, from 1, and cells


def read(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom."""
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    tables: list[_Lines] = []
    for found in _tables(text):
        if not isinstance(found, int):
            tables += _parted(found)
        else:
            yield page.unread(found, "table", message("table_is_no_markdown"), lines[found - 1])
    facts = [found for found in tables if folded(found[0][1][0]) in WORDS["facts"]]
    page = _with_facts(page, {folded(c[0]): c[1] for found in facts for _, c in found if c[1:]})
    results = 0
    for found in tables:
        (line, headers), *body = found
        known = columns(headers, unknown="quality")
        if _is_of_results(known):
            results += 1
            yield from _rows(line, body, known, page, lines)
        elif found not in facts:
            why = message("table_without_results", columns=", ".join(headers)[:120])
            yield page.unread(line, "table", why, lines[line - 1])
    if not results:
        yield page.unread(0, "file", message("page_without_results", tables=len(tables)))


def placed(page: Page, path: Path) -> Page:
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
    notes = page.notes
    if vendor and page.vendor not in (vendor, None):
        notes += (message("vendor_differs_from_place", page=vendor, place=page.vendor),)
    model, precision = page.model or fact("model"), fact("precision") or None
    return replace(
        page,
        model=model,
        vendor=page.vendor or vendor,
        device=device,
        precision=precision,
        notes=notes,
    )


def _is_of_results(known: list[Column]) -> bool:
    roles = {column.role for column in known}
    return "configuration" in roles and bool(roles & {"figure", "target"})


def _parted(table: _Lines) -> list[_Lines]:
    """Return a table as those that follow each other without an empty line between them."""
    heads = [
        at
        for at, (_, cells) in enumerate(table)
        if at and _is_of_results(columns(cells, unknown="ignored"))
    ]
    return [table[start:end] for start, end in pairwise([0, *heads, len(table)])]


def _tables(text: str) -> Iterator[_Lines | int]:
    """Yield the lines of each table, its headers first; of one in another form only its line."""
    table: _Lines = []
    for token in _MARKDOWN.parse(text):
        if token.type == "tr_open":
            table.append(((token.map or [0])[0] + 1, []))
        elif token.type == "table_close":
            yield table
            table = []
        elif token.type == "inline" and table:
            table[-1][1].append(token.content)
        elif token.content and _OTHER_TABLE.search(token.content):
            yield (token.map or [0])[0] + 1


def _rows(
    start: int, body: _Lines, known: list[Column], page: Page, lines: list[str]
) -> Iterator[Row | Unread]:
    for line, printed in body:
        raw = lines[line - 1]
        if why := _no_row(printed, known):
            if why.code == "row_is_heading":
                page = replace(page, model=plain(str(why.args["text"])))
            yield page.unread(line, "row", why, raw)
            continue
        inner = raw.strip(" \t>").removeprefix("|").removesuffix("|")
        cells = _PIPE.split(inner)  # Markdown adds missing cells and drops those under no header
        own = [*printed, *cells[len(known) :]][: len(cells)]
        yield from row(own, known, page, line, table=start, raw=raw)


def _no_row(printed: list[str], known: list[Column]) -> Message | None:
    """Return why a line of a table is no row: empty, a heading between rows, a sentence."""
    if all(nothing(cell) for cell in printed):
        return message("row_is_empty")
    at = next(at for at, column in enumerate(known) if column.role == "configuration")
    others = [cell.strip() for cell in printed[:at] + printed[at + 1 :]]
    ruled = any(_RULE.fullmatch(cell) for cell in others)
    if read_label(printed[at]).nnodes or any(
        not nothing(c) and not _RULE.fullmatch(c) for c in others
    ):
        return None
    text = printed[at].strip()[:120]
    return message("row_is_heading" if ruled else "row_is_text", text=text)
