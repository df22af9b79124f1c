"""The files that are written beside records: pages, and the statistics of repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report.export import repeats_json
from trainmark.report.page import LANGUAGES, html_page, markdown_page
from trainmark.results.record import RECORD_FILE, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.results.entries import Outcome
    from trainmark.results.record import Record

REPEATS_FILE = "repeats.json"


def write_pages(records: Sequence[Record], folder: Path) -> None:
    """Write the result pages of one run, or of several together."""
    for lang in LANGUAGES:
        (folder / f"page.{lang}.md").write_text(markdown_page(records, lang), encoding="utf-8")
        (folder / f"page.{lang}.html").write_text(html_page(records, lang), encoding="utf-8")


def write_repeats(records: Sequence[Record], folder: Path) -> None:
    """Write what the launches say together: pages, and the statistics as JSON."""
    write_pages(records, folder)
    (folder / REPEATS_FILE).write_text(repeats_json(records), encoding="utf-8")


def write_missing(outcome: Outcome) -> None:
    """Write what a killed launcher did not, and the summary of a series beside its newest launches.

    The summary is of all its launches, those that did not pass too.
    """
    for folder in (*outcome.fallen, *outcome.folders):
        recorded = (folder / RECORD_FILE).exists()
        if recorded and not (folder / f"page.{LANGUAGES[-1]}.html").exists():
            write_pages([read(folder)], folder)
    place = outcome.run_dir
    if outcome.planned > 1 and place and place.exists() and not (place / REPEATS_FILE).exists():
        fallen = [read(x) for x in outcome.fallen if (x / RECORD_FILE).exists()]
        write_repeats([*outcome.records, *fallen], place)
