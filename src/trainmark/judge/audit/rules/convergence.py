"""A target reached after implausibly few samples."""

from statistics import median

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message

SEVERITY: Severity = "warning"
_LAUNCHES = 4  # of the same work, at least
_SHARE = 1 / 3  # of their median
_PASS = 0.1  # of a pass over the data


def find(subjects: Subjects) -> Hits:
    """Yield what reached its quality in a fraction of a pass, or far sooner than others did."""
    same: dict[object, list[tuple[Subject, float]]] = {}
    for one in subjects:
        samples, rows = _samples_to_quality(one), one.workload.samples_per_pass
        if samples is None:
            continue
        generated = one.record is not None and "generated-data" in one.record.labels
        if rows and samples < _PASS * rows and not generated:
            said = {"metric": one.metric, "value": one.quality}
            args = {"samples": samples, "passes": samples / rows}
            yield one, message("audit_few_passes", rows=rows, **said, **args)
        if one.target is not None:
            key = (one.name, one.work, one.record and one.world_size, one.target)
            same.setdefault(key, []).append((one, samples))
    for found in (found for found in same.values() if len(found) >= _LAUNCHES):
        usual = median(samples for _, samples in found)
        for one, samples in (item for item in found if item[1] < _SHARE * usual):
            args = {"samples": samples, "usual": usual, "launches": len(found)}
            said = {"metric": one.metric, "target": one.target}
            yield one, message("audit_fast_convergence", **said, **args)


def _samples_to_quality(one: Subject) -> float | None:
    """Return the samples, at most, until the target or a row's quality; None: not reached."""
    record, target = one.record, one.target
    if record is None:
        most = one.samples_bounds()[1]
        return most if most and one.quality and (target is None or one.met) else None
    higher = record.plan.about.higher_is_better
    for point in record.quality.history if target is not None else ():
        if point.value is not None and (point.value >= (target or 0.0)) == higher:
            return sum(record.steps.samples[: point.step])
    return None
