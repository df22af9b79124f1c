"""``trainmark run``: plan, launch, measure, record, print."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Assignments, Json, Lang, Quiet, add_model_options, complete_with
from trainmark.cli.output import (
    print_json,
    print_lines,
    print_remark,
    print_text,
    shorten_path,
    tolerate_lost_output,
)
from trainmark.errors import EXIT_FAILED, UsageError
from trainmark.plan.request import RunRequest
from trainmark.plan.witness import WITNESSED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.api import Records
    from trainmark.export.followers.targets import FollowTarget
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.series import SeriesEntry
    from trainmark.plan.plan import Plan

EXAMPLES = """\
  trainmark run distilbert_sst2                      tiny recipe, generated data
  trainmark run distilbert_sst2 --nproc 2            two ranks
  trainmark run distilbert_sst2 --repeat 5           five launches, geometric mean and interval
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard --nproc 8 bs=96
  trainmark run distilbert_sst2 --dry-run            print what would run; start nothing
  trainmark run plans/demo.yaml                      run a plan; run it again to finish the rest
  trainmark run gpt_megatron --launcher slurm --nnodes 2 --nproc 8 --cluster cluster.yaml
  trainmark run --attach runs/RUN                    wait for a submitted run
  trainmark run --witness work.toml -- torchrun --nproc-per-node 2 train.py   your own program
  trainmark run gpt_megatron --follow tensorboard --follow mlflow=sqlite:///mlflow.db
"""


@add_model_options(RunRequest)
def run(
    case: Annotated[
        str,
        typer.Argument(
            metavar="[CASE]",
            help="Case, alias, case key or plan file.",
            autocompletion=complete_with("complete_run"),
        ),
    ] = "",
    overrides: Assignments = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit the job and return; --attach waits for it.")
    ] = False,
    attach: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Wait for the submitted run in this folder."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="With --attach: cancel the job.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run; start nothing.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """Run a case or a plan file, measure it, and write a record, even if it fails.

    Exit codes: 0: passed; 1: the run failed; 2: nothing was started.
    """
    from trainmark import api
    from trainmark.plan.plan_file import is_plan_file
    from trainmark.plan.recipes import parse_assignments

    if (attach is not None) == bool(case):
        raise UsageError(
            "run needs a case, a plan file, --witness FILE -- PROGRAM, or --attach RUN",
            where="CASE",
        )
    show_remark = partial(print_remark, lang=lang)
    followers = api.select_followers(fields.get("follow"))
    if attach is not None:
        records = api.attach_run(
            attach, cancel=cancel, quiet=quiet, follow=followers, show_remark=show_remark
        )
        _print_records(records, lang, as_json=as_json, quiet=quiet)
        return
    if "witness" in fields:
        fields |= {"case": WITNESSED, "command": (case, *(overrides or []))}
    else:
        fields |= {"case": case, "overrides": parse_assignments(overrides or []) or None}
    request = RunRequest.build(**fields)
    if is_plan_file(request.case):
        if detach:
            raise UsageError("--detach is not possible with a plan file", where=case)
        _run_plan_file(request, show_remark, dry_run=dry_run, as_json=as_json, quiet=quiet)
        return
    plan, cluster = api.plan_run(request, show_remark=print_remark, dry_run=dry_run)
    if dry_run:
        from trainmark.cli.dry_run import print_dry_run

        print_dry_run(plan, cluster, as_json=as_json)
    elif detach:
        if followers:
            raise UsageError(
                "--follow is not possible with --detach",
                where="--follow",
                fix="follow the job with `trainmark follow RUN --to BACKEND`",
            )
        number = api.submit_run(plan, cluster)
        folder = str(shorten_path(Path(plan.run_dir)))
        if as_json:
            print_json({"job": number, "run_dir": folder})
        else:
            print_text(
                f"submitted {number}; to wait for the job: trainmark run --attach "
                f"{shlex.quote(folder)}"
            )
    else:
        _run_once(plan, cluster, followers, lang, as_json=as_json, quiet=quiet)


def _run_once(
    plan: Plan,
    cluster: Cluster,
    followers: Sequence[FollowTarget],
    lang: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Launch ``plan`` as often as it says, print its records, and end with their exit code."""
    from trainmark.api import launch_run
    from trainmark.launch.processes import note_stop_signals

    with note_stop_signals() as stop:
        records = launch_run(
            plan,
            cluster,
            stop,
            quiet=quiet,
            show_remark=partial(print_remark, lang=lang),
            follow=followers,
        )
    was_stopped = stop.signal_name is not None and len(records) < plan.repeat_count
    if was_stopped:
        done = f"after {len(records)} of {plan.repeat_count} launches"
        print_remark(f"stopped by {stop.signal_name} {done}")
    repeated = plan.repeat_count > 1
    _print_records(records, lang, as_json=as_json, quiet=quiet, repeated=repeated)
    if was_stopped:
        raise typer.Exit(EXIT_FAILED)


def _print_records(
    records: Records, lang: str, *, as_json: bool, quiet: bool, repeated: bool = False
) -> None:
    """Print the records of a run, as JSON or as a summary; end with 1 if a launch failed."""
    with tolerate_lost_output():
        _print_result(records, lang, as_json=as_json, quiet=quiet, repeated=repeated)
    if not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)


def _print_result(
    records: Records, lang: str, *, as_json: bool, quiet: bool, repeated: bool
) -> None:
    from trainmark.pages.next_steps import suggest_next_steps
    from trainmark.pages.page import find_default_comparisons
    from trainmark.pages.summary import list_first_lines
    from trainmark.pages.terminal import show

    documents = [record.model_dump(mode="json") for record in records] if as_json else []
    if as_json and repeated:
        print_json(documents)
    elif as_json and records:
        print_json(documents[0])
    elif records:
        folder = shorten_path(records.places[0])
        whole = folder.parent if repeated else folder
        print_lines(list_first_lines(records, find_default_comparisons(records, whole), lang))
        print_text(f"record: {folder.parent / 'r*' if repeated else folder}/record.json")
        page = whole / "page.html"
        if page.exists():
            print_text(f"page: {page}")
        steps = [] if quiet else suggest_next_steps(records)
        if steps:
            typer.echo(f"\n{show(steps, lang)}", err=True)  # whose text is escaped


def _run_plan_file(
    request: RunRequest,
    show_remark: Callable[[object], None],
    *,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Do the missing launches of a plan file, print its state, and end with its exit code."""
    from trainmark.api import plan_entries, run_entries
    from trainmark.launch import series

    file, entries = plan_entries(request, show_remark=print_remark, dry_run=dry_run)
    if not dry_run:
        run_entries(entries, quiet=quiet, show_remark=show_remark)
    for entry in entries:
        if entry.run_dir is not None:
            entry.run_dir = shorten_path(entry.run_dir)
    code = series.choose_exit_code(entries)
    if not dry_run and any(entry.contradiction for entry in entries):
        code = EXIT_FAILED
    if dry_run:
        from trainmark.cli.dry_run import print_series_dry_run

        print_series_dry_run(entries, name=file.name, exit_code=code, as_json=as_json)
    else:
        with tolerate_lost_output():
            _print_series(entries, name=file.name, exit_code=code, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _print_series(
    entries: Sequence[SeriesEntry], *, name: str, exit_code: int, as_json: bool
) -> None:
    from trainmark.pages.results import build_series_table, to_series_json

    if as_json:
        print_json(to_series_json(entries, name=name, exit_code=exit_code))
    else:
        typer.echo(build_series_table(entries))  # whose text is escaped
