"""The audit of pages against a set of errors that was written before the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.planted_pages import iterate_correct_pages, iterate_planted_pages
from trainmark.published.audit import audit, views
from trainmark.results.selection import select_results

if TYPE_CHECKING:
    from pathlib import Path

# The bar is 57 of 60. Not detectable: sample counts that a start of some minutes may explain.
NUM_FOUND, NUM_PLANTED, NUM_CORRECT = 57, 60, 80


def audit_page(text: str, folder: Path) -> tuple[int, set[int | None]]:
    """Return the number of rows of a page of results and the lines of its findings.

    Args:
        text: of the page, in Markdown.
        folder: where it is written as ``page.md``, which replaces an earlier one.
    """
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    rows = select_results([str(page)]).rows
    return len(rows), {
        finding.subject.line for finding in audit([views.view_row(row) for row in rows])
    }


def test_planted_errors_are_found_in_their_row(tmp_path: Path) -> None:
    pages = list(iterate_planted_pages())  # each has one error, in the lines that it names
    # There are 60 (``NUM_PLANTED``). In 57 of them or more (``NUM_FOUND``), such a line must have a
    # finding.
    assert len(pages) == NUM_PLANTED
    is_error_found = [bool(audit_page(page.text, tmp_path)[1] & set(page.lines)) for page in pages]
    assert sum(is_error_found) >= NUM_FOUND  # a few cannot be told from correct rows


def test_correct_rows_are_not_flagged(tmp_path: Path) -> None:
    # ``audit_page`` returns the number of rows of a page and the lines of its findings.
    audits = [audit_page(text, tmp_path) for text in iterate_correct_pages()]
    # The pages have enough rows for this to mean something: at least 80 (``NUM_CORRECT``).
    assert sum(rows for rows, _ in audits) >= NUM_CORRECT
    assert all(lines == set() for _, lines in audits)
