"""Read the heads of a table: which figure, setting or label each column has.

The unit in a head decides the figure; a name such as ``throughput`` alone decides nothing, and then
the unit of a cell does. Settings are never figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from trainmark.published.audit.qualities import is_quality, split_words
from trainmark.published.importers.units import Unit, parse_unit
from trainmark.published.importers.vocabulary import (
    WORDS,
    has_phrase,
    header_key,
    is_nothing,
    plain,
    precisions,
)
from trainmark.record.figures import FIGURES, name_column

if TYPE_CHECKING:
    from collections.abc import Sequence

_KNOWN = {
    header_key(header): (role, name)
    for role, names in WORDS["columns"].items()
    for name, headers in names.items()
    for header in headers
}
# The headers of our own CSV.
_EXPORTED = {header_key(name_column(x.name, x.unit, x)): x for x in FIGURES.values()}
_PHRASES: dict[str, list[str]] = WORDS["phrases"]
_EXACT_SETTINGS = {
    header_key(header): name
    for name, headers in WORDS["settings"]["exact"].items()
    for header in headers
}
_READS = {"mem": "memory", "MFU": "percent"}
_SIGNS = re.compile(r"[↑↓⬆⬇▲▼†‡]+")  # which direction is better, footnotes
# A rate of one device, wherever the header says so: `Per-GPU throughput (tokens/s)`.
_OF_DEVICE = re.compile(
    r"(?i)(?:\bper[- _]?|/\s*)(?:gpu|device|card|accelerator|chip|npu|xpu)s?\b|每卡|单卡|每GPU"
)
_MULTIPLE = re.compile(r"\(\s*(B|M|billions?|millions?)\s*\)", re.IGNORECASE)  # `Params (B)`
_BRACKETS = re.compile(r"\s*[(\[{]([^()\[\]{}]*)[)\]}]\s*")
_OF_TOKENS = re.compile(r"\(T\)|(?i:tokens)")  # `GlobalBatchSize (T)`
_COUNT = re.compile(r"[0-9][0-9,]*")
_MAX_UNIT_WORDS = 7  # of `training_tokens_per_second_per_gpu`
# What a rate is called: of all devices, and of one.
_RATES = {
    ("samples", False): "p_whole",
    ("samples", True): "sample/p/s",
    ("tokens", False): "p_train_tokens",
    ("tokens", True): "token/p/s",
    ("steps", False): "step/s",
}
# Phrases of times, and the figures that they name.
_TIMES = (
    ("step_time", "step_time"),
    ("train_time", "train_time"),
    ("e2e_time", "e2e_time"),
    ("step", "step_time"),
)
_PER_DEVICE = ("token/p/s", "sample/p/s")
_FIGURE_UNITS = {"sample/p/s": "samples/s", "step/s": "steps/s", "step_time": "s"}
# Figures of training that make a table one of results; a loss or a memory alone does too.
TRAINING_FIGURES = (
    FIGURES.keys() | WORDS["columns"]["figure"].keys() | _FIGURE_UNITS.keys() | {"step_time"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        role: ``figure``, ``quality``, ``target``, ``setting``, ``derived``, ``unknown``, or what
            else its text is.
        name: of the figure or setting; of a quality its metric.
        reads: how a cell is read: ``number``, ``memory``, ``percent``, ``quality``.
        unit: of the figure in a record; of a figure that records do not have, as printed.
        printed: the unit of its cells, where the header has one: ``e2e_time (h)``.
        scale: of ``unit``, of a figure that keeps its printed unit.
        precision: that the header names, of tables with a column for each precision.
        is_open: neither header nor name decides: the unit of a cell does.
        is_exact: the whole header is known, not only its words and unit.
        decimal_comma: its cells have one: ``0,125``.
    """

    header: str
    role: str
    name: str = ""
    reads: str = "number"
    unit: str = ""
    printed: Unit | None = None
    scale: float = 1.0
    precision: str | None = None
    is_open: bool = False
    is_exact: bool = False
    decimal_comma: bool = False

    @property
    def is_figure(self) -> bool:
        """Tell whether its cells are figures of any kind."""
        return self.role in {"figure", "quality", "target"}

    @property
    def measures(self) -> Unit | None:
        """The unit that its cells may repeat; None: they have none."""
        if self.printed is not None:
            return self.printed
        unit = parse_unit(self.unit)
        if unit is not None and self.name in _PER_DEVICE:
            return replace(unit, per_device=True)
        return unit


def read_headers(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]] = (),
    *,
    unknown: str = "unknown",
    is_inference: bool = False,
) -> list[Column]:
    """Return what each header says.

    Args:
        is_inference: the headings above say so: rates and times are no figures of training.
        rows: the cells below, which tell a number of GPUs from their name, a unit from a metric.
        unknown: the role of a header that nobody knows; ``quality`` for the references of a case,
            which have its own; ``ignored`` in forms whose other headers are all known.
    """
    columns = []
    for place, header in enumerate(headers):
        cells = [row[place] for row in rows if place < len(row)]
        column = _with_cells(read_header(header, unknown=unknown), cells)
        columns.append(_of_inference(column) if is_inference else column)
    return _with_targets(columns)


def _of_inference(column: Column) -> Column:
    """Return a column with the name of a figure of inference, if it is a figure with a unit."""
    if column.role != "figure" or not (column.is_open or column.printed):
        return column
    name = split_unit(plain(column.header))[0]
    name = without_precision(name) if column.precision else name
    if not name and column.printed:
        name = column.printed.printed
    if not has_phrase(name, _PHRASES["inference"]):
        name = f"inference {name}"
    if column.printed is None:
        return replace(column, name=name)
    return replace(column_of_unit(column.header, name, column.printed), precision=column.precision)


def _with_targets(columns: list[Column]) -> list[Column]:
    """Return columns whose only target is that of their only quality."""
    qualities = {column.name for column in columns if column.role == "quality"}
    if len(qualities) != 1:
        return columns
    (name,) = qualities
    return [replace(x, name=name) if x.role == "target" else x for x in columns]


def _with_cells(column: Column, cells: Sequence[str]) -> Column:
    """Return a column whose header has two meanings with the one that its cells have."""
    printed = [plain(cell) for cell in cells if not is_nothing(cell)]
    are_counts = bool(printed) and all(_COUNT.fullmatch(cell) for cell in printed)
    if column.role == "device" and are_counts:
        return replace(column, role="devices")
    if column.role == "devices" and printed and not are_counts:
        return replace(column, role="device")
    if column.role == "quality" and printed and all(map(precisions, printed)):
        return Column(column.header, "precision")  # `精度` is both
    if column.role == "metric" and printed and all(parse_unit(cell) for cell in printed):
        return replace(column, role="unit")
    return column


@lru_cache(maxsize=4096)  # collections repeat their headers
def read_header(header: str, *, unknown: str = "unknown") -> Column:
    """Return what one header says, without its cells."""
    text = re.sub(r"\s+", " ", _SIGNS.sub(" ", plain(header)).strip("*` ")).strip()
    key = header_key(text)
    if not key:
        return Column(header, "ignored")
    if key in _EXPORTED:
        spec = _EXPORTED[key]
        return Column(header, "figure", spec.name, unit=spec.unit, is_exact=True)
    if key in _KNOWN:
        return replace(_known_column(header, *_KNOWN[key]), is_exact=True)
    if key in _EXACT_SETTINGS:
        return _setting(header, text, _EXACT_SETTINGS[key])
    if unknown == "ignored" and not key.startswith("final") and split_unit(text)[1] is None:
        return Column(header, unknown)
    named = precisions(text)
    precision = named[0] if len(named) == 1 else None
    name, unit = split_unit(text)
    name = without_precision(name) if precision else name
    column = _decide(header, name, unit, unknown)
    return replace(column, precision=precision) if column.role != "derived" else column


def _known_column(header: str, role: str, name: str, printed: Unit | None = None) -> Column:
    if role == "figure":
        return Column(header, role, name, _READS.get(name, "number"), _unit_of(name), printed)
    if role in {"quality", "target"}:
        return Column(header, role, name, "quality", printed=printed)
    return Column(header, name)


def _unit_of(name: str) -> str:
    """Return the unit of a figure of rows."""
    if name in FIGURES:
        return FIGURES[name].unit
    return name if name in ("steps", "epochs") else _FIGURE_UNITS.get(name, "")


def _setting(header: str, text: str, name: str) -> Column:
    multiple = _MULTIPLE.search(header)
    if name == "parameters" and multiple:
        return Column(header, "setting", name, unit=multiple[1][0].upper())
    if name == "global_batch_size" and _OF_TOKENS.search(header):
        name = "global_batch_tokens"
    return Column(header, "setting", text if name == "other" else name)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """Return a header without its unit, and the unit; None: it has none.

    The unit stands in brackets, behind a comma or ``in``, or is the end of the header.
    """
    for match in _BRACKETS.finditer(text):
        if unit := parse_unit(match[1]):
            name = f"{text[: match.start()]} {text[match.end() :]}"
            return re.sub(r"\s+", " ", name).strip(" -,"), unit
    bracketed = " ".join(match.strip() for match in _BRACKETS.findall(text))
    body = _BRACKETS.sub(" ", text).partition("@")[0].strip()  # `ms/iter @ step 10`
    parts = re.split(r"(?<=[a-zA-Z0-9])_(?=[a-zA-Z])|[ ,]+", body)
    for size in range(min(_MAX_UNIT_WORDS, len(parts)), 0, -1):
        tail = " ".join(parts[-size:])
        unit = parse_unit(tail)
        # One letter may be anything: `dataset M`.
        if unit and (len(tail) > 1 or tail == "%" or size == len(parts)):
            rest = " ".join(parts[:-size]).removesuffix(" in").strip(" -,:")
            return f"{rest} {bracketed}".strip(), unit
    return text, None


def without_precision(name: str) -> str:
    """Return a name without the words of the precision that it has."""
    for phrases in WORDS["precision"].values():
        for phrase in phrases:
            name = re.sub(rf"(?i)\b{re.escape(phrase)}\b", " ", name)
    name = re.sub(r"\(\s*\)|\[\s*\]", " ", name)
    return re.sub(r"\s+", " ", name).strip(" -–,:_+")


def _decide(header: str, name: str, unit: Unit | None, unknown: str) -> Column:
    """Return the column of a header that is not known as a whole."""
    if has_phrase(name, _PHRASES["derived"]):
        return Column(header, "derived", name)
    if unit and unit.quantity == "rate":
        return column_of_unit(header, name, unit)
    is_time = unit is not None and unit.quantity in {"time", "step_time"}
    if (setting := _setting_name(name)) and not is_time:
        return _setting(header, name, setting)
    return _figure_column(header, name, unit) or _column_of_name(header, name, unknown)


def _figure_column(header: str, name: str, unit: Unit | None) -> Column | None:
    """Return the column of a figure or quality; None: neither unit nor words say that it is one."""
    key = header_key(name)
    if unit and key in _KNOWN and _KNOWN[key][0] in {"figure", "quality", "target"}:
        return _known_column(header, *_KNOWN[key], unit)
    if is_quality(name) or has_phrase(name, ["loss"]):
        return _quality_column(header, name, unit)
    return column_of_unit(header, name, unit) if unit else None


def _column_of_name(header: str, name: str, unknown: str) -> Column:
    """Return the column of a header without a unit by its words."""
    if has_phrase(name, _PHRASES["utilization"]):
        return _known_column(header, "figure", "MFU")
    if _is_figure_name(name) or not name:  # without a name, the header was a precision
        return Column(header, "figure", name or "result", is_open=True)
    if split_words(name)[:1] == ("final",) or unknown == "quality":
        return Column(header, "quality", name, "quality")
    return Column(header, unknown, name)


def _setting_name(name: str) -> str | None:
    """Return the setting that a header names by one of its phrases; None: it names none."""
    phrases: dict[str, list[str]] = WORDS["settings"]["phrases"]
    for setting, printed in phrases.items():
        if has_phrase(name, printed):
            return setting
    return _EXACT_SETTINGS.get(header_key(_BRACKETS.sub(" ", name)))


def _quality_column(header: str, name: str, unit: Unit | None) -> Column:
    if has_phrase(name, _PHRASES["loss"]):
        return _known_column(header, "figure", "loss")
    printed = unit if unit and unit.quantity == "percent" else None
    return Column(header, "quality", name, "quality", printed=printed)


def _is_figure_name(name: str) -> bool:
    kinds = (
        "performance", "step_time", "train_time", "e2e_time", "time", "memory", "flops",
        "other_utilization", "inference",
    )  # fmt: skip
    return any(has_phrase(name, _PHRASES[kind]) for kind in kinds)


def column_of_unit(header: str, name: str, unit: Unit) -> Column:
    """Return the column of a figure whose unit is known, from its header or from a cell."""
    if unit.quantity in {"rate", "flops"} and _OF_DEVICE.search(plain(header)):
        unit = replace(unit, per_device=True)
    figure = _figure_name(name, unit)
    if figure is None:  # one that records do not have keeps its name and its unit
        kept = name or unit.printed
        return Column(header, "figure", kept, unit=unit.printed, printed=unit, scale=unit.factor)
    reads = _READS.get(figure, "number")
    return Column(header, "figure", figure, reads, _unit_of(figure), unit)


def _figure_name(name: str, unit: Unit) -> str | None:
    """Return the figure that a name and a unit mean; None: one that records do not have."""
    if has_phrase(name, _PHRASES["inference"]):
        return None
    if unit.quantity == "memory":
        return _memory_name(name)
    if unit.quantity == "flops":
        is_model = unit.per_device and not has_phrase(name, _PHRASES["not_flops"])
        return "model_flops_per_device" if is_model else None
    if has_phrase(name, _PHRASES["part"]):
        return None
    figures = {
        "rate": _RATES.get((unit.work, unit.per_device)),
        "step_time": "step_time",
        "time": next((of for kind, of in _TIMES if has_phrase(name, _PHRASES[kind])), None),
    }
    return figures.get(unit.quantity)


def _memory_name(name: str) -> str | None:
    if has_phrase(name, _PHRASES["total_memory"]):
        return "mem_total"
    is_used = has_phrase(name, _PHRASES["memory"])
    return "mem" if is_used and not has_phrase(name, _PHRASES["not_memory"]) else None
