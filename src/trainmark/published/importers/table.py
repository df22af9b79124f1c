"""Turn the table of a foreign file into rows, whatever the format of the file.

Owns which tables hold results and which of their lines are rows, how the columns of a row are
combined, tables with a column for each precision or number of devices, and the published rows that
cases ship. Must not know Markdown, CSV or other file formats.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainmark import cases
from trainmark.plan import reference
from trainmark.published.audit.workloads import find_workload
from trainmark.published.importers import cells
from trainmark.published.importers.cells import CellError
from trainmark.published.importers.headers import TRAINING_FIGURES, read_headers, split_unit
from trainmark.published.importers.labels import (
    count_devices,
    find_device,
    find_precision,
    is_machine,
    read_changes,
    read_flags,
    read_label,
    split_count,
    split_devices,
)
from trainmark.published.importers.units import parse_unit
from trainmark.published.importers.vocabulary import (
    WORDS,
    folded,
    has_phrase,
    is_nothing,
    is_out_of_memory,
    plain,
    precision_of,
)
from trainmark.record.work import Row, StatedWork, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.plan.reference import EvidenceLevel
    from trainmark.published.importers.headers import Column
    from trainmark.published.importers.labels import Label
    from trainmark.record.work import Reading
    from trainmark.spec import Message

    Cell = tuple[Column, str]

_ZEROS = re.compile(r"\.0*$")  # of counts that were written as floating-point numbers
_MARK = re.compile(r"\[([^\[\]]+)\]")  # of our own pages: `H100 (1x8) [diverged]`
_STATUSES = {word: code for code, words in WORDS["status"].items() for word in words}
_LABELS = ("configuration", "variant", "device")  # one of them names the row
_TEXT_LABELS = ("configuration",)  # of founding pages, whose tables have headings between rows
_WORLD_ROLES = ("nnodes", "nproc", "devices")
_WORK = ("samples", "tokens", "steps")
_NUMBER = re.compile(r"[0-9][0-9.,]*")
_RULED_CELL = re.compile(r"-{2,}")
_COUNT_HEAD = re.compile(r"(?i)([0-9]{1,6})\s*(?:x|nodes?|gpus?|devices?|cards?|机|卡)?")
_MAX_TEXT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The facts that all rows of a file or a table share; ``notes`` are added to each row.

    Args:
        section: the headings above the table, outermost first.
        devices: of all machines, if a heading or a fact counts them.
        unit: of figures, if the nearest heading has one: ``Speed (it/s)``.
        is_inference: the headings say that nothing is trained.
    """

    file: str
    form: str
    model: str = ""
    framework: str = ""
    vendor: str | None = None
    device: str | None = None
    devices: int | None = None
    unit: str = ""
    precision: str | None = None
    section: str = ""
    is_inference: bool = False
    evidence: EvidenceLevel = "unverified"
    notes: tuple[Message, ...] = ()

    def unread(
        self, line: int, kind: Literal["file", "table", "row", "cell"], why: Message, raw: str = ""
    ) -> Unread:
        """Return an entry for a part of this file that could not be read."""
        return Unread(file=self.file, line=line, kind=kind, reason=why, raw=raw)


class TableLine(NamedTuple):
    """A line of a table: its number in the file, its cells, its text."""

    number: int
    cells: Sequence[str]
    raw: str


@dataclass(frozen=True, slots=True)
class _Table:
    """A table while it is read: its columns, its line in the file, and the page around it.

    Args:
        has_settings: whether settings of its rows are kept, as those of foreign tables are.
    """

    columns: Sequence[Column]
    line: int
    page: Page
    has_settings: bool


def read(
    head: TableLine, body: Sequence[TableLine], page: Page, *, unknown: str = "ignored"
) -> Iterator[Row | Unread]:
    """Yield the rows of a table, and the parts that cannot be read.

    Args:
        head: the headers; its number is that of the table, 0: each line is a row.
        unknown: role of columns with an unknown header: ``unknown`` in foreign tables, where
            settings are kept and other columns of numbers are listed as not read; ``quality`` in
            references of cases; ``ignored`` in forms whose columns are all known.
    """
    head, body = _join_units(head, body)
    if _is_by_counts(head, body):
        yield from _read_by_counts(head, body, page)
        return
    rows = [line.cells for line in body if len(line.cells) >= len(head.cells)]
    columns = read_headers(head.cells, rows, unknown=unknown, is_inference=page.is_inference)
    columns = cells.with_commas(columns, rows)
    table = _Table(columns, head.number, page, unknown == "unknown")
    reason = _find_missing_column(table, rows)
    if reason is not None:
        yield page.unread(head.number, "table", reason, head.raw)
        return
    entries = list(_read_lines(table, body))
    yield from _report_unknown_columns(table, head, rows)
    is_empty = not any(isinstance(entry, Row) for entry in entries)
    if is_empty and any(map(_is_without_figures, entries)):
        figures = ", ".join(x.header for x in columns if x.is_figure)[:_MAX_TEXT]
        reason = message("table_without_figures", columns=figures)
        yield page.unread(head.number, "table", reason, head.raw)
        entries = [x for x in entries if not _is_without_figures(x)]
    yield from entries


def _is_without_figures(entry: Row | Unread) -> bool:
    return isinstance(entry, Unread) and entry.reason.code == "row_without_figures"


def _join_units(
    head: TableLine, body: Sequence[TableLine]
) -> tuple[TableLine, Sequence[TableLine]]:
    """Return the headers with the units of a first line of units: ``Memory`` above ``GB``."""
    if not head.number or not body or len(body[0].cells) != len(head.cells):
        return head, body
    first = [plain(cell) for cell in body[0].cells]
    units = [parse_unit(cell.strip("()[]")) for cell in first]
    if any(map(_is_number, first)) or not any(units) or any(map(is_out_of_memory, first)):
        return head, body
    joined = [
        f"{header} ({cell.strip('()[]')})" if unit else f"{header} {cell}".strip()
        for header, cell, unit in zip(head.cells, first, units, strict=True)
    ]
    return head._replace(cells=joined), body[1:]


def _read_lines(table: _Table, body: Sequence[TableLine]) -> Iterator[Row | Unread]:
    """Yield the rows of each line below the headers, or why it has none."""
    for line in body:
        reason = _why_no_row(line.cells, table.columns) if table.line else None
        if reason is None:
            yield from _read_line(line, table)
            continue
        if reason.code == "row_is_heading":
            page = replace(table.page, model=plain(str(reason.args["text"])))
            table = replace(table, page=page)
        yield table.page.unread(line.number, "row", reason, line.raw)


def _find_missing_column(table: _Table, rows: Sequence[Sequence[str]]) -> Message | None:
    """Return which column a table of results would need; None: it has all of them."""
    headers = ", ".join(column.header for column in table.columns if column.header)[:_MAX_TEXT]
    roles = {column.role for column in table.columns}
    if "target" not in roles and not any(map(_is_result, table.columns)):
        return message("table_without_results", columns=headers)
    has_name = bool(roles & {*_LABELS, *_WORLD_ROLES, "model", "name"})
    has_device = bool(table.page.device or table.page.devices)
    if not has_name and not has_device and not _find_label_column(table.columns, rows):
        return message("table_without_configuration", columns=headers)
    return None


def _is_result(column: Column) -> bool:
    # A table with nothing but figures of other units may be one of machines.
    if column.role != "figure":
        return False
    if column.printed and column.printed.quantity == "rate" and column.printed.work in _WORK:
        return True
    is_inference = has_phrase(column.name, WORDS["phrases"]["inference"])
    return column.name in TRAINING_FIGURES or (column.is_open and not is_inference)


def _find_label_column(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int | None:
    """Return the index of the first unknown column of texts; None: there is none."""
    for place, column in enumerate(columns):
        texts = [row[place] for row in rows if not is_nothing(row[place])]
        if column.role in {"unknown", "ignored"} and texts and not any(map(_is_number, texts)):
            return place
    return None


def _is_number(text: str) -> bool:
    return re.match(r"[+-]?[0-9.]", plain(text)) is not None


def _is_name(text: str) -> bool:
    return not _is_number(text) and folded(text) not in {"true", "false", "yes", "no"}


def _report_unknown_columns(
    table: _Table, head: TableLine, rows: Sequence[Sequence[str]]
) -> Iterator[Unread]:
    """Yield an entry for the columns of numbers that are not read: their headers are unknown."""
    names = [
        column.header
        for place, column in enumerate(table.columns)
        if column.role == "unknown" and any(_is_number(row[place]) for row in rows)
    ]
    if names:
        reason = message("columns_not_read", columns=", ".join(names)[:_MAX_TEXT])
        yield table.page.unread(head.number, "table", reason, head.raw)


def _why_no_row(printed: Sequence[str], columns: Sequence[Column]) -> Message | None:
    """Return why a line is no row: it is a heading or a sentence, or has too many or few cells."""
    pairs = list(zip(columns, printed, strict=False))
    labels = [cell for column, cell in pairs if column.role in _TEXT_LABELS]
    others = [cell.strip() for column, cell in pairs if column.role not in _TEXT_LABELS]
    is_ruled = any(map(_RULED_CELL.fullmatch, others))
    is_empty = all(is_nothing(cell) or _RULED_CELL.fullmatch(cell) for cell in others)
    if is_empty and not any(read_label(cell).nnodes for cell in labels):
        text = " ".join(labels).strip()[:_MAX_TEXT]
        if labels or not any(cell.strip() for cell in printed):
            return message("row_is_heading" if is_ruled else "row_is_text", text=text)
    if len(printed) < len(columns) or any(cell.strip() for cell in printed[len(columns) :]):
        return message("row_has_other_cells", cells=len(printed), columns=len(columns))
    return None


def _read_line(line: TableLine, table: _Table) -> Iterator[Row | Unread]:
    """Yield the rows of a line, one for each precision that its columns name, and its faults."""
    pairs = list(zip(table.columns, line.cells, strict=False))
    variants = dict.fromkeys(x.precision for x in table.columns if x.is_figure and x.precision)
    rows, faults = [], []
    for variant in variants or (None,):
        of_variant = [(x, cell) for x, cell in pairs if _is_of_variant(x, variant, variants)]
        row, unread = _read_row(line, of_variant, variant, table)
        faults += [fault for fault in unread if fault not in faults]
        if not table.line or _has_figure(row):
            rows.append(row)
    yield from rows
    if rows:
        yield from faults
    else:
        yield table.page.unread(line.number, "row", _why_no_figure(pairs), line.raw)


def _is_of_variant(column: Column, variant: str | None, variants: Iterable[str | None]) -> bool:
    """Tell whether a column belongs to the row of a precision; mixed precision is of 16 bits."""
    if column.precision in (None, variant) or not variant:
        return True
    return (
        variant == "amp"
        and column.precision in ("fp16", "bf16")
        and (column.precision not in variants)
    )


def _has_figure(row: Row) -> bool:
    """Tell whether a row has a figure; a target alone is none."""
    return any(
        reading.value is not None
        for name, reading in row.figures.items()
        if not name.endswith("_target")
    )


def _why_no_figure(pairs: Sequence[Cell]) -> Message:
    printed = [(column.header, cell) for column, cell in pairs if column.is_figure]
    if any(is_out_of_memory(cell) for _, cell in printed):
        return message("row_out_of_memory")
    shown = ", ".join(f"{header} {cell!r}" for header, cell in printed)[:_MAX_TEXT]
    return message("row_without_figures", cells=shown)


def _read_row(
    line: TableLine, pairs: Sequence[Cell], variant: str | None, table: _Table
) -> tuple[Row, list[Unread]]:
    """Return one row of a line, and its cells that cannot be read."""
    page = table.page
    facts = _read_facts(pairs)
    label, device = _read_world_and_device(facts, page)
    model = facts.get("model") or facts.get("name") or page.model
    configuration = _name_row(facts, label, device, model, pairs)
    changes = read_changes(facts.get("changes", ""))
    if "parallel" in facts:
        changes["parallel"] = facts["parallel"]
    if table.has_settings:
        flags = read_flags(facts.get("variant", ""))
        changes |= _read_settings(pairs, configuration) | flags
    else:
        flags = {}
    world_size = label.nnodes * label.nproc if label.nnodes and label.nproc else None
    figures, unread = _read_figures(pairs, facts, page, line.number, world_size)
    metric = facts.get("metric") or next((x.name for x, _ in pairs if x.role == "quality"), None)
    row = Row(
        file=page.file,
        line=line.number,
        table=table.line,
        form=page.form,
        section=page.section,
        raw=line.raw,
        cells={
            column.header: cell for column, cell in zip(table.columns, line.cells, strict=False)
        },
        configuration=configuration,
        case=_case_names().get(model.casefold()),
        model=model,
        framework=facts.get("framework") or page.framework,
        vendor=facts.get("vendor") or page.vendor,
        device=device,
        nnodes=label.nnodes,
        nproc=label.nproc,
        precision=_find_row_precision(facts, changes, flags, variant, page),
        data_origin=facts.get("data_origin"),
        changes=changes,
        figures=figures,
        notes=[*page.notes, *label.notes, *_find_failures(facts)],
        evidence=page.evidence,
        metric=metric,
    )
    return row, unread


def _read_facts(pairs: Sequence[Cell]) -> dict[str, str]:
    """Return the texts of a row by role; changes may be in several columns."""
    facts: dict[str, str] = {}
    for column, cell in pairs:
        if column.is_figure or column.role == "setting" or is_nothing(cell):
            continue
        if column.role == "changes" and "changes" in facts:
            facts["changes"] += f", {cell.strip()}"
        else:
            facts.setdefault(column.role, cell.strip())
    return facts


def _read_settings(pairs: Sequence[Cell], label: str) -> dict[str, str]:
    """Return the settings of a row by name, with the unknown columns that are not its label."""
    settings = {}
    for column, cell in pairs:
        is_unknown = column.role == "unknown" and cell != label
        if (column.role == "setting" or is_unknown) and not is_nothing(cell):
            settings[column.name] = f"{plain(cell)} {column.unit}".strip()
    return settings


def _read_world_and_device(facts: dict[str, str], page: Page) -> tuple[Label, str | None]:
    """Return the label with the world that label and columns name, and the device."""
    device = plain(facts["device"]) if "device" in facts else None
    configuration = facts.get("configuration") or device or ""
    world = _read_world(facts)
    printed = f"({world[0]}x{world[1]})" if world[0] and world[1] else ""
    label = read_label(configuration, facts.get("config_file", ""), printed)
    if label.nnodes is None:
        nnodes, nproc = world
        if device and not (nnodes or nproc):
            name, count = split_count(device)
            if count and is_machine(name):
                device, nnodes = name, count
            elif count:
                device, (nnodes, nproc) = name, split_devices(count)
        is_of_page = not device or not page.device or device == page.device
        if page.devices and is_of_page and not (nnodes or nproc):
            nnodes, nproc = split_devices(page.devices)
        label = label._replace(nnodes=nnodes, nproc=nproc)
    if "configuration" not in facts:
        device = label.device or device
    elif device is None:
        device = label.device
    return label, device or page.device or find_device(configuration)


def _read_world(facts: dict[str, str]) -> tuple[int | None, int | None]:
    """Return the machines and the devices of each that columns count."""
    counts = {name: _read_count(facts[name]) for name in _WORLD_ROLES if name in facts}
    nnodes, nproc, devices = (counts.get(name) for name in _WORLD_ROLES)
    if devices and nnodes is None and nproc is None:
        return split_devices(devices)
    if devices and nnodes and nproc is None:
        is_total = devices % nnodes == 0 and devices >= nnodes
        return nnodes, devices // nnodes if is_total else devices
    return nnodes, nproc


def _read_count(text: str) -> int | None:
    digits = _ZEROS.sub("", plain(text)).replace(",", "")
    return int(digits) if digits.isdecimal() and int(digits) > 0 else count_devices(text)


def _name_row(
    facts: dict[str, str], label: Label, device: str | None, model: str, pairs: Sequence[Cell]
) -> str:
    """Return the name of a row: its label, else its device or model with the world."""
    for role in ("configuration", "variant"):
        if role in facts:
            return facts[role]
    name = device if "device" in facts else (model or device)
    if not name:
        texts = (cell for x, cell in pairs if x.role == "unknown" and not is_nothing(cell))
        name = next((text for text in texts if _is_name(text)), "")
    has_own_world = "device" in facts and read_label(facts["device"]).nnodes
    if label.nnodes and label.nproc and not has_own_world:
        return f"{name} ({label.nnodes}x{label.nproc})".strip()
    if label.nnodes and not label.nproc and not has_own_world:
        return f"{name} ({label.nnodes} {'node' if label.nnodes == 1 else 'nodes'})"
    return facts.get("device") or name or ""


def _find_row_precision(
    facts: dict[str, str],
    changes: dict[str, str],
    flags: dict[str, str],
    variant: str | None,
    page: Page,
) -> str | None:
    """Return the precision of a row as it is printed; None: none is printed."""
    keys = WORDS["facts"]["precision"]
    named = next((changes[name] for name in keys if name in changes), None)
    printed = (
        facts.get("precision")
        or variant
        or find_precision(flags)
        or named
        or precision_of(facts.get("variant", ""))
        or page.precision
    )
    return plain(printed).split(",")[0].strip().lower() if printed else None


@cache
def _case_names() -> dict[str, str]:
    """Return the case of each name and alias, in lower case."""
    known, _ = cases.load_all()
    return {word.casefold(): case.name for case in known for word in (case.name, *case.aliases)}


def known_model(*names: str) -> str:
    """Return the first name that is a case's, or of a model that the audit knows; empty: none."""
    for name in names:
        if name.casefold() in _case_names() or find_workload(None, name).names:
            return name
    return ""


def _find_failures(facts: dict[str, str]) -> list[Message]:
    """Return a note if the status of a run or the mark after its label says that it failed."""
    words = [facts.get("status", ""), *_MARK.findall(plain(facts.get("configuration", "")))]
    codes = {_STATUSES[folded(word)] for word in words if folded(word) in _STATUSES}
    if _read_count(facts.get("failures", "")):
        codes.add("run_not_successful")
    return [message(code) for code in sorted(codes)]


def _read_figures(
    pairs: Sequence[Cell], facts: dict[str, str], page: Page, line: int, world_size: int | None
) -> tuple[dict[str, Reading], list[Unread]]:
    """Return the figures of a row, and its cells that cannot be read."""
    columns_read: list[tuple[Column, str, Reading]] = []
    unread = []
    for column, cell in pairs:
        if not column.is_figure:
            continue
        named, text = _complete_cell(column, cell, facts, page)
        try:
            readings = cells.read(text, named, world_size=world_size)
        except CellError as error:
            unread.append(page.unread(line, "cell", error.reason, cell))
        else:
            columns_read += [
                (named, name, x.model_copy(update={"raw": cell})) for name, x in readings.items()
            ]
    figures: dict[str, Reading] = {}
    for column, name, reading in columns_read:
        key = column.header if _is_ambiguous(name, column, columns_read) else name
        # A target may be in the cell of its quality and in a separate column.
        if key in figures and figures[key].value != reading.value:
            reason = message("figure_given_twice", name=key)
            unread.append(page.unread(line, "cell", reason, reading.raw))
        else:
            figures[key] = reading
    return figures, unread


def _complete_cell(
    column: Column, cell: str, facts: dict[str, str], page: Page
) -> tuple[Column, str]:
    """Return a column and its cell with the metric and unit of other columns or headings."""
    if column.reads == "quality" and "metric" in facts:
        return replace(column, name=facts["metric"]), cell
    if column.unit == "{work}/s":  # of our CSV
        return replace(column, unit=facts.get("unit", "")), cell
    unit = facts.get("unit", page.unit)
    if column.is_open and unit and _NUMBER.fullmatch(plain(cell)):
        return column, f"{cell} {unit}"
    return column, cell


def _is_ambiguous(
    name: str, column: Column, columns_read: Sequence[tuple[Column, str, Reading]]
) -> bool:
    """Tell whether several columns of a row have the same figure, and none has its exact name."""
    if column.is_exact or column.role != "figure":
        return False
    values = {reading.value for _, other, reading in columns_read if other == name}
    return len(values) > 1


def _is_by_counts(head: TableLine, body: Sequence[TableLine]) -> bool:
    """Tell whether the headers are numbers of nodes or devices, and the first column has names."""
    _, *counts = head.cells or ("",)
    printed = [plain(cell) for cell in counts]
    has_names = any(not _is_number(line.cells[0]) for line in body if line.cells)
    return len(printed) > 1 and has_names and all(map(_COUNT_HEAD.fullmatch, printed))


def _read_by_counts(
    head: TableLine, body: Sequence[TableLine], page: Page
) -> Iterator[Row | Unread]:
    """Yield a row for each cell of a table whose headers are numbers of nodes or devices."""
    first, *counts = (plain(cell) for cell in head.cells)
    context = f"{first} {page.section} {page.file}"
    is_mlperf = has_phrase(context.replace("_", " "), WORDS["names"]["minutes_by_nodes"])
    titles = [first, *reversed(page.section.split(" > "))]
    figure = "time to train (min)" if is_mlperf else _find_counted_figure(first, titles)
    world = _find_counted_role(" ".join([*counts, *titles]), is_mlperf=is_mlperf)
    if not figure or not world:
        code = "counts_without_unit" if world else "counts_of_what"
        reason = message(code, columns=", ".join(counts)[:_MAX_TEXT])
        yield page.unread(head.number, "table", reason, head.raw)
        return
    page = replace(page, device=find_device(first) or page.device)
    for line in body:
        name, *values = line.cells or ("",)
        rows = [
            TableLine(line.number, [name, _digits(count), value], line.raw)
            for count, value in zip(counts, values, strict=False)
            if not is_nothing(value)
        ]
        yield from read(TableLine(head.number, ["model", world, figure], head.raw), rows, page)


def _find_counted_figure(first: str, titles: Sequence[str]) -> str:
    """Return the first header with the unit of the nearest title; empty: none has a unit."""
    for title in titles:
        _, unit = split_unit(title)
        if unit is not None:
            return f"{first} ({unit.printed})"
    return ""


def _digits(text: str) -> str:
    return re.sub(r"[^0-9]", "", text)


def _find_counted_role(text: str, *, is_mlperf: bool) -> str:
    """Return the role of the counts: ``nnodes`` or ``devices``; empty: no word names it."""
    if re.search(r"(?i)\bnodes?\b|机", text) or is_mlperf:
        return "nnodes"
    if re.search(r"(?i)\b(?:gpu|device|card|accelerator|npu)s?\b|卡", text):
        return "devices"
    return ""


def read_references(case: str) -> Iterator[Row]:
    """Yield each row of the ``reference.toml`` of ``case``, whose number is its line.

    Raises:
        UsageError: no such case.
        RecordError: its file is not valid.
    """
    loaded = cases.load(case)
    known = reference.read_references(loaded.name)
    head = TableLine(0, ["configuration", *known.columns], "")
    for number, entry in enumerate(known.rows, 1):
        page = Page(
            file=f"{reference.REFERENCE}{loaded.name}",
            form="reference",
            model=loaded.name,
            framework=loaded.framework,
            device=entry.device,
            precision=entry.precision,
            evidence=entry.source.evidence,
        )
        stated = StatedWork(
            parameters=known.parameters,
            seq_length=known.seq_length,
            micro_batch_size=entry.micro_batch_size,
            train_samples=known.samples_per_pass,
            precision=entry.precision,
            sample_count=entry.sample_count,
        )
        printed = [entry.configuration, *entry.cells.values()]
        line = TableLine(number, printed, " | ".join(printed))
        for row in read(head, [line], page, unknown="quality"):
            if isinstance(row, Row):
                yield row.model_copy(update={"stated": stated})


def read_published(names: Iterable[str]) -> Iterator[Row]:
    """Yield the published rows of the installed cases among ``names``, of each case once."""
    installed = cases.names()
    for name in dict.fromkeys(names):
        if name in installed:
            yield from read_references(name)
