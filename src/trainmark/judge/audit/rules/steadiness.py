"""Step times that drift, or a record that claims otherwise."""

import numpy as np

from trainmark.judge.audit.finding import Hits, Severity, Subjects, message
from trainmark.record.stats import STEADY_DRIFT, drift

SEVERITY: Severity = "warning"


def find(subjects: Subjects) -> Hits:
    """Yield records that are not steady; an error where they say that they are."""
    for steps, one in ((one.record.steps, one) for one in subjects if one.record):
        moved = drift(np.asarray(steps.time_ns[steps.warmup :], np.int64))
        if moved is None or abs(moved) <= STEADY_DRIFT:
            continue
        said = message("audit_drift", drift=moved, claimed=steps.drift, limit=STEADY_DRIFT)
        yield one, said, "error" if steps.steady else SEVERITY
