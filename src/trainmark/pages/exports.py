"""Records in the forms that other programs read: tables, JSON, logs.

A row of a table is one record. Column order is fixed, units are in the names, and what is null in
the record is empty. Figures of a case's own come last, by name.

A log has PerfLog or ``:::MLLOG`` lines in the order of a run's events; ``run_log.toml`` has their
forms. Owns which events of rank 0 become which moments, and their wall-clock times. A step line
stands at the end of a window: nothing is synchronised inside one, so no other host time was
measured. No MLPerf submission: programs that read such logs can parse it.
"""

from __future__ import annotations

import csv
import io
import json
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json as to_json_text

from trainmark import cases
from trainmark.data.documents import written_whole
from trainmark.errors import RecordError, UsageError
from trainmark.library.store.columns import COLUMNS, KINDS, column_name
from trainmark.pages.cells import clean
from trainmark.rank.events import LAUNCHER_FILE, node_file, rank_file, whole_events
from trainmark.record import figures as figures_of
from trainmark.record.figures import FIGURES
from trainmark.record.index_record import list_index_records
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from trainmark.record.record import Record

LINES = read_toml(Path(__file__).with_name("run_log.toml"))
Value = str | int | float | bool | None


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
        specs = figures_of.list_specs(record.plan.about.page)
        for name in sorted(record.figures.keys() - figures.keys()):
            column = column_name(name, record.figures[name].unit, specs.get(name))
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
        columns[name] = pa.array(values, types.get(KINDS.get(name, kind)))
    return pa.table(columns)


def write_parquet(records: Sequence[Record], path: Path) -> None:
    """Write the table as a Parquet file, each column with its type and null where unknown.

    Raises:
        OSError: the disk is full or the folder read-only.
    """
    from pyarrow import parquet

    with written_whole(path) as file:
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
        found = list_index_records(record)
        if not found:
            raise RecordError(
                f"case {record.plan.case} names no mission",
                where=record.run_id,
                rule="collections file an index record under a mission: the task of its case, "
                "such as 文本分类 (text classification)",
                fix="leave this run out, or write mission=Mission(…) in the case; "
                "see docs/adding-a-case.md",
            )
        lines += [item.to_json() for item in found]
    return "".join(f"{line}\n" for line in lines)


def to_perflog(record: Record, folder: Path) -> str:
    """Return the PerfLog lines of a run whose events are in ``folder``; raises as ``moments``."""
    return _lines(LINES["perflog"], record, folder)


def to_mlperf(record: Record, folder: Path) -> str:
    """Return the MLLOG lines of a run whose events are in ``folder``; raises as ``moments``.

    A case that MLPerf has too adds the keys of its ruleset.
    """
    if record.plan.resumed:
        raise RecordError(
            "goes on from a checkpoint",
            where=record.run_id,
            rule="an MLPerf log has the whole training between run_start and run_stop",
            fix="export the log of a run that was not interrupted, or --to perflog",
        )
    lines, case = LINES["mlperf"], record.plan.case
    if case in cases.names() and (ruleset := cases.load(case).mlperf):
        own = ruleset(record.plan.recipe)
        entries = [{"key": key, "value": value} for key, value in own.items()]
        lines = {**lines, "launch": [*lines["launch"], *entries]}
    return _lines(lines, record, folder)


def _lines(lines: dict[str, Any], record: Record, folder: Path) -> str:
    made = (
        _filled(lines["every"] | entry, values)
        for kind, values in moments(record, folder)
        for entry in lines.get(kind, ())
    )
    return "".join(f"{lines['marker']} {json.dumps(one, allow_nan=False)}\n" for one in made)


def _filled(part: Any, values: dict[str, Any]) -> Any:
    """Return a line with the values that it names; null for one that there is not."""
    if isinstance(part, dict):
        metric = values["quality_metric"]
        return {key.replace("<metric>", metric): _filled(x, values) for key, x in part.items()}
    named = isinstance(part, str) and part.startswith("$")
    return values.get(part[1:]) if named else part


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file, if it exists, each with its ``file`` and ``lineno``.

    Raises:
        RecordError: the first line that is not an event.
    """
    if path.exists():
        for number, event in whole_events(path):
            yield event | {"file": path.name, "lineno": number}


def moments(record: Record, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what rank 0 did, in its order: the kind of a moment, and values by name.

    Values are of the run, the event's own, and of the moment: ``time_ms`` since 1970, ``epoch``
    from 0, ``step`` and ``trained``: optimizer steps and samples of all ranks until then, ``loss``
    of that step.

    Raises:
        RecordError: the events are not in ``folder``, a line of them is not an event, or they have
            more steps than the record.
    """
    # With nodes, rank 0 is on the first, whose clock need not be the launcher's.
    files = (folder / node_file(0), folder / LAUNCHER_FILE)
    starts = (event for file in files for event in _events(file) if event["event"] == "launch")
    launch = next(starts, None)
    if launch is None:
        rule = "a log is written from a record and the events beside it, which have the times"
        fix = "name the run directory"
        raise RecordError("no events there", where=str(folder), rule=rule, fix=fix)
    of_run, shift_ns = _of_run(record), launch["unix_ns"] - launch["t_ns"]
    trained, losses = [0, *accumulate(record.steps.samples)], [None, *record.steps.loss]
    epoch, step, last_ns, path = -1, 0, 0, folder / rank_file(0)
    last = {"event": "no more", "t_ns": 0, "file": path.name, "lineno": 0}
    for event in chain([launch], _events(path), [last]):
        for kind, t_ns in _kinds(event, epoch, last_ns):
            epoch = event["epoch"] if kind == "epoch" else epoch
            step += len(event["step_ns"]) if kind == "window_end" else 0
            if step >= len(trained):
                raise RecordError(
                    f"{step} steps until here, and {len(record.steps.samples)} in the record",
                    where=f"{path}:{event['lineno']}",
                    rule="the events are those of the record",
                    fix="`trainmark verify` names what differs",
                )
            last_ns, time_ms = t_ns, (t_ns + shift_ns) // 1_000_000
            so_far = {"trained": trained[step], "loss": losses[step], "step": step}
            place = {"epoch": max(epoch, 0), "next_step": step + 1, "time_ms": time_ms}
            yield kind, event | of_run | so_far | place
        epoch = -1 if event["event"] == "trained" else epoch


def _kinds(event: dict[str, Any], epoch: int, last_ns: int) -> list[tuple[str, int]]:
    """Return which moments an event has, and when; ``epoch`` is open, -1: none."""
    start_ns, end_ns = event.get("start_ns", 0), event.get("end_ns", event["t_ns"])
    closed = [("epoch_end", last_ns)] if epoch >= 0 else []
    match event["event"]:
        case "launch" | "end" as kind:
            return [(kind, end_ns)]
        case "window":
            ready = [] if closed else [("ready", start_ns)]
            begun = [] if event["epoch"] == epoch else [*closed, *ready, ("epoch", start_ns)]
            return [*begun, ("window", start_ns), ("window_end", end_ns)]
        case "evaluate":
            return [("evaluate", start_ns), ("evaluated", end_ns)]
        case "trained":
            return [*closed, ("trained", end_ns)]
        case "no more" if closed:
            return [("broken", last_ns)]
    return []


def _of_run(record: Record) -> dict[str, Any]:
    """Return what a log tells of the run, of its recipe, and its figures, by name."""
    recipe, data = record.plan.recipe, record.plan.data
    planned = recipe["micro_batch_size"] * recipe["grad_accum_steps"] * record.plan.world_size
    return {
        **{name: column(record) for name, column in COLUMNS.items()},
        **{f"recipe/{name}": value for name, value in recipe.items()},
        **{f"figure/{name}": entry.value for name, entry in record.figures.items()},
        "train_samples": data.train_samples,
        "eval_samples": data.eval_samples,
        # What a step trained is known best from steps: some ranks train one batch together.
        "global_batch_size": max(record.steps.samples, default=planned),
        "ended": "success" if record.passed else "aborted",
    }


TEXTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "index": to_index,
}
LOGS = {"perflog": to_perflog, "mlperf": to_mlperf}  # of one run, with its events


def to_text(form: str, records: Sequence[Record], places: Sequence[str]) -> str:
    """Return records in a form that is a text.

    Args:
        places: the path that each was read from.

    Raises:
        UsageError: a log of several runs, or of none.
        RecordError: a record that the form cannot hold.
    """
    if form in TEXTS:
        return TEXTS[form](records)
    if len(records) != 1:
        raise UsageError(f"{len(records)} runs in one log", fix="write a file for each run")
    path = Path(places[0])
    return LOGS[form](records[0], path if path.is_dir() else path.parent)
