"""``trainmark show``: the table of a run that is over."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from trainmark.cli.output import say_json, say_refuted
from trainmark.cli.running import print_tables

NAME = "show"
EXAMPLES = """\
  trainmark show                    the newest run under ./runs
  trainmark show runs/RUN
  trainmark show runs/demo          every run of a plan
  trainmark show run.trainmark.zip  of a bundle
  trainmark show runs/RUN --json
"""


def command(
    run: Annotated[
        str | None, typer.Argument(help="Run directory, record.json, a plan's folder, or a bundle.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not hold records against their evidence.")
    ] = False,
) -> None:
    """Print the table of a run, or of each run of a plan."""
    from trainmark.library.selection.words import select

    found = select([run] if run else [], verify=not no_verify, rows=False)
    if as_json:
        documents = [record.model_dump(mode="json") for record in found.records]
        say_json(documents if len(documents) > 1 else documents[0])
    else:
        launches = zip(map(Path, found.places), found.records, strict=True)
        for _, of_run in groupby(
            launches, lambda one: one[0].parent if one[1].plan.repeat_count > 1 else one[0]
        ):
            series = list(of_run)
            single = series[0][0] == Path(run or "")  # one launch of a series has no summary
            print_tables(series, repeated=not single and series[0][1].plan.repeat_count > 1)
    say_refuted(found.refuted)
