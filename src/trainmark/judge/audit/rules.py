"""The rules of an audit: each yields the subjects that break it, with the arithmetic.

A rule's definition is the sentence ``audit_rule.<name>`` of ``record/messages.toml``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainmark.judge.audit import between
from trainmark.record.run import usage
from trainmark.record.stats import STEADY_DRIFT, drift
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.judge.audit.finding import Hits, Severity, Subject, Subjects
    from trainmark.record.record import Record

_GIB = 2**30
# Figures of a record are not rounded.
_ORDER_SUMS, _COUNT_SUMS = 1e-9, 1e-6
_SAME_MEMORY = 0.1  # GiB and GB differ by 7%, and drivers keep some for themselves
_MORE_SAMPLES = 1.1  # than the data, with the time that starting may have taken left out
_ABOVE_PEAK = 1.1  # clocks may be above those of the peak, and FLOPs of a sample are counted
_NEAR, _MOST = 0.03, 64  # of a whole multiple of the ranks


class Rule(NamedTuple):
    """A rule: its severity where it yields no other, and what finds the subjects that break it."""

    severity: Severity
    find: Callable[[Subjects], Hits]


def each(find: Callable[[Subject], Hits]) -> Callable[[Subjects], Hits]:
    """Return a rule of all subjects that holds each of them alone."""
    return lambda subjects: (hit for one in subjects for hit in find(one))


def ordering(one: Subject) -> Hits:
    """Yield figures that are larger than one that leaves out more time."""
    known = [name for name in ("p_core", "p_train", "p_whole") if name in one.figures]
    for above, below in pairwise(known):
        rates = {"above_rate": one.figures[above], "below_rate": one.figures[below]}
        slack = 1 + one.rounding(above, below) + _ORDER_SUMS
        if rates["below_rate"] > rates["above_rate"] * slack:
            yield one, message("audit_order", above=above, below=below, **rates)


def memory(one: Subject) -> Hits:
    """Yield more memory than there is, and cards with another memory than theirs."""
    used, total = (one.figures.get(name, 0.0) / _GIB for name in ("mem", "mem_total"))
    note = one.record.figures["mem"].note if one.record else None
    # Pages that processes share count for each of them.
    summed = note is not None and note.code == "resident_memory_sum"
    if total and not summed and used > total * (1 + one.rounding("mem")):
        yield one, message("audit_memory", used=used, total=total)
    sizes = sorted(set(one.published("memory_gb"))) if one.row and total else []
    if sizes and all(abs(total / size - 1) > _SAME_MEMORY for size in sizes):
        known = ", ".join(f"{size:g}" for size in sizes)
        found = message("audit_memory_of_card", total=total, device=one.device, sizes=known)
        yield one, found, "warning"


def passes(one: Subject) -> Hits:
    """Yield records whose counts contradict each other, and rows with more samples than data."""
    if one.record is not None:
        yield from _counts(one, one.record)
        return
    bounds, rows, epochs = one.samples_bounds(), one.workload.samples_per_pass, one.workload.epochs
    if rows and epochs and bounds[0] > _MORE_SAMPLES * rows * epochs:
        args = {name: one.figures[name] for name in ("e2e_time", "p_whole")}
        yield (
            one,
            message("audit_passes", passes=bounds[1] / rows, rows=rows, epochs=epochs, **args),
        )


def _counts(one: Subject, record: Record) -> Hits:
    counts = record.counts
    seconds, rate, whole = map(one.figures.get, ("train_time", "p_whole", "e2e_time"))
    if seconds and whole and whole < seconds * (1 - _COUNT_SUMS):
        yield one, message("audit_time", train_time=seconds, e2e_time=whole)
    if seconds and rate and abs(seconds * rate - counts.samples) > _COUNT_SUMS * counts.samples:
        args = {"p_whole": rate, "train_time": seconds, "implied": seconds * rate}
        yield one, message("audit_counts", samples=counts.samples, **args)
    # A job may declare an epoch of its own, of which the record then has a finding.
    own = [found.args["samples"] for found in record.findings if found.code == "own_epoch"]
    rows = own[0] if own and isinstance(own[0], int) else record.plan.data.train_samples
    if counts.samples > counts.epochs * rows:
        args = {"samples": counts.samples, "epochs": counts.epochs, "rows": rows}
        yield one, message("audit_epochs", most=counts.epochs * rows, **args)


def per_rank(subjects: Subjects) -> Hits:
    """Yield rows whose samples are a multiple of ranks times data, and records that miscount."""
    once: dict[object, list[tuple[int, float, Subject]]] = {}
    for one in subjects:
        if one.record is not None:
            counted, of_ranks = one.record.counts.samples, [x.samples for x in one.record.ranks]
            if counted != sum(of_ranks):
                yield one, message("audit_ranks_sum", samples=counted, of_ranks=sum(of_ranks))
            continue
        bounds, world = one.samples_bounds(), one.world_size
        rows, epochs = one.workload.samples_per_pass or 0, one.workload.epochs or 0
        data = rows * epochs
        if not world or bounds[0] <= _MORE_SAMPLES * data or not data:
            continue
        multiple, rate = bounds[1] / data / world, data / one.figures["e2e_time"]
        times = round(multiple)
        if 0 < times <= _MOST and abs(multiple / times - 1) <= _NEAR:
            once.setdefault(one.table, []).append((world, rate, one))
            args = {"times": times * world, "each": times, "world_size": world, "rows": rows}
            shown = {name: one.figures[name] for name in ("e2e_time", "p_whole")}
            yield one, message("audit_per_rank", epochs=epochs, once=rate, **args, **shown)
    for found in once.values():
        least, fastest, _ = min(found, key=lambda row: row[0])
        for world, rate, one in found:
            if world > least and rate < fastest:
                rates = {"once": rate, "least_once": fastest}
                slower = message("audit_more_were_slower", world_size=world, least=least, **rates)
                yield one, slower, "warning"


def peak(one: Subject) -> Hits:
    """Yield what computed faster than its device can in the precision that it declares."""
    rate, most = one.flops_per_device(), max(one.dense_peaks(), default=0.0)
    if not most or rate <= _ABOVE_PEAK * most:
        return
    args = {"tflops": rate / 1e12, "peak": most / 1e12, "share": rate / most, "device": one.device}
    tf32 = max(one.published("tf32_tflops"), default=0.0)
    if one.precision == "fp32" and rate <= tf32 * 1e12:
        yield one, message("audit_tf32", tf32=tf32, **args), "warning"
    else:
        yield one, message("audit_peak", precision=one.precision, **args)


def steadiness(one: Subject) -> Hits:
    """Yield records that are not steady; an error where they say that they are."""
    if one.record is None:
        return
    steps = one.record.steps
    moved = drift(np.asarray(steps.time_ns[steps.warmup :], np.int64))
    if moved is not None and abs(moved) > STEADY_DRIFT:
        found = message("audit_drift", drift=moved, claimed=steps.drift, limit=STEADY_DRIFT)
        yield one, found, "error" if steps.steady else "warning"


def target(one: Subject) -> Hits:
    """Yield records that claim a target they missed, and rows that print a target they missed."""
    if one.met is not False:
        return
    record, args = one.record, {"metric": one.metric, "value": one.quality, "target": one.target}
    if record is None:
        yield one, message("audit_target_row", **args), "warning"
        return
    required = record.plan.target is not None and record.plan.target.required
    if record.quality.reached or (record.passed and required):
        yield one, message("audit_target", status=record.status, **args)


def throttling(one: Subject) -> Hits:
    """Yield records whose telemetry shows lowered clocks."""
    for found in usage.throttled(one.record.telemetry) if one.record else ():
        yield one, found


RULES = {
    "convergence": Rule("warning", between.convergence),
    "copies": Rule("error", between.copies),
    "memory": Rule("error", each(memory)),
    "mfu": Rule("warning", between.mfu),
    "ordering": Rule("error", each(ordering)),
    "passes": Rule("error", each(passes)),
    "peak": Rule("error", each(peak)),
    "per_rank": Rule("error", per_rank),
    "same_figures": Rule("warning", between.same_figures),
    "scaling": Rule("warning", between.scaling),
    "side_by_side": Rule("warning", between.side_by_side),
    "steadiness": Rule("warning", each(steadiness)),
    "target": Rule("error", each(target)),
    "throttling": Rule("warning", each(throttling)),
}
