"""Rows of one table that trained different numbers of samples."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message
from trainmark.plan.reference import SAME_WORK_RATIO

SEVERITY: Severity = "warning"


def find(subjects: Subjects) -> Hits:
    """Yield for each such table the row with the most samples."""
    tables: dict[object, list[tuple[float, float, Subject]]] = {}
    for one in subjects:
        low, high = one.samples_bounds()
        if one.table is not None and high:
            tables.setdefault(one.table, []).append((low, high, one))
    for rows in tables.values():
        low, most, one = max(rows, key=lambda row: row[0])
        _, least, other = min(rows, key=lambda row: row[1])
        if low <= SAME_WORK_RATIO * least:
            continue
        size = one.workload.samples_per_pass
        args = {"most": most, "least": least, "least_line": other.line, "ratio": most / least}
        if size is None:
            yield one, message("audit_side_by_side", **args)
        else:
            passes = ", ".join(f"{samples / size:.1f}" for _, samples, _ in rows)
            yield one, message("audit_passes_differ", passes=passes, rows=size, **args)
