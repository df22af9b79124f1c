"""``trainmark doctor``: what stops a run or spoils its figures on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import takes
from trainmark.cli.output import others_to_stderr, say, say_json
from trainmark.plan.plan import RUNS_DIR
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from trainmark.check.doctor import Examination

EXAMPLES = """\
  trainmark doctor                                this machine, all its devices
  trainmark doctor dlrm_criteo --data data/criteo --nproc 8
  trainmark doctor --quick --quiet                in a scheduler's prolog: findings only
"""
_HEADINGS = {
    "stops": "STOPS A RUN", "spoils": "SPOILS FIGURES", "unknown": "UNKNOWN", "fine": "FINE",
}  # fmt: skip


@takes(RunRequest, "recipe", "data", "device", "nproc")
def command(
    case: Annotated[str | None, typer.Argument(help="A case whose data is examined too.")] = None,
    out: Annotated[Path, typer.Option(help="Folder where runs are written.")] = RUNS_DIR,
    quick: Annotated[bool, typer.Option("--quick", help="Less than 10 s: without torch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only what stops a run or spoils figures.")
    ] = False,
    **fields: Any,
) -> None:
    """Find what stops a run here or spoils its figures.

    Ends with 2: something stops it, 1: something spoils its figures, 0: neither.
    """
    from trainmark.check.doctor import examine, subject_of

    with others_to_stderr():
        found = examine(subject_of(case, out=out, quick=quick, **fields))
    if as_json:
        say_json(asdict(found), indent=2)
    else:
        _print_table(found, quiet=quiet)
    raise typer.Exit(found.exit_code)


def _print_table(found: Examination, *, quiet: bool) -> None:
    """Print what needs attention first, each with its remedy."""
    width = max((len(one.code) for one in found.checks), default=0)
    for severity, heading in list(_HEADINGS.items())[: 2 if quiet else None]:
        rows = [one for one in found.checks if one.severity == severity]
        if rows:
            say(heading)
        for one in rows:
            say(f"  {one.code:<{width}}  {one.what}")
            if one.remedy:
                say(f"  {'':<{width}}  way out: {one.remedy}")
    if not quiet:
        left_out = ", ".join(found.left_out) or "nothing"
        say(f"device {found.device}, {found.nproc} rank(s); left out: {left_out}")
