"""Rows of different names with the same figures."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message
from trainmark.judge.audit.subject import RATES

SEVERITY: Severity = "warning"
_TIMED = {"e2e_time", "token/p/s", *RATES}
_LEAST = 2  # figures


def find(subjects: Subjects) -> Hits:
    """Yield each row that repeats the measured figures of a row of another name."""
    seen: dict[tuple[tuple[str, float], ...], Subject] = {}
    for one in subjects:
        # The memory of a card is the same in every row of it.
        known = tuple(sorted(item for item in one.figures.items() if item[0] != "mem_total"))
        if one.row is None or len(known) < _LEAST or not _TIMED & one.figures.keys():
            continue
        first = seen.setdefault(known, one)
        if (first.name, first.configuration) != (one.name, one.configuration):
            names = ", ".join(name for name, _ in known)
            args = {"name": one.name, "other": first.name, "file": first.file}
            yield one, message("audit_same_figures", figures=names, line=first.line, **args)
