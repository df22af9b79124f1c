"""What a machine and a case can do: ``doctor``, ``ceilings``, ``check``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Assignments, Json, Lang, Quiet, completed_by, takes
from trainmark.cli.output import others_to_stderr, say, say_json, say_lines, say_remark
from trainmark.errors import EXIT_FAILED
from trainmark.plan.request import RunRequest
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.check.case_check import Checked
    from trainmark.check.doctor import Examination

EXAMPLES = {
    "doctor": """\
  trainmark doctor                                this machine, all its devices
  trainmark doctor dlrm_criteo --data data/criteo --nproc 8
  trainmark doctor --quick --quiet                in a scheduler's prolog: problems only
""",
    "ceilings": """\
  trainmark ceilings                          the first device here, half a minute
  trainmark ceilings --nproc 8 --budget-s 15  all eight, larger sizes, a few minutes
  trainmark ceilings --json > ceilings.json   every size, rank and repetition
""",
    "check": """\
  trainmark check toy                     the shipped example
  trainmark check my_case --new ~/my-cases   write the files of a new case
  trainmark check my_case bs=8 --steps 40
""",
}
_STARTING_S = 120.0  # of ranks that import torch on a busy machine
_MOST_KINDS = 12


@takes(RunRequest, "recipe", "data", "device", "nproc", "out")
def doctor(
    case: Annotated[
        str | None,
        typer.Argument(
            help="A case whose data is checked too.", autocompletion=completed_by("complete_case")
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip what needs torch: less than 10 s.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    lang: Lang = "en",
    **fields: Any,
) -> None:
    """Find problems that would fail a run or skew its results, each with a fix.

    --quiet prints problems only. Ends with 2: a run would fail, 1: its results would be skewed,
    0: no problem.
    """
    from trainmark.check.doctor import NO_CASE, examine, subject_of

    request = RunRequest.of(case=case or NO_CASE, **fields)
    with others_to_stderr():
        found = examine(subject_of(request, quick=quick), lang=lang)
    if as_json:
        say_json(asdict(found), indent=2)
    else:
        _print_table(found, lang, quiet=quiet)
    raise typer.Exit(found.exit_code)


def _print_table(found: Examination, lang: str, *, quiet: bool) -> None:
    """Print what needs attention first, each with its fix."""
    from trainmark.check.doctor import worded

    def show(key: str, **values: Any) -> str:
        return worded(message(f"heading.{key}", **values), lang)

    width = max((len(one.code) for one in found.checks), default=0)
    for severity in ("stops", "spoils", *(() if quiet else ("unknown", "fine"))):
        rows = [one for one in found.checks if one.severity == severity]
        if rows:
            say(show(severity))
        for one in rows:
            say_lines([str(one.what)], before=f"  {one.code:<{width}}  ")
            if one.fix:
                say_lines([show("fix", text=one.fix)], before=" " * (width + 4))
    if not quiet:
        say(show("examined", device=found.device, nproc=found.nproc))


@takes(RunRequest, "device", "nproc")
def ceilings(
    budget_s: Annotated[
        float,
        typer.Option(min=0.01, max=3600, help="Seconds for each row; more allow larger sizes."),
    ] = 3.0,
    lang: Lang = "en",
    as_json: Json = False,
    **fields: Any,
) -> None:
    """Measure matmul, memory, transfer and collective rates of this machine."""
    from trainmark.check.ceilings import measure_ceilings
    from trainmark.launch.processes import stop_signals_noted
    from trainmark.library.redaction import Redactor
    from trainmark.pages.judgements import ceilings as shown
    from trainmark.pages.judgements import wrong_results
    from trainmark.pages.terminal import show

    request = RunRequest.of(case="-", **fields)
    with stop_signals_noted() as stop, others_to_stderr():
        found = measure_ceilings(
            stop, device=request.device, nproc=request.nproc or 1, budget_s=budget_s,
            timeout_s=_STARTING_S + 3 * _MOST_KINDS * budget_s,
        )  # fmt: skip
    if as_json:
        say_json(Redactor().document(found))  # it is passed on
    else:
        typer.echo(show(shown(found), lang))
    if wrong_results(found):
        say("trainmark: a rank computed wrong results", err=True)
        raise typer.Exit(EXIT_FAILED)


@takes(RunRequest, "recipe", "data", "device")
def check(
    case: Annotated[
        str,
        typer.Argument(help="A case or an alias.", autocompletion=completed_by("complete_case")),
    ],
    overrides: Assignments = None,
    new: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a template of this name into DIR; run nothing."),
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each run, at most one epoch.")] = 100,
    as_json: Json = False,
    lang: Lang = "en",
    **fields: Any,
) -> None:
    """Check a case of yours: run it with one rank and with two, and name what is wrong.

    --new writes the example of docs/adding-a-case.md as a start.

    Ends with 1 if a check finds a fault.
    """
    from trainmark.check.case_check import check_case
    from trainmark.launch.processes import stop_signals_noted
    from trainmark.plan.overrides import parse_assignments
    from trainmark.record.messages import render

    if new is not None:
        _write_template(case, new)
        return
    request = RunRequest.of(
        case=case, overrides=parse_assignments(overrides or []) or None, **fields
    )
    with stop_signals_noted() as stop:
        found = check_case(request, steps=steps, stop=stop, say=say_remark)
    if as_json:
        say_json(_check_document(case, found, lang))
    for one in () if as_json else found.checks:
        sign = "FAULT" if one.faults else "-    " if one.skipped else "ok   "
        for said in one.faults or [one.skipped or message(f"check_ok.{one.check}")]:
            say_lines([f"{one.check}: {render(said, lang, found.messages)}"], before=f"{sign} ")
    if found.checks and not as_json:
        faults = sum(bool(one.faults) for one in found.checks)
        code, checks = "check_done" if faults else "check_passed", len(found.checks)
        say(render(message(code, case=case, faults=faults, checks=checks), lang))
    if stop.signal_name is not None:
        say(f"trainmark: stopped by {stop.signal_name}: no check was made", err=True)
    if stop.signal_name is not None or not found.passed:
        raise typer.Exit(EXIT_FAILED)


def _write_template(name: str, folder: Path) -> None:
    """Write the files of a new case and say what comes next."""
    from trainmark.cases import PATH_VARIABLE
    from trainmark.check.new_case import write_new_case

    say(write_new_case(name, folder))
    say(f"next: export {PATH_VARIABLE}={shlex.quote(str(folder.resolve()))}", err=True)
    say(f"      trainmark check {name}", err=True)
    say("docs/adding-a-case.md explains each file", err=True)


def _check_document(case: str, found: Checked, lang: str) -> dict[str, Any]:
    """Return the checks of a case as JSON has them: ``ok``, ``skipped`` or ``fault`` each."""
    from trainmark.record.messages import render

    checks = []
    for check in found.checks:
        state = "fault" if check.faults else "skipped" if check.skipped else "ok"
        messages = check.faults or ([check.skipped] if check.skipped else [])
        sentences = [render(said, lang, found.messages) for said in messages]
        checks.append({"check": check.check, "state": state, "messages": sentences})
    return {"case": case, "passed": found.passed, "checks": checks}
