"""The rules of an audit that look at each row alone, or at the qualities of one table."""

from __future__ import annotations

from itertools import pairwise
from statistics import median, mode
from typing import TYPE_CHECKING

from trainmark.judge.audit.qualities import is_lower_better, is_share
from trainmark.judge.audit.subject import RATES, SAMPLE_RATES, TIMES, TOKEN_RATES, grouped
from trainmark.record.work import LOG_CONTRADICTIONS
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.spec import Message

_GIB = 2**30
_ORDER_SUMS = 1e-9  # figures of a record are not rounded
_SAME_MEMORY = 0.1  # GiB and GB differ by 7%, and drivers keep some for themselves
_ROUNDED_MEMORY = 0.02  # a page prints one card's memory to the same digits
_MORE_SAMPLES = 1.1  # than the data, with the time that starting may have taken left out
_MAX_PASSES = 1000  # over a data set: no published configuration of a known one trains so many
_YEAR_S = 366 * 86400.0  # no published run took longer
_ABOVE_PEAK = 1.1  # clocks may be above those of the peak, and FLOPs of a sample are counted
_NEAR, _MAX_EACH = 0.03, 64  # of a whole multiple of the ranks
_SAME_RATE = 0.03  # of two figures that are the same by arithmetic, beside what was rounded
_CUT_OFF = 2  # half units of the last digit: some pages cut digits off instead of rounding
_MAX_PADDING = 200  # times a sample may be shorter than the longest one
_SAME_STEP = 0.25  # of a batch over its step time: means of other steps
_PER_CENT_NEAR = 3.0  # a value in per cent among shares is about a hundred times as large
_ALIKE, _OUTLIER = 1.3, 4.0  # qualities of one table, and one of another decimal
_POSITIVE = {
    *RATES, *TIMES, *TOKEN_RATES, "sample/p/s", "step/s", "mem", "mem_total", "MFU", "MAMFU",
    "model_flops_per_device", "steps", "epochs",
}  # fmt: skip
_NARROW = ("tf32", "bf16", "fp8", "fp4")  # precisions that cards have from some generation on


def label(subjects: Subjects) -> Hits:
    """Yield rows whose label contradicts itself, or names a precision that the card lacks."""
    for subject in subjects:
        for note in subject.row.notes if subject.row else ():
            if note.code == "label_contradicts_itself":
                yield subject, note
        for name in _NARROW:
            if name in subject.precisions and not subject.is_mixed and subject.lacks(name):
                code = "audit_precision" if subject.has_data_sheet else "audit_precision_unsure"
                yield subject, message(code, precision=name, device=subject.device)


def log(subjects: Subjects) -> Hits:
    """Yield rows whose log contradicts itself, as its reader noticed."""
    for subject in subjects:
        for note in subject.row.notes if subject.row else ():
            if note.code in LOG_CONTRADICTIONS:
                yield subject, note


def range_(subjects: Subjects) -> Hits:
    """Yield rows with a figure outside its range, and qualities in another unit than the rest."""
    for subject in subjects:
        for name, value in subject.printed.items():
            # A loss that is a likelihood's may be below zero, the ones of known models are not.
            is_loss = "loss" in name and subject.workload.names
            is_wrong = name in _POSITIVE and value <= 0 and not _is_cut_off(subject, name)
            if is_wrong or (is_loss and value < 0):
                yield subject, message("audit_not_positive", figure=name, value=value)
        if subject.figures.get("MFU", 0.0) > 100:
            yield (
                subject,
                message("audit_range", figure="MFU", value=subject.figures["MFU"], most=100),
            )
        for name in TIMES:
            if subject.figures.get(name, 0.0) > _YEAR_S:
                days = subject.figures[name] / 86400
                yield subject, message("audit_years", figure=name, days=days)
    for name, rows in _tables_of_shares(subjects):
        yield from _shares(name, rows)


def _is_cut_off(subject: Subject, name: str) -> bool:
    """Tell whether a rate of samples is printed as 0 because it is less than the last digit."""
    tokens = subject.figures.get("p_train_tokens")
    if tokens is None:
        tokens = subject.figures.get("token/p/s", 0.0) * (subject.world_size or 0)
    length = subject.setting("seq_length")
    if name not in SAMPLE_RATES or subject.printed[name] < 0 or not tokens or not length:
        return False
    return tokens / length < subject.unit_of_last_digit(name)


def _tables_of_shares(subjects: Subjects) -> Iterator[tuple[str, list[Subject]]]:
    """Yield the rows of each table with each of its qualities that are shares."""
    names = {name for subject in subjects for name in subject.printed if is_share(name)}
    for name in sorted(name for name in names if not name.endswith("_target")):
        with_name = [subject for subject in subjects if name in subject.printed]
        for rows in grouped(with_name, lambda subject: [subject.table or subject.file]):
            yield name, rows


def _shares(name: str, rows: Sequence[Subject]) -> Hits:
    """Yield the rows whose quality is no share, or no per cent, as in the rest of their table."""
    values = [subject.printed[name] for subject in rows]
    whole = 1 if _are_shares(values) else 100
    for subject, value in zip(rows, values, strict=True):
        if not 0 < value <= whole:
            yield subject, message("audit_range", figure=name, value=value, most=whole)
        elif whole > 1 >= value and len(values) > 1:
            yield subject, message("audit_unit", figure=name, value=value)


def _are_shares(values: Sequence[float]) -> bool:
    """Tell whether qualities are shares rather than per cent, by most of them.

    Of as many of both the larger ones are in per cent if they are about a hundred times the
    others; else they are outside the range of shares.
    """
    shares = [value for value in values if 0 <= value <= 1]
    others = [value for value in values if value > 1]
    if len(shares) != len(others):
        return 2 * len(shares) > len(values)
    times = median(others) / median(shares) / 100 if shares and median(shares) else 0.0
    return bool(shares) and not 1 / _PER_CENT_NEAR < times < _PER_CENT_NEAR


def outlier(subjects: Subjects) -> Hits:
    """Yield a quality that is far from all others of its table, which agree."""
    for name, rows in _tables_of_shares(subjects):
        for subject in rows:
            value = subject.printed[name]
            others = [other.printed[name] for other in rows if other is not subject]
            if len(others) < 2 or not value > 0 or min(others) <= 0:
                continue
            agree = max(others) <= _ALIKE * min(others)
            usual = median(others)
            # A hundred times as much is another unit, of which the rule on ranges speaks.
            is_far = max(value / usual, usual / value) >= _OUTLIER
            if agree and is_far and (value <= 1) == (usual <= 1):
                args = {"value": value, "usual": usual}
                yield subject, message("audit_outlier", figure=name, rows=len(others), **args)


def ordering(subjects: Subjects) -> Hits:
    """Yield figures that are larger than one that leaves out more time."""
    for subject in subjects:
        known = [name for name in SAMPLE_RATES if name in subject.figures]
        for above, below in pairwise(known):
            rates = {"above_rate": subject.figures[above], "below_rate": subject.figures[below]}
            slack = 1 + subject.rounding(above, below) + _ORDER_SUMS
            if rates["below_rate"] > rates["above_rate"] * slack:
                yield subject, message("audit_order", above=above, below=below, **rates)
        seconds, whole = map(subject.figures.get, ("train_time", "e2e_time"))
        slack = 1 + subject.rounding("train_time", "e2e_time") + _ORDER_SUMS
        if seconds and whole and seconds > whole * slack:
            yield subject, message("audit_time", train_time=seconds, e2e_time=whole)


def totals(subjects: Subjects) -> Hits:
    """Yield rows whose rates contradict each other, or the batch and the time of a step."""
    for subject in subjects:
        yield from _device_and_all(subject)
        yield from _tokens_and_samples(subject)
        yield from _batch_and_step(subject)


def _device_and_all(subject: Subject) -> Hits:
    """Yield that the rate of all devices is not that of one times their number."""
    for of_one, of_all in (("token/p/s", "p_train_tokens"), ("sample/p/s", "p_whole")):
        if subject.world_size and of_one in subject.figures and of_all in subject.figures:
            times = subject.figures[of_all] / subject.figures[of_one]
            slack = 1 + _SAME_RATE + _CUT_OFF * subject.rounding(of_one, of_all)
            if not 1 / slack <= times / subject.world_size <= slack:
                names = {"of_one": of_one, "of_all": of_all}
                rates = {
                    "rate": subject.figures[of_one],
                    "total": subject.figures[of_all],
                    "times": times,
                }
                yield (
                    subject,
                    message("audit_total", world_size=subject.world_size, **names, **rates),
                )


def _tokens_and_samples(subject: Subject) -> Hits:
    """Yield that there are more tokens than samples of the row's length have, or hardly any."""
    tokens, samples = subject.figures.get("p_train_tokens"), subject.figures.get("p_whole")
    length = subject.setting("seq_length")
    if tokens and samples and length:
        slack = 1 + _SAME_RATE + _CUT_OFF * subject.rounding("p_train_tokens", "p_whole")
        # Samples may be shorter than the longest, but hardly by that much.
        is_too_few = tokens / samples < length / _MAX_PADDING
        if tokens / samples > length * slack or is_too_few:
            args = {"tokens": tokens, "samples": samples, "length": length}
            yield subject, message("audit_tokens", ratio=tokens / samples, **args)


def _batch_and_step(subject: Subject) -> Hits:
    """Yield that throughput times step time is not the batch of a step."""
    seconds, rate = subject.figures.get("step_time"), _samples_a_second(subject)
    if not seconds or not rate:
        return
    least, most = _batch_bounds(subject)
    slack = 1 + _SAME_STEP + subject.rounding("step_time")
    samples = seconds * rate
    if samples * slack < least or samples > most * slack:
        args = {"step_time": seconds, "rate": rate, "least": least, "samples": samples}
        yield subject, message("audit_batch", **args)


def _samples_a_second(subject: Subject) -> float | None:
    """Return samples a second of all devices, from tokens where samples are not printed."""
    figures, world, length = subject.figures, subject.world_size, subject.setting("seq_length")
    for name in SAMPLE_RATES:
        if name in figures:
            return figures[name]
    if world and "sample/p/s" in figures:
        return figures["sample/p/s"] * world
    if not length:
        return None
    if "p_train_tokens" in figures:
        return figures["p_train_tokens"] / length
    return figures["token/p/s"] * world / length if world and "token/p/s" in figures else None


def _batch_bounds(subject: Subject) -> tuple[float, float]:
    """Return the least and most samples of a step that a row's settings allow."""
    whole = subject.setting("global_batch_size")
    if whole:
        return whole, whole
    micro = subject.setting("micro_batch_size")
    if not micro:
        return 0.0, float("inf")
    # Devices that share a model train one micro-batch together: how many is not printed.
    accumulation = subject.setting("grad_accum_steps")
    if accumulation is None or not subject.world_size:
        return micro, float("inf")
    return micro * accumulation, micro * accumulation * subject.world_size


def memory(subjects: Subjects) -> Hits:
    """Yield more memory than there is, and cards with another memory than theirs."""
    for subject in subjects:
        used, total = (subject.figures.get(name, 0.0) / _GIB for name in ("mem", "mem_total"))
        if total and used > total * (1 + subject.rounding("mem")):
            yield subject, message("audit_memory", used=used, total=total)
        sizes = sorted(set(subject.published("memory_gb")))
        if sizes and not _fits_a_card(used, total, sizes):
            yield subject, _of_another_card(subject, total or used, sizes)
    cards = [subject for subject in subjects if subject.device and "mem_total" in subject.figures]
    for rows in grouped(cards, lambda subject: [(subject.table, subject.device)]):
        usual = mode(subject.figures["mem_total"] for subject in rows)
        for subject in rows if len(rows) > 2 else ():
            total = subject.figures["mem_total"]
            if abs(total / usual - 1) > _ROUNDED_MEMORY:
                yield subject, _of_another_card(subject, total / _GIB, [usual / _GIB])


def _fits_a_card(used: float, total: float, sizes: Sequence[float]) -> bool:
    """Tell whether a card of one of the sizes has a memory, or enough for what is used of it."""
    if total:
        return any(abs(total / size - 1) <= _SAME_MEMORY for size in sizes)
    return any(used <= size * (1 + _SAME_MEMORY) for size in sizes)


def _of_another_card(subject: Subject, total: float, sizes: Sequence[float]) -> Message:
    known = ", ".join(f"{size:g}" for size in sizes)
    return message("audit_memory_of_card", total=total, device=subject.device, sizes=known)


def passes(subjects: Subjects) -> Hits:
    """Yield rows with more samples than their data and epochs have, and how they were counted."""
    for subject in subjects:
        rows = subject.workload.samples_per_pass or 0
        epochs = subject.workload.epochs or subject.setting("epochs") or 0
        least, most = subject.samples_bounds()
        rate = subject.figures.get("p_whole", 0.0)
        args = {"e2e_time": subject.seconds, "p_whole": rate, "rows": rows}
        if rows and not epochs and least > _MAX_PASSES * rows:
            yield (
                subject,
                message("audit_passes_unnamed", passes=most / rows, most=_MAX_PASSES, **args),
            )
        if not rows or not epochs or least <= _MORE_SAMPLES * rows * epochs:
            continue
        args["epochs"] = round(epochs)
        world, multiple = subject.world_size or 0, most / (rows * epochs)
        each = round(multiple / world) if world else 0
        if 0 < each <= _MAX_EACH and abs(multiple / world / each - 1) <= _NEAR:
            args |= {"times": each * world, "each": each, "world_size": world}
            yield subject, message("audit_per_rank", once=rows * epochs / subject.seconds, **args)
        else:
            yield subject, message("audit_passes", passes=most / rows, **args)


def peak(subjects: Subjects) -> Hits:
    """Yield what computed faster than its device can in the precision that it declares."""
    for subject in subjects:
        rate, bound = subject.flops_per_device(), subject.bound()
        if bound is None or rate <= _ABOVE_PEAK * bound.flops:
            continue
        shares = {"tflops": rate / 1e12, "peak": bound.flops / 1e12, "share": rate / bound.flops}
        tf32 = max(subject.published("tf32_tflops"), default=0.0)
        if subject.precision == "fp32" and rate <= tf32 * 1e12:
            yield subject, message("audit_tf32", tf32=tf32, device=subject.device, **shares)
        else:
            code = "audit_peak" if bound.is_sure else "audit_peak_unsure"
            yield subject, message(code, precision=bound.precision, device=subject.device, **shares)


def target(subjects: Subjects) -> Hits:
    """Yield rows that print a target they missed."""
    for subject in subjects:
        metric = subject.row.metric if subject.row else None
        value, wanted = (subject.figures.get(name) for name in (metric or "", f"{metric}_target"))
        if metric is None or value is None or wanted is None:
            continue
        if is_lower_better(metric):
            is_missed = value > wanted
        else:  # of other qualities nobody knows which direction is better
            is_missed = is_share(metric) and value < wanted
        if is_missed:
            yield subject, message("audit_target_row", metric=metric, value=value, target=wanted)
