"""Convert records to the forms that other programs read: tables, JSON, logs.

A row of a table is a record. The order of columns is fixed, units are in their names, and values
that are null in the record are empty. Figures that only one case has come last, by name.
``run_logs`` has the logs.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json as to_json_text

from trainmark.documents import write_atomically
from trainmark.errors import RecordError, UsageError, to_one_line
from trainmark.export.run_logs import render_mlperf_log, render_perflog
from trainmark.record import figures as record_figures
from trainmark.record.figures import FIGURES, name_column
from trainmark.record.index_record import list_index_records
from trainmark.results.store.columns import COLUMN_TYPES, COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from trainmark.record.record import Record

Value = str | int | float | bool | None


def _convert_cell(value: Value) -> Value:
    """Return a value as a cell of CSV: a text is a single line, and never a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        line = to_one_line(value)
        # A spreadsheet would run such a cell as a formula.
        return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
    return value


def build_record_table(records: Sequence[Record]) -> tuple[list[str], list[list[Value]]]:
    """Return the names of the columns, and a row for each record; None: an unknown value.

    The first columns are ``COLUMNS``: facts that every record has, each with the function that
    computes it. A column for each figure follows.
    """
    # By name of a figure, the name of its column: figures of all cases first, then those that only
    # one case has.
    column_names = {name: name_column(name, spec.unit, spec) for name, spec in FIGURES.items()}
    for record in records:
        # By name of a figure, its declaration: the figures of all cases, and those that the result
        # page of this case adds.
        specs = record_figures.list_specs(record.plan.about.page)
        for name in sorted(record.figures.keys() - column_names.keys()):
            column_name = name_column(name, record.figures[name].unit, specs.get(name))
            # The figures of two cases may differ, but have columns of the same name.
            if column_name in COLUMNS or column_name in column_names.values():
                column_name = f"{column_name}_of_{record.plan.case}"
            column_names[name] = column_name
    rows = []
    for record in records:
        values = [compute_value(record) for compute_value in COLUMNS.values()]
        rows.append(values + [record.figure(name) for name in column_names])
    return [*COLUMNS, *column_names.values()], rows


def render_csv(records: Sequence[Record]) -> str:
    """Return a CSV file with a header, and a row for each record; lines end with a newline."""
    names, rows = build_record_table(records)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_convert_cell(value) for value in row])
    return text.getvalue()


def build_steps_table(records: Sequence[Record]) -> tuple[list[str], list[list[Value]]]:
    """Return the names of the columns, and a row for each step of each record.

    Steps count from 0. The time of a step is that of the slowest rank; its loss is the mean over
    the samples of all ranks, and its samples are the sum over all ranks.
    """
    rows: list[list[Value]] = []
    for record in records:
        steps = record.steps
        values = zip(steps.time_ns, steps.loss, steps.samples, strict=True)
        for number, (time_ns, loss, samples) in enumerate(values):
            is_measured = number >= steps.warmup  # the first `warmup` steps are not measured
            rows.append([record.run_id, number, is_measured, time_ns / 1e9, loss, samples])
    return ["run_id", "step", "measured", "time_s", "loss", "samples"], rows


def convert_to_arrow(names: Sequence[str], rows: Sequence[Sequence[Value]]) -> pa.Table:
    """Return an Arrow table; each column has its type, and unknown values are null."""
    import pyarrow as pa

    arrow_types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns = {}
    for index, name in enumerate(names):
        values = [row[index] for row in rows]
        # Columns that are no figures have a declared type. A column of a figure has none: Arrow
        # finds its type from the values (None), or it is of floats if no row has a value.
        default_type: Any = float if all(value is None for value in values) else None
        column_type = COLUMN_TYPES.get(name, default_type)
        columns[name] = pa.array(values, arrow_types.get(column_type))
    return pa.table(columns)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Write the table of records as a Parquet file; unknown values are null.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    from pyarrow import parquet

    with write_atomically(path) as file:
        parquet.write_table(convert_to_arrow(*build_record_table(records)), file)


def render_json(records: Sequence[Record]) -> str:
    """Return the records as a JSON array, with a record on each line."""
    lines = ",\n".join(to_json_text(record).decode() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def render_index(records: Sequence[Record]) -> str:
    """Return the index records of each run, one JSON line each.

    An index record is the result of one case in the form that result collections import.

    Raises:
        RecordError: a case has no mission, so that it has no index record.
    """
    lines = []
    for record in records:
        index_records = list_index_records(record)
        if not index_records:
            raise RecordError(
                f"case {record.plan.case} has no mission",
                where=record.run_id,
                rule=(
                    "an index record needs a mission, which is the task of the case, for example "
                    "文本分类 (text classification)"
                ),
                fix=(
                    "skip this run, or set mission=Mission(…) in the case; see "
                    "docs/adding-a-case.md"
                ),
            )
        lines += [index_record.to_json() for index_record in index_records]
    return "".join(f"{line}\n" for line in lines)


RECORD_FORMS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": render_csv,
    "json": render_json,
    "index": render_index,
}
LOG_FORMS: dict[str, Callable[[Record, Path], str]] = {
    "perflog": render_perflog,
    "mlperf": render_mlperf_log,
}


def render_text(format_name: str, records: Sequence[Record], paths: Sequence[str]) -> str:
    """Return records in one of the formats of ``RECORD_FORMS`` or ``LOG_FORMS``.

    Args:
        format_name: such as ``csv``.
        paths: for each record, its file or the folder of its run. A log is made from the events in
            this folder.

    Raises:
        UsageError: a log of several runs, or of none.
        RecordError: a record cannot be converted to the format.
    """
    if format_name in RECORD_FORMS:
        return RECORD_FORMS[format_name](records)
    if len(records) != 1:
        raise UsageError(
            f"{len(records)} runs cannot be written to one log",
            rule="a log contains exactly one run",
            fix="export each run to a file of its own",
        )
    path = Path(paths[0])
    folder = path if path.is_dir() else path.parent
    return LOG_FORMS[format_name](records[0], folder)
