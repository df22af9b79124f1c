"""``trainmark run``: plan, launch, measure, record, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.output import say, say_skipped_vendors
from trainmark.cli.running import from_here, launch_and_write, print_tables, verdict_stands
from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from trainmark.planning.plan import Plan
    from trainmark.results.record import Record

NAME = "run"
EXAMPLES = """\
  trainmark run distilbert_sst2                      tiny recipe, generated data
  trainmark run distilbert_sst2 --nproc 2            two ranks
  trainmark run distilbert_sst2 --repeat 5           five launches, median and interval
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard --nproc 8 bs=96
  trainmark run distilbert_sst2 --dry-run            print the plan, start nothing
  trainmark run plans/demo.yaml                      several runs; again: what is left
"""


def command(
    case: Annotated[str, typer.Argument(help="A case, an alias, a case key, or a plan file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe fields to change.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe; see `trainmark list recipes`.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with real data.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, …; default: the first here.")
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Ranks on this machine.")] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="Machines.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Launches, one after another.")] = None,
    launcher: Annotated[Literal["local"], typer.Option(help="Where ranks are started.")] = "local",
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a launch is stopped.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order, weights, dropout.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: ./runs/…")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan and command; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a case, measure it, and leave a record whatever happens."""
    from trainmark.cli.run_plan import refuse_options, run_plan_file
    from trainmark.data.generated import default_root
    from trainmark.launch.series import Choices
    from trainmark.launch.stopping import stop_signals_noted
    from trainmark.planning.overrides import parse_assignments
    from trainmark.planning.plan import resolve
    from trainmark.planning.plan_file import is_plan_file

    del launcher  # one value so far; the type checks it
    if device is None:  # the first that works is taken: say which do not
        say_skipped_vendors()
    if is_plan_file(case):
        given = {
            "KEY=VALUE": overrides, "--recipe": recipe, "--nproc": nproc, "--nnodes": nnodes,
            "--repeat": repeat,
        }  # fmt: skip
        refuse_options(case, given)
        choices = Choices(data=data, device=device, out=out, timeout_s=timeout, seed=seed)
        run_plan_file(Path(case), choices, dry_run=dry_run, as_json=as_json, quiet=quiet)
        return
    plan = resolve(
        case,
        recipe_name=recipe,
        overrides=parse_assignments(overrides or []),
        data_dir=data,
        device_name=device,
        nnodes=nnodes,
        nproc=nproc,
        repeat_count=repeat,
        timeout_s=timeout,
        seed=seed,
        run_dir=out,
        generated_root=default_root(),
    )
    if dry_run:
        _print_dry_run(plan, as_json=as_json)
        return
    with stop_signals_noted() as request:
        records = launch_and_write(plan, request, label=plan.case, quiet=quiet)
    with verdict_stands():
        _print_results(plan, records, as_json=as_json)
        if len(records) < plan.repeat_count:
            done = f"after {len(records)} of {plan.repeat_count} launches"
            typer.echo(f"trainmark: stopped by {request.signal_name} {done}", err=True)
    if len(records) < plan.repeat_count or not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)


def _print_dry_run(plan: Plan, *, as_json: bool) -> None:
    from trainmark.launch.local import command as launch_command

    argv = launch_command(plan, python="python", agent_log_dir="LOG_DIR")
    if as_json:
        document = {"plan": plan.model_dump(mode="json"), "command": argv}
        say(json.dumps(document, indent=2, ensure_ascii=False))
        return
    say(plan.model_dump_json(indent=2))
    say(" ".join(argv), err=True)


def _print_results(plan: Plan, records: list[Record], *, as_json: bool) -> None:
    from trainmark.launch.repeats import launches

    if as_json:
        documents = [record.model_dump(mode="json") for record in records]
        single = documents[0] if plan.repeat_count == 1 else documents
        say(json.dumps(single, ensure_ascii=False))
        return
    folders = [from_here(Path(single.run_dir)) for single in launches(plan)]
    print_tables(
        list(zip(folders, records, strict=False)),  # fewer records where the run was stopped
        repeated=plan.repeat_count > 1,
    )
