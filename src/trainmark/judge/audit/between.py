"""The rules of an audit that hold launches and rows against each other."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from trainmark.judge.audit.subject import RATES
from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.judge.audit.finding import Hits, Subject, Subjects

_LAUNCHES = 4  # of the same work, at least
_SHARE = 1 / 3  # of their median
_PASS = 0.1  # of a pass over the data
_STEPS = 8  # times in nanoseconds: two launches do not have as many in common
_TIMES = ("e2e_time", "train_time", "p_core")  # likewise, all three of them
_TIMED = {"e2e_time", "token/p/s", *RATES}
_LEAST_FIGURES = 2
_ABOVE = 1.05  # noise of one launch, and caches that hold more of a smaller share
_BATCH = ("bs", "batch_size")
_SUMS = 1e-6
_AGREES = 0.01  # beside what was rounded
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_ATTENTION = 0.3


def convergence(subjects: Subjects) -> Hits:
    """Yield what reached its quality in a fraction of a pass, or far sooner than others did."""
    same: dict[object, list[tuple[Subject, float]]] = defaultdict(list)
    for one in subjects:
        samples, rows = _samples_to_quality(one), one.workload.samples_per_pass
        if samples is None:
            continue
        generated = one.record is not None and "generated-data" in one.record.labels
        if rows and samples < _PASS * rows and not generated:
            args = {"metric": one.metric, "value": one.quality, "samples": samples}
            yield one, message("audit_few_passes", rows=rows, passes=samples / rows, **args)
        if one.target is not None:
            world = one.record and one.record.plan.world_size
            same[one.name, one.work, world, one.target].append((one, samples))
    for found in (found for found in same.values() if len(found) >= _LAUNCHES):
        usual = median(samples for _, samples in found)
        for one, samples in (item for item in found if item[1] < _SHARE * usual):
            args = {"samples": samples, "usual": usual, "launches": len(found)}
            target = {"metric": one.metric, "target": one.target}
            yield one, message("audit_fast_convergence", **target, **args)


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


def copies(subjects: Subjects) -> Hits:
    """Yield each launch whose step times or figures are those of another launch."""
    seen: dict[object, tuple[str, Subject]] = {}
    for one in subjects:
        if one.record is None:
            continue
        run_id, times = one.record.run_id, one.record.steps.time_ns
        figures = tuple(one.figures.get(name, 0.0) for name in _TIMES)
        keys: dict[str, tuple[float, ...]] = {}
        if len(times) >= _STEPS:
            keys["steps.time_ns"] = tuple(times)
        keys |= {", ".join(_TIMES): figures} if all(figures) else {}
        for same, values in keys.items():
            other, first = seen.setdefault((same, values), (run_id, one))
            if other != run_id:
                args = {"run_id": run_id, "other": other, "place": first.file}
                yield one, message("audit_copy", same=same, **args)
                break


def same_figures(subjects: Subjects) -> Hits:
    """Yield each row that repeats the measured figures of a row of another name."""
    seen: dict[object, Subject] = {}
    for one in subjects:
        # The memory of a card is the same in every row of it.
        known = tuple(sorted(item for item in one.figures.items() if item[0] != "mem_total"))
        if one.row is None or len(known) < _LEAST_FIGURES or not _TIMED & one.figures.keys():
            continue
        first = seen.setdefault(known, one)
        if (first.name, first.configuration) != (one.name, one.configuration):
            names = ", ".join(name for name, _ in known)
            args = {"name": one.name, "other": first.name, "file": first.file}
            yield one, message("audit_same_figures", figures=names, line=first.line, **args)


def scaling(subjects: Subjects) -> Hits:
    """Yield more devices that are each faster than fewer of them at the same work."""
    groups: dict[tuple[str, str], list[tuple[int, float, Subject]]] = defaultdict(list)
    for one in subjects:
        name, rate = one.rate_per_device()
        for key in _works(one) if rate and one.world_size else ():
            groups[name, key].append((one.world_size or 1, rate, one))
    found = {}  # once, also where both batches agree
    for (name, _), group in groups.items():
        fewer, least, _ = min(group, key=lambda item: item[0])
        for world, rate, one in group:
            if world > fewer and rate > _ABOVE * least:
                args = {"rate": rate, "fewer_rate": least, "share": rate / least}
                worlds = {"world_size": world, "fewer": fewer}
                found[id(one)] = one, message("audit_scaling", figure=name, **worlds, **args)
    yield from found.values()


def _works(one: Subject) -> list[str]:
    """Return what worlds must have in common: the batch of all devices, or that of each."""
    if one.row is None:
        return [one.work]
    changes = {name.lower(): text for name, text in one.row.changes.items() if name.lower() != "lr"}
    batch = next((changes.pop(name) for name in _BATCH if name in changes), "")
    sizes = [batch]
    if batch.isdecimal() and len(batch) < 16:
        sizes.append(f"{int(batch) / (one.world_size or 1)} each")
    shared = (one.table, one.device, one.row.precision, sorted(changes.items()))
    return [str((*shared, size)) for size in sizes]


def side_by_side(subjects: Subjects) -> Hits:
    """Yield for each table whose rows trained different samples the row with the most."""
    tables: dict[object, list[tuple[float, float, Subject]]] = defaultdict(list)
    for one in subjects:
        if one.table is not None and (bounds := one.samples_bounds())[1]:
            tables[one.table].append((*bounds, one))
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


def mfu(subjects: Subjects) -> Hits:
    """Yield records and rows whose MFU does not follow from their own figures."""
    tables: dict[object, list[Subject]] = defaultdict(list)
    for one in subjects:
        found = list(_of_record(one) if one.record else _against_peak(one))
        yield from found
        if one.row and one.device and _implied(one) and not found:
            tables[one.table, one.device, one.row.precision].append(one)
    for rows in tables.values():
        # The rows that imply another peak than most rows of the same device and precision.
        usual = min(rows, key=lambda other: sum(_apart(one, other) > 0 for one in rows))
        for one in (one for one in rows if _apart(one, usual)):
            args = {"mfu": one.figures["MFU"], "tokens": one.figures["token/p/s"]}
            apart = _apart(one, usual)
            yield one, message("audit_mfu_beside", apart=apart, line=usual.line, **args)


def _of_record(one: Subject) -> Hits:
    note = one.record and one.record.figures["MFU"].note
    share, rate = (one.figures.get(name, 0.0) for name in ("MFU", "model_flops_per_device"))
    published = max(one.dense_peaks(), default=0.0) / 1e12 if share else 0.0
    tflops = note.args.get("tflops") if note else published
    again = 100 * rate / (tflops * 1e12) if tflops and isinstance(tflops, float | int) else share
    if abs(again - share) > _SUMS * again:
        args = {"mfu": share, "again": again, "flops": rate, "tflops": tflops}
        yield one, message("audit_mfu", **args), "error"


def _implied(one: Subject) -> list[float]:
    """Return the peaks in FLOP/s that MFU and token throughput imply, one for each FLOP count."""
    share, rate = (one.figures.get(name, 0.0) for name in ("MFU", "token/p/s"))
    sizes, factors = one.workload.parameters if share else (), one.workload.flops_per_parameter
    return [1e11 * rate * size * factor / share for factor in factors for size in sizes if rate]


def _slack(one: Subject) -> float:
    return _AGREES + one.rounding("MFU", "token/p/s")


def _apart(one: Subject, other: Subject) -> float:
    share = min(abs(x / y - 1) for x in _implied(one) for y in _implied(other))
    return share if share > _slack(one) + _slack(other) - _AGREES else 0.0


def _against_peak(one: Subject) -> Hits:
    """Yield a finding if no published peak of the device explains the MFU."""
    published, slack = one.dense_peaks(), 1 + _slack(one)
    if one.precision == "fp32":  # pages call TF32 so; the rule on peaks says it
        published += [tflops * 1e12 for tflops in one.published("tf32_tflops")]
    ranges = [(own / slack, own * (slack + _ATTENTION)) for own in _implied(one)]
    fits = (low <= peak <= high for low, high in ranges for peak in published)
    if ranges and published and not any(fits):
        size, factor = one.workload.parameters[0], one.workload.flops_per_parameter[0]
        again = _implied(one)[0] / published[0] * one.figures["MFU"]
        args = {"tokens": one.figures["token/p/s"], "factor": factor, "parameters": size}
        shown = {"mfu": one.figures["MFU"], "tflops": published[0] / 1e12}
        yield one, message("audit_mfu_row", again=again, **shown, **args)
