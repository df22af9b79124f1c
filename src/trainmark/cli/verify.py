"""``trainmark verify``: whether results are what their evidence proves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say, say_faults, say_json
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, TrainmarkError

EXAMPLES = """\
  trainmark verify run.trainmark.zip
  trainmark verify runs/RUN runs/OTHER
  trainmark verify run.trainmark.zip --allowed-signers signers --signer lab@example.org
  trainmark verify run.trainmark.zip --json
"""
_SIGNS = {"held": "ok   ", "noted": "-    ", "unverifiable": "?    ", "broken": "FAULT"}


def command(
    paths: Annotated[list[Path], typer.Argument(help="Bundles, run directories, records.")],
    allowed_signers: Annotated[
        Path | None, typer.Option(help="File of allowed signers, as ssh-keygen reads it.")
    ] = None,
    signer: Annotated[str | None, typer.Option(help="Who of them must have signed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check bytes and signature; compute every figure from events.

    Ends with 0: verified, 1: contradicted, 2: not a result of ours, or not all of it is there.
    """
    from trainmark.library.bundle import verify
    from trainmark.library.selection.runs import find_runs
    from trainmark.record.messages import render

    found, codes = [], {EXIT_PASSED}
    for path in paths:
        try:
            for launches in find_runs(path):
                found.append(verify(launches, allowed=allowed_signers, signer=signer))
                codes.add(found[-1].exit_code)
        except TrainmarkError as error:
            say_faults([error])
            codes.add(error.exit_code)
    if as_json:
        say_json([item.as_dict() for item in found])
    else:
        for item in found:
            say(item.path)
            for check in item.checks:
                name = f"{check.name} {check.place}".strip()
                for finding in check.said:
                    say(f"  {_SIGNS[check.state]} {name}: {render(finding, 'en')}")
    raise typer.Exit(EXIT_FAILED if EXIT_FAILED in codes else max(codes))
