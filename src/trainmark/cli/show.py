"""``trainmark show``: the table of a run that is over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

NAME = "show"
EXAMPLES = """\
  trainmark show                    the newest run under ./runs
  trainmark show runs/RUN
  trainmark show runs/RUN --json
"""


def newest_run() -> Path:
    """Return the newest run directory under ``./runs`` that has a record.

    Raises:
        RecordError: there is none.
    """
    from trainmark.errors import RecordError
    from trainmark.plan import RUNS_DIR
    from trainmark.results.record import RECORD_FILE

    found = [*RUNS_DIR.glob(f"*/{RECORD_FILE}"), *RUNS_DIR.glob(f"*/*/{RECORD_FILE}")]
    if not found:
        raise RecordError(
            "no run there yet", where=str(RUNS_DIR), remedy="`trainmark run CASE`, or name a run"
        )
    return max(found, key=lambda path: path.stat().st_mtime_ns).parent


def find_records(run: Path) -> list[Path]:
    """Return the run directories under ``run``: itself, or its repeats.

    Raises:
        RecordError: neither ``run`` nor its ``r1``, ``r2`` … hold a record.
    """
    from trainmark.results.record import RECORD_FILE

    if run.is_file() or (run / RECORD_FILE).exists():
        return [run]
    found = (path.parent for path in run.glob(f"r*/{RECORD_FILE}"))
    repeats = [path for path in found if path.name[1:].isdecimal()]
    return sorted(repeats, key=lambda path: int(path.name[1:])) or [run]


def command(
    run: Annotated[Path | None, typer.Argument(help="Run directory or record.json.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Print the table of a run."""
    from trainmark.report.terminal import repeats_table, run_table
    from trainmark.results.record import read

    paths = find_records(run or newest_run())
    records = [read(path) for path in paths]
    if as_json:
        documents = [record.model_dump(mode="json") for record in records]
        typer.echo(json.dumps(documents if len(records) > 1 else documents[0], ensure_ascii=False))
        return
    for path, record in zip(paths, records, strict=True):
        typer.echo(run_table(record, run_dir=path if path.is_dir() else path.parent))
    if len(records) > 1:
        typer.echo(repeats_table(records))
