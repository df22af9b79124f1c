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
    """Return the table with the units in its headers if they are on a line of their own.

    ``Memory`` above ``GB``, in the first line below the headers, becomes ``Memory (GB)``. A table
    without such a line is returned as it is.
    """
    head = table.head
    body = table.body
    # 0: no line of the file has these headers; a reader has made the table, for example of a log.
    is_printed = head.number > 0
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

    Such a table, ``Model | 8 GPUs | 16 GPUs`` above ``bert | 900 | 1750``, has in each cell the
    figure of the line's model on the column's number of devices.
    """
    count_headers = [strip_markup(cell) for cell in table.head.cells[1:]]
    has_names = any(not is_number(line.cells[0]) for line in table.body if line.cells)
    # One header with a number may mean anything; lines whose first cell is a number name no model.
    if len(count_headers) < 2 or not has_names:
        return False
    return all(_COUNT_HEADER.fullmatch(header) for header in count_headers)


def unfold_count_table(table: Table, page: Page) -> list[Table] | Message:
    """Return a table for each line of a count table, with a line for each of its cells.

    The headers of a count table are numbers of nodes or devices: ``Model | 8 GPUs | 16 GPUs``. The
    columns of a returned table are the model, the number, and the figure: ``bert | 8 | 900`` and
    ``bert | 16 | 1750`` of the line ``bert | 900 | 1750``.

    Args:
        page: its ``section`` has the headings above the table, outermost first.

    Returns:
        The tables. If nothing says what is counted, or what the figure is: this reason.
    """
    first_header, *counts = [strip_markup(cell) for cell in table.head.cells]
    titles = [first_header, *reversed(page.section.split(" > "))]  # the nearest heading first
    context = f"{first_header} {page.section} {page.file}".replace("_", " ")
    # ``role`` is that of the column of numbers: `nnodes` or `devices`. MLPerf's tables do not print
    # what they count, nor the unit: it is nodes and minutes.
    if has_phrase(context, WORDS["names"]["minutes_by_nodes"]):
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

    The headers of a count table are numbers of nodes or devices, so they do not name the figure.

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
    """Return what the headers of a table count: ``nnodes``, ``devices``, or empty if not known.

    The result is the role of the column that gets the numbers. Nodes count if both are named.

    Args:
        text: the headers of the table and the headings above it.
    """
    if _NODE_WORDS.search(text):
        return "nnodes"
    if _DEVICE_WORDS.search(text):
        return "devices"
    return ""
