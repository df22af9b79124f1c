"""``trainmark baseline``: what later runs are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, write_text

NAME = "baseline"
EXAMPLES = """\
  trainmark baseline runs/RUN -o baseline.yaml
  trainmark baseline runs/nightly -o baseline.yaml --figure p_core --figure quality
  trainmark baseline runs/RUN --update baseline.yaml    the work of these runs, nothing else
"""


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs that passed.")],
    figure: Annotated[list[str] | None, typer.Option(help="A figure to take; repeatable.")] = None,
    update: Annotated[Path | None, typer.Option(metavar="FILE", help="Change this file.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default, and for -: stdout."),
    ] = None,
) -> None:
    """Write the figures of runs, with tolerances, into a file to edit."""
    from trainmark.judge.comparison.baseline import dumps, read, take
    from trainmark.library.selection.words import select
    from trainmark.record.trust import MOST_CV

    old = read(update) if update else None
    new = take(select(runs, rows=False).records, figure or [], old)
    for entry in new.entries:
        wide = [name for name, found in entry.figures.items() if found.worse_by > MOST_CV]
        if wide:
            advice = "measure on an idle machine, or set worse_by"
            say(f"trainmark: {entry.name}: wide tolerance of {', '.join(wide)}: {advice}", err=True)
    file = output or update
    if file is None or str(file) == "-":
        say(dumps(new), newline=False)
    else:
        write_text(file, dumps(new))
        say(str(file), err=True)
