"""``trainmark doctor``: find problems that would make a run fail or skew its results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Json, Lang, Quiet, add_model_options, complete_with
from trainmark.cli.output import print_json, print_lines, print_text, redirect_to_stderr
from trainmark.plan.request import RunRequest
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.machine.doctor import Examination


EXAMPLES = """\
  trainmark doctor                                check this machine and all its devices
  trainmark doctor dlrm_criteo --data data/criteo --nproc 8
  trainmark doctor --quick --quiet                print only problems (for scheduler prologs)
"""


@add_model_options(RunRequest, "recipe", "data", "device", "nproc")
def doctor(
    case: Annotated[
        str | None,
        typer.Argument(
            help="Also check the data of this case.", autocompletion=complete_with("complete_case")
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Skip the checks that need torch; the other checks take less than 10 s.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    lang: Lang = "en",
    out: Annotated[
        Path | None, typer.Option(help="Folder that the run would write to; default: ./runs/…")
    ] = None,
    **fields: Any,  # the options of `add_model_options` that the user gave
) -> None:
    """Find problems that would make a run fail or skew its results, and suggest a fix for each.

    With --quiet, only problems are printed.

    Exit codes: 0 = no problem; 1 = results would be skewed; 2 = a run would fail.
    """
    from trainmark.machine.doctor import WITHOUT_CASE, describe_machine, examine

    request = RunRequest.build(case=case or WITHOUT_CASE, out=out, **fields)
    with redirect_to_stderr():
        examination = examine(describe_machine(request, quick=quick), lang=lang)
    if as_json:
        print_json(asdict(examination), indent=2)
    else:
        _print_examination(examination, lang, quiet=quiet)
    raise typer.Exit(examination.exit_code)


def _print_examination(examination: Examination, lang: str, *, quiet: bool) -> None:
    """Print the conditions of the machine, the worst first, each with its fix.

    Args:
        quiet: print only conditions that make a run fail ("stops") or skew its results ("spoils").
    """
    from trainmark.machine.doctor import render_sentence

    def render_heading(key: str, **values: Any) -> str:  # in the language of the output
        return render_sentence(message(f"heading.{key}", **values), lang)

    width = max((len(condition.code) for condition in examination.checks), default=0)
    severities = ["stops", "spoils"] if quiet else ["stops", "spoils", "unknown", "fine"]
    for severity in severities:
        conditions = [x for x in examination.checks if x.severity == severity]
        if conditions:
            print_text(render_heading(severity))
        for condition in conditions:
            # ``what`` and ``fix`` are already in the language of the output.
            print_lines([str(condition.what)], before=f"  {condition.code:<{width}}  ")
            if condition.fix:
                # Below the sentence: two blanks are before the code, and two after it.
                print_lines([render_heading("fix", text=condition.fix)], before=" " * (width + 4))
    if not quiet:
        print_text(render_heading("examined", device=examination.device, nproc=examination.nproc))
