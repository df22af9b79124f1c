"""``trainmark site``: write a folder of runs as a static web site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import explain_write_errors, print_remark, print_text
from trainmark.errors import EXIT_FAILED

EXAMPLES = """\
  trainmark site runs -o public                    write files for any web host
"""


def site(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Output folder; an existing site in it is replaced."),
    ],
    store: Annotated[str | None, typer.Argument(help="Folder of runs; default: ./runs.")] = None,
) -> None:
    """Write a static website from a folder of runs.

    The exit code is 1 if a record cannot be read; the pages of all other records are still written.
    """
    from trainmark.pages.site.writing import write_site
    from trainmark.record.messages import render
    from trainmark.results.store.index import Index
    from trainmark.results.store.query import list_unreadable

    index = Index(store)
    index.refresh()
    with explain_write_errors(output):
        num_launches, num_written = write_site(index, output)
    print_text(f"{output}: launches: {num_launches}, pages written: {num_written}", err=True)
    failed = list_unreadable(index)
    for path, reason in failed:
        print_remark(f"{path}: {render(reason, 'en')}")
    if failed:
        raise typer.Exit(EXIT_FAILED)
