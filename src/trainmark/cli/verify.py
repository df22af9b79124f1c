"""``trainmark verify``: verify checksums and recompute every figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import (
    print_faults,
    print_json,
    print_lines,
    print_text,
)
from trainmark.errors import EXIT_FAILED, EXIT_PASSED, TrainmarkError

if TYPE_CHECKING:
    from trainmark.results.bundle import Verification

EXAMPLES = """\
  trainmark verify run.trainmark.zip
  trainmark verify runs/RUN runs/OTHER
"""

# What is printed for the state of a check.
_SIGNS = {"held": "ok   ", "noted": "-    ", "unverifiable": "?    ", "broken": "FAULT"}


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Bundles, run directories or records.")],
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Verify checksums and recompute every figure from the raw events.

    Exit codes: 0 = verified; 1 = a check failed; 2 = incomplete, or not a Trainmark result.
    """
    from trainmark.results.bundle import verify as verify_launch
    from trainmark.results.selection import find_runs

    verifications = []
    codes = {EXIT_PASSED}
    for path in paths:
        try:
            for launches_of_run in find_runs(path):
                for launch in launches_of_run:
                    verification = verify_launch(launch)
                    verifications.append(verification)
                    codes.add(verification.exit_code)
        except TrainmarkError as error:
            print_faults([error])
            codes.add(error.exit_code)
    if as_json:
        print_json([verification.as_dict() for verification in verifications])
    else:
        for verification in verifications:
            _print_checks(verification, lang)
    # A contradiction (1) matters more than a result that cannot be read (2).
    raise typer.Exit(EXIT_FAILED if EXIT_FAILED in codes else max(codes))


def _print_checks(verification: Verification, lang: str) -> None:
    """Print the path of a result, and below it its checks."""
    from trainmark.record.messages import render

    print_text(verification.path)
    for check in verification.checks:
        # The place is the folder of a launch in a bundle; empty: the check is of the whole.
        name = f"{check.name} {check.place}".strip()
        sentences = [render(finding, lang) for finding in check.sentences]
        if check.name == "trust":  # the grade of trust and the reasons for it share a line
            sentences = [", ".join(sentences)]
        for sentence in sentences:
            print_lines([f"{name}: {sentence}"], before=f"  {_SIGNS[check.state]} ")
