"""The rules of an audit that hold launches and rows against each other; the odd one is named."""

from __future__ import annotations

from itertools import combinations
from math import log
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trainmark.judge.audit.subject import RATES, STARTING_S, grouped
from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.record.stats import proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.record.record import Record

_LEAST_RATIOS, _FINE = 3, 2e-3  # ratios, and how finely figures must be printed and agree
_ABOVE = 1.1  # noise of one launch
_MUCH_ABOVE = 1.5  # another batch, and caches that hold more of a smaller share
_SAME_START, _SAME_START_S = 2.5, 30.0  # of rows of one table, and seconds more
_PARTS = 64  # of a range of samples that are tried
_AGREES = 0.01  # beside what was rounded
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_ATTENTION = 0.3


def copies(subjects: Subjects) -> Hits:
    """Yield each launch whose step times are those of another launch, or proportional to them."""
    seen: dict[bytes, tuple[Record, str]] = {}
    for one in subjects:
        if (record := one.record) is None:
            continue
        times = record.steps.time_ns
        # Proportional times have the same order.
        order = np.argsort(times, kind="stable").tobytes()
        first, place = seen.setdefault(order, (record, one.file))
        if first.run_id != record.run_id and proportional(times, first.steps.time_ns):
            args = {"run_id": record.run_id, "other": first.run_id, "place": place}
            yield one, message("audit_copy", same="steps.time_ns", **args)


def same_figures(subjects: Subjects) -> Hits:
    """Yield each row that repeats all measured figures of a row of other work."""
    for first, *others in grouped(subjects, _measured):
        for one in others:
            if _printed_work(one) != _printed_work(first):
                place = {"other": first.configuration, "file": first.file}
                yield one, message("audit_same_figures", line=first.line, **place)


def _measured(one: Subject) -> list[object]:
    # The memory of a card is the same in every row of it.
    known = sorted(item for item in one.figures.items() if item[0] != "mem_total")
    timed = one.figures.keys() & {"e2e_time", "token/p/s", *RATES}
    return [tuple(known)] if timed and len(known) > 1 else []


def _printed_work(one: Subject) -> object:
    return one.name, one.configuration, one.precision, one.changes


def ratios(subjects: Subjects) -> Hits:
    """Yield rows of a card whose figures are another card's, or these times one factor."""
    cards = grouped(subjects, lambda one: [(one.name, one.device)] if one.device else [])
    for first, other in combinations(cards, 2):
        if first[0].name != other[0].name:
            continue
        pairs = [(a, b) for b in other for a in first if _alike(a) == _alike(b)]
        known = [factor for pair in pairs for factor in _factors(*pair)]
        if len(known) >= _LEAST_RATIOS and max(known) <= min(known) * (1 + _FINE):
            for a, b in pairs:
                args = {"factor": median(known), "line": a.line, "device": a.device}
                yield b, message("audit_ratios", figures=len(known), **args)


def _alike(one: Subject) -> object:
    return one.world_size, one.row and one.row.nnodes, sorted(one.changes.items())


def _factors(a: Subject, b: Subject) -> list[float]:
    """Return the figures of ``b`` over those of ``a``, of those that are printed finely enough."""
    return [
        b.figures[name] / a.figures[name]
        for name in (*RATES, "token/p/s")
        if name in a.figures and name in b.figures and a.rounding(name) + b.rounding(name) <= _FINE
    ]


def scaling(subjects: Subjects) -> Hits:
    """Yield what is half as fast again a device as fewer devices are, or slower in all."""
    for group in grouped(subjects, _scaled):
        for one, beside in _odd(group, _scales_oddly, _device_rate):
            (name, rate), least = one.rate_per_device(), _device_rate(beside)
            args = {"rate": rate, "fewer_rate": least, "share": rate / least}
            worlds = {"world_size": one.world_size, "fewer": beside.world_size}
            yield one, message("audit_scaling", figure=name, **worlds, **args)


def _scaled(one: Subject) -> list[object]:
    name, rate = one.rate_per_device()
    return [(name, one.table, one.device, one.precision)] if one.world_size and rate > 0 else []


def _device_rate(one: Subject) -> float:
    return one.rate_per_device()[1]


def _scales_oddly(one: Subject, other: Subject) -> bool:
    fewer, more = sorted((one, other), key=lambda row: row.world_size or 0)
    times = (more.world_size or 0) / (fewer.world_size or 1)
    share = _device_rate(more) / _device_rate(fewer)
    return times > 1 and (share > _MUCH_ABOVE or share * times * _ABOVE < 1)


def _odd(
    given: Subjects,
    apart: Callable[[Subject, Subject], bool],
    value: Callable[[Subject], float],
) -> Iterator[tuple[Subject, Subject]]:
    """Yield what contradicts most others, with one of these, until nothing contradicts.

    Of those that contradict as many, the one whose value is furthest from the median is named, of
    two the later.
    """
    rest, usual = list(given), median(log(value(one)) for one in given)
    far = {id(one): round(abs(log(value(one)) - usual), 9) for one in given}
    while rest:
        against = [[x for x in rest if x is not one and apart(one, x)] for one in rest]
        ranks = [(len(found), far[id(rest[at])], at) for at, found in enumerate(against)]
        worst = max(ranks)[-1]
        if not against[worst]:
            return
        yield rest.pop(worst), against[worst][0]


def side_by_side(subjects: Subjects) -> Hits:
    """Yield the rows of a table that trained another number of samples than most of it."""
    for rows in grouped(
        subjects, lambda one: [one.table] if one.table and _most_samples(one) else []
    ):
        for one, beside in _odd(rows, _other_samples, _most_samples):
            samples, others = _most_samples(one), _most_samples(beside)
            args = {"ratio": samples / others, "line": beside.line}
            if size := one.workload.samples_per_pass:
                passes = ", ".join(f"{_most_samples(row) / size:.1f}" for row in rows)
                yield one, message("audit_passes_differ", passes=passes, rows=size, **args)
            else:
                shown = {"samples": samples, "others": others}
                yield one, message("audit_side_by_side", **shown, **args)


def _most_samples(one: Subject) -> float:
    return one.samples_bounds()[1]


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


def _implied(one: Subject) -> list[float]:
    """Return the peaks in FLOP/s that MFU and token throughput imply, one for each FLOP count."""
    share, rate = (one.figures.get(name, 0.0) for name in ("MFU", "token/p/s"))
    sizes, factors = one.workload.parameters if share else (), one.workload.flops_per_parameter
    return [1e11 * rate * size * factor / share for factor in factors for size in sizes if rate]


def mfu(subjects: Subjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput by any published peak."""
    for one in subjects:
        published, slack = one.dense_peaks(), 1 + _AGREES + one.rounding("MFU", "token/p/s")
        if one.precision == "fp32":  # pages call TF32 so; the rule on peaks says it
            published += [tflops * 1e12 for tflops in one.published("tf32_tflops")]
        implied = _implied(one)
        ranges = [(own / slack, own * (slack + _ATTENTION)) for own in implied]
        fits = any(low <= peak <= high for low, high in ranges for peak in published)
        if fits or not ranges or not published:
            continue
        size, factor = one.workload.parameters[0], one.workload.flops_per_parameter[0]
        args = {"tokens": one.figures["token/p/s"], "factor": factor, "parameters": size}
        again = implied[0] / published[0] * one.figures["MFU"]
        args |= {"mfu": one.figures["MFU"], "tflops": published[0] / 1e12}
        yield one, message("audit_mfu_row", again=again, **args)
