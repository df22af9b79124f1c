"""Records as JSON, as CSV and as index lines for other programs.

CSV has one row a record. Column order is fixed, units are in the names, and what is null in
the record is empty. Figures of a case's own come last, by name.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from trainmark.errors import RecordError
from trainmark.measure import figures as figures_of
from trainmark.measure.figures import FIGURES
from trainmark.planning.overrides import fix_hp_text
from trainmark.report.cells import NOTHING, clean
from trainmark.report.summary import summary
from trainmark.report.tables import short_device
from trainmark.results.index_of_run import index_records
from trainmark.results.readings import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.results.record import Record
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
_UNIT_WORDS = {"%": "percent", "/": "_per_"}


def to_json(records: Sequence[Record]) -> str:
    """Return the whole records as a JSON array, one record a line."""
    lines = ",\n".join(record.model_dump_json() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def _column(name: str, unit: str, spec: FigureSpec | None) -> str:
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


def to_csv(records: Sequence[Record]) -> str:
    """Return a row a record under a header row; lines end with a newline."""
    figures = {name: _column(name, spec.unit, spec) for name, spec in FIGURES.items()}
    for record in records:
        specs = figures_of.specs(record.plan.about.page)
        for name in sorted(record.figures.keys() - figures.keys()):
            figures[name] = _column(name, record.figures[name].unit, specs.get(name))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *figures.values()])
    for record in records:
        row = [_cell(column(record)) for column in COLUMNS.values()]
        writer.writerow([*row, *(value_of(record, name) for name in figures)])
    return out.getvalue()


def to_index(records: Sequence[Record]) -> str:
    """Return the JSON records of each run, one a line; see ``results.index_of_run``.

    Raises:
        RecordError: a case that has no such record.
    """
    lines = []
    for record in records:
        found = index_records(record)
        if not found:
            raise RecordError(
                f"case {record.plan.case} names no mission",
                where=record.run_id,
                rule="an index record files a run under its case's mission",
                remedy="leave this run out, or give the case a mission",
            )
        lines += [item.to_json() for item in found]
    return "".join(f"{line}\n" for line in lines)


def repeats_json(records: Sequence[Record]) -> str:
    """Return the statistics over launches of the same work as JSON; figures by name.

    Raises:
        RecordError: the launches are not of the same work.
    """
    found = summary(records)
    document = {
        "run_ids": [record.run_id for record in records],
        "passed": found.passed,
        "descriptive": found.descriptive,
        **asdict(found),
        "trust": to_jsonable_python(found.trust),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
