"""Group launches and printed rows, and find those that conflict with the others of their group."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects


def group_subjects(
    subjects: Iterable[AuditSubject], get_key: Callable[[AuditSubject], Hashable | None]
) -> list[list[AuditSubject]]:
    """Return the groups of subjects that have the same key, in order of appearance.

    Args:
        subjects: launches and printed rows.
        get_key: returns the key of a subject; None: the subject is in no group.
    """
    groups: dict[Hashable, list[AuditSubject]] = defaultdict(list)
    for subject in subjects:
        key = get_key(subject)
        if key is not None:
            groups[key].append(subject)
    return list(groups.values())


def get_line_key(subject: AuditSubject) -> Hashable | None:
    """Return the place of a printed line, which rows for its precisions share; None: no row."""
    return (subject.file, subject.line) if subject.row else None


def find_inconsistent_rows(
    subjects: AuditSubjects,
    have_conflict: Callable[[AuditSubject, AuditSubject], bool],
    get_value: Callable[[AuditSubject], float],
) -> Iterator[tuple[AuditSubject, AuditSubject]]:
    """Yield rows that conflict with others, each with one of these, until no rows conflict.

    The row with most conflicts comes first and then no longer counts. Of rows with equally many
    conflicts, the one whose value is furthest from the median comes first; of equally far ones the
    last.

    Args:
        subjects: rows that should agree.
        have_conflict: tells whether two rows conflict.
        get_value: returns the value, above zero, by which rows are compared with the median.
    """
    remaining = list(subjects)
    # Of logarithms, because twice and half the median are equally far from it.
    logarithms = [math.log(get_value(subject)) for subject in subjects]
    center = median(logarithms)
    # Rounded, so that equally far rows stay equally far whatever the error of the logarithms is.
    distances = [round(abs(logarithm - center), 9) for logarithm in logarithms]
    while remaining:
        # The rows with which each of the remaining rows conflicts.
        opponents = [
            [other for other in remaining if other is not subject and have_conflict(subject, other)]
            for subject in remaining
        ]
        # The index of the row that comes first by the order above.
        worst = max(
            range(len(remaining)),
            key=lambda index: (len(opponents[index]), distances[index], index),
        )
        if not opponents[worst]:
            return
        conflicting = remaining.pop(worst)
        distances.pop(worst)
        yield conflicting, opponents[worst][0]
