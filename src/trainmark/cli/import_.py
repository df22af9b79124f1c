"""``trainmark import``: figures that others printed, each with its place and how it was read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, say_json

EXAMPLES = """\
  trainmark import pages/README.md                what it prints, row by row
  trainmark import FlagPerf/training --json       a whole collection
  trainmark import results.csv logs/ --json > rows.json
  trainmark audit rows.json                       rows that were written are read again
"""


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Pages, logs, CSV, JSON, or folders.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON.")] = False,
) -> None:
    """Read the figures of result pages, logs and tables of others."""
    from trainmark.errors import EXIT_FAILED
    from trainmark.library.importers import files, written
    from trainmark.pages import imported
    from trainmark.pages.terminal import show

    found = files.read(paths)
    document = written.document(found.rows, found.unread)
    if as_json:
        say_json(document)
    elif found.rows:
        typer.echo(show([imported.table(found.rows)]))
    for line in imported.summary(found.rows, found.unread):
        say(line, err=True)
    if not found.rows:
        raise typer.Exit(EXIT_FAILED)
