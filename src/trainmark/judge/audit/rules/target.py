"""A target that is claimed but missed."""

from trainmark.judge.audit.finding import Hits, Severity, Subjects, message

SEVERITY: Severity = "error"


def find(subjects: Subjects) -> Hits:
    """Yield records that claim a target they missed, and rows that print a target they missed."""
    for one in subjects:
        if one.met is not False:
            continue
        record = one.record
        args = {"metric": one.metric, "value": one.quality, "target": one.target}
        if record is None:
            yield one, message("audit_target_row", **args), "warning"
            continue
        required = record.plan.target is not None and record.plan.target.required
        if record.quality.reached or (record.passed and required):
            yield one, message("audit_target", status=record.status, **args)
