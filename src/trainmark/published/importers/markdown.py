"""Read result pages: where the tables of a page are, and what it says about all rows of one.

Owns Markdown: tables, also those inside code, headings, tables of facts and lines of facts. Must
not know cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from markdown_it import MarkdownIt

from trainmark.published.audit.qualities import split_words
from trainmark.published.importers import table
from trainmark.published.importers.headers import split_unit
from trainmark.published.importers.labels import count_devices, find_device, split_vendor
from trainmark.published.importers.table import Page, TableLine, known_model
from trainmark.published.importers.vocabulary import (
    WORDS,
    has_phrase,
    header_key,
    is_nothing,
    plain,
    precisions,
)
from trainmark.record.work import Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.work import Row

_PIPE = re.compile(r"(?<!\\)\|")
_PREFIX = re.compile(r"^[\s>*+-]*\|")  # of a quote or a list, and the first pipe
_SEPARATOR = re.compile(r"[\s>]*[|:+ -]*-{2,}[|:+ -]*")
_FACT = re.compile(r"[\s>*+-]*([^:：|]{2,40}?)\**\s*[:：]\s*(\S[^|]*)")
_BOLD = re.compile(r"\*\*([^*|]+?)\*\*\s*:?")  # a line of its own, which is as good as a heading
_BOLD_LEVEL = 7
_MAX_FACT_WORDS = 8  # more are a sentence
# Only where tables begin and end matters: what is inside code, lists or quotes, not inline marks.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])
_FACT_HEADS = {header_key(word) for word in WORDS["facts"]["heads"]}
_FACT_NAMES = {
    word for kind in ("model", "device", "precision", "devices") for word in WORDS["facts"][kind]
}


@dataclass(slots=True)
class _Part:
    """A table, a heading, or a fact of a page, in the order of its lines.

    Args:
        level: of a heading.
        text: of a heading, or the value of a fact; ``name`` is that of the fact.
    """

    kind: Literal["table", "heading", "fact"]
    lines: list[TableLine] = field(default_factory=list)
    level: int = 0
    name: str = ""
    text: str = ""


def read_page(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom."""
    page = replace(page, form="flagperf", evidence="C")
    parts = list(_parts(text))
    tables = [part for part in parts if part.kind == "table"]
    page = _with_facts(page, _facts_of_tables(tables))
    page = _with_model(page, parts)
    headings: list[_Part] = []
    has_results = False
    for part in parts:
        if part.kind == "heading":
            headings = [x for x in headings if x.level < part.level] + [part]
        elif part.kind == "fact":
            page = _with_facts(page, {part.name: part.text})
        elif not _has_facts(part):
            head, *body = part.lines
            around = _with_headings(page, headings)
            for entry in table.read(head, body, around, unknown="unknown"):
                is_table = isinstance(entry, Unread) and entry.kind == "table"
                has_results = has_results or not is_table
                yield entry
    if has_results:
        return
    if tables:
        why = message("page_without_results", tables=len(tables))
    else:
        why = message("page_with_html_tables" if "<table" in text else "page_without_tables")
    yield page.unread(0, "file", why)


def _has_facts(part: _Part) -> bool:
    return header_key(part.lines[0].cells[0]) in _FACT_HEADS


def _facts_of_tables(tables: list[_Part]) -> dict[str, str]:
    return {
        header_key(line.cells[0]): line.cells[1]
        for part in tables
        if _has_facts(part)
        for line in part.lines
        if line.cells[1:]
    }


def _with_facts(page: Page, facts: dict[str, str]) -> Page:
    """Return ``page`` with model, device, devices and precision from its facts."""

    def fact(kind: str) -> str:
        value = next((facts[name] for name in WORDS["facts"][kind] if name in facts), "")
        points = any(word in value for word in WORDS["facts"]["pointer"])
        return "" if points or is_nothing(value) else plain(value)

    device, vendor = split_vendor(fact("device"))
    counted = fact("devices")
    return replace(
        page,
        model=page.model or fact("model"),
        vendor=page.vendor or vendor,
        device=device or page.device,
        devices=int(counted) if counted.isdecimal() and int(counted) else page.devices,
        precision=fact("precision") or page.precision,
    )


def _with_model(page: Page, parts: list[_Part]) -> Page:
    """Return ``page`` with the model that its title or its file's name is, where it is known."""
    if page.model:
        return page
    title = next((part.text for part in parts if part.kind == "heading"), "")
    return replace(page, model=known_model(plain(title), PurePath(page.file).stem))


def _with_headings(page: Page, headings: list[_Part]) -> Page:
    """Return ``page`` with what the headings above a table say of it, the nearest first."""
    texts = [plain(heading.text) for heading in reversed(headings)]
    stem = PurePath(page.file).stem.replace("_", " ")
    named = [match for text in texts if len(match := precisions(text)) == 1]
    return replace(
        page,
        section=" > ".join(reversed(texts)),
        device=next(filter(None, map(find_device, texts)), page.device) or find_device(stem),
        devices=next(filter(None, map(_devices_of_run, texts)), page.devices),
        precision=page.precision or (named[0][0] if named else None),
        unit=next((unit.printed for text in texts if (unit := split_unit(text)[1])), ""),
        is_inference=_is_inference(texts),
    )


def _is_inference(texts: list[str]) -> bool:
    """Tell whether the nearest heading that speaks of training or inference is of inference."""
    for text in texts:
        if has_phrase(text, WORDS["phrases"]["not_training"]):
            return True
        if has_phrase(text, WORDS["phrases"]["training"]):
            return False
    return False


def _devices_of_run(heading: str) -> int | None:
    """Return the devices that a heading counts; those in brackets are of the machine."""
    return count_devices(re.sub(r"\([^()]*\)", " ", heading))


def _parts(text: str) -> Iterator[_Part]:
    """Yield the tables, headings and facts of a page in the order of its lines."""
    text = re.sub(r"\r(?!\n)", " ", text)  # the parser would end a line there
    lines = re.split(r"\r?\n", text)
    tokens = [token for token in _MARKDOWN.parse(text) if token.map is not None]
    heads = {x.map[0]: _head(lines, x.map[0]) for x in tokens if x.type == "table_open" and x.map}
    for token in tokens:
        start, end = token.map or (0, 0)
        if token.type == "table_open":
            _, head = heads[start]
            yield _Part("table", [head, *(_line(lines, x) for x in range(start + 2, end))])
        elif token.type == "heading_open":
            yield _Part("heading", level=int(token.tag[1:]), text=_title(lines[start]))
        elif token.type in {"fence", "code_block"}:
            yield from _parts_of_text(lines, start, end)
        elif token.type == "paragraph_open" and (bold := _BOLD.fullmatch(_title(lines[start]))):
            yield _Part("heading", level=_BOLD_LEVEL, text=bold[1])
        elif token.type == "paragraph_open":
            # A table whose headers fill several lines begins in the paragraph above it.
            first = heads[end][0] if end in heads else end
            yield from _parts_of_text(lines, start, first)


def _title(line: str) -> str:
    return line.strip().strip("#").strip()


def _line(lines: list[str], number: int) -> TableLine:
    return TableLine(number + 1, _cells(lines[number]), lines[number])


def _head(lines: list[str], start: int) -> tuple[int, TableLine]:
    """Return the headers of a table, which may fill several lines: these are joined."""
    head = _line(lines, start)
    first = start
    while first > 0 and _is_head_above(lines[first - 1], len(head.cells)):
        first -= 1
    if first == start:
        return start, head
    columns = zip(*(_cells(line) for line in lines[first : start + 1]), strict=True)
    joined = [" ".join(filter(None, column)) for column in columns]
    return first, TableLine(first + 1, joined, head.raw)


def _is_head_above(line: str, count: int) -> bool:
    return line.lstrip(" >").startswith("|") and len(_cells(line)) == count


def _cells(line: str) -> list[str]:
    # Markdown would add missing cells and drop those under no header.
    inner = _PREFIX.sub("", line).rstrip().removesuffix("|")
    return [cell.strip().replace(r"\|", "|") for cell in _PIPE.split(inner)]


def _parts_of_text(lines: list[str], start: int, end: int) -> Iterator[_Part]:
    """Yield the tables and facts of lines that are no Markdown, as programs print them."""
    block: list[TableLine] = []
    for number in range(start, end):
        line = _line(lines, number)
        is_row = len(line.cells) > 1 and (not block or len(line.cells) == len(block[0].cells))
        if is_row and not _SEPARATOR.fullmatch(line.raw):
            block.append(line)
        elif not (block and _SEPARATOR.fullmatch(line.raw)):
            yield from _table_of(block)
            block = []
            yield from _facts_of_line(line.raw)
    yield from _table_of(block)


def _table_of(block: list[TableLine]) -> Iterator[_Part]:
    if len(block) > 1:
        yield _Part("table", block)


def _facts_of_line(line: str) -> Iterator[_Part]:
    """Yield the fact of a line such as ``- Hardware: NVIDIA A100-SXM4-40GB``."""
    match = _FACT.fullmatch(line.strip())
    if match is None:
        return
    name, value = header_key(match[1]), match[2].strip(" *`")
    if name in _FACT_NAMES and len(split_words(value)) <= _MAX_FACT_WORDS:
        yield _Part("fact", name=name, text=value)
