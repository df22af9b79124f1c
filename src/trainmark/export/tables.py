"""Records in the forms that other programs read: tables, JSON, logs.

A row of a table is one record. Column order is fixed, units are in the names, and what is null in
the record is empty. Figures of a case's own come last, by name. ``run_logs`` has the logs.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json as to_json_text

from trainmark.documents import write_atomically
from trainmark.errors import RecordError, UsageError, to_one_line
from trainmark.export.run_logs import to_mlperf, to_perflog
from trainmark.record import figures as figures_of
from trainmark.record.figures import FIGURES, name_column
from trainmark.record.index_record import list_index_records
from trainmark.results.store.columns import COLUMN_TYPES, COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from trainmark.record.record import Record

Value = str | int | float | bool | None


def _cell(value: Value) -> Value:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        line = to_one_line(value)
        # A spreadsheet would run such a cell as a formula.
        return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
    return value


def table(records: Sequence[Record]) -> tuple[list[str], list[list[Value]]]:
    """Return the names of the columns, and a row a record; None where the record has null."""
    figures = {name: name_column(name, spec.unit, spec) for name, spec in FIGURES.items()}
    for record in records:
        specs = figures_of.list_specs(record.plan.about.page)
        for name in sorted(record.figures.keys() - figures.keys()):
            column = name_column(name, record.figures[name].unit, specs.get(name))
            taken = column in COLUMNS or column in figures.values()
            figures[name] = f"{column}_of_case_{len(figures)}" if taken else column
    rows = [
        [column(record) for column in COLUMNS.values()] + [record.figure(name) for name in figures]
        for record in records
    ]
    return [*COLUMNS, *figures.values()], rows


def to_csv(records: Sequence[Record]) -> str:
    """Return a row a record under a header row; lines end with a newline."""
    names, rows = table(records)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def steps_table(records: Sequence[Record]) -> tuple[list[str], list[list[Value]]]:
    """Return the names of the columns, and a row a step of each record."""
    rows: list[list[Value]] = [
        [record.run_id, step, step >= record.steps.warmup, time_ns / 1e9, loss, samples]
        for record in records
        for step, (time_ns, loss, samples) in enumerate(
            zip(record.steps.time_ns, record.steps.loss, record.steps.samples, strict=True)
        )
    ]
    return ["run_id", "step", "measured", "time_s", "loss", "samples"], rows


def arrow(names: Sequence[str], rows: Sequence[Sequence[Value]]) -> pa.Table:
    """Return a table with each column's own type, and null where a value is unknown."""
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns = {}
    for place, name in enumerate(names):
        values = [row[place] for row in rows]
        # A figure that no record has is a float all the same.
        kind: Any = float if all(value is None for value in values) else None
        columns[name] = pa.array(values, types.get(COLUMN_TYPES.get(name, kind)))
    return pa.table(columns)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Write the table as a Parquet file, each column with its type and null where unknown.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    from pyarrow import parquet

    with write_atomically(path) as file:
        parquet.write_table(arrow(*table(records)), file)


def to_json(records: Sequence[Record]) -> str:
    """Return the whole records as a JSON array, one record a line."""
    lines = ",\n".join(to_json_text(record).decode() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def to_index(records: Sequence[Record]) -> str:
    """Return the JSON records of one case of each run, in the form of a database of results.

    Raises:
        RecordError: a case that has no such record.
    """
    lines = []
    for record in records:
        entries = list_index_records(record)
        if not entries:
            raise RecordError(
                f"case {record.plan.case} names no mission",
                where=record.run_id,
                rule="collections file an index record under a mission: the task of its case, "
                "such as 文本分类 (text classification)",
                fix="leave this run out, or write mission=Mission(…) in the case; "
                "see docs/adding-a-case.md",
            )
        lines += [item.to_json() for item in entries]
    return "".join(f"{line}\n" for line in lines)


RECORD_FORMS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "index": to_index,
}
LOG_FORMS: dict[str, Callable[[Record, Path], str]] = {"perflog": to_perflog, "mlperf": to_mlperf}


def to_text(form: str, records: Sequence[Record], paths: Sequence[str]) -> str:
    """Return records in a form that is a text.

    Args:
        paths: that each was read from; a log needs the events there.

    Raises:
        UsageError: a log of several runs, or of none.
        RecordError: a record that the form cannot hold.
    """
    if form in RECORD_FORMS:
        return RECORD_FORMS[form](records)
    if len(records) != 1:
        raise UsageError(f"{len(records)} runs in one log", fix="write a file for each run")
    path = Path(paths[0])
    folder = path if path.is_dir() else path.parent
    return LOG_FORMS[form](records[0], folder)
