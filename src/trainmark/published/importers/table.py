"""Read the table of a foreign file, whatever the format of the file.

Owns which tables hold results and which of their lines are rows; ``rows`` has how the cells of a
row are combined. Must not know Markdown, CSV or other file formats.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.published.importers.cells import mark_decimal_commas
from trainmark.published.importers.column import TRAINING_FIGURES
from trainmark.published.importers.headers import read_headers
from trainmark.published.importers.labels import find_device, read_label
from trainmark.published.importers.rows import (
    COUNT_ROLES,
    LABEL_ROLES,
    HeaderedTable,
    has_figure,
    pair_cells,
    read_row,
)
from trainmark.published.importers.table_forms import (
    Table,
    is_count_table,
    join_unit_line,
    unfold_count_table,
)
from trainmark.published.importers.vocabulary import (
    PHRASES,
    has_phrase,
    is_number,
    is_out_of_memory,
    is_without_value,
    strip_markup,
)
from trainmark.record.work import Row, Unread
from trainmark.spec import Message, message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.published.importers.column import Column
    from trainmark.published.importers.page import Page, TableLine
    from trainmark.published.importers.rows import Cell

_TRAINED_UNITS = ("samples", "tokens", "steps")
_RULED_CELL = re.compile(r"-{2,}")  # beside a heading between two rows
_MAX_TEXT = 120  # characters of printed text in messages


def read_table(
    head: TableLine, body: Sequence[TableLine], page: Page, *, unknown_role: str = "ignored"
) -> Iterator[Row | Unread]:
    """Yield the rows of a table, and the parts that cannot be read.

    Args:
        head: the headers; its number is that of the table's line in the file; 0: a reader has made
            the table of something else, such as a log, and each line of ``body`` is a row.
        body: the lines below the headers.
        page: what the file and the headings say of all rows.
        unknown_role: role of columns with an unknown header: ``unknown`` in foreign tables, where
            settings are kept and other columns of numbers are listed as not read; ``quality`` in
            references of cases; ``ignored`` in forms whose columns are all known.
    """
    # Units on a line of their own are put into the headers.
    table_with_units = join_unit_line(Table(head, body))
    # A count table has a column for each number of nodes or devices.
    if is_count_table(table_with_units):
        yield from _read_count_table(table_with_units, page)
        return
    head = table_with_units.head
    body = table_with_units.body
    # Only complete lines help to tell what a column is: in others it is not known to which columns
    # the cells belong.
    complete_rows = [line.cells for line in body if len(line.cells) >= len(head.cells)]
    columns = read_headers(
        head.cells, complete_rows, unknown_role=unknown_role, is_inference=page.is_inference
    )
    columns = mark_decimal_commas(columns, complete_rows)  # `0,125` in a column is 0.125
    table = HeaderedTable(columns, head.number, page, keeps_settings=unknown_role == "unknown")
    reason = _find_reason_against_table(table, complete_rows)
    if reason is not None:
        yield page.make_unread(head.number, "table", reason, head.raw)
        return
    entries = list(_read_lines(table, body))  # all of them decide what is reported below
    yield from _report_unknown_columns(table, head, complete_rows)
    has_rows = any(isinstance(entry, Row) for entry in entries)
    if not has_rows and any(_is_row_without_figures(entry) for entry in entries):
        # No row has a figure: this is reported once for the table, not for each row.
        figures = ", ".join(column.header for column in columns if column.is_figure)
        reason = message("table_without_figures", columns=figures[:_MAX_TEXT])
        yield page.make_unread(head.number, "table", reason, head.raw)
        entries = [entry for entry in entries if not _is_row_without_figures(entry)]
    yield from entries


def _read_count_table(table: Table, page: Page) -> Iterator[Row | Unread]:
    """Yield a row for each cell of a table whose headers are numbers of nodes or devices.

    Each line of such a table becomes a usual table, with a line for each of its cells.

    Args:
        table: the line of its headers, ``head``, and the lines below it, ``body``.
        page: what the file and the headings say of all rows, such as their device.
    """
    unfolded = unfold_count_table(table, page)
    if isinstance(unfolded, Message):  # the reason why the table cannot be read
        yield page.make_unread(table.head.number, "table", unfolded, table.head.raw)
        return
    # The header above the names of models may name the device.
    device = find_device(strip_markup(table.head.cells[0])) or page.device
    for line_table in unfolded:
        yield from read_table(line_table.head, line_table.body, replace(page, device=device))


def _is_row_without_figures(entry: Row | Unread) -> bool:
    """Tell whether an entry reports a line that could not be a row because it has no figure."""
    return isinstance(entry, Unread) and entry.reason.code == "row_without_figures"


def _find_reason_against_table(
    table: HeaderedTable, rows: Sequence[Sequence[str]]
) -> Message | None:
    """Return why a table is none of results: it lacks figures or names of rows; None: it is one.

    Args:
        table: its columns, and the page: what the file and the headings say of all rows.
        rows: the cells of each complete line below the headers.
    """
    headers = ", ".join(column.header for column in table.columns if column.header)[:_MAX_TEXT]
    roles = {column.role for column in table.columns}  # what the cells are: `figure`, `device` …
    has_results = any(_is_result(column) for column in table.columns)
    # A target shows that a table has results, even if their headers are not known.
    if "target" not in roles and not has_results:
        return message("table_without_results", columns=headers)
    # Rows are named by a label, by their number of machines or devices, or by the model.
    has_name = bool(roles & {*LABEL_ROLES, *COUNT_ROLES, "model", "name"})
    # Without a name, rows are named by the device of the page or its number of devices.
    has_device = bool(table.page.device or table.page.devices)
    if has_name or has_device:
        return None
    # In most tables, the first column names the rows. If it has texts under an unknown header, such
    # as `who`, these may name anything: the table is refused, whatever columns follow, and the
    # message asks for a known header. If it has numbers or a known header, such as that of a
    # setting, a later column of texts is enough to tell the rows apart.
    index = _find_text_column(table.columns, rows)
    if index is None or index == 0:
        return message("table_without_configuration", columns=headers)
    return None


def _is_result(column: Column) -> bool:
    """Tell whether a column has a figure of training.

    Figures in other units, such as watts, are not enough: their table may describe machines.

    Args:
        column: its ``printed_unit`` is the unit in its header, None if there is none.
    """
    if column.role != "figure":
        return False
    unit = column.printed_unit
    if unit is not None and unit.quantity == "rate" and unit.work in _TRAINED_UNITS:
        return True
    # A figure whose unit is in the cells, not in the header, may be one of training. Its name must
    # not say that it is one of inference.
    is_inference = has_phrase(column.name, PHRASES["inference"])
    return column.name in TRAINING_FIGURES or (column.has_unit_in_cells and not is_inference)


def _find_text_column(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int | None:
    """Return the index of the first column of texts with a header without meaning; None: none.

    The header of a column with the role ``unknown`` is not known. Columns with the role ``ignored``
    are never read: their header is not known either, or it is one such as ``notes``.

    Args:
        rows: the cells of each line below the headers, at least one for each column.
    """
    for index, column in enumerate(columns):
        texts = [row[index] for row in rows if not is_without_value(row[index])]
        has_numbers = any(is_number(text) for text in texts)
        if column.role in {"unknown", "ignored"} and texts and not has_numbers:
            return index
    return None


def _report_unknown_columns(
    table: HeaderedTable, head: TableLine, rows: Sequence[Sequence[str]]
) -> Iterator[Unread]:
    """Yield one entry for all columns of numbers that are not read: their headers are unknown.

    Without such a column there is no entry.

    Args:
        table: its columns, and the page, which makes the entry.
        head: the line of the headers.
        rows: the cells of each line below the headers, at least one for each column.
    """
    headers = []
    for index, column in enumerate(table.columns):
        if column.role == "unknown" and any(is_number(row[index]) for row in rows):
            headers.append(column.header)
    if headers:
        reason = message("columns_not_read", columns=", ".join(headers)[:_MAX_TEXT])
        yield table.page.make_unread(head.number, "table", reason, head.raw)


def _read_lines(table: HeaderedTable, body: Sequence[TableLine]) -> Iterator[Row | Unread]:
    """Yield the rows of each line below the headers, or why it has none.

    A line that is a heading between rows has none. It names the model of the rows below it.

    Args:
        table: its columns, and its page: what the file and the headings say of all rows.
        body: the lines below the headers.
    """
    for line in body:
        reason = None
        if table.line:  # 0: a reader has made the table, so each line is a row
            reason = _find_reason_against_row(line.cells, table.columns)
        if reason is None:
            yield from _read_line(line, table)
            continue
        if reason.code == "row_is_heading":
            model = strip_markup(str(reason.args["text"]))
            table = replace(table, page=replace(table.page, model=model))
        yield table.page.make_unread(line.number, "row", reason, line.raw)


def _find_reason_against_row(cells: Sequence[str], columns: Sequence[Column]) -> Message | None:
    """Return why a line is not a row; None: it is a row.

    A heading or a sentence between rows is not a row, nor is a line with too many or too few cells.

    Args:
        cells: of the line.
        columns: of the table. The cells of one with the role ``configuration`` are labels, which
            name rows: ``A100 (1x8)``.
    """
    pairs = pair_cells(columns, cells)
    labels = [cell for column, cell in pairs if column.role == "configuration"]
    other_cells = [cell.strip() for column, cell in pairs if column.role != "configuration"]
    # Dashes, `---`, stand beside a heading that names the rows below it.
    has_ruled_cell = any(_RULED_CELL.fullmatch(cell) for cell in other_cells)
    has_only_label = all(
        is_without_value(cell) or _RULED_CELL.fullmatch(cell) for cell in other_cells
    )
    # `A100 (1x8) | - | -` is a run without figures, and no heading: its label has a world, the
    # numbers of machines and of devices of each.
    has_world = any(read_label(label).nnodes for label in labels)
    is_blank_line = not any(cell.strip() for cell in cells)
    # Without a column of labels, empty figures do not show that a line is a heading.
    if has_only_label and not has_world and (labels or is_blank_line):
        text = " ".join(labels).strip()[:_MAX_TEXT]
        return message("row_is_heading" if has_ruled_cell else "row_is_text", text=text)
    has_extra_cells = any(cell.strip() for cell in cells[len(columns) :])
    if len(cells) < len(columns) or has_extra_cells:
        return message("row_has_other_cells", cells=len(cells), columns=len(columns))
    return None


def _read_line(line: TableLine, table: HeaderedTable) -> Iterator[Row | Unread]:
    """Yield the rows of a line, one for each precision of its columns, and its unread cells.

    Headers such as ``Speed FP16`` and ``Speed FP32`` name two precisions. A line without a row is
    reported.

    Args:
        table: its columns, its line in the file, which is 0 if a reader has made the table of
            something else, and the page, which reports unread lines.
    """
    pairs = pair_cells(table.columns, line.cells)
    row_precisions: list[str | None] = []  # those that columns of figures name
    for column in table.columns:
        if column.is_figure and column.precision and column.precision not in row_precisions:
            row_precisions.append(column.precision)
    rows: list[Row] = []
    unread_cells: list[Unread] = []
    # A line has a row for each precision; None: no column of figures names one.
    for precision in row_precisions or [None]:
        pairs_of_precision = [
            (column, cell)
            for column, cell in pairs
            if _is_column_of_precision(column, precision, row_precisions)
        ]
        row, unread_cells_of_row = read_row(line, pairs_of_precision, precision, table)
        for unread_cell in unread_cells_of_row:
            if unread_cell not in unread_cells:  # a cell may belong to several rows
                unread_cells.append(unread_cell)
        # The lines of a table that a reader has made are rows even without a figure.
        if not table.line or has_figure(row):
            rows.append(row)
    if rows:
        yield from rows
        yield from unread_cells
    else:
        reason = _explain_missing_figure(pairs)
        yield table.page.make_unread(line.number, "row", reason, line.raw)


def _is_column_of_precision(
    column: Column, precision: str | None, row_precisions: Iterable[str | None]
) -> bool:
    """Tell whether a column belongs to the row of a precision.

    A line has a row for each precision that headers of figures name: ``Speed FP16``, ``Speed AMP``.

    Args:
        column: its ``precision`` is the one that its header names; if None, it belongs to each row.
        precision: of the row; None: no column of figures names one.
        row_precisions: all precisions that have a row.
    """
    if precision is None or column.precision in (None, precision):
        return True
    # Mixed precision, `amp`, computes in 16 bits. So a column such as `Batch size FP16` belongs to
    # the row of `Speed AMP`, unless there is also a row of fp16.
    has_16_bits = column.precision in ("fp16", "bf16")
    return precision == "amp" and has_16_bits and column.precision not in row_precisions


def _explain_missing_figure(pairs: Sequence[Cell]) -> Message:
    """Return why a line has no figure: it ran out of memory, or no cell can be read.

    Args:
        pairs: the cells of the line with their columns.
    """
    figure_cells = [(column.header, cell) for column, cell in pairs if column.is_figure]
    if any(is_out_of_memory(cell) for _, cell in figure_cells):
        return message("row_out_of_memory")
    listed = ", ".join(f"{header} {cell!r}" for header, cell in figure_cells)
    return message("row_without_figures", cells=listed[:_MAX_TEXT])
