"""``trainmark gate``: whether runs are as good as a baseline, or as they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from trainmark.cli.output import say, say_json, say_remark, write_text, writing
from trainmark.errors import UsageError

EXAMPLES = """\
  trainmark gate runs/RUN --write baseline.yaml            what is expected from now on
  trainmark gate runs/RUN --baseline baseline.yaml
  trainmark gate runs/RUN --history runs                   against the same work in earlier runs
  trainmark gate runs/RUN --baseline baseline.yaml --junit gate.xml --github
"""


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to judge.")],
    baseline: Annotated[Path | None, typer.Option(help="File of `--write`.")] = None,
    history: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Earlier runs.")] = None,
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to judge by history, or to write.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the runs' figures, with tolerances; in a file that is there, those of "
            "the same work are replaced. -: stdout.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    github: Annotated[bool, typer.Option("--github", help="Annotate a GitHub workflow.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the remarks.")] = "en",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print what did not pass.")] = False,
) -> None:
    """Judge runs by a baseline, or by earlier runs of the same work.

    Ends with 0: passed, 1: failed, 2: other work or outdated, 3: too noisy to tell.
    """
    from trainmark.judge.comparison import gate
    from trainmark.judge.comparison.baseline import read
    from trainmark.library.selection.words import select
    from trainmark.pages import judgements as report
    from trainmark.pages.terminal import show
    from trainmark.record.work import each_once

    if write is not None:
        if baseline or history:
            raise UsageError("--write makes the baseline", remedy="leave the other out")
        _write(runs, write, figure or [])
        return
    if baseline is None and not history:
        remedy = "give --baseline FILE or --history WORD; --write FILE makes a baseline"
        raise UsageError("nothing to judge by", remedy=remedy)
    if figure and not history:
        rule = "a baseline names its figures itself"
        raise UsageError("goes with --history", where="--figure", rule=rule, remedy="leave it out")
    records = select(runs, rows=False).records
    each_once(record.run_id for record in records)
    for record in records:
        if record.verification == "unverified":
            say_remark(f"{record.run_id}: unverified")
    judged = list(gate.against_baseline(records, read(baseline))) if baseline else []
    if history:
        past = select(history, rows=False).records
        judged += gate.against_history(records, past, figure or ())
    code = gate.exit_code(judged)
    if junit:
        write_text(junit, report.junit(judged, lang))
    if as_json:
        say_json(
            {"schema_version": 1, "exit_code": code, "judgements": report.documents(judged, lang)}
        )
    else:
        shown = [one for one in judged if not quiet or one.verdict != "passed"]
        typer.echo(show([report.gate_table(shown, lang)] if shown else [], lang=lang))
    for line in report.workflow_commands(judged, str(baseline or ""), lang) if github else ():
        say(line, err=as_json)
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if github else None
    if summary:
        with writing(Path(summary)), Path(summary).open("a", encoding="utf-8") as file:
            file.write(report.markdown(judged, lang))
    raise typer.Exit(code)


def _write(runs: list[str], file: Path, figures: list[str]) -> None:
    """Write the baseline that ``runs`` make."""
    from trainmark.judge.comparison.baseline import dumps, read, take
    from trainmark.library.selection.words import select
    from trainmark.record.trust import MOST_CV

    new = take(select(runs, rows=False).records, figures, read(file) if file.is_file() else None)
    for entry in new.entries:
        wide = [name for name, found in entry.figures.items() if found.worse_by > MOST_CV]
        if wide:
            advice = "measure on an idle machine, or set worse_by"
            say_remark(f"{entry.name}: wide tolerance of {', '.join(wide)}: {advice}")
    if str(file) == "-":
        say(dumps(new), newline=False)
    else:
        write_text(file, dumps(new))
        say(str(file), err=True)
