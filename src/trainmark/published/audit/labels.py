"""Audit rules on what a printed row says of itself: its label and the log from which it was read.

They must not contradict themselves, and the device must have the precision that the row names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.record.work import LOG_CONTRADICTIONS
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.spec import Message

# Precisions that cards have from some generation on.
_REDUCED_PRECISIONS = ("tf32", "bf16", "fp8", "fp4")


def check_label(subjects: AuditSubjects) -> Hits:
    """Yield rows whose label contradicts itself, or names a precision that the card lacks.

    The label is the name of the configuration as a page prints it, such as ``A100单机8卡（1x8）``.
    It contradicts itself if its words (one node, 8 cards) and its numbers (1x8) differ.
    """
    for subject in subjects:
        # The program that read the page left notes on what is odd about the row.
        for note in _get_notes(subject):
            if note.code == "label_contradicts_itself":
                yield subject, note
        # "Mixed precision" names neither FP16 nor BF16: one that the card has may be meant.
        if subject.is_mixed:
            continue
        # Without a vendor's document on the card, a missing precision is only a doubt.
        code = "audit_precision" if subject.has_data_sheet else "audit_precision_unsure"
        for precision in _REDUCED_PRECISIONS:  # those that older cards lack
            if precision in subject.precisions and subject.lacks_precision(precision):
                yield subject, message(code, precision=precision, device=subject.device)


def check_log(subjects: AuditSubjects) -> Hits:
    """Yield rows whose log contradicts itself, as the reader of the log has noted.

    Such a row was read from a log of events; its notes are messages on what is odd about it.
    """
    for subject in subjects:
        for note in _get_notes(subject):  # none if the row is a launch
            if note.code in LOG_CONTRADICTIONS:
                yield subject, note


def _get_notes(subject: AuditSubject) -> Sequence[Message]:
    """Return what the reader of a page noted about a row; nothing for a launch."""
    return subject.row.notes if subject.row else ()
