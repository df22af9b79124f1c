"""``trainmark import``: read figures from result pages, logs and tables of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.options import Json
from trainmark.cli.output import (
    print_json,
    print_text,
)
from trainmark.errors import EXIT_FAILED

EXAMPLES = """\
  trainmark import pages/README.md                print the rows of the page
  trainmark import results.csv logs/ --json > rows.json
  trainmark audit results.csv logs/               check the rows
"""


def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Pages, logs, CSV or JSON files, or folders of them."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Read figures from result pages, logs and tables of other projects."""
    from trainmark.pages.results import build_imported_table, summarize_import
    from trainmark.pages.terminal import show
    from trainmark.published.importers import files

    imported = files.read_files(paths)
    if as_json:
        print_json(imported.as_dict())
    elif imported.rows:
        typer.echo(show([build_imported_table(imported.rows)]))
    for line in summarize_import(imported.rows, imported.unread):
        print_text(line, err=True)
    if not imported.rows:
        raise typer.Exit(EXIT_FAILED)
