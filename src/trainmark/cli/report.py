"""``trainmark report``: pages and tables out of records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmark.cli.output import say, say_refuted, write_text, writing
from trainmark.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison.sides import Result
    from trainmark.record.record import Record

NAME = "report"
_PICTURES = ("png", "svg")
EXAMPLES = """\
  trainmark report                                      the newest run, Markdown
  trainmark report runs/RUN --lang zh
  trainmark report runs/A runs/B -o report.html         one file in both languages, with charts
  trainmark report runs/A -o report.html --against runs/B --against reference:glm_superglue
  trainmark report runs/A --format png -o charts        each chart as a picture; or svg
  trainmark report runs/* --format csv -o results.csv
  trainmark report runs/RUN --format index              one JSON line for speed, one for memory
  trainmark report runs/PLAN --scaling -o scaling.html  1x1 -> 1xN -> MxN of the same work
"""


def command(
    runs: Annotated[list[str] | None, typer.Argument(help="Run directories or records.")] = None,
    form: Annotated[
        Literal["md", "html", "json", "csv", "index", "png", "svg"] | None,
        typer.Option("--format", help="Form of the output; default: by -o's ending, else md."),
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
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not hold records against their evidence.")
    ] = False,
) -> None:
    """Print the result page of runs, or their figures as data."""
    from trainmark.library.selection.words import select
    from trainmark.pages.exports.forms import TEXTS
    from trainmark.pages.files import write_charts
    from trainmark.pages.page import documents, html_page, markdown_page
    from trainmark.pages.scaling import scaling_text
    from trainmark.record.trust import with_findings
    from trainmark.spec import message

    ending = output.suffix[1:] if output else ""
    wanted = form or (ending if ending in ("html", "json", "csv") else "md")
    found = select(runs or [], verify=not no_verify, rows=False)
    records = found.records
    if no_verify and wanted not in TEXTS:  # data stay as they are recorded
        records = [with_findings(one, [message("evidence_unchecked")]) for one in records]
    drawn = wanted in ("html", *_PICTURES) and not scaling
    if against and not drawn:
        raise UsageError("goes with a report as HTML", where="--against", remedy="-o report.html")
    more: Any = {"against": _beside(records, against)} if drawn else {}
    if wanted in _PICTURES:
        if output is None or str(output) == "-" or scaling:
            raise UsageError("writes charts into a folder", where="--format", remedy="-o FOLDER")
        with writing(output):
            write_charts(documents(records, **more), output, wanted, lang)
        say(str(output), err=True)
        return say_refuted(found.refuted)
    if scaling:
        text = scaling_text(records, wanted, lang)
    elif drawn:
        text = html_page(records, lang, **more)
    else:
        text = markdown_page(records, lang) if wanted == "md" else TEXTS[wanted](records)
    if output is None or str(output) == "-":
        say(text, newline=False)
    else:
        write_text(output, text)
        say(str(output), err=True)
    return say_refuted(found.refuted)


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
