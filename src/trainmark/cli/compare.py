"""``trainmark compare``: compare two runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.options import Json, Lang
from trainmark.cli.output import (
    choose_exit_code,
    print_json,
    select_records,
)

EXAMPLES = """\
  trainmark compare runs/A runs/B                   is B slower than A?
  trainmark compare "runs/A1 runs/A2" runs/B        compare one run with several runs
  trainmark compare runs/A runs/B --figure step_time_p50 --threshold 0.05
  trainmark compare runs/PLAN/a runs/PLAN/b --allow bs   compare two runs of a plan
"""


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Baseline: runs, folders or bundles; put several in one pair of quotes.",
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="Runs, folders or bundles to compare with A; put several in one pair of quotes.",
        ),
    ],
    figure: Annotated[
        list[str] | None, typer.Option(help="Figure to compare; default: all throughput figures.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Ignore changes smaller than this fraction (0.03 = 3%).")
    ] = 0.03,
    allow: Annotated[
        list[str] | None, typer.Option(help="Setting in which A and B may differ, for example bs.")
    ] = None,
    as_json: Json = False,
    lang: Lang = "en",
) -> None:
    """Compare run B with run A: is B slower or worse, and by how much?

    Exit codes: 0 = B is not worse; 1 = B is slower or worse, or some records cannot be read; 2 =
    the work differs, or no record of A or of B can be read; 3 = too much noise or too little data
    to tell.
    """
    from trainmark.judge.comparison import compare as compare_records
    from trainmark.pages.judgements import build_comparison as build_comparison_page
    from trainmark.pages.terminal import show

    side_a = select_records(_split_words(a))
    side_b = select_records(_split_words(b))
    comparison = compare_records(
        side_a.records, side_b.records, figures=figure, threshold=threshold, allow=allow or ()
    )
    code = choose_exit_code(comparison.exit_code, [side_a, side_b])
    if as_json:
        print_json(comparison.as_dict() | {"exit_code": code})
    else:
        typer.echo(show(build_comparison_page(comparison), lang=lang))
    raise typer.Exit(code)


def _split_words(side: str) -> list[str]:
    """Return the words that name one side; a path that contains blanks is one word."""
    return [side] if Path(side).exists() else shlex.split(side)
