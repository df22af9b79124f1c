"""Launches that claim to be different but have the same step times or figures."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message

SEVERITY: Severity = "error"
_STEPS = 8  # times in nanoseconds: two launches do not have as many in common
_FIGURES = ("e2e_time", "train_time", "p_core")  # likewise, all three of them


def find(subjects: Subjects) -> Hits:
    """Yield each launch whose step times or figures are those of another launch."""
    seen: dict[tuple[str, tuple[float, ...]], tuple[str, Subject]] = {}
    for one in subjects:
        if one.record is None:
            continue
        run_id, times = one.record.run_id, tuple(one.record.steps.time_ns)
        figures = tuple(one.figures.get(name, 0.0) for name in _FIGURES)
        told: dict[str, tuple[float, ...]] = (
            {"steps.time_ns": times} if len(times) >= _STEPS else {}
        )
        told |= {", ".join(_FIGURES): figures} if all(figures) else {}
        for same, values in told.items():
            other, first = seen.setdefault((same, values), (run_id, one))
            if other != run_id:
                args = {"run_id": run_id, "other": other, "place": first.file}
                yield one, message("audit_copy", same=same, **args)
                break
