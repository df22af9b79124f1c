"""The files that are written beside records: pages, and the statistics of repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report.export import repeats_json
from trainmark.report.page import LANGUAGES, html_page, markdown_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
