"""Read the result tables of a Markdown page, with the facts that its other tables state.

Owns which tables hold results, which of their lines are rows, and what a page and its place
say of all of them. Must not know cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from trainmark.library.importers.cells import WORDS, columns, folded, nothing, plain, with_commas
from trainmark.library.importers.table import (
    LABELS,
    device_and_vendor,
    no_results,
    read_label,
    row,
)
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.library.importers.cells import Column
    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row, Unread
    from trainmark.spec import Message

_PIPE = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"-{2,}")
# Only where tables begin and end matters: what is inside code, lists or quotes, not inline marks.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])
_Lines = list[tuple[int, list[str]]]  # of a table: line, from 1, and cells


def read(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom."""
    lines = re.sub(r"\r\n?", "\n", text).split("\n")
    tables = list(_tables(text))
    facts = [found for found in tables if folded(found[0][1][0]) in WORDS["facts"]]
    page = _with_facts(page, {folded(c[0]): c[1] for found in facts for _, c in found if c[1:]})
    results = 0
    for found in tables:
        (line, headers), *body = found
        known = columns(headers, unknown="quality")
        if (why := no_results(known)) is None:
            results += 1
            yield from _rows(line, body, known, page, lines)
        elif found not in facts:
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
    model, precision = page.model or fact("model"), fact("precision") or None
    vendor = page.vendor or vendor
    return replace(page, model=model, vendor=vendor, device=device, precision=precision)


def _tables(text: str) -> Iterator[_Lines]:
    """Yield the lines of each table, its headers first."""
    table: _Lines = []
    for token in _MARKDOWN.parse(text):
        if token.type == "tr_open":
            table.append(((token.map or [0])[0] + 1, []))
        elif token.type == "table_close":
            yield table
            table = []
        elif token.type == "inline" and table:
            table[-1][1].append(token.content)


def _rows(
    start: int, body: _Lines, known: list[Column], page: Page, lines: list[str]
) -> Iterator[Row | Unread]:
    known = with_commas(known, [printed for _, printed in body])
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
    labels = [column.role in LABELS for column in known]
    of_rows = [cell for cell, label in zip(printed, labels, strict=True) if label]
    others = [cell.strip() for cell, label in zip(printed, labels, strict=True) if not label]
    told = [cell for cell in others if not nothing(cell) and not _RULE.fullmatch(cell)]
    if told or any(read_label(cell).nnodes for cell in of_rows):
        return None
    ruled = any(_RULE.fullmatch(cell) for cell in others)
    return message(
        "row_is_heading" if ruled else "row_is_text", text=" ".join(of_rows).strip()[:120]
    )
