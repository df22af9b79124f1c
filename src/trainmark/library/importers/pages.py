"""Read the result tables of a Markdown page, with the facts that its other tables state.

Owns where a page's tables are, and what a page and its place say of all rows. Must not know cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

from trainmark.library.importers import table
from trainmark.library.importers.cells import WORDS, folded, nothing, plain
from trainmark.library.importers.table import Line, device_and_vendor
from trainmark.record.rows import Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.library.importers.table import Page
    from trainmark.record.rows import Row

_PIPE = re.compile(r"(?<!\\)\|")
_PREFIX = re.compile(r"^[\s>*+-]*\|")  # of a quote or a list, and the first pipe
# Only where tables begin and end matters: what is inside code, lists or quotes, not inline marks.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])


def read(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom."""
    tables = list(_tables(text))
    of_facts = [found for found in tables if folded(found[0].cells[0]) in WORDS["facts"]]
    facts = {folded(x.cells[0]): x.cells[1] for found in of_facts for x in found if x.cells[1:]}
    page, results = _with_facts(page, facts), False
    for head, *body in (found for found in tables if found not in of_facts):
        for entry in table.read(head, body, page, unknown="quality"):
            results = results or not (isinstance(entry, Unread) and entry.kind == "table")
            yield entry
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
