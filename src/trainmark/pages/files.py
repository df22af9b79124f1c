"""The files that are written beside records: pages, and the statistics of repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages.charts import drawing
from trainmark.pages.exports.forms import repeats_json
from trainmark.pages.page import html_page, markdown_page
from trainmark.pages.texts import LANGUAGES
from trainmark.record.record import RECORD_FILE, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.judge.comparison.sides import Result
    from trainmark.pages.document import Document
    from trainmark.record.entries import Outcome
    from trainmark.record.record import Record

REPEATS_FILE = "repeats.json"
HTML_PAGE = "page.html"


def write_pages(
    records: Sequence[Record], folder: Path, *, against: Sequence[Result] = (), html: bool = True
) -> None:
    """Write the result pages of one run, or of several together.

    Args:
        against: results to compare with.
        html: whether the page with charts is among them; it is written last.
    """
    for lang in LANGUAGES:
        (folder / f"page.{lang}.md").write_text(markdown_page(records, lang), encoding="utf-8")
    if html:
        made = html_page(records, against=against)
        (folder / HTML_PAGE).write_text(made, encoding="utf-8")


def write_repeats(
    records: Sequence[Record], folder: Path, *, against: Sequence[Result] = ()
) -> None:
    """Write what the launches say together: pages as above, and the statistics as JSON."""
    write_pages(records, folder, against=against)
    (folder / REPEATS_FILE).write_text(repeats_json(records), encoding="utf-8")


def write_missing(outcome: Outcome, against: Sequence[Result] = ()) -> None:
    """Write what a killed launcher did not, and the summary of a series beside its newest launches.

    The summary is of all its launches, those that did not pass too.
    """
    for folder in (*outcome.fallen, *outcome.folders):
        recorded = (folder / RECORD_FILE).exists()
        if recorded and not (folder / HTML_PAGE).exists():
            write_pages([read(folder)], folder, against=against)
    place = outcome.run_dir
    if outcome.planned > 1 and place and place.exists() and not (place / REPEATS_FILE).exists():
        fallen = [read(x) for x in outcome.fallen if (x / RECORD_FILE).exists()]
        write_repeats([*outcome.records, *fallen], place, against=against)


def write_charts(pages: Sequence[Document], folder: Path, form: str, lang: str) -> None:
    """Write each chart as a picture of its own, ``png`` or ``svg``; one that was there is replaced.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for chart in page.charts:
            made = drawing.png(chart, lang) if form == "png" else drawing.svg_file(chart, lang)
            data = made if isinstance(made, bytes) else made.encode()
            (folder / f"{page.ident}{chart.name}.{form}").write_bytes(data)
