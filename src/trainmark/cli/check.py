"""``trainmark check``: check a case that a user wrote."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Assignments, Json, Lang, add_model_options, complete_with
from trainmark.cli.output import print_json, print_lines, print_remark, print_text
from trainmark.errors import EXIT_FAILED, UsageError
from trainmark.plan.request import RunRequest
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.conformance.case_check import CaseReport
    from trainmark.spec import Message


EXAMPLES = """\
  trainmark check toy                     check the example that Trainmark includes
  trainmark check my_case --new ~/my-cases   write the files of a new case
  trainmark check my_case bs=8 --steps 40
"""


@add_model_options(RunRequest, "recipe", "data", "device")
def check(
    case: Annotated[
        str,
        typer.Argument(
            help="Name or alias of a case.", autocompletion=complete_with("complete_case")
        ),
    ],
    overrides: Assignments = None,
    new: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a template for a new case to DIR, and exit."),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=10, help="Number of steps per run; at most one epoch.")
    ] = 100,
    as_json: Json = False,
    lang: Lang = "en",
    **fields: Any,  # the options of `add_model_options` that the user gave
) -> None:
    """Check your case by running it with one rank and with two, and report all faults.

    --new writes the example from docs/adding-a-case.md as a template.

    The exit code is 1 if a check finds a fault.
    """
    from trainmark.conformance.case_check import check_case
    from trainmark.launch.processes import note_stop_signals
    from trainmark.plan.recipes import parse_assignments

    if new is not None:
        if overrides or fields:
            raise UsageError(
                "--new cannot be used with settings or options of a run",
                where="--new",
                rule="--new only writes a template",
                fix="remove the settings and options, or remove --new",
            )
        _write_template(case, new)
        return
    request = RunRequest.build(
        case=case, overrides=parse_assignments(overrides or []) or None, **fields
    )
    with note_stop_signals() as stop:
        report = check_case(request, steps=steps, stop=stop, say=print_remark)
    # After a stop the report is printed too; it has no checks.
    if as_json:
        print_json(_build_document(case, report, lang))
    else:
        _print_checks(case, report, lang)
    if stop.signal_name is not None:
        print_text(f"trainmark: stopped by {stop.signal_name}: nothing was checked", err=True)
    if stop.signal_name is not None or not report.passed:
        raise typer.Exit(EXIT_FAILED)


def _print_checks(case: str, report: CaseReport, lang: str) -> None:
    """Print each check with its faults, why it was skipped, or that it passed; then a summary."""
    from trainmark.record.messages import render

    num_failed = 0
    messages: Sequence[Message]
    for check in report.checks:
        if check.faults:
            sign = "FAULT"
            messages = check.faults
            num_failed += 1
        elif check.skipped:
            sign = "-    "
            messages = [check.skipped]
        else:
            sign = "ok   "
            messages = [message(f"check_ok.{check.check}")]
        for item in messages:
            # `report.messages` has the sentences for message codes that the case itself defines.
            sentence = render(item, lang, report.messages)
            print_lines([f"{check.check}: {sentence}"], before=f"{sign} ")
    if report.checks:  # a stop signal leaves none
        code = "check_done" if num_failed else "check_passed"
        summary = message(code, case=case, faults=num_failed, checks=len(report.checks))
        print_text(render(summary, lang))


def _write_template(name: str, folder: Path) -> None:
    """Write the files of a new case, and print the folder and the next commands."""
    from trainmark.cases import PATH_VARIABLE
    from trainmark.conformance.new_case import write_new_case

    print_text(write_new_case(name, folder))  # the folder of the case, inside `folder`
    print_text(f"next: export {PATH_VARIABLE}={shlex.quote(str(folder.resolve()))}", err=True)
    print_text(f"      trainmark check {name}", err=True)
    print_text("docs/adding-a-case.md explains each file", err=True)


def _build_document(case: str, report: CaseReport, lang: str) -> dict[str, Any]:
    """Return a JSON document with each check's name, state and messages.

    The state is ``ok``, ``skipped`` or ``fault``. A message is a fault, or why the check was
    skipped.
    """
    from trainmark.record.messages import render

    checks = []
    messages: Sequence[Message]
    for check in report.checks:
        if check.faults:
            state = "fault"
            messages = check.faults
        elif check.skipped:
            state = "skipped"
            messages = [check.skipped]
        else:
            state = "ok"
            messages = []
        # `report.messages` has the sentences for message codes that the case itself defines.
        sentences = [render(item, lang, report.messages) for item in messages]
        checks.append({"check": check.check, "state": state, "messages": sentences})
    return {"case": case, "passed": report.passed, "checks": checks}
