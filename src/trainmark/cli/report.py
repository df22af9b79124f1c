"""``trainmark report``: show the result of runs as a table, a page or a picture."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.options import Json, Lang, Output
from trainmark.cli.output import fail_if_damaged, write_bytes, write_text
from trainmark.errors import UsageError, escape_controls

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.pages.terminal import Extent
    from trainmark.record.work import Result
    from trainmark.results.selection import Selection


EXAMPLES = """\
  trainmark report                                      the newest run, as a table
  trainmark report runs/demo                            all runs of a plan
  trainmark report runs/RUN --all                       its figures, evaluations, ranks and findings
  trainmark report runs/RUN --format md --lang zh
  trainmark report runs/A runs/B -o report.html         one file in both languages, with charts
  trainmark report runs/A -o report.html --against runs/B --against reference:glm_superglue
  trainmark report runs/PLAN -o report.html             scaling from 1x1 to 1xN and MxN
  trainmark report runs/RUN -o loss.png                 one chart; --chart step_time: another
"""

_PICTURES = ("svg", "png")

# Form of a report by the ending of its file.
_FORMS = {"": "md", ".md": "md", ".html": "html", ".svg": "svg", ".png": "png"}

_MIN_CHARTS_FOR_PROGRESS = 12  # of a report; fewer are drawn at once


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, records, folders of runs, bundles; default: the newest run."),
    ] = None,
    form: Annotated[
        Literal["terminal", "md", "html", "svg", "png"] | None,
        typer.Option(
            "--format", help="Default: from the file extension of -o, otherwise terminal."
        ),
    ] = None,
    lang: Lang = "en",
    as_json: Json = False,
    output: Output = None,
    chart: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Chart to draw as svg or png; default: the first."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Runs or rows to compare with; default: published rows and earlier runs."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="On a terminal: print all figures and sections.")
    ] = False,
    price_per_hour: Annotated[
        str | None,
        typer.Option(
            metavar="12.5 USD", help="Price of all devices per hour; adds the cost per sample."
        ),
    ] = None,
) -> None:
    """Show the result of runs, verified against their events.

    If the launcher of a run was killed, its record is written first. The exit code is 1 if a record
    cannot be read or does not match its raw events; the others are shown.
    """
    from trainmark.pages.page import build_documents
    from trainmark.pages.pictures import choose_chart, to_png, to_svg
    from trainmark.pages.rendering import to_html, to_markdown
    from trainmark.pages.terminal import show_page
    from trainmark.pages.tiles import Price
    from trainmark.results.selection import select_results

    wanted = form or ("json" if as_json else _choose_form(output))
    if chart is not None and wanted not in _PICTURES:
        raise UsageError(
            "--chart needs an svg or png output",
            where="--chart",
            fix="add -o chart.svg or -o chart.png",
        )
    if wanted == "png" and output is None:
        raise UsageError(
            "a PNG cannot be printed", where="--format", fix="write it to a file: -o X.png"
        )
    selection = select_results(runs or [], rows=False)
    if as_json:
        records = [record.model_dump(mode="json") for record in selection.records]
        write_text(output, json.dumps(records, ensure_ascii=False) + "\n")
        fail_if_damaged(selection)
        return
    if against and wanted == "md":
        fix = "remove --format md, or write HTML: -o report.html"
        raise UsageError("--against is not available for Markdown", where="--against", fix=fix)
    price = None if price_per_hour is None else Price.of(price_per_hour)
    others = None if wanted == "md" else _select_others(selection, against)
    pages = build_documents(selection.records, others, price=price)
    if wanted == "terminal":
        text, colour = "", None if output is None else False
        for page in pages:
            extent: Extent = "all" if everything else "head" if len(pages) > 1 else "screen"
            text += show_page(page, lang, colour=colour, extent=extent) + "\n\n"
        text += "".join(f"record: {escape_controls(place)}\n" for place in selection.places)
        if output is None:
            typer.echo(text, nl=False)  # whose text is escaped, and which may have colours
        else:
            write_text(output, text)
    elif wanted == "html":
        write_text(output, to_html(pages, lang, progress=_show_drawing))
    elif wanted == "md":
        write_text(output, to_markdown(pages, lang))
    elif wanted == "svg":
        write_text(output, to_svg(choose_chart(pages, chart), lang))
    elif output is not None:
        write_bytes(output, to_png(choose_chart(pages, chart), lang))
    fail_if_damaged(selection)


def _choose_form(output: Path | None) -> str:
    """Return the form of a report that the ending of a file stands for.

    Raises:
        UsageError: no form has this ending.
    """
    if output is None:
        return "terminal"
    form = _FORMS.get(output.suffix.lower())
    if form is None:
        rule = "the file must end in .html, .md, .svg or .png"
        what = f"unknown report format {output.suffix!r}"
        raise UsageError(
            what,
            where=str(output),
            rule=rule,
            fix="rename the file, or choose a format with --format",
        )
    return form


def _show_drawing(number: int, charts: int) -> None:
    """Show on a terminal how many charts of a report are drawn, unless there are few."""
    if charts < _MIN_CHARTS_FOR_PROGRESS or not sys.stderr.isatty():
        return
    erase = "\r\033[K"
    sys.stderr.write(f"{erase}charts drawn: {number} of {charts}")
    if number == charts:
        sys.stderr.write(erase)
    sys.stderr.flush()


def _select_others(shown: Selection, against: list[str] | None) -> list[Result]:
    """Return the results that ``--against`` names; without it, the default comparisons."""
    from trainmark.pages.page import find_default_comparisons
    from trainmark.results.selection import select_results

    if against is None:
        return find_default_comparisons(shown.records, shown.folders[0] if shown.folders else None)
    selection = select_results(against)
    if not selection.records and not selection.rows:
        raise UsageError(f"{' '.join(against)}: no results found", where="--against")
    return [*selection.records, *selection.rows]
