"""``trainmark bundle``: runs in one file that others can verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say

NAME = "bundle"
EXAMPLES = """\
  trainmark bundle runs/RUN -o run.trainmark.zip
  trainmark bundle runs/PLAN -o all.trainmark.zip --sign ~/.ssh/id_ed25519
  trainmark verify run.trainmark.zip
"""


def command(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, ending in .trainmark.zip.")
    ],
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories, folders of runs; default: newest.")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="ssh key that signs the manifest.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the path alone.")] = False,
) -> None:
    """Put runs with their evidence into one file, redacted, signed."""
    from trainmark.library.bundle import pack
    from trainmark.library.selection.runs import find_runs, newest_run

    found = [launches for run in runs or [newest_run()] for launches in find_runs(run)]
    made = pack(found, output, key=sign, replace=force)
    say(str(output))
    if not quiet:
        size, signed = output.stat().st_size / 1e6, "signed" if sign else "not signed"
        say(f"trainmark: {len(made.files)} files, {size:,.1f} MB, {signed}", err=True)
