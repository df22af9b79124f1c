"""``trainmark export``: write records in the formats of other programs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trainmark.cli.options import Output
from trainmark.cli.output import (
    explain_write_errors,
    fail_if_damaged,
    print_text,
    reject_repeated_runs,
    write_text,
)
from trainmark.errors import RecordError, UsageError

EXAMPLES = """\
  trainmark export runs/* --to csv -o results.csv
  trainmark export runs/* --to parquet -o runs.parquet
  trainmark export runs/RUN --to index                 write one JSON line per run
  trainmark export runs/RUN --to perflog               write a log of one run (or --to mlperf)
"""

ExportForm = Literal["csv", "json", "index", "perflog", "mlperf", "parquet"]


def export(
    form: Annotated[ExportForm, typer.Option("--to", help="Output format.")],
    runs: Annotated[list[str] | None, typer.Argument(help="Run directories or records.")] = None,
    output: Output = None,
) -> None:
    """Write records in the format of another program.

    The exit code is 1 if a record cannot be read or does not match its raw events; all other
    records are still written. The exit code is 2 if no record can be read.
    """
    from trainmark.export.tables import render_text, write_parquet
    from trainmark.results.selection import select_results

    selection = select_results(runs or [])
    if not selection.records:
        raise RecordError(
            "no record found",
            rule="only runs can be exported, not the rows of result pages",
            fix="pass runs that have a record",
        )
    # If a run is given twice, a program that sums or averages the rows would count it twice.
    reject_repeated_runs(selection)
    if form == "parquet":
        if output is None:
            raise UsageError(
                f"--to {form} writes a binary file, which cannot be printed", fix="add -o FILE"
            )
        with explain_write_errors(output):
            write_parquet(selection.records, output)
        print_text(str(output), err=True)
    else:
        # `places` has the path of each record.
        write_text(output, render_text(form, selection.records, selection.places))
    fail_if_damaged(selection)  # exit code 1 if a record cannot be read or contradicts its events
