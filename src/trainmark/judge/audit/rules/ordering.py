"""p_core >= p_train >= p_whole: each leaves out time that the next one contains."""

from itertools import pairwise

from trainmark.judge.audit.finding import Hits, Severity, Subjects, message

SEVERITY: Severity = "error"
_SUMS = 1e-9  # of figures that were not rounded


def find(subjects: Subjects) -> Hits:
    """Yield figures that are larger than one that leaves out more time."""
    for one in subjects:
        known = [name for name in ("p_core", "p_train", "p_whole") if name in one.figures]
        for above, below in pairwise(known):
            rates = {"above_rate": one.figures[above], "below_rate": one.figures[below]}
            slack = 1 + one.rounding(above, below) + _SUMS
            if rates["below_rate"] > rates["above_rate"] * slack:
                yield one, message("audit_order", above=above, below=below, **rates)
