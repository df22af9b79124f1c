"""``trainmark prepare``: real data into a case's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAME = "prepare"
EXAMPLES = """\
  trainmark prepare distilbert_sst2 --from downloads/ --data data/sst2
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard
"""


def command(
    case: Annotated[str, typer.Argument(help="Name of a case.")],
    raw: Annotated[Path, typer.Option("--from", help="Folder or archive as downloaded.")],
    data: Annotated[Path, typer.Option("--data", help="Folder to write; resumed if half there.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
) -> None:
    """Check raw data and write it in the form a case reads: resumable, atomic."""
    from trainmark import cases
    from trainmark.errors import UsageError

    chosen = cases.load(case)
    if chosen.prepare is None:
        raise UsageError(
            f"case {chosen.name} has nothing to prepare",
            where="CASE",
            remedy=f"`trainmark run {chosen.name}` generates its data",
        )

    def say(text: str) -> None:
        if not quiet:
            typer.echo(text, err=True)

    chosen.prepare(raw, data, say)
    typer.echo(str(data))
