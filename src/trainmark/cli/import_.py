"""``trainmark import``: figures that others printed, each with its place and how it was read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, say_json, write_text

NAME = "import"
EXAMPLES = """\
  trainmark import pages/README.md                what it prints, row by row
  trainmark import FlagPerf/training --json       a whole collection
  trainmark import results.csv logs/ -o rows.json
  trainmark audit rows.json                       rows that were written are read again
"""


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Pages, logs, CSV, JSON, or folders.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write the rows to, as JSON.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
) -> None:
    """Read the figures of result pages, logs and tables of others."""
    import json

    from trainmark.errors import EXIT_FAILED
    from trainmark.library.importers import files, written
    from trainmark.pages import imported
    from trainmark.pages.terminal import show

    found = files.read(paths)
    document = written.document(found.rows, found.unread)
    if output is not None:
        write_text(output, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    if as_json:
        say_json(document)
    elif output is None and found.rows:
        typer.echo(show([imported.table(found.rows)]))
    if not quiet:
        for line in imported.summary(found.rows, found.unread):
            say(line, err=True)
    if not found.rows:
        raise typer.Exit(EXIT_FAILED)
