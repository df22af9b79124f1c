"""Combine the cells of one line of a table into a row: its work, its machine and its figures.

In this module, ``pairs`` are the cells of a row with their columns. ``facts`` are the texts of
cells that are neither figures nor settings, by the role of their column: ``device``,
``configuration`` …
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.importers.cells import CellError, read_cell
from trainmark.published.importers.labels import (
    count_devices,
    divide_into_machines,
    find_device,
    find_precision,
    is_machine,
    read_changes,
    read_flags,
    read_label,
    split_count,
)
from trainmark.published.importers.models import find_case
from trainmark.published.importers.vocabulary import (
    WORDS,
    find_only_precision,
    is_number,
    is_without_value,
    normalize_word,
    strip_markup,
)
from trainmark.record.work import Row
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.importers.column import Column
    from trainmark.published.importers.labels import Label
    from trainmark.published.importers.page import Page, TableLine
    from trainmark.record.work import Reading, Unread
    from trainmark.spec import Message

    Cell = tuple[Column, str]  # a cell with its column

LABEL_ROLES = ("configuration", "variant", "device")  # roles of columns that name a row
COUNT_ROLES = ("nnodes", "nproc", "devices")  # roles of columns that count machines or devices
_ZERO_DECIMALS = re.compile(r"\.0*$")  # of counts that were written as floating-point numbers
_STATUS_MARK = re.compile(r"\[([^\[\]]+)\]")  # on our own pages: `H100 (1x8) [diverged]`
_STATUS_CODES = {word: code for code, words in WORDS["status"].items() for word in words}
_NUMBER = re.compile(r"[0-9][0-9.,]*")
_TRUTH_VALUES = {"true", "false", "yes", "no"}


@dataclass(frozen=True, slots=True)
class HeaderedTable:
    """A table whose headers are read.

    Args:
        line: of the table in its file; 0: each line below the headers is a row.
        page: what the file and the headings say about all rows.
        keeps_settings: whether settings of its rows are kept, as those of foreign tables are.
    """

    columns: Sequence[Column]
    line: int
    page: Page
    keeps_settings: bool


class RowReading(NamedTuple):
    """A row, and the cells of its line that cannot be read."""

    row: Row
    unread_cells: list[Unread]


class _FigureReading(NamedTuple):
    """A figure that was read from a cell of a column.

    Args:
        name: of the figure.
        reading: its value with the cell's text.
    """

    column: Column
    name: str
    reading: Reading


class _World(NamedTuple):
    """The number of machines of a row, and of devices of each; None: not known."""

    nnodes: int | None
    nproc: int | None


def pair_cells(columns: Sequence[Column], cells: Sequence[str]) -> list[Cell]:
    """Return each cell of a line with its column; cells without a column are left out."""
    return list(zip(columns, cells, strict=False))


def has_figure(row: Row) -> bool:
    """Tell whether a row has a figure with a value; the target of a quality does not count.

    A reading has no value if its cell says so: ``OOM``. The name of a target ends in ``_target``.
    """
    return any(
        reading.value is not None
        for name, reading in row.figures.items()
        if not name.endswith("_target")
    )


def read_row(
    line: TableLine, pairs: Sequence[Cell], column_precision: str | None, table: HeaderedTable
) -> RowReading:
    """Return one row of a line, and the cells of the row that cannot be read.

    Args:
        line: its number in the file, its cells and its text.
        pairs: the cells of the row with their columns; of a line with columns for several
            precisions, only those of one precision.
        column_precision: this precision; None: headers name no precision.
        table: its columns, and its page: what the file and the headings say of all rows, such as
            the file's form, ``csv``, and its level of evidence, from ``A`` to ``unverified``.
    """
    page = table.page
    # The cells that are neither figures nor settings by the role of their column: `device` …
    facts = _read_facts(pairs)
    # The label has the numbers of machines and of devices of each, and notes: its contradictions.
    label, device = _read_label_and_device(facts, page)
    # A column `name` has the name of the model, if no other column has it.
    model = facts.get("model") or facts.get("name") or page.model
    configuration = _name_row(facts, label, device, model, pairs)
    # Settings of the row by name: those that a cell lists, `bs=96,lr=0.00015`, and how the model is
    # split over devices.
    changes = read_changes(facts.get("changes", ""))
    if "parallel" in facts:
        changes["parallel"] = facts["parallel"]
    # If the table keeps settings: also those in columns of their own, and the options of a variant
    # that is a command line, `--fp16`.
    flags: dict[str, str] = {}
    if table.keeps_settings:
        flags = read_flags(facts.get("variant", ""))
        changes |= _read_settings(pairs, configuration) | flags
    world_size = label.nnodes * label.nproc if label.nnodes and label.nproc else None
    figures, unread_cells = _read_figures(pairs, facts, page, line.number, world_size)
    row = Row(
        file=page.file,
        line=line.number,
        table=table.line,
        form=page.form,
        section=page.section,
        raw=line.raw,
        cells={column.header: cell for column, cell in pair_cells(table.columns, line.cells)},
        configuration=configuration,
        case=find_case(model),
        model=model,
        framework=facts.get("framework") or page.framework,
        vendor=facts.get("vendor") or page.vendor,
        device=device,
        nnodes=label.nnodes,
        nproc=label.nproc,
        precision=_find_row_precision(facts, changes, flags, column_precision, page),
        data_origin=facts.get("data_origin"),
        changes=changes,
        figures=figures,
        notes=[*page.notes, *label.notes, *_find_failures(facts)],
        evidence=page.evidence,
        metric=facts.get("metric") or _find_metric_in_headers(pairs),
    )
    return RowReading(row, unread_cells)


def _find_metric_in_headers(pairs: Sequence[Cell]) -> str | None:
    """Return the metric of the first column of a quality; None: there is no such column.

    A quality, such as ``accuracy``, says how well the model was trained. Its metric is the name of
    its column.

    Args:
        pairs: the cells of a row with their columns.
    """
    for column, _ in pairs:
        if column.role == "quality":
            return column.name
    return None


def _read_facts(pairs: Sequence[Cell]) -> dict[str, str]:
    """Return the texts of a row by the role of their column, such as ``device`` and ``nnodes``.

    Of several columns of one role the first counts. Only ``changes`` of several columns are joined:
    each lists changed settings.

    Args:
        pairs: the cells of the row with their columns.
    """
    facts: dict[str, str] = {}
    for column, cell in pairs:
        # Figures and settings are read by functions of their own.
        if column.is_figure or column.role == "setting" or is_without_value(cell):
            continue
        if column.role == "changes" and "changes" in facts:
            facts["changes"] += f", {cell.strip()}"
        else:
            facts.setdefault(column.role, cell.strip())
    return facts


def _read_settings(pairs: Sequence[Cell], label: str) -> dict[str, str]:
    """Return the settings of a row by name, with the columns whose headers are unknown.

    Unknown columns count as settings because they may be what tells two rows apart. One whose text
    already is the label of the row does not count.

    Args:
        pairs: the cells of the row with their columns.
        label: text that names the row.
    """
    settings = {}
    for column, cell in pairs:
        is_unknown = column.role == "unknown" and cell != label
        if (column.role == "setting" or is_unknown) and not is_without_value(cell):
            # With the unit of the header: `8` under `Params (B)` is `8 B`.
            settings[column.name] = f"{strip_markup(cell)} {column.unit}".strip()
    return settings


def _read_label_and_device(facts: dict[str, str], page: Page) -> tuple[Label, str | None]:
    """Return the label of a row, completed with the row's world, and the device of the row.

    The label is what the name of the row says: ``A100 (1x8)`` has a device and a world, the number
    of machines and of devices of each. If the name does not state the world, then columns, the
    device's text or the page may.

    The device is that of the column ``device``, from whose text a count or world is removed if the
    world is read from it; else that of the label, else that of the page, else one whose name is
    found in the configuration.

    Args:
        facts: texts of the row by the role of their column.
        page: what the file and the headings say of all rows, such as their device.
    """
    printed_device = strip_markup(facts["device"]) if "device" in facts else None
    configuration = facts.get("configuration") or printed_device or ""
    world = _read_world(facts)
    text_of_world = f"({world.nnodes}x{world.nproc})" if world.nnodes and world.nproc else ""
    # The label takes its world from its own text, else from columns that state both numbers, else
    # from the name of the configuration file. Its text before the world is the device.
    label = read_label(configuration, facts.get("config_file", ""), world_of_columns=text_of_world)
    device = printed_device
    if label.nnodes is None:  # none of them states the number of machines
        # A column may have one of the two numbers. If none has, the count in the device's text,
        # `8x A100`, or the page decides; a count is then removed from the device.
        if not world.nnodes and not world.nproc:
            world, device = _infer_world(printed_device, page)
        label = label._replace(nnodes=world.nnodes, nproc=world.nproc)
    elif label.nproc is None and world.nnodes in {None, label.nnodes}:
        # The label counts machines only, `2x DGX A100`: a column may have the devices of each.
        label = label._replace(nproc=world.nproc)
    if "configuration" not in facts:
        # The text of the device was read as the label: of `A100 1x8`, the label's device is `A100`.
        # If the label names no device, the text is the device, without the count removed above.
        device = label.device or device
    elif device is None:
        device = label.device
    return label, device or page.device or find_device(configuration)


def _infer_world(device: str | None, page: Page) -> tuple[_World, str | None]:
    """Return the world by the device's name or else by the page, and the device without its count.

    The world is the number of machines and of devices of each. The count of devices, ``8x A100``,
    is divided into machines.

    Args:
        device: text of the row's device, which may have a count; None: the row has no device.
        page: what the file and the headings say of all rows: the device, and the number of devices
            of all machines.
    """
    if device:
        name, count = split_count(device)
        if count and is_machine(name):  # `2x DGX A100`: how many devices each has is not known
            return _World(count, None), name
        if count:  # `8x A100`
            return _World(*divide_into_machines(count)), name
    # The page counts the devices of its own product; a row of another one may have others.
    is_device_of_page = not device or not page.device or device == page.device
    if page.devices and is_device_of_page:
        return _World(*divide_into_machines(page.devices)), device
    return _World(None, None), device


def _read_world(facts: dict[str, str]) -> _World:
    """Return the world that columns state: the number of machines, and of devices of each.

    Args:
        facts: texts of the row by the role of their column. Machines are in ``nnodes``, devices of
            each machine in ``nproc``, devices of all machines in ``devices``.
    """
    counts = {role: _read_count(facts[role]) for role in COUNT_ROLES if role in facts}
    nnodes = counts.get("nnodes")
    nproc = counts.get("nproc")
    devices = counts.get("devices")
    # From the total alone, the number of machines is a guess.
    if devices and nnodes is None and nproc is None:
        return _World(*divide_into_machines(devices))
    if devices and nnodes and nproc is None:
        # A number of devices that the machines cannot share equally is that of each machine.
        is_total = devices % nnodes == 0
        return _World(nnodes, devices // nnodes if is_total else devices)
    # With ``nproc`` known, ``devices`` is not divided by it: on some pages, the column ``devices``
    # has the devices of one machine, too: the quotient would be 1, whatever the number of machines.
    return _World(nnodes, nproc)


def _read_count(text: str) -> int | None:
    """Return a positive number, or the devices that a text counts; None: neither.

    Numbers may be printed as ``1,024`` or ``8.0``, and devices as ``8 GPUs``.
    """
    digits = _ZERO_DECIMALS.sub("", strip_markup(text)).replace(",", "")
    if digits.isdecimal() and int(digits) > 0:
        return int(digits)
    return count_devices(text) or None  # no number of devices can be 0


def _name_row(
    facts: dict[str, str], label: Label, device: str | None, model: str, pairs: Sequence[Cell]
) -> str:
    """Return the name of a row: its label or variant, else its device or model with the world.

    The world is the number of machines and of devices of each: ``A100 (1x8)``. A row without any
    name has the world alone; empty: that is not known either.

    Args:
        facts: texts of the row by the role of their column: ``configuration``, the printed label;
            ``variant``, what tells runs of a model apart, such as options; ``device``.
        label: has the world of the row: ``nnodes`` machines and ``nproc`` devices of each, None if
            not known.
        device: of the row or else of the page; None: not known.
        model: as printed; empty: not known.
        pairs: the cells of the row with their columns.
    """
    for role in ("configuration", "variant"):
        if role in facts:
            return facts[role]
    # Without a column of devices, all rows may have the page's device: the model tells more.
    name = device if "device" in facts else (model or device)
    if not name:
        name = _find_text_of_unknown_column(pairs)
    # `A100 (1x8)` needs no second world behind it.
    is_world_in_device = "device" in facts and read_label(facts["device"]).nnodes is not None
    if label.nnodes and not is_world_in_device:
        if label.nproc:
            world = f"({label.nnodes}x{label.nproc})"
        else:
            world = f"({label.nnodes} {'node' if label.nnodes == 1 else 'nodes'})"
        return f"{name} {world}" if name else world
    return facts.get("device") or name  # the device as printed, with its world if it names one


def _find_text_of_unknown_column(pairs: Sequence[Cell]) -> str:
    """Return the first text below an unknown header, which may name the row; empty: none.

    Numbers, truth values and cells such as ``n/a`` name nothing.

    Args:
        pairs: the cells of the row with their columns.
    """
    for column, cell in pairs:
        is_text = not is_number(cell) and normalize_word(cell) not in _TRUTH_VALUES
        if column.role == "unknown" and is_text and not is_without_value(cell):
            return cell
    return ""


def _find_row_precision(
    facts: dict[str, str],
    changes: dict[str, str],
    flags: dict[str, str],
    column_precision: str | None,
    page: Page,
) -> str | None:
    """Return the printed precision of a row in lower case: ``fp16``; None: none is printed.

    Args:
        facts: texts of the row by the role of their column: ``precision``; ``variant``, what tells
            runs of a model apart, such as ``bf16 AMP``.
        changes: settings of the row by name.
        flags: options by name, if a cell of the row is a command line.
        column_precision: the one that the headers of its figures name; None: they name none.
        page: what the file and the headings say of all rows.
    """
    setting_names = WORDS["facts"]["precision"]  # of settings that state a precision
    precisions_in_changes = [changes[name] for name in setting_names if name in changes]
    changed_precision = precisions_in_changes[0] if precisions_in_changes else None
    # From what is said of this row alone to what is said of the whole page.
    printed = (
        facts.get("precision")
        or column_precision
        or find_precision(flags)
        or changed_precision
        or find_only_precision(facts.get("variant", ""))
        or page.precision
    )
    if not printed:
        return None
    first_part = strip_markup(printed).split(",")[0]  # of `fp16, O2`
    return first_part.strip().lower()


def _find_failures(facts: dict[str, str]) -> list[Message]:
    """Return notes that a run failed, if its status, its failures or its label says so.

    A label says so by a mark in square brackets: ``H100 (1x8) [diverged]``.

    Args:
        facts: texts of the row by the role of their column: ``configuration``, the label;
            ``status``, a word such as ``failed``; ``failures``, their number.
    """
    label_marks = _STATUS_MARK.findall(strip_markup(facts.get("configuration", "")))
    words = [normalize_word(word) for word in (facts.get("status", ""), *label_marks)]
    # The code of a note by its words: `diverged` is `run_not_converged`.
    codes = {_STATUS_CODES[word] for word in words if word in _STATUS_CODES}
    if _read_count(facts.get("failures", "")):  # more than 0 failures
        codes.add("run_not_successful")
    return [message(code) for code in sorted(codes)]


def _read_figures(
    pairs: Sequence[Cell], facts: dict[str, str], page: Page, line: int, world_size: int | None
) -> tuple[dict[str, Reading], list[Unread]]:
    """Return the figures of a row by name, and its cells that cannot be read.

    Args:
        pairs: the cells of the row with their columns.
        facts: texts of the row by the role of their column; one may be the unit of the figures.
        page: what the file and the headings say of all rows; a heading may have the unit.
        line: number of the line in the file.
        world_size: devices of the row; None: not known.
    """
    figure_readings: list[_FigureReading] = []
    unread_cells = []
    for column, cell in pairs:
        if not column.is_figure:
            continue
        # With the unit and the metric that are stated outside of the cell and its header.
        complete_column, text = _complete_cell(column, cell, facts, page)
        try:
            # One figure by its name, or a quality and its target.
            readings = read_cell(text, complete_column, world_size=world_size)
        except CellError as error:
            unread_cells.append(page.make_unread(line, "cell", error.reason, cell))
            continue
        for name, reading in readings.items():
            printed = reading.model_copy(update={"raw": cell})  # without what was completed
            figure_readings.append(_FigureReading(complete_column, name, printed))
    figures: dict[str, Reading] = {}
    for figure in figure_readings:
        # Two columns with different values of one figure keep their headers as names.
        name = figure.column.header if _is_ambiguous(figure, figure_readings) else figure.name
        # A target may be in the cell of its quality and in a separate column.
        if name in figures and figures[name].value != figure.reading.value:
            reason = message("figure_given_twice", name=name)
            unread_cells.append(page.make_unread(line, "cell", reason, figure.reading.raw))
        else:
            figures[name] = figure.reading
    return figures, unread_cells


def _complete_cell(
    column: Column, cell: str, facts: dict[str, str], page: Page
) -> tuple[Column, str]:
    """Return a column and its cell with the metric and unit that other cells or headings state.

    Args:
        cell: the text.
        facts: other texts of the row by the role of their column: ``metric``, the name of the
            quality; ``unit``, that of the figures.
        page: what the headings say of all rows; its unit is empty if they have none.
    """
    # The metric of this row replaces the name of the column, which has other metrics in other rows.
    if column.cell_kind == "quality" and "metric" in facts:
        return replace(column, name=facts["metric"]), cell
    # A header of our own CSV leaves open which work a rate counts. The column `unit` has the whole
    # unit, such as `tokens/s`.
    if column.unit == "{work}/s":
        return replace(column, unit=facts.get("unit", "")), cell
    unit = facts.get("unit", page.unit)
    # Without a unit in the header, a bare number gets this unit; a cell with its own unit keeps it.
    if column.has_unit_in_cells and unit and _NUMBER.fullmatch(strip_markup(cell)):
        return column, f"{cell} {unit}"
    return column, cell


def _is_ambiguous(figure: _FigureReading, row_figures: Sequence[_FigureReading]) -> bool:
    """Tell whether other columns of a row give the same figure another value.

    Two headers may be taken for the same figure, because words or the unit in them decide. If the
    whole header of a column is known, the column has the figure for sure. Qualities and targets are
    not ambiguous, because their columns have names of their own.

    Args:
        figure: its column, its name, such as ``step_time``, and its reading, which has the value.
        row_figures: all figures of the row.
    """
    column = figure.column
    if column.is_known_header or column.role != "figure":
        return False
    values = {other.reading.value for other in row_figures if other.name == figure.name}
    return len(values) > 1
