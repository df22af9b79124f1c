"""The performance table of runs, in the form of published pages.

The module defines the columns and how a record fills them. A case's ``reference.toml`` chooses its
own columns by naming their headers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.pages import cells
from trainmark.pages.document import Table, build_table
from trainmark.pages.texts import (
    Missing,
    Phrase,
    describe_record_configuration,
    phrase,
    translate_message,
)
from trainmark.plan.recipes import format_fix_hp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.plan.reference import References
    from trainmark.record.record import Record

QUALITY = "<quality>"  # stands for the column of the quality, whose header depends on the case
# Columns of the performance table of a case without published rows.
PERFORMANCE = ("precision", "fix_hp", "e2e_time", "p_whole", "p_train", "p_core", QUALITY, "mem")
PUBLISHED_NOTHING = "/"  # in the table of published pages: not measured, nothing changed


def format_precision(record: Record) -> str:
    """Return the precision as the case's published pages call it: ``amp`` for fp16, for instance.

    If they do not name it otherwise (``precision_labels``), it has the name in the recipe.
    """
    precision = str(record.plan.recipe["precision"])
    return record.plan.about.precision_labels.get(precision, precision)


# Formats of figures that are columns.
_FIGURE_FORMATS: dict[str, Callable[[float], str]] = {
    "e2e_time": "{:.1f}".format,
    "train_time": "{:.1f}".format,
    "loss": "{:.3f}".format,
    **dict.fromkeys(("p_whole", "p_train", "p_core", "token/p/s"), cells.format_rate),
    "MFU": "{:.1f}%".format,
}


def _format_figure(name: str, record: Record) -> str | None:
    """Return a figure, such as ``p_train``, as its column shows it; None if the record lacks it."""
    value = record.figure(name)
    return None if value is None else _FIGURE_FORMATS[name](value)


# Every column by its header, with the function that fills it.
COLUMNS: dict[str, Callable[[Record], Phrase]] = {
    "precision": format_precision,
    "fix_hp": lambda record: format_fix_hp(record.plan.fix_hp),
    "mem": lambda record: cells.format_memory(record.figure("mem"), record.figure("mem_total")),
    **{name: partial(_format_figure, name) for name in _FIGURE_FORMATS},
    QUALITY: lambda record: cells.format_quality_and_target(
        record.quality.value, record.quality.target
    ),
}


def list_columns(references: References) -> tuple[str, ...]:
    """Return the names of the columns that a case's published rows have, in their order.

    The column of the quality is ``QUALITY``. Its header depends on the case, so it is the one
    header that is not a name in ``COLUMNS``. A case without published rows has the columns in
    ``PERFORMANCE``: precision, changed hyper-parameters, time, speeds, quality and memory.

    Args:
        references: the published rows, with the headers of their columns in ``columns``.

    Raises:
        RecordError: several headers are not names of columns.
    """
    other_headers = [name for name in references.columns if name not in COLUMNS]
    if len(other_headers) > 1:
        rule = f"columns must be the quality or one of {', '.join(sorted(COLUMNS))}"
        what = f"unknown columns {', '.join(other_headers)}"
        raise RecordError(what, where="reference.toml", rule=rule)
    if not references.columns:
        return PERFORMANCE
    return tuple(QUALITY if name in other_headers else name for name in references.columns)


def _name_column(name: str, record: Record) -> str:
    """Return the header of a column of the performance table.

    It is the column's name. Only the quality has another one: the header that the quality has in
    the published rows of the record's case or, without published rows, the name of the metric.
    """
    if name != QUALITY:
        return name
    # The headers of the published rows, which are the case's ``references``.
    for header in record.plan.about.references.columns:
        if header not in COLUMNS:  # `list_columns` allows only the quality to have such a header
            return header
    return record.quality.metric


def build_performance_table(records: Sequence[Record]) -> Table:
    """Return a row for each record of one case, in their order, in the form of published pages.

    The first cell is the configuration, the name of the device with the numbers of nodes and ranks.
    Several records have their number before it: ``[1]``, ``[2]`` and so on.
    """
    # The columns are those of the case's published rows.
    names = list_columns(records[0].plan.about.references)
    rows = []
    for number, record in enumerate(records, start=1):
        number_text = f"[{number}] " if len(records) > 1 else ""
        configuration: Phrase = (number_text, describe_record_configuration(record))
        rows.append([configuration, *(_format_published_cell(name, record) for name in names)])
    headings = [phrase("head.configuration"), *(_name_column(name, records[0]) for name in names)]
    return build_table(headings, rows)


def _format_published_cell(name: str, record: Record) -> Phrase:
    """Return a record's cell of a column; without a value, ``/`` as in published pages.

    If the record states why the value is missing, this reason is shown on hover.

    Args:
        name: of the column: the quality, a figure such as ``p_train``, or a setting.
    """
    cell = COLUMNS[name](record)
    if cell not in (None, "", cells.NOTHING):  # the record has a value
        return cell
    if name == QUALITY:
        reason = record.quality.reason
    else:
        figure_entry = record.figures.get(name)  # None: a setting, which is no figure
        reason = figure_entry.reason if figure_entry else None
    if reason is None:
        return PUBLISHED_NOTHING
    return Missing(translate_message(record, reason), PUBLISHED_NOTHING)
