"""``trainmark report``: the result of runs, as a table or as a page."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmark.cli.output import print_tables, say, say_refuted, write_text, writing
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.library.selection.words import Selection
    from trainmark.record.record import Record

EXAMPLES = """\
  trainmark report                                      the newest run, as a table
  trainmark report runs/demo                            every run of a plan
  trainmark report runs/RUN --format md --lang zh
  trainmark report runs/A runs/B -o report.html         one file in both languages, with charts
  trainmark report runs/A -o report.html --against runs/B --against reference:glm_superglue
  trainmark report runs/A --format png -o charts        each chart as a picture; or svg
  trainmark report runs/PLAN --scaling -o scaling.html  1x1 -> 1xN -> MxN of the same work
"""


def command(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Runs, records, folders of runs, bundles.")
    ] = None,
    form: Annotated[
        Literal["terminal", "md", "html", "png", "svg"] | None,
        typer.Option("--format", help="Default: by -o's ending, else terminal."),
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of a page.")] = "en",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File; of pictures, a folder; default or -: stdout."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Of HTML: runs or published rows to compare with; default: the case's."),
    ] = None,
    scaling: Annotated[bool, typer.Option("--scaling", help="Compare world sizes.")] = False,
) -> None:
    """Print or draw the result of runs, verified against their events.

    A run whose launcher was killed gets its record first. Ends with 1 where a record does not
    agree with its events.
    """
    from trainmark.library.selection.words import select
    from trainmark.pages.files import write_charts
    from trainmark.pages.page import documents, html_page, markdown_page
    from trainmark.pages.scaling import scaling_text

    ending = output.suffix[1:] if output else ""
    page = "md" if output or scaling else "terminal"
    wanted = form or ("html" if ending == "html" else page)
    output = None if str(output) == "-" else output
    found = select(runs or [], rows=False)
    drawn = wanted in ("html", "png", "svg") and not scaling
    if against and not drawn:
        raise UsageError("goes with a report as HTML", where="--against", remedy="-o report.html")
    beside = _beside(found.records, against) if drawn else []
    more: Any = {"against": beside}
    text = ""
    if scaling:
        text = scaling_text(found.records, wanted, lang)
    elif wanted == "terminal":
        _print_terminal(found, runs or [])
    elif wanted == "md":
        text = markdown_page(found.records, lang)
    elif wanted == "html":
        text = html_page(found.records, lang, **more)
    elif output is None:
        raise UsageError("writes charts into a folder", where="--format", remedy="-o FOLDER")
    else:
        with writing(output):
            write_charts(documents(found.records, **more), output, wanted, lang)
    if text and output:
        write_text(output, text)
    elif text:
        say(text, newline=False)
    if output:
        say(str(output), err=True)
    say_refuted(found.refuted)


def _print_terminal(found: Selection, words: Sequence[str]) -> None:
    """Print the table of each launch, and the summary of each series that is shown whole."""
    launches = zip(map(Path, found.places), found.records, strict=True)
    for _, of_run in groupby(
        launches, lambda one: one[0].parent if one[1].plan.repeat_count > 1 else one[0]
    ):
        series = list(of_run)
        single = str(series[0][0]) in words  # one launch of a series has no summary
        print_tables(series, repeated=not single and series[0][1].plan.repeat_count > 1)


def _beside(records: Sequence[Record], against: list[str] | None) -> list[Result]:
    """Return what words name, or the published rows of the records' cases."""
    from trainmark.library.importers.references import published
    from trainmark.library.selection.words import select

    if against is None:
        return [*published(record.plan.case for record in records)]
    results: list[Result] = []
    for word in against:
        found = select([word])
        if not found.records and not found.rows:
            remedy = "name runs, pages of results or a case that has published rows"
            raise UsageError(f"{word} holds no result", where="--against", remedy=remedy)
        results += [*found.records, *found.rows]
    return results
