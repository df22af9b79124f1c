"""Samples that time and throughput imply, against the data set's size and epochs."""

from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects, message
from trainmark.record.record import Record

SEVERITY: Severity = "error"
_SUMS = 1e-6
_MORE = 1.1  # than the epochs that the configuration allows


def find(subjects: Subjects) -> Hits:
    """Yield records whose counts contradict each other, and rows with more samples than data."""
    for one in subjects:
        yield from _of_record(one, one.record) if one.record else _of_row(one)


def _of_row(one: Subject) -> Hits:
    bounds, rows, epochs = one.samples_bounds(), one.workload.samples_per_pass, one.workload.epochs
    if rows and epochs and bounds[0] > _MORE * rows * epochs:
        parts = {name: one.figures[name] for name in ("e2e_time", "p_whole")}
        passes = bounds[1] / rows
        yield one, message("audit_passes", passes=passes, rows=rows, epochs=epochs, **parts)


def _of_record(one: Subject, record: Record) -> Hits:
    counts = record.counts
    seconds, rate = one.figures.get("train_time"), one.figures.get("p_whole")
    whole = one.figures.get("e2e_time")
    if seconds and whole and whole < seconds * (1 - _SUMS):
        yield one, message("audit_time", train_time=seconds, e2e_time=whole)
    if seconds and rate and abs(seconds * rate - counts.samples) > _SUMS * counts.samples:
        args = {"p_whole": rate, "train_time": seconds, "implied": seconds * rate}
        yield one, message("audit_counts", samples=counts.samples, **args)
    # A job may declare an epoch of its own, of which the record then has a finding.
    own = [said.args["samples"] for said in record.findings if said.code == "own_epoch"]
    rows = own[0] if own and isinstance(own[0], int) else record.plan.data.train_samples
    if counts.samples > counts.epochs * rows:
        args = {"samples": counts.samples, "epochs": counts.epochs, "rows": rows}
        yield one, message("audit_epochs", most=counts.epochs * rows, **args)
