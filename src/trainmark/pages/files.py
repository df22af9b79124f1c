"""The files that are written beside records: pages, and the statistics of repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import drawing
from trainmark.pages.exports.forms import repeats_json
from trainmark.pages.page import LANGUAGES, html_page, markdown_page
from trainmark.record.record import RECORD_FILE, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from trainmark.judge.comparison.sides import Result
    from trainmark.pages.document import Page
    from trainmark.record.entries import Outcome
    from trainmark.record.record import Record

REPEATS_FILE = "repeats.json"
HTML_PAGE = "page.html"


def write_pages(
    records: Sequence[Record],
    folder: Path,
    *,
    against: Sequence[Result] = (),
    html: bool = True,
) -> None:
    """Write the result pages of one run, or of several together.

    Args:
        against: results to compare with.
        html: whether the page with charts is among them; it is written last.
    """
    for lang in LANGUAGES:
        (folder / f"page.{lang}.md").write_text(markdown_page(records, lang), encoding="utf-8")
    if html:
        made = html_page(records, against=against, scripts=False)
        (folder / HTML_PAGE).write_text(made, encoding="utf-8")


def write_repeats(records: Sequence[Record], folder: Path, **further: Any) -> None:
    """Write what the launches say together: pages as above, and the statistics as JSON."""
    write_pages(records, folder, **further)
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
        fallen = [x for x in outcome.fallen if (x / RECORD_FILE).exists()]
        records = [*outcome.records, *map(read, fallen)]
        write_repeats(records, place, against=against)


def write_charts(pages: Sequence[Page], folder: Path, form: str) -> list[Path]:
    """Write each chart as a picture of its own, ``png`` or ``svg``; one that was there is replaced.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for place, page in enumerate(pages, start=1):
        for chart in page.charts:
            case = f"{place}-" if len(pages) > 1 else ""
            made = drawing.png(chart) if form == "png" else drawing.svg_file(chart).encode()
            found.append(folder / f"{case}{chart.name}.{form}")
            found[-1].write_bytes(made)
    return found
