"""The rules of an audit that hold launches and rows against each other; the odd one is named."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, permutations
from math import log
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trainmark.judge.audit.subject import RATES, TOKEN_RATES, grouped
from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.record.stats import proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.record.record import Record
    from trainmark.spec import Message

_LEAST_RATIOS, _FINE = 3, 2e-3  # ratios, and how finely figures must be printed and agree
_ABOVE = 1.1  # noise of one launch
_BATCH_GAIN = 0.7  # another batch of a device, twice as large, makes 2 ** 0.7 at most
_MUCH_ABOVE = 1.5  # another batch, and caches that hold more of a smaller share
_SAME_START, _SAME_START_S = 2.5, 30.0  # of rows of one table, and seconds more
_PARTS = 64  # of a range of samples that are tried
_AGREES = 0.01  # beside what was rounded
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_ATTENTION = 0.3
# Without layers and width: N is 12 L H H, so that the share is T over 6 H, and the narrowest model
# has 32 times as much width as layers.
_DEEPEST = 32
_NAMED_SIZE = 0.25  # of a size in a name: models called 7b have 6.7e9 to 8.5e9 parameters
_SAME_MFU = 0.03  # of rows of one model, device and length, beside what was rounded
_TIMED = {"e2e_time", "train_time", "step_time", "sample/p/s", *TOKEN_RATES, *RATES}
_WIDTHS = {"fp8": 1, "fp16": 2, "bf16": 2, "tf32": 3, "fp32": 4}  # of precisions, narrow to wide


def copies(subjects: Subjects) -> Hits:
    """Yield each launch whose step times are those of another launch, or proportional to them."""
    seen: dict[bytes, tuple[Record, str]] = {}
    for subject in subjects:
        if (record := subject.record) is None:
            continue
        times = record.steps.time_ns
        # Proportional times have the same order.
        order = np.argsort(times, kind="stable").tobytes()
        first, place = seen.setdefault(order, (record, subject.file))
        if first.run_id != record.run_id and proportional(times, first.steps.time_ns):
            args = {"run_id": record.run_id, "other": first.run_id, "place": place}
            yield subject, message("audit_copy", same="steps.time_ns", **args)


def same_figures(subjects: Subjects) -> Hits:
    """Yield each row that repeats all measured figures of a row of other work.

    Rows of one line, which has a column for each precision, are compared together.
    """
    lines = grouped(subjects, lambda subject: [(subject.file, subject.line)] if subject.row else [])
    repeated: dict[object, list[list[Subject]]] = defaultdict(list)
    for line in lines:
        if measured := _measured(line):
            repeated[measured].append(line)
    for first, *others in repeated.values():
        for other in others:
            if _is_copied_page(first[0], other[0]):
                continue
            if [_printed_work(subject) for subject in other] != [
                _printed_work(subject) for subject in first
            ]:
                place = {"other": first[0].configuration, "file": first[0].file}
                yield other[0], message("audit_same_figures", line=first[0].line, **place)


def _measured(line: Sequence[Subject]) -> tuple[object, ...]:
    """Return the figures of a line by which it is known again; empty: too few."""
    # The memory of a card is the same in every row of it.
    known = [
        (subject.precision, name, value)
        for subject in line
        for name, value in sorted(subject.figures.items())
        if name != "mem_total"
    ]
    is_timed = any(name in _TIMED for _, name, _ in known)
    return tuple(known) if is_timed and len(known) > 1 else ()


def _is_copied_page(first: Subject, other: Subject) -> bool:
    """Tell whether a line stands unchanged in another file, as in a page's translation."""
    if first.row is None or other.row is None or first.file == other.file:
        return False
    return bool(first.row.raw) and first.row.raw.split() == other.row.raw.split()


def _printed_work(subject: Subject) -> object:
    section = subject.row.section if subject.row else ""
    return subject.name, section, subject.configuration, subject.precision, subject.changes


def ratios(subjects: Subjects) -> Hits:
    """Yield rows of a card whose figures are another card's, or these times one factor."""
    cards = grouped(
        subjects, lambda subject: [(subject.name, subject.device)] if subject.device else []
    )
    for first, other in combinations(cards, 2):
        if first[0].name != other[0].name:
            continue
        pairs = [(a, b) for b in other for a in first if _alike(a) == _alike(b)]
        known = [factor for pair in pairs for factor in _factors(*pair)]
        if len(known) >= _LEAST_RATIOS and max(known) <= min(known) * (1 + _FINE):
            for a, b in pairs:
                args = {"factor": median(known), "line": a.line, "device": a.device}
                yield b, message("audit_ratios", figures=len(known), **args)


def _alike(subject: Subject) -> object:
    return subject.world_size, subject.row and subject.row.nnodes, sorted(subject.changes.items())


def _factors(a: Subject, b: Subject) -> list[float]:
    """Return the figures of ``b`` over those of ``a``, of those that are printed finely enough."""
    return [
        b.figures[name] / a.figures[name]
        for name in (*RATES, *TOKEN_RATES, "sample/p/s")
        if name in a.figures and name in b.figures and a.rounding(name) + b.rounding(name) <= _FINE
    ]


def scaling(subjects: Subjects) -> Hits:
    """Yield what is half as fast again a device as fewer devices are, or slower in all."""
    for group in grouped(subjects, _scaled):
        for subject, beside in _odd(group, _scales_oddly, _device_rate):
            (name, rate), least = subject.rate_per_device(), _device_rate(beside)
            args = {"rate": rate, "fewer_rate": least, "share": rate / least}
            worlds = {"world_size": subject.world_size, "fewer": beside.world_size}
            yield subject, message("audit_scaling", figure=name, **worlds, **args)


def _scaled(subject: Subject) -> list[object]:
    """Return what rows have in common that differ in the number of devices alone."""
    name, rate = subject.rate_per_device()
    if not subject.world_size or rate <= 0:
        return []
    return [(name, subject.table, subject.device, subject.precision, subject.work_settings)]


def _device_rate(subject: Subject) -> float:
    return subject.rate_per_device()[1]


def _scales_oddly(subject: Subject, other: Subject) -> bool:
    fewer, more = sorted((subject, other), key=lambda row: row.world_size or 0)
    times = (more.world_size or 0) / (fewer.world_size or 1)
    share = _device_rate(more) / _device_rate(fewer)
    slack = 1 + sum(row.rounding(row.rate_per_device()[0]) for row in (fewer, more))
    larger = _batch_of_device(more) / _batch_of_device(fewer)
    # A larger batch may be faster, and slower too where it hardly fits.
    gain = max(larger, 1 / larger) ** _BATCH_GAIN
    is_above = share > _MUCH_ABOVE * slack * gain
    return times > 1 and (is_above or share * times * _ABOVE * slack * gain < 1)


def _batch_of_device(subject: Subject) -> float:
    return subject.setting("micro_batch_size") or subject.setting("batch_size") or 1.0


def _odd(
    given: Subjects,
    apart: Callable[[Subject, Subject], bool],
    value: Callable[[Subject], float],
) -> Iterator[tuple[Subject, Subject]]:
    """Yield what contradicts most others, with one of these, until nothing contradicts.

    Of those that contradict as many, the one whose value is furthest from the median is named, of
    two the later.
    """
    rest, usual = list(given), median(log(value(subject)) for subject in given)
    far = {id(subject): round(abs(log(value(subject)) - usual), 9) for subject in given}
    while rest:
        against = [[x for x in rest if x is not subject and apart(subject, x)] for subject in rest]
        ranks = [(len(x), far[id(rest[place])], place) for place, x in enumerate(against)]
        worst = max(ranks)[-1]
        if not against[worst]:
            return
        yield rest.pop(worst), against[worst][0]


def side_by_side(subjects: Subjects) -> Hits:
    """Yield the rows of a table that trained another number of samples than most of it."""
    for rows in grouped(
        subjects,
        lambda subject: (
            [(subject.table, subject.work_settings)]
            if subject.table and _most_samples(subject)
            else []
        ),
    ):
        for subject, beside in _odd(rows, _other_samples, _most_samples):
            samples, others = _most_samples(subject), _most_samples(beside)
            args = {"ratio": samples / others, "line": beside.line}
            if size := subject.workload.samples_per_pass:
                passes = ", ".join(f"{_most_samples(row) / size:.1f}" for row in rows)
                yield subject, message("audit_passes_differ", passes=passes, rows=size, **args)
            else:
                shown = {"samples": samples, "others": others}
                yield subject, message("audit_side_by_side", **shown, **args)


def _most_samples(subject: Subject) -> float:
    return subject.samples_bounds()[1]


def _other_samples(subject: Subject, other: Subject) -> bool:
    """Tell whether no start-up times of one kind explain both rows by the same samples."""
    known = [(x.seconds, x.figures["p_whole"]) for x in (subject, other)]
    low = max(0.0, subject.samples_bounds()[0], other.samples_bounds()[0])
    rounding = sum(x.rounding("e2e_time", "train_time", "p_whole") for x in (subject, other))
    high = min(rate * seconds for seconds, rate in known) * (SAME_WORK_RATIO + rounding)
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


def precisions(subjects: Subjects) -> Hits:
    """Yield what is half as fast again in a wider precision than in a narrower one of its line."""
    lines = grouped(subjects, lambda subject: [(subject.file, subject.line)] if subject.row else [])
    for line in lines:
        known = [
            subject
            for subject in line
            if subject.precision in _WIDTHS and _device_rate(subject) > 0
        ]
        for wide, narrow in permutations(known, 2):
            is_wider = _WIDTHS[wide.precision or ""] > _WIDTHS[narrow.precision or ""]
            same = wide.rate_per_device()[0] == narrow.rate_per_device()[0]
            times = _device_rate(wide) / _device_rate(narrow)
            if is_wider and same and times > _MUCH_ABOVE:
                args = {"wide": wide.precision, "narrow": narrow.precision}
                yield wide, message("audit_wider_faster", times=times, **args)


def mfu(subjects: Subjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput by any published peak."""
    for subject in subjects:
        published, slack = (
            subject.dense_peaks(),
            1 + _AGREES + subject.rounding("MFU", *TOKEN_RATES),
        )
        if subject.precision == "fp32":  # pages call TF32 so; the rule on peaks says it
            published += [tflops * 1e12 for tflops in subject.published("tf32_tflops")]
        ranges = _implied_peaks(subject, slack)
        fits = any(low <= peak <= high for low, high in ranges for peak in published)
        if ranges and published and not fits:
            yield subject, _other_mfu(subject, published[0])
    for rows in grouped(subjects, _same_mfu):
        yield from _siblings(rows)


def _tokens_of_device(subject: Subject) -> float:
    """Return tokens a second of one device; 0: not printed."""
    if "token/p/s" in subject.figures:
        return subject.figures["token/p/s"]
    return subject.figures.get("p_train_tokens", 0.0) / (subject.world_size or math.inf)


def _implied_peaks(subject: Subject, slack: float) -> list[tuple[float, float]]:
    """Return ranges of the peak in FLOP/s that MFU and token throughput imply.

    One for each number of parameters, of FLOPs for each, and way to count attention: not at all,
    half of it because it is causal, or all of it. Without layers any share up to ``_ATTENTION``.
    """
    share, rate, known = (
        subject.figures.get("MFU", 0.0),
        _tokens_of_device(subject),
        subject.workload,
    )
    if not share or not rate:
        return []
    is_named = not known.names and subject.setting("parameters") is None
    spread = 1 + _NAMED_SIZE if is_named else 1.0
    ranges = []
    for size in known.parameters:
        for factor in known.flops_per_parameter:
            flops = size * 1e9 * factor
            for low, high in _attention(subject, size * 1e9):
                implied = 100 * rate * flops / share
                ranges.append((implied * low / slack / spread, implied * high * slack * spread))
    return ranges


def _attention(subject: Subject, parameters: float) -> list[tuple[float, float]]:
    """Return what attention adds to a token's FLOPs, as factors from and to."""
    known, length = subject.workload, subject.setting("seq_length")
    if length is None:
        return [(1.0, 1.0 + _ATTENTION)]
    if known.layers is None or known.width is None:
        narrowest = (_DEEPEST * parameters / 12) ** (1 / 3)
        return [(1.0, 1.0 + length / (6 * narrowest))]
    whole = 12 * known.layers * known.width * length / (6 * parameters)
    return [(factor, factor) for factor in (1.0, 1 + whole / 2, 1 + whole)]


def _other_mfu(subject: Subject, peak: float) -> Message:
    size, factor = subject.workload.parameters[0], subject.workload.flops_per_parameter[0]
    tokens = _tokens_of_device(subject)
    args = {"tokens": tokens, "factor": factor, "parameters": size}
    again = 100 * tokens * factor * size * 1e9 / peak
    args |= {"mfu": subject.figures["MFU"], "tflops": peak / 1e12}
    return message("audit_mfu_row", again=again, **args)


def _same_mfu(subject: Subject) -> list[object]:
    """Return what rows have in common of which the same rate is the same MFU."""
    if "MFU" not in subject.figures or not _tokens_of_device(subject) or not subject.table:
        return []
    length, size = subject.changes.get("seq_length"), subject.changes.get("parameters")
    return [(subject.table, subject.device, subject.precision, length, size)]


def _siblings(rows: Sequence[Subject]) -> Hits:
    """Yield the row whose MFU is another share of its throughput than in all rows beside it."""
    shares = [subject.figures["MFU"] / _tokens_of_device(subject) for subject in rows]
    for place, (subject, share) in enumerate(zip(rows, shares, strict=True)):
        others = shares[:place] + shares[place + 1 :]
        beside = rows[:place] + rows[place + 1 :]  # type: ignore[operator]
        if len(others) < 2:
            continue
        usual, slack = median(others), _SAME_MFU + subject.rounding("MFU", *TOKEN_RATES)
        slack += max(other.rounding("MFU", *TOKEN_RATES) for other in beside)
        if max(others) <= min(others) * (1 + slack) and abs(share / usual - 1) > slack:
            args = {"mfu": subject.figures["MFU"], "usual": usual * _tokens_of_device(subject)}
            yield (
                subject,
                message("audit_mfu_sibling", rows=len(others), line=beside[0].line, **args),
            )
