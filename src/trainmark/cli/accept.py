"""``trainmark accept``: which devices or nodes to exclude, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.acceptance.request import AcceptRequest
from trainmark.cli.options import Assignments, Json, Lang, Quiet, add_model_options, complete_with
from trainmark.cli.output import print_lines, print_remark, print_text, shorten_path
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from trainmark.acceptance.result import AcceptanceResult

EXAMPLES = """\
  trainmark accept                            test all devices of this machine
  trainmark accept --nproc 8 --recipe throughput-1x8 gpt_megatron --data data/gpt
  trainmark accept --launcher slurm --nnodes 64 --nproc 8 --cluster cluster.yaml
  trainmark accept --phases devices           check the speed and results of each device
  trainmark accept --dry-run                  print the phases, rounds and expected times, and exit
  trainmark accept --out acceptances/rack7    resume the test and measure what is missing
  trainmark accept --attach acceptances/rack7   wait for a submitted job
"""
_OPTIONS = tuple(name for name in AcceptRequest.model_fields if name not in ("case", "overrides"))


@add_model_options(AcceptRequest, *_OPTIONS)
def accept(
    case: Annotated[
        str | None,
        typer.Argument(
            metavar="[CASE]",
            help="Case to train; default: distilbert_sst2.",
            autocompletion=complete_with("complete_case"),
        ),
    ] = None,
    overrides: Assignments = None,
    attach: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Wait for the job that was submitted for this folder."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be measured, and exit.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
    quiet: Quiet = False,
    **fields: Any,  # the options of `add_model_options` that the user gave
) -> None:
    """Find devices, nodes and links that are slow or give wrong results.

    Every device (with --launcher, every node) trains alone and in pairs, and is compared with its
    peers. The output folder contains acceptance.json, an HTML page, and the lists passing.txt,
    failing.txt and undecided.txt.

    Exit codes: 0 = all pass; 1 = some fail; 3 = some are undecided; 2 = nothing was started.
    """
    from trainmark.plan.recipes import parse_assignments

    if attach is not None and (case or overrides or fields or dry_run):
        raise UsageError(
            "--attach cannot be used with a case or with options for a new test",
            where="--attach",
            rule="--attach waits for a job that was already submitted",
            fix="remove the case and all other options",
        )
    assignments = list(overrides or [])
    if case is not None and "=" in case:  # the case may be left out: this is the first KEY=VALUE
        assignments.insert(0, case)
        case = None
    request = AcceptRequest.build(
        case=case, overrides=parse_assignments(assignments) or None, **fields
    )
    if dry_run:
        from trainmark.api.accepting import plan_acceptance
        from trainmark.cli.accept_dry_run import print_accept_dry_run

        print_accept_dry_run(plan_acceptance(request), as_json=as_json)
        return
    result, folder = _measure(request, attach, quiet=quiet)
    if as_json:
        print_text(result.model_dump_json(indent=2))
    else:
        _print_result(result, folder, lang)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _measure(
    request: AcceptRequest, attach: Path | None, *, quiet: bool
) -> tuple[AcceptanceResult, Path]:
    """Measure and judge the devices or nodes; return the result and the folder that has it.

    Args:
        attach: folder of a submitted job to wait for; None: start what ``request`` asks for.
    """
    from trainmark.api.accepting import measure_acceptance, prepare_acceptance
    from trainmark.launch.processes import note_stop_signals

    with prepare_acceptance(request, attach=attach) as acceptance, note_stop_signals() as stop:
        if not quiet:
            for line in acceptance.make_timetable().describe():
                print_remark(line)
        show = _ignore if quiet else print_remark
        result = measure_acceptance(acceptance, stop, show=show, show_remark=print_remark)
        return result, acceptance.folder


def _print_result(result: AcceptanceResult, folder: Path, lang: str) -> None:
    """Print the verdicts, and where the lists and the page are."""
    from trainmark.pages.acceptance import list_acceptance_lines

    shown_folder = shorten_path(folder)
    print_lines(list_acceptance_lines(result, lang, folder=str(shown_folder)))
    print_text(f"lists: {shown_folder}/passing.txt, failing.txt, undecided.txt")
    if (folder / "page.html").exists():  # it is missing if it could not be written
        print_text(f"page: {shown_folder}/page.html")


def _ignore(_: object) -> None:
    """Show no progress."""
