"""``trainmark compare``: which of two is faster, and whether that can be believed."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang, Quiet, words_of
from trainmark.cli.output import say, say_faults, say_json, say_remark
from trainmark.errors import EXIT_FAILED, EnvironmentFault, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.launch.series import CheckedEntry

EXAMPLES = {
    "compare": """\
  trainmark compare runs/A runs/B                   is B slower than A?
  trainmark compare "runs/A1 runs/A2" runs/B        several words for one side
  trainmark compare runs/A runs/B --figure step_time_p50 --threshold 5%
  trainmark compare reference:distilbert_sst2 runs/B
  trainmark compare --run "toy bs=16 --nproc 2" "toy bs=32 --nproc 2" --allow bs --launches 7
""",
}


def _share(word: str) -> float:
    """Return a share that is written as 3% or 0.03."""
    try:
        return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{word!r} is no share, as 3% or 0.03") from None


def compare(
    a: Annotated[str, typer.Argument(help="Runs, folders, references …; quote several.")],
    b: Annotated[str, typer.Argument(help="The same; with --run: the words of a `run`.")],
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to compare; default: the throughputs.")
    ] = None,
    threshold: Annotated[str, typer.Option(help="What a change must exceed, as 3%.")] = "3%",
    allow: Annotated[
        list[str] | None, typer.Option(help="Key of the work in which A and B may differ.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Run both first, in turns.")] = False,
    launches: Annotated[
        int | None, typer.Option(min=1, help="With --run: launches of each; default 5.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --run: folder of the runs; again: what is left.")
    ] = None,
    as_json: Json = False,
    lang: Lang = "en",
    quiet: Quiet = False,
) -> None:
    """Tell whether B is slower or worse than A, with an interval.

    Ends with 0: it is not, 1: it is, 2: other work, 3: too noisy or too little data to tell.
    """
    from trainmark.api import run_entries
    from trainmark.judge.comparison import compare as compared
    from trainmark.judge.comparison import known_figures
    from trainmark.judge.comparison.sides import refuse_other_work
    from trainmark.pages.judgements import comparison
    from trainmark.pages.terminal import show
    from trainmark.record.work import planned_work, with_all_names

    allowed, share = allow or [], _share(threshold)
    if given := [x for x, value in (("launches", launches), ("out", out)) if value and not run]:
        raise UsageError("goes with --run", where=f"--{given[0]}", remedy="leave it out")
    if run:
        checked, order = _in_turns((a, b), launches or 5, out)
        works = with_all_names([planned_work(entry.plan) for entry in checked if entry.plan])
        refuse_other_work(works[:1], works[1:], allowed)
        pages = [entry.plan.about.page for entry in checked if entry.plan]
        known_figures(figure or (), share, pages[0])
        outcomes, stopped = run_entries(checked, order, quiet=quiet, say=say_remark)
        if stopped:
            say(f"trainmark: stopped by {stopped}; the same with --out goes on", err=True)
            raise typer.Exit(EXIT_FAILED)
        sides: list[Sequence[Result]] = [outcome.records for outcome in outcomes]
    else:
        sides = [_selected(a), _selected(b)]
    found = compared(sides[0], sides[1], figures=figure, threshold=share, allow=allowed)
    if as_json:
        say_json(found.as_dict())
    else:
        typer.echo(show(comparison(found), lang=lang))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _selected(words: str) -> Sequence[Result]:
    """Return what one side's words name; a path with blanks in it is one word."""
    from trainmark.library.selection import select
    from trainmark.record.messages import render

    found = select([words] if Path(words).exists() else shlex.split(words))
    say_faults(found.skipped)
    for unread in found.unread:
        place = f"{unread.file}:{unread.line}"
        say(f"trainmark: {place}: not read: {render(unread.reason, 'en')}", err=True)
    return [*found.records, *found.rows]


def _in_turns(
    sides: tuple[str, str], launches: int, out: Path | None
) -> tuple[list[CheckedEntry], str]:
    """Return the two runs, checked, and the order A B, B A, A B …; nothing is started."""
    from trainmark import devices
    from trainmark.cli.app import command as verb
    from trainmark.launch.series import check
    from trainmark.plan.overrides import parse_assignments
    from trainmark.plan.plan import RUNS_DIR
    from trainmark.plan.plan_file import Entry, PlanFile
    from trainmark.plan.request import RunRequest

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out or RUNS_DIR / f"{stamp}-compare"
    entries = []
    for name, words in zip("AB", sides, strict=True):
        given = words_of(verb("run"), shlex.split(words))
        fields = {key: given[key] for key in RunRequest.model_fields}
        fields |= {
            "overrides": parse_assignments(given["overrides"] or []),
            "device": given["device"] or devices.choose(None).name,
            "repeat": launches,
            "out": folder / name,
        }
        entries.append(Entry.of(name=name, where=f"--run {words!r}", **fields))
    file = PlanFile(name=folder.name, out=folder, entries=tuple(entries))
    checked = check(file)
    for entry in checked:
        if entry.plan is None:
            raise EnvironmentFault(entry.skipped or "cannot run here", where=f"--run, {entry.name}")
    return checked, file.order
