"""Bring tables of other forms into the usual one: a line of headers, and below it a line a run.

Owns tables whose units are on a line of their own, and tables with a column for each number of
devices.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmark.published.importers.headers import split_unit
from trainmark.published.importers.page import TableLine
from trainmark.published.importers.units import parse_unit
from trainmark.published.importers.vocabulary import (
    WORDS,
    has_phrase,
    is_number,
    is_out_of_memory,
    is_without_value,
    strip_markup,
)
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.importers.page import Page
    from trainmark.spec import Message

_COUNT_HEADER = re.compile(r"(?i)([0-9]{1,6})\s*(?:x|nodes?|gpus?|devices?|cards?|机|卡)?")
_NODE_WORDS = re.compile(r"(?i)\bnodes?\b|机")
_DEVICE_WORDS = re.compile(r"(?i)\b(?:gpu|device|card|accelerator|npu)s?\b|卡")
_MAX_TEXT = 120  # characters of printed text in messages


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the line of its headers, and the lines below it."""

    head: TableLine
    body: Sequence[TableLine]


def join_unit_line(table: Table) -> Table:
    """Return the table with the units of its first line in the headers.

    ``Memory`` above ``GB`` becomes ``Memory (GB)``. A table without such a line is returned as it
    is.
    """
    head = table.head
    body = table.body
    is_printed = head.number > 0  # else a reader has made the table
    if not is_printed or not body or len(body[0].cells) != len(head.cells):
        return table
    first_cells = [strip_markup(cell) for cell in body[0].cells]
    are_units = [parse_unit(cell.strip("()[]")) is not None for cell in first_cells]
    has_values = any(is_number(cell) or is_out_of_memory(cell) for cell in first_cells)
    if has_values or not any(are_units):  # an ordinary row
        return table
    headers = []
    for header, cell, is_unit in zip(head.cells, first_cells, are_units, strict=True):
        if is_unit:
            headers.append(f"{header} ({cell.strip('()[]')})")
        else:  # more words of the header, or nothing
            headers.append(f"{header} {cell}".strip())
    return Table(head._replace(cells=headers), body[1:])


def is_count_table(table: Table) -> bool:
    """Tell whether the headers are numbers of nodes or devices, and the first column has names.

    Such a table has a figure of a model in each cell, by the model's line and the count's column.
    """
    count_headers = [strip_markup(cell) for cell in table.head.cells[1:]]
    has_names = any(not is_number(line.cells[0]) for line in table.body if line.cells)
    # A single number may be the name of anything; rows of numbers alone have no model.
    if len(count_headers) < 2 or not has_names:
        return False
    return all(_COUNT_HEADER.fullmatch(header) for header in count_headers)


def unfold_count_table(table: Table, page: Page) -> list[Table] | Message:
    """Return a table for each line of a count table, with a line for each of its cells.

    The columns are the model, the number of nodes or devices, and the figure.

    Returns:
        The reason why it cannot be read if nothing says what is counted, or what the figure is.
    """
    first_header, *counts = [strip_markup(cell) for cell in table.head.cells]
    titles = [first_header, *reversed(page.section.split(" > "))]  # the nearest heading first
    context = f"{first_header} {page.section} {page.file}".replace("_", " ")
    if has_phrase(context, WORDS["names"]["minutes_by_nodes"]):  # MLPerf's tables say neither
        figure_header = "time to train (min)"
        role = "nnodes"
    else:
        figure_header = _make_figure_header(first_header, titles)
        role = _find_counted_role(" ".join([*counts, *titles]))
    if not figure_header or not role:
        code = "counts_without_unit" if role else "counts_of_what"
        return message(code, columns=", ".join(counts)[:_MAX_TEXT])
    head = TableLine(table.head.number, ["model", role, figure_header], table.head.raw)
    tables = []
    for line in table.body:
        name, *values = line.cells or [""]  # a line without cells gives a table without lines
        lines = []
        for count, value in zip(counts, values, strict=False):  # a line may lack the last cells
            if not is_without_value(value):
                cells = [name, _keep_digits(count), value]
                lines.append(TableLine(line.number, cells, line.raw))
        tables.append(Table(head, lines))
    return tables


def _make_figure_header(first_header: str, titles: Sequence[str]) -> str:
    """Return a header for the figures of a count table; empty: no title has a unit.

    It is the first header with the unit of the nearest title that has one: ``Model (img/s)`` of a
    table below ``Throughput (img/s)``.

    Args:
        first_header: that of the first column of the table, which has the names of models.
        titles: the first header and the headings above the table, the nearest first.
    """
    for title in titles:
        unit = split_unit(title).unit
        if unit is not None:
            return f"{first_header} ({unit.printed})"
    return ""


def _keep_digits(text: str) -> str:
    """Return the number in a header such as ``64 GPUs``."""
    return re.sub(r"[^0-9]", "", text)


def _find_counted_role(text: str) -> str:
    """Return what a count table counts, as the role of a column: ``nnodes`` or ``devices``.

    Args:
        text: the headers and headings of the table. If they name neither nodes nor devices, the
            role is empty.
    """
    if _NODE_WORDS.search(text):
        return "nnodes"
    if _DEVICE_WORDS.search(text):
        return "devices"
    return ""
