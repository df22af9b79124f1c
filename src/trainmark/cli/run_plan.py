"""``trainmark run PLAN.yaml``: several runs in one go, resumable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trainmark.cli.output import say
from trainmark.cli.running import from_here, launch_and_write, verdict_stands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmark.launch.series import Choices, Step
    from trainmark.results.entries import Outcome


def run_plan_file(
    path: Path, choices: Choices, *, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Run what is left of a plan file, print all of it, and end with its exit code."""
    from trainmark.data.generated import default_root
    from trainmark.launch import series
    from trainmark.launch.progress_line import end_line
    from trainmark.launch.stopping import stop_signals_noted
    from trainmark.planning.plan_file import read_plan_file
    from trainmark.report.series import series_json, series_table
    from trainmark.results.entries import exit_code

    file = read_plan_file(path)
    steps = series.check(file, choices, generated_root=default_root())
    if dry_run:
        outcomes = series.preview(steps)
    else:
        with stop_signals_noted() as request:
            outcomes = series.run(
                steps,
                request,
                launch=lambda plan, label: launch_and_write(
                    plan, request, label=label, quiet=quiet
                ),
                said=(lambda _: None) if quiet else end_line,
            )
    outcomes = [_shown(outcome) for outcome in outcomes]
    code = exit_code(outcomes)
    with verdict_stands():
        if as_json:
            plans = [_planned(step) for step in steps if step.to_launch] if dry_run else []
            say(series_json(outcomes, name=file.name, exit_code=code, plans=plans))
        else:
            typer.echo(series_table(outcomes))
    if code:
        raise typer.Exit(code)


def refuse_options(path: str, given: Mapping[str, object]) -> None:
    """Refuse options that each run of a plan file says for itself.

    Raises:
        UsageError: one of ``given``, name to value, has a value.
    """
    from trainmark.errors import UsageError

    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} does not go with a plan file",
                where=path,
                rule="each run in the file says it for itself; for all of them there are "
                "--data, --device, --out, --timeout and --seed",
                remedy="write it under the runs it is meant for; docs/plans.md has the keys",
            )


def _shown(outcome: Outcome) -> Outcome:
    folder = outcome.run_dir
    return outcome if folder is None else replace(outcome, run_dir=from_here(folder))


def _planned(step: Step) -> dict[str, object]:
    assert step.plan is not None
    return step.plan.model_dump(mode="json")
