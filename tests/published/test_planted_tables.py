"""The audit of plain tables against a set of errors that was written before its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.planted_tables import iterate_correct_documents, iterate_planted_documents
from trainmark.published.audit import audit, views
from trainmark.results.selection import select_results

if TYPE_CHECKING:
    from pathlib import Path

    from support.planted_tables import Document

# Not detectable: twice the rate on eight devices with twice the batch of the other rows.
NUM_FOUND, NUM_PLANTED, NUM_CORRECT = 64, 65, 80


def audit_file(document: Document, folder: Path) -> tuple[int, set[int]]:
    """Return the number of lines that were read of a file, and the lines of its findings.

    All of the file must be readable.

    Args:
        document: text and ending of the file, such as ``.csv``.
        folder: where it is written.
    """
    file = folder / f"page{document.ending}"
    file.write_text(document.text, encoding="utf-8")
    chosen = select_results([str(file)])
    assert chosen.unread == []
    findings = audit([views.view_row(row) for row in chosen.rows])
    return len({row.line for row in chosen.rows}), {finding.subject.line for finding in findings}


def test_planted_errors_are_found_in_their_line(tmp_path: Path) -> None:
    # 65 files with one error each (``NUM_PLANTED``); in 64 (``NUM_FOUND``) it must be found.
    plants = list(iterate_planted_documents())
    assert len(plants) == NUM_PLANTED
    is_error_found = [  # whether a finding is in one of the lines with the planted error
        bool(audit_file(plant.document, tmp_path)[1] & set(plant.lines)) for plant in plants
    ]
    assert sum(is_error_found) >= NUM_FOUND  # one cannot be told from a correct row


def test_correct_lines_are_not_flagged(tmp_path: Path) -> None:
    # ``audit_file`` returns the number of lines that were read and the lines of its findings.
    audits = [audit_file(document, tmp_path) for document in iterate_correct_documents()]
    # The files have enough lines for this to mean something: at least 80 (``NUM_CORRECT``).
    assert sum(lines for lines, _ in audits) >= NUM_CORRECT
    assert all(flagged == set() for _, flagged in audits)
