"""``trainmark run``: plan, launch, measure, record, print."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.errors import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.plan import Plan
    from trainmark.results.record import Record

NAME = "run"
EXAMPLES = """\
  trainmark run distilbert_sst2                      tiny recipe, generated data
  trainmark run distilbert_sst2 --nproc 2            two ranks
  trainmark run distilbert_sst2 --repeat 5           five launches, median and interval
  trainmark run distilbert_sst2 --data data/sst2 --recipe standard --nproc 8 bs=96
  trainmark run distilbert_sst2 --dry-run            print the plan, start nothing
"""
_LINE_EVERY_S = 10.0
REPEATS_FILE = "repeats.json"


def command(
    case: Annotated[str, typer.Argument(help="A case, an alias, or a case key.")],
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
    from trainmark.datasets import default_root
    from trainmark.plan import resolve
    from trainmark.recipes import parse_assignments

    del launcher  # one value so far; the type checks it
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
    records = _launch_all(plan, quiet=quiet)
    try:
        _print_results(plan, records, as_json=as_json)
    except OSError as error:
        # The verdict is the run's, not the reader's: records and pages are written.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
        with suppress(OSError):
            print(f"trainmark: cannot print the table: {error.strerror}", file=sys.stderr)
    if not all(record.passed for record in records):
        raise typer.Exit(EXIT_FAILED)


def _print_dry_run(plan: Plan, *, as_json: bool) -> None:
    from trainmark.launch.local import command as launch_command

    argv = launch_command(plan, python="python", agent_log_dir="LOG_DIR")
    if as_json:
        document = {"plan": plan.model_dump(mode="json"), "command": argv}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    typer.echo(plan.model_dump_json(indent=2))
    typer.echo(" ".join(argv), err=True)


def _launch_all(plan: Plan, *, quiet: bool) -> list[Record]:
    """Launch once, or as often as the plan says; a failed launch does not stop the others."""
    from trainmark.launch.local import launch
    from trainmark.launch.progress import Progress
    from trainmark.launch.run_dir import refuse_used
    from trainmark.plan import of_repeat

    count = plan.repeat_count
    plans = [plan] if count == 1 else [of_repeat(plan, index + 1) for index in range(count)]
    if count > 1:
        refuse_used(Path(plan.run_dir))
    records = []
    for single in plans:
        label = single.case if count == 1 else f"{single.case} {single.repeat_index}/{count}"
        show = (
            (lambda: None)
            if quiet
            else _progress_line(label, Progress.of(single, Path(single.run_dir)).poll)
        )
        record = launch(single, on_poll=show)
        if not quiet:
            _end_line(f"{label}: {record.status}")
        if record.status == "interrupted":
            # Once is enough: further Ctrl-C must not take the pages away.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        records.append(record)
        write_pages([record], Path(single.run_dir))
        if record.status == "interrupted":
            break
    if count > 1:
        _write_repeats(records, Path(plan.run_dir))
    return records


def _progress_line(label: str, poll: Callable[[], str]) -> Callable[[], None]:
    """Return what shows progress: one moving line on a terminal, else a line now and then."""
    terminal = sys.stderr.isatty()
    shown, shown_at = "", 0.0

    def show() -> None:
        nonlocal shown, shown_at
        text = f"{label}: {poll()}"
        now = time.monotonic()
        if text == shown or (not terminal and now - shown_at < _LINE_EVERY_S):
            return
        shown, shown_at = text, now
        # Whoever read our progress may have gone; the run has not.
        with suppress(OSError):
            if terminal:
                width = shutil.get_terminal_size().columns - 1
                sys.stderr.write(f"\r{text[:width]:<{width}}")
            else:
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    return show


def _end_line(text: str) -> None:
    with suppress(OSError):
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{text[:width]:<{width}}\n")
        else:
            sys.stderr.write(text + "\n")


def _write_repeats(records: list[Record], folder: Path) -> None:
    """Write what the launches say together: pages, and the statistics as JSON."""
    from trainmark.report.export import repeats_json

    write_pages(records, folder)
    (folder / REPEATS_FILE).write_text(repeats_json(records), encoding="utf-8")


def write_pages(records: list[Record], folder: Path) -> None:
    """Write the result pages of one run, or of several together."""
    from trainmark.report.page import LANGUAGES, html_page, markdown_page

    for lang in LANGUAGES:
        (folder / f"page.{lang}.md").write_text(markdown_page(records, lang), encoding="utf-8")
        (folder / f"page.{lang}.html").write_text(html_page(records, lang), encoding="utf-8")


def _from_here(path: Path) -> Path:
    """Return ``path`` as it is called from the folder we are in, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _print_results(plan: Plan, records: list[Record], *, as_json: bool) -> None:
    from trainmark.report.terminal import repeats_table, run_table

    if as_json:
        documents = [record.model_dump(mode="json") for record in records]
        single = documents[0] if plan.repeat_count == 1 else documents
        typer.echo(json.dumps(single, ensure_ascii=False))
        return
    for record in records:
        run_dir = _from_here(Path(plan.run_dir))
        if plan.repeat_count > 1:
            run_dir /= f"r{record.plan.repeat_index}"
        typer.echo(run_table(record, run_dir=run_dir))
    if plan.repeat_count > 1:
        typer.echo(repeats_table(records))
