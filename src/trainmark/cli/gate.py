"""``trainmark gate``: check runs against a baseline or against earlier runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import (
    choose_exit_code,
    print_json,
    select_records,
    write_text,
)
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.gate import Judgement
    from trainmark.results.selection import Selection

EXAMPLES = """\
  trainmark gate runs/RUN --baseline runs/FIRST            check the run against good runs
  trainmark gate runs/RUN --history runs                   check the run against earlier runs
  trainmark gate runs/RUN --baseline first.trainmark.zip --junit gate.xml
"""


def gate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Runs to check.")],
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Runs or bundles to check against.")
    ] = None,
    history: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Earlier runs to check against.")
    ] = None,
    figure: Annotated[list[str] | None, typer.Option(help="Name of the figure to check.")] = None,
    worse_by: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help=(
                "How much worse a figure may be (0.05 = 5%); default: derived from the "
                "baseline's spread."
            ),
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdicts as JUnit XML.")
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Also accept unverified records.")
    ] = False,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Check runs against baseline runs, or against earlier runs of the same work.

    Exit codes: 0 = passed; 1 = failed, or some records cannot be read; 2 = the work differs, or no
    record of the runs, the baseline or the history can be read; 3 = too much noise or too little
    data to tell.
    """
    from trainmark.judge.comparison.gate import combine_exit_codes
    from trainmark.pages.judgements import to_junit

    if not (baseline or history):
        raise UsageError(
            "no baseline or earlier runs are given", fix="add --baseline RUNS or --history RUNS"
        )
    if junit is not None:
        _require_folder(junit)
    checked = select_records(runs)
    baseline_runs = select_records(baseline) if baseline else None
    earlier_runs = select_records(history) if history else None
    selections = [x for x in (checked, baseline_runs, earlier_runs) if x is not None]
    if not unverified:
        _refuse_unverified(selections)
    judgements = _judge_runs(
        checked, baseline_runs, earlier_runs, figures=figure or (), worse_by=worse_by
    )
    code = choose_exit_code(combine_exit_codes(judgements), selections)
    if junit is not None:
        write_text(junit, to_junit(judgements, lang))
    _print_judgements(judgements, code, lang, as_json=as_json)
    raise typer.Exit(code)


def _require_folder(junit: Path) -> None:
    """Raise ``UsageError`` if the folder of a file is missing, before any record is read."""
    if not junit.absolute().parent.is_dir():
        raise UsageError(
            "no such folder",
            where=f"--junit {junit}",
            fix="create the folder, or choose another folder",
        )


def _judge_runs(
    checked: Selection,
    baseline: Selection | None,
    history: Selection | None,
    *,
    figures: Sequence[str],
    worse_by: float | None,
) -> list[Judgement]:
    """Return the judgements on runs, and one for each record that cannot be read.

    Args:
        checked: the runs to check.
        baseline: runs to check against, which must have passed; None: there is no such check.
        history: earlier runs to check against; None: there is no such check.
        figures: names of the figures to check; empty: the default ones.
        worse_by: how much worse than the baseline a figure may be (0.05 = 5%); None: derived from
            the spread of the baseline.
    """
    from trainmark.judge.comparison.baseline_gate import judge_against_baseline
    from trainmark.judge.comparison.gate import fail_unreadable
    from trainmark.judge.comparison.history_gate import judge_against_history
    from trainmark.record.work import reject_duplicates

    # A launch that is given twice would count as two measurements.
    reject_duplicates((record.run_id for record in checked.records), checked.places)
    judgements: list[Judgement] = []
    if baseline is not None:
        judgements += judge_against_baseline(
            checked.records, baseline.records, figures, worse_by=worse_by
        )
    if history is not None:
        judgements += judge_against_history(checked.records, history.records, figures)
    judgements += [fail_unreadable(fault) for fault in checked.skipped]
    return judgements


def _print_judgements(
    judgements: Sequence[Judgement], exit_code: int, lang: str, *, as_json: bool
) -> None:
    """Print the judgements as a table, or with the exit code as JSON."""
    from trainmark.pages.judgements import build_gate_rows, to_json_documents
    from trainmark.pages.terminal import show

    if as_json:
        documents = to_json_documents(judgements, lang)
        print_json({"schema_version": 1, "exit_code": exit_code, "judgements": documents})
    else:
        typer.echo(show([build_gate_rows(judgements, lang)], lang=lang))


def _refuse_unverified(selections: Sequence[Selection]) -> None:
    """Raise ``UsageError`` if a record could not be checked against its raw events.

    A record that its raw events contradict is not refused here: it fails the gate.
    """
    for selection in selections:
        for record in selection.records:
            if record.verification == "unverified":
                raise UsageError(
                    "the record is not verified",
                    where=record.run_id,
                    rule="by default, only records that were verified against their raw events are "
                    "checked",
                    fix="add --unverified to check the record anyway",
                )
