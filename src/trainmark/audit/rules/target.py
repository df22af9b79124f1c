"""A target that is claimed but missed."""

import re

from trainmark.audit.finding import Hits, Severity, Subjects, message

SEVERITY: Severity = "error"
# Pages do not say in which direction a quality is better; of these there is no doubt.
_HIGHER = re.compile(r"acc|auc|map|bleu|rouge|f1|mmlu", re.IGNORECASE)


def find(subjects: Subjects) -> Hits:
    """Yield records that claim a target they missed, and rows that print a target they missed."""
    for one in subjects:
        value, target, record = one.quality, one.target, one.record
        if value is None or target is None:
            continue
        args = {"metric": one.metric, "value": value, "target": target}
        if record is None:
            if _HIGHER.search(one.metric or "") and value < target:
                yield one, message("audit_target_row", **args), "warning"
            continue
        met = value >= target if record.plan.about.higher_is_better else value <= target
        required = record.plan.target is not None and record.plan.target.required
        if not met and (record.quality.reached or (record.passed and required)):
            yield one, message("audit_target", status=record.status, **args)
