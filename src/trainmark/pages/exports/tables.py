"""Records as a table, and the table as CSV.

A row is one record. Column order is fixed, units are in the names, and what is null in
the record is empty. Figures of a case's own come last, by name.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any

from trainmark.data.json_documents import written_whole
from trainmark.pages.cells import NOTHING, clean
from trainmark.pages.tables import short_device
from trainmark.plan.overrides import fix_hp_text
from trainmark.record import figures as figures_of
from trainmark.record.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from trainmark.record.record import Record
    from trainmark.spec import FigureSpec

Value = str | int | float | bool | None


def _changes(values: dict[str, Any]) -> str | None:
    changed = fix_hp_text(values)
    return None if changed == NOTHING else changed


COLUMNS: dict[str, Callable[[Record], Value]] = {
    "run_id": lambda record: record.run_id,
    "case_key": lambda record: record.case_key,
    "case": lambda record: record.plan.case,
    "recipe": lambda record: record.plan.recipe_name,
    "started_utc": lambda record: record.started,
    "status": lambda record: record.status,
    "cause_kind": lambda record: None if record.cause is None else record.cause.kind,
    "trust": lambda record: record.trust.grade,
    "trust_reasons": lambda record: " ".join(x.code for x in record.trust.reasons) or None,
    "suite_version": lambda record: record.suite.version,
    "suite_commit": lambda record: record.environment.get("commit"),
    "vendor": lambda record: record.plan.device.vendor,
    "device": short_device,
    "nnodes": lambda record: record.plan.nnodes,
    "nproc": lambda record: record.plan.nproc,
    "repeat_index": lambda record: record.plan.repeat_index,
    "precision": lambda record: record.plan.recipe["precision"],
    "rules": lambda record: record.plan.rules,
    "compared_with": lambda record: record.plan.compared_with,
    "fix_hp": lambda record: _changes(record.fix_hp),
    "extra": lambda record: _changes(record.extra),
    "labels": lambda record: " ".join(record.labels) or None,
    "data_origin": lambda record: record.plan.data.origin,
    "data_content_id": lambda record: record.plan.data.content_id,
    "quality_metric": lambda record: record.quality.metric,
    "quality_value": lambda record: record.quality.value,
    "quality_target": lambda record: record.quality.target,
    "quality_reached": lambda record: record.quality.reached,
    "samples": lambda record: record.counts.samples,
    "sequences": lambda record: record.counts.sequences,
    "tokens": lambda record: record.counts.tokens,
    "tokens_padded": lambda record: record.counts.tokens_padded,
    "steps": lambda record: record.counts.steps,
    "epochs": lambda record: record.counts.epochs,
    "warmup_steps": lambda record: record.steps.warmup,
    "steady": lambda record: record.steps.steady,
    "monitor": lambda record: record.telemetry.monitor if record.telemetry else None,
    "final_result_unit": lambda record: record.figures["final_result"].unit,  # the case's own
}
# What columns hold; texts the others, or null.
KINDS: dict[str, Any] = (
    dict.fromkeys(COLUMNS, str)
    | dict.fromkeys(("nnodes", "nproc", "repeat_index", "epochs", "steps", "warmup_steps"), int)
    | dict.fromkeys(("samples", "sequences", "tokens", "tokens_padded"), int)
    | dict.fromkeys(("quality_value", "quality_target"), float)
    | dict.fromkeys(("quality_reached", "steady"), bool)
)
_UNIT_WORDS = {"%": "percent", "/": "_per_"}


def column_name(name: str, unit: str, spec: FigureSpec | None) -> str:
    """Return what a figure's column is called: as declared, or its name with its unit."""
    if spec is not None and spec.column:
        return spec.column
    for sign, word in _UNIT_WORDS.items():
        unit = unit.replace(sign, word)
    return re.sub(r"\W+", "_", f"{name}_{unit}").strip("_")


def _cell(value: Value) -> Value:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        line = clean(value)
        # A spreadsheet would run such a cell as a formula.
        return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
    return value


def table(records: Sequence[Record]) -> tuple[list[str], list[list[Value]]]:
    """Return the names of the columns, and a row a record; None where the record has null."""
    figures = {name: column_name(name, spec.unit, spec) for name, spec in FIGURES.items()}
    for record in records:
        specs = figures_of.specs(record.plan.about.page)
        for name in sorted(record.figures.keys() - figures.keys()):
            column = column_name(name, record.figures[name].unit, specs.get(name))
            taken = column in COLUMNS or column in figures.values()
            figures[name] = f"{column}_of_case_{len(figures)}" if taken else column
    rows = [
        [column(record) for column in COLUMNS.values()] + [record.figure(name) for name in figures]
        for record in records
    ]
    return [*COLUMNS, *figures.values()], rows


def settings(record: Record) -> dict[str, Any]:
    """Return what was run on what by the names of the columns, and the recipe's fields."""
    recipe = {f"recipe/{name}": value for name, value in record.plan.recipe.items()}
    return {name: column(record) for name, column in COLUMNS.items()} | recipe


def to_csv(records: Sequence[Record]) -> str:
    """Return a row a record under a header row; lines end with a newline."""
    return csv_text(*table(records))


def csv_text(names: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    """Return ``rows`` under a header row as CSV, in the form of ``to_csv``."""
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


def arrow(
    names: Sequence[str], rows: Sequence[Sequence[Value]], kinds: Mapping[str, Any] = KINDS
) -> pa.Table:
    """Return a table with each column's own type, and null where a value is unknown.

    Args:
        kinds: types of columns; others hold numbers of the type that their values have.
    """
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    columns = {}
    for place, name in enumerate(names):
        values = [row[place] for row in rows]
        # A figure that no record has is a float all the same.
        kind = float if all(value is None for value in values) else None
        columns[name] = pa.array(values, types.get(kinds.get(name, kind)))
    return pa.table(columns)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Write the table as a Parquet file, each column with its type and null where unknown.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    write_table(arrow(*table(records)), path)


def write_table(made: pa.Table, path: Path) -> None:
    """Write a table as a Parquet file."""
    from pyarrow import parquet

    with written_whole(path) as file:
        parquet.write_table(made, file)
