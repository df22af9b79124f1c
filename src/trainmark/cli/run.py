"""``trainmark run``: plan, launch, measure, record, print."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmark.cli.options import Assignments, Json, Lang, Quiet, add_model_options, complete_with
from trainmark.cli.output import (
    format_path,
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
    from collections.abc import Sequence

    from trainmark.api import Records
    from trainmark.export.followers.targets import FollowTarget
    from trainmark.launch.cluster import Cluster
    from trainmark.launch.series import SeriesEntry
    from trainmark.plan.plan import Plan

EXAMPLES = """\
  trainmark run distilbert_sst2                      train the tiny recipe on generated data
  trainmark run distilbert_sst2 --nproc 2            use two ranks
  trainmark run distilbert_sst2 --repeat 5           launch five times: mean and confidence interval
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard --nproc 8 bs=96
  trainmark run distilbert_sst2 --dry-run            print what would run, and exit
  trainmark run plans/demo.yaml                      run the unfinished entries of a plan file
  trainmark run gpt_megatron --launcher slurm --nnodes 2 --nproc 8 --cluster cluster.yaml
  trainmark run --attach runs/RUN                    wait for a submitted run
  trainmark run --witness work.toml -- torchrun --nproc-per-node 2 train.py   measure your program
  trainmark run gpt_megatron --follow tensorboard --follow mlflow=sqlite:///mlflow.db
"""


@add_model_options(RunRequest)
def run(
    case: Annotated[
        str,
        typer.Argument(
            metavar="[CASE]",
            help="Name, alias or key of a case, or a plan file.",
            autocompletion=complete_with("complete_run"),
        ),
    ] = "",
    overrides: Assignments = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Submit the job and exit; wait for the job later with --attach."
        ),
    ] = False,
    attach: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Wait for the submitted run in this folder."),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="With --attach: cancel the job.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and exit.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
    quiet: Quiet = False,
    **fields: Any,  # the options of `add_model_options` that the user gave
) -> None:
    """Run and measure a case or a plan file, and write a record even if the run fails.

    Exit codes: 0 = passed; 1 = the run failed; 2 = nothing was started.
    """
    from trainmark.api.following import select_followers
    from trainmark.plan.plan_file import is_plan_file

    if attach is not None:
        # `cancel` and the options of the output belong to --attach, too. Words in `overrides` are
        # refused with the case: the first word of the command is always the case.
        has_run_options = detach or dry_run or bool(fields.keys() - {"follow"})
        _check_attach(case, has_run_options=has_run_options)
        followers = select_followers(fields.get("follow"))
        _attach(attach, followers, lang, cancel=cancel, as_json=as_json, quiet=quiet)
        return
    _check_new_run(case, cancel=cancel, has_witness="witness" in fields)
    followers = select_followers(fields.get("follow"))
    request = _build_request(case, overrides or [], fields)
    if is_plan_file(request.case):
        if detach:
            raise UsageError("--detach cannot be used with a plan file", where=case)
        # Without `followers`: each run of the file selects its own, from `request.follow` or from
        # the file. They were selected above only to check that their programs are installed.
        _run_plan_file(request, lang, dry_run=dry_run, as_json=as_json, quiet=quiet)
        return
    _run_case(
        request, followers, lang, dry_run=dry_run, detach=detach, as_json=as_json, quiet=quiet
    )


def _check_new_run(case: str, *, cancel: bool, has_witness: bool) -> None:
    """Refuse a command without --attach that names nothing to run, or that is to cancel a job.

    Args:
        has_witness: whether --witness is given, which needs a program instead of a case.
    """
    if cancel:
        raise UsageError(
            "--cancel cannot be used without --attach",
            where="--cancel",
            rule="--cancel cancels the job of a submitted run",
            fix="add --attach RUN",
        )
    if not case and has_witness:
        raise UsageError(
            "no program to measure",
            where="--witness",
            rule="the command that starts the program must follow --",
            fix="add -- PROGRAM, for example `-- python train.py`",
        )
    if not case:
        raise UsageError(
            "`trainmark run` needs a case, a plan file, --witness FILE -- PROGRAM, or --attach RUN",
            where="CASE",
        )


def _check_attach(case: str, *, has_run_options: bool) -> None:
    """Refuse what only a new run can take, in a command with --attach.

    Settings of the recipe cannot occur without a case, because the first word is taken for the
    case. Options that --attach takes too, such as --quiet, need no check.

    Args:
        has_run_options: whether the command has options for a new run.
    """
    if case:
        raise UsageError(
            f"{case} and --attach cannot be used together",
            where="--attach",
            rule="--attach waits for a run that was already submitted, so it takes no case",
            fix="remove the case and its settings, or remove --attach",
        )
    if has_run_options:
        raise UsageError(
            "--attach cannot be used with options for a new run",
            where="--attach",
            rule="only --cancel, --follow, --json, --lang and --quiet can be added to --attach",
            fix="remove all other options, or remove --attach",
        )


def _build_request(case: str, words: Sequence[str], fields: dict[str, Any]) -> RunRequest:
    """Return what the user asks to run, from the words and the options of the command.

    Args:
        case: the first word: a case or a plan file. With ``--witness``, it is a user's own program,
            which the run starts and observes.
        words: after the first: recipe fields to change, or the arguments of the program.
        fields: the values of the options, by the names of fields of ``RunRequest``.

    Raises:
        UsageError: a word or an option is not valid.
    """
    from trainmark.plan.recipes import parse_assignments

    if "witness" in fields:
        return RunRequest.build(**fields, case=WITNESSED, command=(case, *words))
    return RunRequest.build(**fields, case=case, overrides=parse_assignments(words) or None)


def _attach(
    folder: Path,
    followers: Sequence[FollowTarget],
    lang: str,
    *,
    cancel: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Wait for the submitted run in a folder, or cancel it, and print its record.

    Args:
        followers: programs, such as MLflow, to which the run is handed meanwhile.
    """
    from trainmark.api.running import attach_run

    records = attach_run(
        folder,
        cancel=cancel,
        quiet=quiet,
        follow=followers,
        show_remark=partial(print_remark, lang=lang),
    )
    # A folder of a submitted job has one launch and one record. If the run was submitted with
    # several launches, each has a job and a folder of its own; the others are not printed here.
    _print_records(records, lang, as_json=as_json, quiet=quiet, has_repeats=False)


def _run_case(
    request: RunRequest,
    followers: Sequence[FollowTarget],
    lang: str,
    *,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Plan a run of a case; then print the plan, submit the run, or launch it.

    Args:
        followers: programs, such as MLflow, to which the run is handed while it runs.
    """
    from trainmark.api.running import plan_run

    # Remarks of planning are in English only, so they are printed without `lang`.
    plan, cluster = plan_run(request, show_remark=print_remark, dry_run=dry_run)
    if dry_run:
        from trainmark.cli.dry_run import print_dry_run

        print_dry_run(plan, cluster, as_json=as_json)
    elif detach:
        # Followers are started by the command that waits for the run; with --detach, this one ends
        # at once.
        if followers:
            raise UsageError(
                "--follow cannot be used with --detach",
                where="--follow",
                fix="follow the job with `trainmark follow RUN --to BACKEND`",
            )
        _submit(plan, cluster, as_json=as_json)
    else:
        _run_once(plan, cluster, followers, lang, as_json=as_json, quiet=quiet)


def _submit(plan: Plan, cluster: Cluster, *, as_json: bool) -> None:
    """Submit the job of a run, and print its id and the folder by which to wait for it."""
    from trainmark.api.running import submit_run

    job_id = submit_run(plan, cluster)
    folder = format_path(Path(plan.run_dir))
    if as_json:
        print_json({"job": job_id, "run_dir": folder})
    else:
        print_text(
            f"submitted {job_id}; to wait for the job: trainmark run --attach {shlex.quote(folder)}"
        )


def _run_once(
    plan: Plan,
    cluster: Cluster,
    followers: Sequence[FollowTarget],
    lang: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Launch ``plan`` as often as it says, print its records, and end with their exit code.

    Args:
        followers: programs, such as MLflow, to which each launch is handed while it runs.
    """
    from trainmark.api.running import launch_run
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
        progress = f"after {len(records)} of {plan.repeat_count} launches"
        print_remark(f"stopped by {stop.signal_name} {progress}")
    has_repeats = plan.repeat_count > 1
    _print_records(records, lang, as_json=as_json, quiet=quiet, has_repeats=has_repeats)
    if was_stopped:
        raise typer.Exit(EXIT_FAILED)


def _print_records(
    records: Records, lang: str, *, as_json: bool, quiet: bool, has_repeats: bool
) -> None:
    """Print the records of a run, as JSON or as a summary; end with 1 if a launch failed.

    Args:
        has_repeats: whether the plan asks for several launches; fewer may have a record.
    """
    with tolerate_lost_output():
        if as_json:
            documents = [record.model_dump(mode="json") for record in records]
            if has_repeats:
                print_json(documents)
            elif documents:
                print_json(documents[0])
        elif records:
            _print_summary(records, lang, quiet=quiet, has_repeats=has_repeats)
    if not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)


def _print_summary(records: Records, lang: str, *, quiet: bool, has_repeats: bool) -> None:
    """Print the main figures of a run, where its records and its page are, and what to do next.

    Args:
        quiet: do not print what to do next.
        has_repeats: whether the plan asks for several launches; fewer may have a record.
    """
    from trainmark.pages.next_steps import suggest_next_steps
    from trainmark.pages.summary import list_first_lines
    from trainmark.pages.terminal import show
    from trainmark.results.earlier_runs import find_default_comparisons

    first_folder = shorten_path(records.places[0])
    # The launches of a repeat are in the folders r1, r2 … of the run.
    run_folder = first_folder.parent if has_repeats else first_folder
    record_folder = run_folder / "r*" if has_repeats else run_folder
    print_lines(list_first_lines(records, find_default_comparisons(records, run_folder), lang))
    print_text(f"record: {record_folder}/record.json")
    page = run_folder / "page.html"
    if page.exists():
        print_text(f"page: {page}")
    next_steps = [] if quiet else suggest_next_steps(records)
    if next_steps:
        typer.echo(f"\n{show(next_steps, lang)}", err=True)  # its text is escaped already


def _run_plan_file(
    request: RunRequest,
    lang: str,
    *,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Do the missing launches of a plan file, print its state, and end with its exit code."""
    from trainmark.api.running import plan_entries, run_entries
    from trainmark.launch import series

    show_remark = partial(print_remark, lang=lang)
    file, entries = plan_entries(request, show_remark=show_remark, dry_run=dry_run)
    if not dry_run:
        entries = run_entries(entries, quiet=quiet, show_remark=show_remark)
    code = series.choose_exit_code(entries)
    # A finished launch whose record contradicts its events is a failure, although its entry is
    # `finished`. A dry run only prints what would start.
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
    """Print the state of each entry of the plan file ``name``, as a table or as JSON."""
    from trainmark.pages.results import build_series_table, to_series_json

    if as_json:
        print_json(to_series_json(entries, name=name, exit_code=exit_code, format_path=format_path))
    else:
        # Its text is escaped already.
        typer.echo(build_series_table(entries, format_path=format_path))
