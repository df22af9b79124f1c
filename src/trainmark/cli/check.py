"""``trainmark check``: whether a case keeps what every figure relies on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import takes
from trainmark.cli.output import say, say_json, say_remark
from trainmark.errors import EXIT_FAILED
from trainmark.plan.request import RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.check.case_rules import Check
    from trainmark.spec import Text

EXAMPLES = """\
  trainmark check toy                     counts, gradients, losses over worlds, FLOPs
  trainmark check my_case bs=8 --steps 40
  trainmark check my_case --json
"""


@takes(RunRequest, "recipe", "data", "device")
def command(
    case: Annotated[str, typer.Argument(help="A case or an alias; your own too.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe fields to change.")
    ] = None,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each run, at most an epoch.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    **fields: Any,
) -> None:
    """Run a case with one rank and with two; say what is wrong."""
    from trainmark.check.case_check import check_case
    from trainmark.launch.stopping import stop_signals_noted
    from trainmark.plan.overrides import parse_assignments

    request = RunRequest.of(
        case=case, overrides=parse_assignments(overrides or []) or None, **fields
    )
    with stop_signals_noted() as stop:
        found = check_case(request, steps=steps, stop=stop, say=say_remark)
    if as_json:
        say_json([check.as_dict() for check in found.checks])
    else:
        for check in found.checks:
            for line in _lines(check, found.messages):
                say(line)
    if stop.signal_name is not None:
        say(f"trainmark: stopped by {stop.signal_name}: nothing was judged", err=True)
    if stop.signal_name is not None or not found.passed:
        raise typer.Exit(EXIT_FAILED)


def _lines(check: Check, own: Mapping[str, Text]) -> list[str]:
    """Return a line for a check that holds or was left out, and one for each fault."""
    from trainmark.record.messages import render

    if check.faults:
        return [f"FAULT {check.name}: {render(fault, 'en', own)}" for fault in check.faults]
    if check.skipped is not None:
        return [f"-     {check.name}: {render(check.skipped, 'en', own)}"]
    return [f"ok    {check.name}"]
