"""Read the headers of a table: which figure, setting or label each column has.

The unit in a header decides the figure. A name such as ``throughput`` alone does not: then the unit
in a cell decides. Settings are never figures. ``PHRASES`` has the phrases of ``columns.toml`` by
which names are recognised, by their kind.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.audit.qualities import is_quality, split_words
from trainmark.published.importers.column import (
    Column,
    make_known_column,
    make_quality_column,
    make_setting_column,
    make_unit_column,
)
from trainmark.published.importers.units import Unit, parse_unit
from trainmark.published.importers.vocabulary import (
    PHRASES,
    WORDS,
    find_precisions,
    has_phrase,
    is_without_value,
    normalize_header,
    strip_markup,
)
from trainmark.record.figures import FIGURES, name_column

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Meaning(NamedTuple):
    """What a known header means.

    Args:
        role: ``figure``, ``quality``, ``target`` or ``other``.
        name: of the figure or the quality; of others, the role of their column.
    """

    role: str
    name: str


_KNOWN_HEADERS = {
    normalize_header(header): _Meaning(role, name)
    for role, names in WORDS["columns"].items()
    for name, headers in names.items()
    for header in headers
}
# The headers of our own CSV.
_CSV_HEADERS = {
    normalize_header(name_column(spec.name, spec.unit, spec)): spec for spec in FIGURES.values()
}
# Headers that name a setting only if they say nothing else.
_EXACT_SETTINGS = {
    normalize_header(header): name
    for name, headers in WORDS["settings"]["exact"].items()
    for header in headers
}
_SIGNS = re.compile(r"[↑↓⬆⬇▲▼†‡]+")  # arrows for the better direction, and marks of footnotes
_BRACKETS = re.compile(r"\s*[(\[{]([^()\[\]{}]*)[)\]}]\s*")
_COUNT = re.compile(r"[0-9][0-9,]*")
_MAX_UNIT_WORDS = 7  # of `training_tokens_per_second_per_gpu`


def read_headers(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]] = (),
    *,
    unknown_role: str = "unknown",
    is_inference: bool = False,
) -> list[Column]:
    """Return the column of each header.

    The role of a column is what its cells are: figures, settings, names of devices or others.

    Args:
        headers: of one table, as printed.
        rows: the cells below. They decide what a header with two meanings means: ``GPU`` may head
            names or numbers of GPUs, ``metric`` may head qualities or units.
        unknown_role: role of columns with an unknown header: ``unknown``; ``quality`` for the
            published results that a case names for comparison, which may have qualities of their
            own; ``ignored`` in forms whose other headers are all known.
        is_inference: the headings above the table say that nothing is trained: rates and times
            are not figures of training.
    """
    columns = []
    for index, header in enumerate(headers):
        cells = [row[index] for row in rows if index < len(row)]
        column = _choose_role_by_cells(read_header(header, unknown_role=unknown_role), cells)
        columns.append(_name_inference_figure(column) if is_inference else column)
    return _name_targets_by_quality(columns)


def _name_inference_figure(column: Column) -> Column:
    """Return a column of a table of inference; a figure gets a name with the word ``inference``.

    By this name it is not taken for a figure of training. Figures that have a unit neither in the
    header nor in their cells, such as a loss, keep their name.

    Args:
        column: its ``printed_unit`` is the unit in its header, its ``precision`` the one that the
            header names; None: the header has none.
    """
    if column.role != "figure" or not (column.has_unit_in_cells or column.printed_unit):
        return column
    # ``column.name`` may be that of a figure of training, such as ``token/p/s`` for `tokens/s/GPU`.
    # So the words of the header, without its unit and precision, become the name.
    name = split_unit(strip_markup(column.header)).name
    if column.precision:
        name = remove_precision_words(name)
    if not name and column.printed_unit:  # the header is a unit alone: the text of this unit
        name = column.printed_unit.printed
    if not has_phrase(name, PHRASES["inference"]):
        name = f"inference {name}"
    if column.printed_unit is None:
        return replace(column, name=name)
    # The column is made anew, as ``column`` has the unit and kind of cells of the figure of
    # training.
    return replace(
        make_unit_column(column.header, name, column.printed_unit), precision=column.precision
    )


def _name_targets_by_quality(columns: list[Column]) -> list[Column]:
    """Return the columns of a table; if it has only one quality, its name is also the targets'.

    A column with the role ``target`` has the values that a quality is to reach. Its name says which
    quality this is.
    """
    qualities = {column.name for column in columns if column.role == "quality"}
    if len(qualities) != 1:
        return columns
    quality = qualities.pop()
    named_columns = []
    for column in columns:
        is_target = column.role == "target"
        named_columns.append(replace(column, name=quality) if is_target else column)
    return named_columns


def _choose_role_by_cells(column: Column, cells: Sequence[str]) -> Column:
    """Return a column, with another role if its header has a second meaning and its cells fit that.

    Args:
        column: its role is the first meaning of its header.
        cells: below the header.
    """
    texts = [strip_markup(cell) for cell in cells if not is_without_value(cell)]
    if not texts:
        return column
    # `GPU` or `GPUs` may head names, the role `device`, or numbers of GPUs, the role `devices`.
    are_counts = all(_COUNT.fullmatch(text) for text in texts)
    if column.role == "device" and are_counts:
        return replace(column, role="devices")
    if column.role == "devices" and not are_counts:
        return replace(column, role="device")
    # `精度` is an accuracy or a precision. The column is made anew, without what qualities have.
    if column.role == "quality" and all(find_precisions(text) for text in texts):
        return Column(column.header, "precision")
    # A column `metric` may have units, such as `tokens/s`, instead of names of qualities.
    if column.role == "metric" and all(parse_unit(text) for text in texts):
        return replace(column, role="unit")
    return column


@lru_cache(maxsize=4096)  # collections repeat their headers
def read_header(header: str, *, unknown_role: str = "unknown") -> Column:
    """Return the column of one header, without a look at its cells.

    Args:
        header: as printed.
        unknown_role: role of the column if its header is unknown: ``unknown``, ``quality`` or
            ``ignored``; with ``ignored``, an unknown header is still read if it has a unit or
            begins with ``final``.
    """
    # Without arrows, marks of footnotes and emphasis.
    text = re.sub(r"\s+", " ", _SIGNS.sub(" ", strip_markup(header)).strip("*` ")).strip()
    key = normalize_header(text)
    if not key:
        return Column(header, "ignored")
    # Headers that are known as a whole are marked as such, in distinction from those of which only
    # words and unit are known.
    if key in _CSV_HEADERS:  # a figure in this program's own CSV
        figure = _CSV_HEADERS[key]
        return Column(header, "figure", figure.name, unit=figure.unit, is_known_header=True)
    if key in _KNOWN_HEADERS:
        role, name = _KNOWN_HEADERS[key]
        return replace(make_known_column(header, role, name), is_known_header=True)
    if key in _EXACT_SETTINGS:  # a short word, such as `bs`, that is a setting if it stands alone
        return make_setting_column(header, text, _EXACT_SETTINGS[key])
    name, unit = split_unit(text)
    # Unknown headers are ignored in forms such as logs of events, whose unknown facts are mostly no
    # results. But a header with a unit may be that of a figure, and `final_…` is that of a quality
    # of the trained model, whatever it is called: these are read in any form.
    if unknown_role == "ignored" and not key.startswith("final") and unit is None:
        return Column(header, unknown_role)
    # The figures of a column have the precision that its header names, unless it names several.
    precisions = find_precisions(text)
    precision = precisions[0] if len(precisions) == 1 else None
    if precision:
        name = remove_precision_words(name)
    column = _classify_header(header, name, unit, unknown_role)
    # A figure that follows from others, such as a speedup, is not one of a precision.
    return column if column.role == "derived" else replace(column, precision=precision)


class _SplitHeader(NamedTuple):
    """A header without its unit, and the unit; None: it has none."""

    name: str
    unit: Unit | None


def split_unit(text: str) -> _SplitHeader:
    """Split a header into its name and its unit: ``speed`` and tokens/s of ``speed (tokens/s)``.

    The unit stands in brackets, behind a comma or ``in``, or is the end of the header. A header
    without a unit is returned whole.

    Args:
        text: the header.
    """
    for match in _BRACKETS.finditer(text):
        unit = parse_unit(match[1])
        if unit is not None:
            name = f"{text[: match.start()]} {text[match.end() :]}"
            return _SplitHeader(re.sub(r"\s+", " ", name).strip(" -,"), unit)
    # What is in brackets without a unit belongs to the name; it is put behind it without brackets.
    bracketed = " ".join(match.strip() for match in _BRACKETS.findall(text))
    # What is behind `@` is neither name nor unit: `ms/iter @ step 10`.
    body = _BRACKETS.sub(" ", text).partition("@")[0].strip()
    words = re.split(r"(?<=[a-zA-Z0-9])_(?=[a-zA-Z])|[ ,]+", body)  # `time_ms` has two words
    max_words = min(_MAX_UNIT_WORDS, len(words))
    for num_words in range(max_words, 0, -1):  # the longest end of the header that is a unit
        tail = " ".join(words[-num_words:])
        unit = parse_unit(tail)
        # One letter behind other words may be anything: `dataset M`.
        is_clear = len(tail) > 1 or tail == "%" or num_words == len(words)
        if unit is not None and is_clear:
            name = " ".join(words[:-num_words]).removesuffix(" in").strip(" -,:")
            return _SplitHeader(f"{name} {bracketed}".strip(), unit)
    return _SplitHeader(text, unit=None)


def remove_precision_words(name: str) -> str:
    """Return a name without words for precisions: ``throughput`` of ``throughput (FP16)``."""
    for phrases in WORDS["precision"].values():
        for phrase in phrases:
            name = re.sub(rf"(?i)\b{re.escape(phrase)}\b", " ", name)
    name = re.sub(r"\(\s*\)|\[\s*\]", " ", name)  # brackets that are now empty
    return re.sub(r"\s+", " ", name).strip(" -–,:_+")


def _classify_header(header: str, name: str, unit: Unit | None, unknown_role: str) -> Column:
    """Return the column of a header that is not known as a whole, by its name and unit.

    Args:
        header: as printed.
        name: the header without its unit and precision.
        unit: the unit in the header; None: it has none.
        unknown_role: role of the column, which is what its cells are, if neither its name nor its
            unit is known.
    """
    if has_phrase(name, PHRASES["derived"]):  # follows from other figures, such as a speedup
        return Column(header, "derived", name)
    # A rate or a time is a figure even if its name has words of a setting: `batch time (ms)`.
    if unit is not None and unit.quantity == "rate":
        return make_unit_column(header, name, unit)
    is_time = unit is not None and unit.quantity in {"time", "step_time"}
    setting = _find_setting(name)
    if setting is not None and not is_time:
        return make_setting_column(header, name, setting)
    column = _find_figure_column(header, name, unit)
    return _make_column_by_name(header, name, unknown_role) if column is None else column


def _find_figure_column(header: str, name: str, unit: Unit | None) -> Column | None:
    """Return the column of a figure or quality; None: neither unit nor words say that it is one.

    Args:
        header: as printed.
        name: the header without its unit and precision.
        unit: the unit in the header; None: it has none.
    """
    # The header with its unit is not a known one; its name alone may be: `train_time` of
    # `train_time (h)`.
    meaning = _KNOWN_HEADERS.get(normalize_header(name))
    # A header of the role ``other`` says what is run or on which device, not how fast.
    if unit is not None and meaning is not None and meaning.role != "other":
        return make_known_column(header, meaning.role, meaning.name, unit)
    if is_quality(name) or has_phrase(name, ["loss"]):
        return make_quality_column(header, name, unit)
    return make_unit_column(header, name, unit) if unit else None


def _make_column_by_name(header: str, name: str, unknown_role: str) -> Column:
    """Return the column of a header without a unit by its words.

    Args:
        header: as printed.
        name: the header without words for precisions; empty: it has no other words.
        unknown_role: role of the column, which is what its cells are, if none of its words is
            known: ``unknown``, ``quality`` or ``ignored``.
    """
    if has_phrase(name, PHRASES["utilization"]):  # `mfu`, `model flops utilization`
        return make_known_column(header, "figure", "MFU")
    # `throughput`, or a precision alone, heads figures: the unit in the cells says which they are.
    # The figures below a precision alone are named `result`.
    if _is_figure_name(name) or not name:
        return Column(header, "figure", name or "result", has_unit_in_cells=True)
    # `final_…` is a quality of the trained model, whatever it is called. In a table that may have
    # qualities of any name, so is each unknown header.
    if split_words(name)[:1] == ("final",) or unknown_role == "quality":
        return Column(header, "quality", name, cell_kind="quality")
    return Column(header, unknown_role, name)


def _find_setting(name: str) -> str | None:
    """Return the setting that a header names; None: it names none.

    A header that has a phrase of a setting, such as ``batch size``, names this setting. Short
    words, such as ``bs``, name a setting only if the header has no other words outside brackets.

    Args:
        name: the header without its unit and precision.
    """
    phrases_by_setting: dict[str, list[str]] = WORDS["settings"]["phrases"]
    for setting, phrases in phrases_by_setting.items():
        if has_phrase(name, phrases):
            return setting
    return _EXACT_SETTINGS.get(normalize_header(_BRACKETS.sub(" ", name)))


def _is_figure_name(name: str) -> bool:
    """Tell whether a name, a header without unit, is that of a figure.

    Only a unit would tell which figure it is.
    """
    kinds = (  # of the phrases by which headers are recognised
        "performance",
        "step_time",
        "train_time",
        "e2e_time",
        "time",
        "memory",
        "flops",
        "other_utilization",
        "inference",
    )
    return any(has_phrase(name, PHRASES[kind]) for kind in kinds)
