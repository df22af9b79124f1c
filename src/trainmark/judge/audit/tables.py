"""The rules of an audit that hold launches and rows against each other; the odd one is named."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from math import log
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trainmark.judge.audit.subject import RATES, STARTING_S
from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.record.stats import proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.record.record import Record

T = TypeVar("T")
_PASS = 0.1  # of a pass over the data
_TIMES = ("e2e_time", "train_time", "p_core")  # two launches have not all three in common
_TIMED = {"e2e_time", "token/p/s", *RATES}
_LEAST_FIGURES = 2
_LEAST_RATIOS, _FINE = 3, 2e-3  # ratios of figures that are printed finely enough
_ABOVE = 1.1  # noise of one launch, and caches that hold more of a smaller share
_BATCH = ("bs", "batch_size")
_SAME_START, _SAME_START_S = 2.5, 30.0  # of rows of one table, and seconds more
_PARTS = 64  # of a range of samples that are tried
_AGREES = 0.01  # beside what was rounded
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_ATTENTION = 0.3


def convergence(subjects: Subjects) -> Hits:
    """Yield what reached its quality in a fraction of a pass over the data."""
    for one in subjects:
        samples, rows = _samples_to_quality(one), one.workload.samples_per_pass
        if samples is None:
            continue
        generated = one.record is not None and "generated-data" in one.record.labels
        if rows and samples < _PASS * rows and not generated:
            args = {"metric": one.metric, "value": one.quality, "samples": samples}
            yield one, message("audit_few_passes", rows=rows, passes=samples / rows, **args)


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
    seen: dict[object, tuple[Record, str]] = {}
    for one in subjects:
        record = one.record
        if record is None:
            continue
        times = record.steps.time_ns
        figures = tuple(one.figures.get(name, 0.0) for name in _TIMES)
        # Proportional times have the same order.
        keys: dict[str, object] = {"steps.time_ns": np.argsort(times, kind="stable").tobytes()}
        keys |= {", ".join(_TIMES): figures} if all(figures) else {}
        for same, key in keys.items():
            first, place = seen.setdefault((same, key), (record, one.file))
            alike = same != "steps.time_ns" or proportional(times, first.steps.time_ns)
            if alike and first.run_id != record.run_id:
                runs = {"run_id": record.run_id, "other": first.run_id}
                yield one, message("audit_copy", same=same, place=place, **runs)
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


def ratios(subjects: Subjects) -> Hits:
    """Yield rows of a card whose figures are another card's times one factor."""
    groups: dict[object, list[Subject]] = defaultdict(list)
    for one in subjects:
        if one.row and one.device:
            groups[one.name, one.device].append(one)
    for first, other in combinations(groups.values(), 2):
        if first[0].name != other[0].name:
            continue
        pairs = [(a, b) for b in other for a in first if _alike(a) == _alike(b)]
        known = [found for pair in pairs for found in _factors(*pair)]
        low, high = max((x for x, _ in known), default=0), min((x for _, x in known), default=0)
        if len(known) >= _LEAST_RATIOS and low <= high and not low <= 1 <= high:
            for a, b in pairs:
                args = {"factor": (low + high) / 2, "line": a.line, "device": a.device}
                yield b, message("audit_ratios", figures=len(known), **args)


def _alike(one: Subject) -> object:
    changes = one.row.changes if one.row else {}
    return one.world_size, one.row and one.row.nnodes, sorted(changes.items())


def _factors(a: Subject, b: Subject) -> Iterator[tuple[float, float]]:
    """Yield between which factors the figures of ``b`` over those of ``a`` lie, as printed."""
    for name in (*RATES, "token/p/s"):
        slack = a.rounding(name) + b.rounding(name)
        if name in a.figures and name in b.figures and slack <= _FINE:
            factor = b.figures[name] / a.figures[name]
            yield factor * (1 - slack), factor * (1 + slack)


def scaling(subjects: Subjects) -> Hits:
    """Yield what is faster a device than fewer devices, or slower in all, at the same work."""
    groups: dict[tuple[str, str], list[tuple[int, float, Subject]]] = defaultdict(list)
    for one in subjects:
        name, rate = one.rate_per_device()
        for key in _works(one) if (rate or 0) > 0 and one.world_size else ():
            groups[name, key].append((one.world_size or 1, rate, one))
    found = {}  # once, also where both batches agree
    for (name, _), group in groups.items():

        def apart(one: tuple[int, float, Subject], other: tuple[int, float, Subject]) -> bool:
            (fewer, least, _), (world, rate, _) = sorted((one, other), key=lambda item: item[0])
            above = rate > _ABOVE * least
            return fewer < world and (above or rate * world * _ABOVE < least * fewer)

        usual = median(log(rate) for _, rate, _ in group)

        def order(item: tuple[int, float, Subject], usual: float = usual) -> tuple[float, int]:
            # The one that is furthest from the others, of two rows that of more devices.
            return round(abs(log(item[1]) - usual), 9), item[0]

        for at, beside in _odd(group, apart, last=order):
            (world, rate, one), (fewer, least, _) = at, beside
            args = {"rate": rate, "fewer_rate": least, "share": rate / least}
            worlds = {"world_size": world, "fewer": fewer}
            found[id(one)] = one, message("audit_scaling", figure=name, **worlds, **args)
    yield from found.values()


def _odd(
    given: Sequence[T], apart: Callable[[T, T], bool], *, last: Callable[[T], Any]
) -> Iterator[tuple[T, T]]:
    """Yield what contradicts most others, with one of these, until nothing contradicts.

    Args:
        last: of those that contradict as many, the one with the highest is named.
    """
    rest = list(given)
    while True:
        against = [[x for x in rest if x is not one and apart(one, x)] for one in rest]
        worst = max(
            range(len(rest)), key=lambda at: (len(against[at]), last(rest[at])), default=None
        )
        if worst is None or not against[worst]:
            return
        yield rest[worst], against[worst][0]
        del rest[worst]


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
    """Yield the rows of a table that trained another number of samples than most of it."""
    tables: dict[object, list[Subject]] = defaultdict(list)
    for one in subjects:
        if one.table is not None and one.samples_bounds()[1]:
            tables[one.table].append(one)
    for rows in tables.values():
        most = {id(one): one.samples_bounds()[1] for one in rows}
        usual = median(map(log, most.values()))

        def order(row: Subject, usual: float = usual) -> tuple[float, float]:
            samples = row.samples_bounds()[1]
            return round(abs(log(samples) - usual), 9), samples

        for one, beside in _odd(rows, _other_samples, last=order):
            samples, others = most[id(one)], most[id(beside)]
            args = {"samples": samples, "others": others, "line": beside.line}
            ratio, size = samples / others, one.workload.samples_per_pass
            if size is None:
                yield one, message("audit_side_by_side", ratio=ratio, **args)
            else:
                passes = ", ".join(f"{most[id(row)] / size:.1f}" for row in rows)
                told = message("audit_passes_differ", passes=passes, rows=size, ratio=ratio,
                               line=beside.line)  # fmt: skip
                yield one, told


def _other_samples(one: Subject, other: Subject) -> bool:
    """Tell whether no start-up times of one kind explain both rows by the same samples."""
    known = [(x.figures["e2e_time"], x.figures["p_whole"]) for x in (one, other)]
    low = max(0.0, *(rate * (seconds - STARTING_S) for seconds, rate in known))
    high = min(rate * seconds for seconds, rate in known) * SAME_WORK_RATIO
    for part in range(_PARTS + 1):
        samples = low / SAME_WORK_RATIO + (high - low / SAME_WORK_RATIO) * part / _PARTS
        least, most = sorted(
            min(max(0.0, seconds - samples / rate), max(0.0, seconds - low / rate))
            for seconds, rate in known
        )
        slack = _SAME_START_S + (SAME_WORK_RATIO - 1) * max(seconds for seconds, _ in known)
        if low <= high and most <= _SAME_START * least + slack:
            return False
    return True


def mfu(subjects: Subjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput."""
    tables: dict[object, list[Subject]] = defaultdict(list)
    for one in (one for one in subjects if one.row):
        found = list(_against_peak(one))
        yield from found
        if one.row and one.device and _implied(one) and not found:
            tables[one.table, one.device, one.row.precision].append(one)
    for rows in tables.values():
        for one, usual in _odd(rows, lambda a, b: _apart(a, b) > 0, last=lambda row: row.line):
            args = {"mfu": one.figures["MFU"], "tokens": one.figures["token/p/s"]}
            apart = _apart(one, usual)
            yield one, message("audit_mfu_beside", apart=apart, line=usual.line, **args)


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
