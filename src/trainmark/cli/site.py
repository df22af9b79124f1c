"""``trainmark site``: the results of a store as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, writing

EXAMPLES = """\
  trainmark site runs -o public                    pages for any web host
  trainmark site postgresql://team@host/results -o public
"""


def command(
    store: Annotated[str, typer.Argument(help="Folder of runs, or URL of a database.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write; a site in it is replaced.")
    ],
) -> None:
    """Write the results of a store as a web site of plain files."""
    from trainmark.library.selection.indexing import opened
    from trainmark.pages.site.writing import write_site

    database = opened(store)[0].database
    with writing(output):
        runs, anew = write_site(database, output)
    say(f"{output}: {runs} runs, {anew} of them written anew", err=True)
