"""Devices whose clocks were lowered while steps were measured."""

from trainmark.judge.audit.finding import Hits, Severity, Subjects
from trainmark.record import sampling

SEVERITY: Severity = "warning"


def find(subjects: Subjects) -> Hits:
    """Yield records whose telemetry shows lowered clocks."""
    for one in subjects:
        for said in sampling.throttled(one.record.telemetry) if one.record else ():
            yield one, said
