"""A column of a table, and which figure of a record its name and unit mean.

``PHRASES`` has the phrases of ``columns.toml`` by which names are recognised, by their kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trainmark.published.importers.units import Unit, parse_unit
from trainmark.published.importers.vocabulary import PHRASES, WORDS, has_phrase, strip_markup
from trainmark.record.figures import FIGURES

_CELL_KINDS = {"mem": "memory", "MFU": "percent"}  # of other figures: numbers
# A rate of one device, wherever the header says so: `Per-GPU throughput (tokens/s)`.
_PER_DEVICE_WORDS = re.compile(
    r"(?i)(?:\bper[- _]?|/\s*)(?:gpu|device|card|accelerator|chip|npu|xpu)s?\b|每卡|单卡|每GPU"
)
_MULTIPLE = re.compile(r"\(\s*(B|M|billions?|millions?)\s*\)", re.IGNORECASE)  # `Params (B)`
_TOKEN_WORDS = re.compile(r"\(T\)|(?i:tokens)")  # `GlobalBatchSize (T)`
# The figure of a rate by its work and whether it is that of one device.
_RATE_FIGURES = {
    ("samples", False): "p_whole",
    ("samples", True): "sample/p/s",
    ("tokens", False): "p_train_tokens",
    ("tokens", True): "token/p/s",
    ("steps", False): "step/s",
}
# Kinds of phrases in `columns.toml` for times, and the figures that they name.
_TIME_FIGURES = (
    ("step_time", "step_time"),
    ("train_time", "train_time"),
    ("e2e_time", "e2e_time"),
    ("step", "step_time"),
)
_DEVICE_RATES = ("token/p/s", "sample/p/s")
_FIGURE_UNITS = {"sample/p/s": "samples/s", "step/s": "steps/s", "step_time": "s"}
# A table with one of these figures is one of results; a loss or a memory alone is enough.
TRAINING_FIGURES = (
    FIGURES.keys() | WORDS["columns"]["figure"].keys() | _FIGURE_UNITS.keys() | {"step_time"}
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        header: as printed.
        role: ``figure``; ``quality``, of a trained model; ``target``, of a quality; ``setting``;
            ``derived``, a figure that follows from others; ``unknown``; ``ignored``; or what its
            cells say about the row: ``device``, ``model``, ``nnodes`` …
        name: of the figure or setting; of a quality its metric.
        cell_kind: how a cell is read: ``number``, ``memory``, ``percent``, ``quality``.
        unit: the unit in which a record has the figure; the printed one if records lack the figure.
        printed_unit: the unit in the header, ``e2e_time (h)``; None: it has none.
        unit_factor: factor of ``unit`` to its base unit.
        precision: the precision that the header names; None: it names none, or several.
        has_unit_in_cells: the header names a figure but no unit: the unit in each cell, if it has
            one, decides which figure it is.
        is_known_header: the whole header is known, not only its words and unit.
        decimal_comma: its cells have decimal commas: ``0,125``.
    """

    header: str
    role: str
    name: str = ""
    cell_kind: str = "number"
    unit: str = ""
    printed_unit: Unit | None = None
    unit_factor: float = 1.0
    precision: str | None = None
    has_unit_in_cells: bool = False
    is_known_header: bool = False
    decimal_comma: bool = False

    @property
    def is_figure(self) -> bool:
        """Tell whether its cells are results of a run: figures, qualities or targets of these.

        The cells of any other column describe the run, such as its device or a setting.
        """
        return self.role in {"figure", "quality", "target"}

    @property
    def cell_unit(self) -> Unit | None:
        """The unit that its cells may repeat behind their number; None: they have none.

        It is the unit in the header, ``printed_unit``, else ``unit``, in which records have the
        figure.
        """
        if self.printed_unit is not None:
            return self.printed_unit
        unit = parse_unit(self.unit)
        # Records give rates of one device in `tokens/s`: only the figure's name says `per device`.
        if unit is not None and self.name in _DEVICE_RATES:
            return replace(unit, per_device=True)
        return unit


def make_known_column(
    header: str, role: str, name: str, printed_unit: Unit | None = None
) -> Column:
    """Return the column of a header whose meaning is known.

    Args:
        header: as printed.
        role: ``figure``, ``quality``, ``target``; or ``other``, if cells say something else about
            the run.
        name: of the figure, of the quality, or of the quality with this target. If ``role`` is
            ``other``: what the cells say, such as ``device``. This becomes the role of the column.
        printed_unit: the unit in the header; None: it has none.
    """
    if role == "figure":
        cell_kind = _CELL_KINDS.get(name, "number")
        return Column(header, role, name, cell_kind, _get_record_unit(name), printed_unit)
    if role in {"quality", "target"}:
        return Column(header, role, name, cell_kind="quality", printed_unit=printed_unit)
    return Column(header, role=name)


def _get_record_unit(name: str) -> str:
    """Return the unit in which this program keeps a figure; empty: it has none, or is not known.

    Values in other units are converted to it.

    Args:
        name: of the figure.
    """
    if name in FIGURES:  # the figures that records of launches have, too
        return FIGURES[name].unit
    if name in ("steps", "epochs"):  # counts, whose unit has the same name
        return name
    # Figures that only published results have, such as the seconds of a step.
    return _FIGURE_UNITS.get(name, "")


def make_setting_column(header: str, text: str, name: str) -> Column:
    """Return the column of a setting of the run, such as its batch size.

    Args:
        header: as printed.
        text: the header without arrows, marks of footnotes and emphasis.
        name: of the setting: ``global_batch_size``, ``parameters`` …; ``other``: a setting that has
            no name in this program, so it gets ``text`` as its name.
    """
    multiple = _MULTIPLE.search(header)  # `(B)` or `(millions)`; the first group is the word
    if name == "parameters" and multiple:
        # A model of `8` under `Params (B)` has 8 B parameters: the unit is `B`, or `M`, which are
        # also the initials of `billions` and `millions`.
        initial = multiple[1][0].upper()
        return Column(header, "setting", name, unit=initial)
    if name == "global_batch_size" and _TOKEN_WORDS.search(header):  # it counts tokens, not samples
        name = "global_batch_tokens"
    return Column(header, "setting", text if name == "other" else name)


def make_quality_column(header: str, name: str, unit: Unit | None) -> Column:
    """Return the column of a quality, or of the loss of training, which is a figure.

    Args:
        header: as printed.
        name: the header without its unit and precision.
        unit: the unit in the header; None: it has none.
    """
    if has_phrase(name, PHRASES["loss"]):
        return make_known_column(header, "figure", "loss")
    # A quality is a fraction or per cent; another unit in its header says nothing about its scale.
    printed_unit = unit if unit and unit.quantity == "percent" else None
    return Column(header, "quality", name, cell_kind="quality", printed_unit=printed_unit)


def make_unit_column(header: str, name: str, unit: Unit) -> Column:
    """Return the column of a figure whose unit is known from its header or from a cell.

    Args:
        header: as printed.
        name: the header without its unit.
        unit: as printed in the header or the cell.
    """
    # `Per-GPU throughput (tokens/s)`: words, not the unit, say that the rate is of one device.
    if unit.quantity in {"rate", "flops"} and _PER_DEVICE_WORDS.search(strip_markup(header)):
        unit = replace(unit, per_device=True)
    figure = _find_figure(name, unit)
    # Records do not have this figure: it keeps its printed name and unit. The factor turns its
    # values into the base unit, such as seconds.
    if figure is None:
        return Column(
            header,
            role="figure",
            name=name or unit.printed,
            unit=unit.printed,
            printed_unit=unit,
            unit_factor=unit.factor,
        )
    return make_known_column(header, "figure", figure, unit)


def _find_figure(name: str, unit: Unit) -> str | None:
    """Return the figure that a name and a unit mean; None: one that records do not have.

    Args:
        name: the header without its unit.
        unit: the unit in the header or in a cell; its ``work`` is what a rate counts, such as
            ``tokens``; ``per_device``: it is that of one device, ``tokens/s/GPU``.
    """
    if has_phrase(name, PHRASES["inference"]):
        return None
    if unit.quantity == "memory":
        return _find_memory_figure(name)
    if unit.quantity == "flops":
        # Records have the FLOP/s that the model needs, of one device. FLOP/s of all devices, and
        # what the phrases name, such as a peak, are another figure.
        is_of_model = unit.per_device and not has_phrase(name, PHRASES["not_flops"])
        return "model_flops_per_device" if is_of_model else None
    # The rate or time of a part of a step, such as `forward`, or a statistic, such as `p99`.
    if has_phrase(name, PHRASES["part"]):
        return None
    if unit.quantity == "rate":
        return _RATE_FIGURES.get((unit.work, unit.per_device))
    return "step_time" if unit.quantity == "step_time" else _find_time_figure(name, unit)


def _find_time_figure(name: str, unit: Unit) -> str | None:
    """Return the figure that the name of a time means; None: it is another time, or no time.

    Args:
        name: the header without its unit: ``training time``.
        unit: the unit in the header or in a cell: ``h``.
    """
    if unit.quantity == "time":
        for kind, figure in _TIME_FIGURES:  # the first kind counts whose phrases the name has
            if has_phrase(name, PHRASES[kind]):
                return figure
    return None


def _find_memory_figure(name: str) -> str | None:
    """Return ``mem``, the used memory of a device, or ``mem_total``, all that a device has.

    None: the name is that of another memory, such as the host's or that of activations.

    Args:
        name: the header without its unit: ``peak memory``.
    """
    if has_phrase(name, PHRASES["total_memory"]):
        return "mem_total"
    is_memory = has_phrase(name, PHRASES["memory"])
    is_other_memory = has_phrase(name, PHRASES["not_memory"])
    return "mem" if is_memory and not is_other_memory else None
