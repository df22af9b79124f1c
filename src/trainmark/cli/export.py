"""``trainmark export``: records in the forms that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_refuted, write_text, writing

EXAMPLES = """\
  trainmark export runs/* --to csv -o results.csv
  trainmark export 'store:case=toy since=2026-11-01' --to parquet -o toy.parquet
  trainmark export runs/RUN --to index                         one JSON line each: speed, memory
  trainmark export runs/RUN --to perflog                       for one run; also mlperf
  trainmark export runs/* --to openmetrics -o trainmark.prom   replaced as a whole
  trainmark export runs/* --to tensorboard -o boards           a folder; also wandb, mlflow
"""
Form = Literal[
    "csv", "json", "index", "perflog", "mlperf", "openmetrics", "parquet", "tensorboard",
    "wandb", "mlflow",
]  # fmt: skip


def command(
    form: Annotated[Form, typer.Option("--to", help="Form to write.")],
    runs: Annotated[list[str] | None, typer.Argument(help="Run directories or records.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File or folder; default for a text: stdout."),
    ] = None,
) -> None:
    """Write records in a form that another program reads."""
    from trainmark.errors import RecordError, UsageError
    from trainmark.library.selection.words import select
    from trainmark.pages.exports.forms import WRITERS, to_text

    output = None if str(output) == "-" else output
    if output is None and form in WRITERS:
        raise UsageError(f"--to {form} is no text", remedy="give -o PATH")
    found = select(runs or [])
    if not found.records:
        raise RecordError("no record there", rule="rows of pages are not exported")
    if output is None:
        say(to_text(form, found.records, found.places), newline=False)
    else:
        replaced = " (replaced)" if output.is_file() else ""
        if form in WRITERS:
            with writing(output):
                WRITERS[form](found.records, output)
        else:
            write_text(output, to_text(form, found.records, found.places))
        say(f"{output}{replaced}", err=True)
    say_refuted(found.refuted)
