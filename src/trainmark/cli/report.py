"""``trainmark report``: show the result of runs as a table, a page or a picture."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainmark.cli.options import Json, Lang, Output
from trainmark.cli.output import fail_if_damaged, reject_repeated_runs, write_bytes, write_text
from trainmark.errors import UsageError, escape_controls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.pages.document import Document
    from trainmark.pages.terminal import Extent
    from trainmark.record.work import Result
    from trainmark.results.selection import Selection


EXAMPLES = """\
  trainmark report                                show the newest run as a table
  trainmark report runs/demo                      show all runs of a plan
  trainmark report runs/RUN --all                 show all figures and sections of the run
  trainmark report runs/RUN --format md --lang zh
  trainmark report runs/A runs/B -o report.html   write a page in English and Chinese with charts
  trainmark report runs/A -o report.html --against runs/B --against reference:glm_superglue
  trainmark report runs/PLAN -o report.html       show the scaling from one device to many
  trainmark report runs/RUN -o loss.png           draw the first chart; --chart NAME draws another
"""

_PICTURES = ("svg", "png")

# Form of a report by the ending of its file.
_FORMS = {"": "md", ".md": "md", ".html": "html", ".svg": "svg", ".png": "png"}

_MIN_CHARTS_FOR_PROGRESS = 12  # of a report; fewer are drawn at once


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, records, folders of runs or bundles; default: the newest run."),
    ] = None,
    form: Annotated[
        Literal["terminal", "md", "html", "svg", "png"] | None,
        typer.Option(
            "--format",
            help="Report format; default: inferred from the extension of -o, otherwise terminal.",
        ),
    ] = None,
    lang: Lang = "en",
    as_json: Json = False,
    output: Output = None,
    chart: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Chart to draw as SVG or PNG; default: the first chart."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Runs or published rows to compare with; default: published rows and earlier runs."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all figures and sections to the terminal.")
    ] = False,
    price_per_hour: Annotated[
        str | None,
        typer.Option(
            metavar="12.5 USD",
            help="Total price per hour for all devices; the report then also shows the cost per "
            "million samples or tokens.",
        ),
    ] = None,
) -> None:
    """Show the results of runs, verified against their events.

    If a run was killed before its record was written, `trainmark report` writes the record first.
    The exit code is 1 if a record cannot be read or does not match its raw events; all other
    records are still shown. The exit code is 2 if no record can be read.
    """
    form_to_write = _choose_form(form, output, as_json=as_json)
    _refuse_contradicting_options(form_to_write, output, chart)
    selection = _select_runs(runs or [])
    if as_json:  # also if --format names another form
        records = [record.model_dump(mode="json") for record in selection.records]
        write_text(output, json.dumps(records, ensure_ascii=False) + "\n")
    else:
        pages = _build_pages(selection, form_to_write, against, price_per_hour)
        if form_to_write == "terminal":
            _write_terminal_text(pages, selection, output, lang, everything=everything)
        else:
            _write_pages(pages, form_to_write, output, lang, chart)
    fail_if_damaged(selection)


def _select_runs(words: Sequence[str]) -> Selection:
    """Return the records that words name; empty: that of the newest run.

    Raises:
        UsageError: a run is given twice, so that its launches would count twice.
    """
    from trainmark.results.selection import select_results

    selection = select_results(words, rows=False)  # no published rows: only runs have a page
    reject_repeated_runs(selection)
    return selection


def _refuse_contradicting_options(form: str, output: Path | None, chart: str | None) -> None:
    """Raise ``UsageError`` for options that contradict each other.

    These are a chart in a form without pictures, a PNG without a file, and a file whose ending
    stands for another form.
    """
    if chart is not None and form not in _PICTURES:
        raise UsageError(
            "--chart needs an SVG or PNG output file",
            where="--chart",
            fix="add -o chart.svg or -o chart.png",
        )
    if form == "png" and output is None:
        raise UsageError(
            "a PNG cannot be printed",
            where="--format",
            fix="write the PNG to a file: -o X.png",
        )
    if output is not None and output.suffix:
        form_of_ending = _FORMS.get(output.suffix.lower(), form)
        if form_of_ending != form:
            raise UsageError(
                f"{output.name} cannot be written in the {form} format",
                where="-o",
                rule=f"files whose names end in {output.suffix} are written in the "
                f"{form_of_ending} format",
                fix="remove --format or --json, or choose another file name",
            )


def _build_pages(
    selection: Selection, form: str, against: list[str] | None, price_per_hour: str | None
) -> Sequence[Document]:
    """Return the page of each run, compared with other results unless it becomes Markdown.

    Args:
        form: of the report: ``terminal``, ``html``, ``md``, ``svg`` or ``png``.
        against: the words of ``--against``; None: the default comparisons.
        price_per_hour: the option, ``12.5 USD`` for example; None: no cost is shown.
    """
    from trainmark.pages.page import build_documents
    from trainmark.pages.tiles import Price

    if against and form == "md":
        fix = "remove --format md, or write HTML: -o report.html"
        raise UsageError(
            "--against cannot be used with Markdown output", where="--against", fix=fix
        )
    price = None if price_per_hour is None else Price.parse(price_per_hour)
    # None: the pages say nothing about comparisons, which the Markdown form does not have.
    others = None if form == "md" else _select_others(selection, against)
    return build_documents(selection.records, others, price=price)


def _write_terminal_text(
    pages: Sequence[Document],
    selection: Selection,
    output: Path | None,
    lang: str,
    *,
    everything: bool,
) -> None:
    """Print the pages as text, or write them to a file; then the paths of the records.

    Args:
        selection: the records of the pages.
        output: the file; None: print.
        everything: all figures and sections; otherwise one page shows only the sections that are
            not folded, and of several pages each shows only its first lines.
    """
    from trainmark.pages.terminal import show_page

    extent: Extent
    if everything:
        extent = "all"
    elif len(pages) > 1:
        extent = "head"  # only the first lines of each page
    else:
        extent = "screen"
    # None: colours on a terminal, unless NO_COLOR is set. A file gets none.
    colour = None if output is None else False
    names = _name_pages(pages, selection)
    text = ""
    for page, name in zip(pages, names, strict=True):
        text += show_page(page, lang, colour=colour, extent=extent, name=name) + "\n\n"
    for place in selection.places:
        text += f"record: {escape_controls(place)}\n"
    if output is None:
        typer.echo(text, nl=False)  # its text is escaped already, and may have colours
    else:
        write_text(output, text)


def _name_pages(pages: Sequence[Document], selection: Selection) -> list[str]:
    """Return a name for each page: the folders of its runs, separated by commas.

    The name is empty for the only page, and for the overview, the first of several pages. Each
    further page shows the launches that did the same work.

    Args:
        pages: as ``build_documents`` returns those of the selection.
    """
    from pathlib import Path

    from trainmark.record.record import RECORD_FILE
    from trainmark.record.work import group_by_work

    if len(pages) == 1:
        return [""]
    pairs = zip(selection.records, selection.places, strict=True)
    places = {record.run_id: place for record, place in pairs}
    names = [""]  # the overview comes first
    for launches in group_by_work(selection.records):
        run_names: dict[str, None] = {}  # in order of appearance, each once
        for record in launches:
            # A place is a run directory, its `record.json`, or a folder in a bundle.
            path = Path(places[record.run_id])
            folder = path.parent if path.name == RECORD_FILE else path
            # The launches of a repeat are in the folders r1, r2 … of the run. If the page shows
            # several launches, the run is named, so that all of its launches share one name.
            is_repeat = len(launches) > 1 and record.plan.repeat_count > 1
            run_names[str(folder.parent if is_repeat else folder)] = None
        names.append(", ".join(run_names))
    return names


def _write_pages(
    pages: Sequence[Document], form: str, output: Path | None, lang: str, chart: str | None
) -> None:
    """Write or print the pages as HTML or Markdown, or one of their charts as a picture.

    Args:
        form: ``html``, ``md``, ``svg`` or ``png``.
        output: the file; None: print, which ``png`` does not allow.
        chart: name of the chart of a picture; None: the first.
    """
    from trainmark.pages.pictures import choose_chart, to_png, to_svg
    from trainmark.pages.rendering import to_html, to_markdown

    if form == "html":
        write_text(output, to_html(pages, lang, progress=_show_drawing))
    elif form == "md":
        write_text(output, to_markdown(pages, lang))
    elif form == "svg":
        write_text(output, to_svg(choose_chart(pages, chart), lang))
    elif output is not None:
        write_bytes(output, to_png(choose_chart(pages, chart), lang))


def _choose_form(form: str | None, output: Path | None, *, as_json: bool) -> str:
    """Return the form of a report: that of ``--format``, else ``json`` or that of the file.

    Args:
        form: the option ``--format``; None: it is not given.
        output: the file to write; None: the report is printed.
        as_json: whether ``--json`` is given.

    Raises:
        UsageError: no form has the ending of the file.
    """
    if form is not None:
        return form
    if as_json:
        return "json"
    return _infer_form(output)


def _infer_form(output: Path | None) -> str:
    """Return the form of a report that the ending of a file stands for.

    Args:
        output: the file; None: the report is printed, in the form ``terminal``.

    Raises:
        UsageError: no form has this ending.
    """
    if output is None:
        return "terminal"
    form = _FORMS.get(output.suffix.lower())
    if form is None:
        rule = "the file name must end in .html, .md, .svg or .png"
        what = f"unknown report format {output.suffix!r}"
        raise UsageError(
            what,
            where=str(output),
            rule=rule,
            fix="rename the file, or choose a format with --format",
        )
    return form


def _show_drawing(number: int, charts: int) -> None:
    """Show on a terminal how many charts of a report are drawn, unless there are few.

    Args:
        number: charts that are drawn.
        charts: charts of the report.
    """
    if charts < _MIN_CHARTS_FOR_PROGRESS or not sys.stderr.isatty():
        return
    erase = "\r\033[K"  # go to the begin of the line and clear it
    sys.stderr.write(f"{erase}charts drawn: {number} of {charts}")
    if number == charts:  # nothing is left on the screen
        sys.stderr.write(erase)
    sys.stderr.flush()


def _select_others(shown: Selection, against: list[str] | None) -> list[Result]:
    """Return the results to compare with: what ``--against`` names, or the default comparisons.

    The default comparisons are published rows and the earlier runs beside the first run's folder.

    Args:
        shown: the results of the report.
        against: the words of ``--against``; None: it is not given.
    """
    from trainmark.results.earlier_runs import find_default_comparisons
    from trainmark.results.selection import select_results

    if against is None:
        first_folder = shown.folders[0] if shown.folders else None
        return find_default_comparisons(shown.records, first_folder)
    selection = select_results(against)
    if not selection.records and not selection.rows:
        raise UsageError(f"no results found in {' '.join(against)}", where="--against")
    return [*selection.records, *selection.rows]
