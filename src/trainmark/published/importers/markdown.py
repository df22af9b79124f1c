"""Read result pages: find the tables of a page, and what it says about all rows of a table.

Owns Markdown: tables, also those inside code; headings; facts about the page, which stand in
tables or in lines such as ``Hardware: A100``. Must not know cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from markdown_it import MarkdownIt

from trainmark.published.audit.qualities import split_words
from trainmark.published.importers import table
from trainmark.published.importers.headers import split_unit
from trainmark.published.importers.labels import count_devices, find_device, split_vendor
from trainmark.published.importers.models import find_known_model
from trainmark.published.importers.page import Page, TableLine
from trainmark.published.importers.vocabulary import (
    PHRASES,
    WORDS,
    find_precisions,
    has_phrase,
    is_without_value,
    normalize_header,
    strip_markup,
)
from trainmark.record.work import Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.record.work import Row

_Result = TypeVar("_Result")

_PIPE = re.compile(r"(?<!\\)\|")  # without a backslash before it
_MARKS_BEFORE_CELLS = re.compile(r"^[\s>*+-]*\|")  # of a quote or a list, and the first pipe
_LINE_OF_DASHES = re.compile(r"[\s>]*[|:+ -]*-{2,}[|:+ -]*")
_SHELL_LANGUAGES = {"bash", "console", "sh", "shell", "zsh"}  # languages of a block of code
_FACT_LINE = re.compile(r"[\s>*+-]*([^:：|]{2,40}?)\**\s*[:：]\s*(\S[^|]*)")
# A bold line of its own is as good as a heading.
_BOLD_LINE = re.compile(r"\*\*([^*|]+?)\*\*\s*:?")
_BOLD_LEVEL = 7  # below the six levels of Markdown
_MAX_FACT_WORDS = 8  # more are a sentence
# Only blocks are parsed: where tables, headings and code begin and end. Marks within lines are not.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("reference")
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])
_FACT_HEADS = {normalize_header(word) for word in WORDS["facts"]["heads"]}
_FACT_NAMES = {
    word for kind in ("model", "device", "precision", "devices") for word in WORDS["facts"][kind]
}


@dataclass(slots=True)
class _Part:
    """A table, a heading, or a fact of a page.

    Args:
        lines: of a table, the headers first.
        level: of a heading, from 1.
        name: of a fact.
        text: of a heading, or the value of a fact.
    """

    kind: Literal["table", "heading", "fact"]
    lines: list[TableLine] = field(default_factory=list)
    level: int = 0
    name: str = ""
    text: str = ""


def read_page(text: str, page: Page) -> Iterator[Row | Unread]:
    """Yield each row of each result table, and what cannot be read, from top to bottom.

    Args:
        text: of the file.
        page: what is known of all rows before the file is read: the name of the file, and model and
            vendor if its folder names them.
    """
    # `form` is the form of the file: that of all Markdown pages is named after the pages of
    # FlagPerf. C is the level of evidence of figures without logs.
    page = replace(page, form="flagperf", evidence="C")
    parts = list(_split_page(text))
    tables = [part for part in parts if part.kind == "table"]
    # Tables of facts hold for the whole page, wherever they stand. A fact in a line, such as
    # `Hardware: A100`, holds only for the tables after it: the loop below adds it.
    page = _add_facts(page, _read_fact_tables(tables), whole_page=page)
    page = _add_model(page, parts)
    whole_page = page
    headings: list[_Part] = []  # above the current part, outermost first
    has_results = False  # whether any table could be read as one of results
    for part in parts:
        if part.kind == "heading":
            # A heading ends those of its own level and of deeper ones.
            headings = [heading for heading in headings if heading.level < part.level]
            headings.append(part)
        elif part.kind == "fact":
            page = _add_facts(page, {part.name: part.text}, whole_page=whole_page)
        elif not _is_fact_table(part):
            head, *body = part.lines
            page_of_table = _add_headings(page, headings)
            # Columns with an unknown header are kept as settings; those of numbers are also listed
            # as not read.
            for entry in table.read_table(head, body, page_of_table, unknown_role="unknown"):
                is_unread_table = isinstance(entry, Unread) and entry.kind == "table"
                has_results = has_results or not is_unread_table
                yield entry
    if has_results:
        return
    if tables:
        why = message("page_without_results", tables=len(tables))
    else:
        why = message("page_with_html_tables" if "<table" in text else "page_without_tables")
    yield page.make_unread_file(why)


def _is_fact_table(part: _Part) -> bool:
    """Tell whether a table lists facts about the page: a name and a value a line."""
    return normalize_header(part.lines[0].cells[0]) in _FACT_HEADS


def _read_fact_tables(tables: list[_Part]) -> dict[str, str]:
    """Return the facts that tables state about the whole page: values by their normalized names.

    Each line of a table of facts has a name and its value: ``Hardware | A100``. Other tables are
    left out.
    """
    facts = {}
    for table_part in tables:
        if _is_fact_table(table_part):
            for line in table_part.lines:
                if len(line.cells) > 1:
                    facts[normalize_header(line.cells[0])] = line.cells[1]
    return facts


def _add_facts(page: Page, facts: dict[str, str], *, whole_page: Page) -> Page:
    """Return ``page`` with model, vendor, device, devices and precision from its facts.

    A fact replaces what ``page`` has by earlier facts, but not the model and the vendor of
    ``whole_page``.

    Args:
        whole_page: its model and vendor hold for all tables of the page, because the folder of the
            file, a table of facts or the title names them.
        facts: values by their names, as ``normalize_header`` returns them.
    """
    device, vendor = split_vendor(_find_fact(facts, "device"))
    count = _find_fact(facts, "devices")
    return replace(
        page,
        model=whole_page.model or _find_fact(facts, "model") or page.model,
        vendor=whole_page.vendor or vendor or page.vendor,
        device=device or page.device,
        devices=int(count) if count.isdecimal() and int(count) > 0 else page.devices,
        precision=_find_fact(facts, "precision") or page.precision,
    )


def _find_fact(facts: dict[str, str], kind: str) -> str:
    """Return the first fact of a kind; empty: there is none, or it points to a column.

    Pages name a kind of fact in several ways: the device is ``Hardware``, ``GPU`` or ``Product``.

    Args:
        facts: values by their normalized names.
        kind: ``model``, ``device``, ``devices`` or ``precision``.
    """
    for name in WORDS["facts"][kind]:
        if name not in facts:
            continue
        value = facts[name]
        # Values such as `see table` point to a column, which has a value for each row.
        is_pointer = any(word in value for word in WORDS["facts"]["pointer"])
        return "" if is_pointer or is_without_value(value) else strip_markup(value)
    return ""


def _add_model(page: Page, parts: list[_Part]) -> Page:
    """Return ``page`` with its title as its model, if that is a known model.

    A page that already has a model keeps it.

    Args:
        parts: of the page; the first heading is the title.
    """
    if page.model:
        return page
    headings = [part.text for part in parts if part.kind == "heading"]
    title = headings[0] if headings else ""
    return replace(page, model=find_known_model(strip_markup(title)))


def _add_headings(page: Page, headings: list[_Part]) -> Page:
    """Return ``page`` with what the headings above a table say about the rows of the table.

    A model and a device that nothing else names are those in the name of the file.

    Args:
        page: what the whole page says about its rows.
        headings: outermost first. If several name a device, the nearest to the table counts; the
            same holds for the number of devices, the precision and the unit.
    """
    outermost_first = [strip_markup(heading.text) for heading in headings]
    nearest_first = outermost_first[::-1]
    # A page may compare devices, a heading for each, so headings outweigh the page. Its file's name
    # is the weakest hint, of the model too: facts in lines, which the page has by now, outweigh it.
    file_name = PurePath(page.file).stem
    file_words = file_name.replace("_", " ")
    device = _find_first(find_device, nearest_first) or page.device or find_device(file_words)
    # For the precision it is the other way round, because a heading may name it less exactly: under
    # the title `AMP results`, the fact `Precision: bf16` counts.
    return replace(
        page,
        model=page.model or find_known_model(file_name),
        section=" > ".join(outermost_first),
        device=device,
        devices=_find_first(_count_run_devices, nearest_first) or page.devices,
        precision=page.precision or _find_first(_find_single_precision, nearest_first),
        unit=_find_first(_find_printed_unit, nearest_first) or "",
        is_inference=_is_inference(nearest_first),
    )


def _find_first(find: Callable[[str], _Result | None], texts: list[str]) -> _Result | None:
    """Return the result of ``find`` for the first text with a result; None: no text has one."""
    for text in texts:
        result = find(text)
        if result:
            return result
    return None


def _find_single_precision(text: str) -> str | None:
    """Return the precision that a heading names; None: it names none or several.

    Mixed precision counts as one, because a heading such as ``FP32 and AMP`` announces rows of
    both. So ``bf16 AMP`` names two. In a cell, which is of one row, ``find_only_precision`` reads
    it as ``bf16``.
    """
    names = find_precisions(text)
    return names[0] if len(names) == 1 else None


def _find_printed_unit(text: str) -> str | None:
    """Return the unit in a heading such as ``Speed (it/s)``; None: it has none."""
    unit = split_unit(text).unit
    return None if unit is None else unit.printed


def _is_inference(nearest_first: list[str]) -> bool:
    """Tell whether headings say that nothing is trained: ``Inference`` or ``Latency``.

    The heading nearest to the table that names either training or one of these decides. If it names
    both, nothing is trained.

    Args:
        nearest_first: the headings above a table.
    """
    for text in nearest_first:
        if has_phrase(text, PHRASES["not_training"]):
            return True
        if has_phrase(text, PHRASES["training"]):
            return False
    return False


def _count_run_devices(heading: str) -> int | None:
    """Return the number of devices of a run that a heading counts; None: it counts none.

    A number in brackets is that of the machine, so it is left out: ``1 GPU (DGX with 8 GPUs)``
    counts 1.
    """
    return count_devices(re.sub(r"\([^()]*\)", " ", heading))


def _split_page(text: str) -> Iterator[_Part]:
    """Yield the tables, headings and facts of a Markdown page in the order of its lines."""
    text = re.sub(r"\r(?!\n)", " ", text)  # the parser would end a line at a lone return
    lines = re.split(r"\r?\n", text)
    # The ``map`` of a token is its range of lines; tokens that end a block have none.
    blocks = [token for token in _MARKDOWN.parse(text) if token.map is not None]
    # The headers of each table by the line at which the parser begins it. All are read first: the
    # parser takes the upper lines of headers that fill several lines for a paragraph, which comes
    # before the table.
    heads: dict[int, _Head] = {}
    for token in blocks:
        if token.type == "table_open" and token.map is not None:
            start = token.map[0]
            heads[start] = _read_head(lines, start)
    for token in blocks:
        assert token.map is not None, "other tokens were left out above"
        start, end = token.map  # the first line, and the line after the last one
        if token.type == "table_open":
            # Between the headers and the rows there is a line of dashes.
            rows = [_read_line(lines, index) for index in range(start + 2, end)]
            yield _Part("table", [heads[start].headers, *rows])
        elif token.type == "heading_open":
            yield _Part("heading", level=int(token.tag[1:]), text=_strip_heading(lines[start]))
        elif token.type in {"fence", "code_block"}:
            # Commands of a shell are joined by pipes, which look like borders of cells.
            is_shell = token.info.strip().lower() in _SHELL_LANGUAGES
            yield from _split_plain_text(lines, start, end, needs_dashes=is_shell)
        elif token.type == "paragraph_open":
            bold = _BOLD_LINE.fullmatch(_strip_heading(lines[start]))  # its group: the text
            if bold:
                # A paragraph whose first line is bold is a heading below all others. Its other
                # lines are not read.
                yield _Part("heading", level=_BOLD_LEVEL, text=bold[1])
            else:
                # If a table begins at the line behind the paragraph, the upper lines of its headers
                # are left out.
                paragraph_end = heads[end].first_index if end in heads else end
                yield from _split_plain_text(lines, start, paragraph_end)


def _strip_heading(line: str) -> str:
    """Return the text of a line without the marks of a heading."""
    return line.strip().strip("#").strip()


def _read_line(lines: list[str], index: int) -> TableLine:
    """Return a line of a table; ``index`` counts lines from 0, the number of a line from 1."""
    return TableLine(index + 1, _split_cells(lines[index]), lines[index])


class _Head(NamedTuple):
    """The headers of a table, and the index of the line at which they begin."""

    first_index: int
    headers: TableLine


def _read_head(lines: list[str], start: int) -> _Head:
    """Return the headers of a table, and the index of their first line.

    If the headers fill several lines, those of each column are joined.

    Args:
        lines: of the page.
        start: index of the line at which the parser begins the table: the last line of headers.
    """
    last_line = _read_line(lines, start)
    first_index = start
    while first_index > 0 and _is_header_line(lines[first_index - 1], len(last_line.cells)):
        first_index -= 1
    if first_index == start:
        return _Head(start, last_line)
    cells_of_lines = [_split_cells(line) for line in lines[first_index : start + 1]]
    headers = []
    for cells_of_column in zip(*cells_of_lines, strict=True):
        headers.append(" ".join(cell for cell in cells_of_column if cell))
    first_number = first_index + 1  # numbers of lines count from 1
    return _Head(first_index, TableLine(first_number, headers, last_line.raw))


def _is_header_line(line: str, num_cells: int) -> bool:
    """Tell whether a line above the last line of headers has headers, too."""
    return line.lstrip(" >").startswith("|") and len(_split_cells(line)) == num_cells


def _split_cells(line: str) -> list[str]:
    """Return the cells of a line, as many as it has.

    The parser of Markdown would add missing cells, and drop those under no header.
    """
    inner = _MARKS_BEFORE_CELLS.sub("", line).rstrip().removesuffix("|")  # without the outer pipes
    return [cell.strip().replace(r"\|", "|") for cell in _PIPE.split(inner)]


def _split_plain_text(
    lines: list[str], start: int, end: int, *, needs_dashes: bool = False
) -> Iterator[_Part]:
    """Yield the tables and facts of lines that are not Markdown, as programs print them.

    Two or more consecutive lines with the same number of cells, which pipes separate, are a table.

    Args:
        lines: of the page.
        start: index of the first line.
        end: index of the line after the last one.
        needs_dashes: lines are a table only if there is a line of dashes among them; without one
            they are commands of a shell, joined by pipes.
    """
    rows: list[TableLine] = []  # of the table so far; a single one is no table
    has_dashes = False
    for index in range(start, end):
        line = _read_line(lines, index)
        is_separator = _LINE_OF_DASHES.fullmatch(line.raw) is not None
        # A line with another number of cells ends the table, and may be the first of another.
        has_same_cells = not rows or len(line.cells) == len(rows[0].cells)
        is_row = len(line.cells) > 1 and has_same_cells
        if is_row and not is_separator:
            rows.append(line)
            continue
        if rows and is_separator:
            has_dashes = True
            continue
        if len(rows) > 1 and (has_dashes or not needs_dashes):
            yield _Part("table", rows)
        rows = [line] if len(line.cells) > 1 and not is_separator else []
        has_dashes = False
        fact = _read_fact(line.raw)
        if fact is not None:
            yield fact
    if len(rows) > 1 and (has_dashes or not needs_dashes):
        yield _Part("table", rows)


def _read_fact(line: str) -> _Part | None:
    """Return the fact of a line such as ``- Hardware: NVIDIA A100-SXM4-40GB``; None: no fact.

    Only known names count, such as those for a model and a device.
    """
    # Its groups: what stands before the colon, and behind it.
    match = _FACT_LINE.fullmatch(line.strip())
    if match is None:
        return None
    name = normalize_header(match[1])
    value = match[2].strip(" *`")
    # A value of many words is a sentence, and no fact.
    if name in _FACT_NAMES and len(split_words(value)) <= _MAX_FACT_WORDS:
        return _Part("fact", name=name, text=value)
    return None
