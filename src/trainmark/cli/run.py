"""``trainmark run``: plan, launch, measure, record, print."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.output import say, say_json, say_remark
from trainmark.cli.running import from_here, print_records, verdict_stands
from trainmark.errors import EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from trainmark.launch.series import CheckedEntry
    from trainmark.launch.site import Site
    from trainmark.plan.plan import Plan
    from trainmark.plan.plan_file import PlanFile

NAME = "run"
EXAMPLES = """\
  trainmark run distilbert_sst2                      tiny recipe, generated data
  trainmark run distilbert_sst2 --nproc 2            two ranks
  trainmark run distilbert_sst2 --repeat 5           five launches, median and interval
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard --nproc 8 bs=96
  trainmark run distilbert_sst2 --dry-run            print the plan, start nothing
  trainmark run plans/demo.yaml                      several runs; again: what is left
  trainmark run gpt_megatron --launcher slurm --nnodes 2 --nproc 8 --site site.yaml
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
        str | None,
        typer.Option(help="Name or torch type of `list devices`; default: the first here."),
    ] = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Ranks on each machine.")] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="Machines.")] = None,
    launcher: Annotated[
        str | None, typer.Option(help="One of `list launchers`; default: the site's, or local.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(help="File with a site's settings; see docs/launchers.md.")
    ] = None,
    hosts: Annotated[Path | None, typer.Option(help="File with a host a line, for ssh.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit and return; `trainmark attach RUN` goes on.")
    ] = False,
    repeat: Annotated[int | None, typer.Option(min=1, help="Launches, one after another.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a launch is stopped.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order, weights, dropout.")] = None,
    sample_every: Annotated[
        float | None, typer.Option(help="Seconds between telemetry samples; default 1, 0: none.")
    ] = None,
    peak_tflops: Annotated[
        float | None,
        typer.Option(help="Dense TFLOP/s of a device, for MFU; default: as published."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: ./runs/…")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print plan and command; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a case, measure it, and leave a record whatever happens."""
    from trainmark import api
    from trainmark.plan.overrides import parse_assignments
    from trainmark.plan.plan_file import is_plan_file

    if is_plan_file(case):
        refused = {
            "KEY=VALUE": overrides, "--recipe": recipe, "--nproc": nproc, "--repeat": repeat,
            "--peak-tflops": peak_tflops, "--nnodes": nnodes, "--detach": detach,
        }  # fmt: skip
        file, entries = api.planned_entries(
            Path(case), refused=refused, said=say_remark, engines=not dry_run, data=data,
            device=device, out=out, timeout_s=timeout, seed=seed, sample_every_s=sample_every,
            launcher=launcher, site=site, hosts=hosts,
        )  # fmt: skip
        _run_plan_file(file, entries, dry_run=dry_run, as_json=as_json, quiet=quiet)
        return
    plan, settings = api.planned(
        case, overrides=parse_assignments(overrides or []), said=say_remark, launcher=launcher,
        site=site, hosts=hosts, recipe_name=recipe, data_dir=data, device_name=device,
        nnodes=nnodes, nproc=nproc, repeat_count=repeat, timeout_s=timeout, seed=seed,
        sample_every_s=sample_every, peak_tflops=peak_tflops, run_dir=out,
    )  # fmt: skip
    if dry_run:
        _print_dry_run(plan, settings, as_json=as_json)
    elif detach:
        _submit(plan, settings)
    else:
        _run_once(plan, settings, as_json=as_json, quiet=quiet)


def _print_dry_run(plan: Plan, site: Site, *, as_json: bool) -> None:
    """Print the plan, or the text that submits it; start nothing."""
    from trainmark.launch import launchers
    from trainmark.launch.local import command as rank_command
    from trainmark.launch.repeats import launches
    from trainmark.launch.submission import whole

    if plan.node_processes == 0:
        argv = rank_command(plan, python="python")
        if as_json:
            say_json({"plan": plan.model_dump(mode="json"), "command": argv}, indent=2)
            return
        say(plan.model_dump_json(indent=2))
        same = [word for word in sys.argv[1:] if word != "--dry-run"]
        say(f"to run it: {shlex.join(['trainmark', *same])}", err=True)
        say(f"each of {plan.nproc} rank(s) would run: {' '.join(argv)}", err=True)
        return
    if plan.repeat_count > 1:
        say(f"the first of {plan.repeat_count} launches; a run starts one after another", err=True)
        plan = launches(plan)[0]
    launcher = launchers.load(plan.launcher)
    command = whole(launcher.command(plan, site), plan, site)
    if as_json:
        told = {"argv": command.argv, "env": command.env, "files": command.files}
        say_json({"plan": plan.model_dump(mode="json"), "command": told}, indent=2)
        return
    say(command.script(Path(plan.run_dir)))
    say(f"then, to wait for it: trainmark attach {shlex.quote(plan.run_dir)}", err=True)


def _submit(plan: Plan, site: Site) -> None:
    """Submit ``plan`` and return at once."""
    from trainmark.launch import launchers
    from trainmark.launch.submission import start

    can = plan.node_processes > 0 and launchers.load(plan.launcher).detaches
    if not can or plan.repeat_count > 1:
        raise UsageError(
            "several launches cannot be detached"
            if can
            else f"{plan.launcher} does not go on alone",
            where="--detach",
            rule="an engine must keep the job, and a job is one launch",
            remedy="leave out --detach, or choose slurm, kubernetes or ray and --repeat 1",
        )
    job = start(plan, site)
    folder = from_here(Path(plan.run_dir))
    say(f"submitted {job.id}; to wait for it: trainmark attach {shlex.quote(str(folder))}")


def _run_once(plan: Plan, site: Site, *, as_json: bool, quiet: bool) -> None:
    """Launch ``plan`` as often as it says, print its records, and end with their exit code."""
    from trainmark.api import launched
    from trainmark.launch.stopping import stop_signals_noted

    with stop_signals_noted() as request:
        records = launched(plan, site, request, quiet=quiet, said=say_remark)
    stopped = len(records) < plan.repeat_count
    with verdict_stands():
        found = list(zip(records.places, records, strict=True))
        print_records(found, as_json=as_json, repeated=plan.repeat_count > 1)
        if stopped:
            done = f"after {len(records)} of {plan.repeat_count} launches"
            say(f"trainmark: stopped by {request.signal_name} {done}", err=True)
    if stopped or not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)


def _run_plan_file(
    file: PlanFile, entries: list[CheckedEntry], *, dry_run: bool, as_json: bool, quiet: bool
) -> None:
    """Run what is left of a plan file, print all of it, and end with its exit code."""
    from trainmark.api import run_entries
    from trainmark.launch import series
    from trainmark.launch.earlier import estimate
    from trainmark.pages.series import series_json, series_table
    from trainmark.record.entries import exit_code

    if dry_run:
        outcomes = [entry.outcome() for entry in entries]
        left, seconds = series.expected(entries, file.order)
    else:
        outcomes, _ = run_entries(entries, file.order, quiet=quiet, said=say_remark)
    outcomes = [
        replace(outcome, run_dir=outcome.run_dir and from_here(outcome.run_dir))
        for outcome in outcomes
    ]
    code = exit_code(outcomes)
    with verdict_stands():
        if as_json:
            document = series_json(outcomes, name=file.name, exit_code=code)
            if dry_run:
                plans = [plan.model_dump(mode="json") for _, plan in left]
                document |= {"estimate": asdict(estimate(left, seconds)), "plans": plans}
            say_json(document)
        else:
            typer.echo(series_table(outcomes))
            if dry_run:
                say(f"estimated time: {estimate(left, seconds)}")
    if code:
        raise typer.Exit(code)
