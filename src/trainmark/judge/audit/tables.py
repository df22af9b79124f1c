"""The rules of an audit that compare launches and rows with each other and name the odd one."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, permutations
from math import log
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trainmark.judge.audit.subject import RATES, TOKEN_RATES, group_subjects
from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.record.stats import is_proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainmark.judge.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.record.record import Record
    from trainmark.spec import Message

_MIN_RATIOS = 3  # fewer may agree by chance
_MAX_RATIO_ROUNDING = 2e-3  # of figures whose ratios are compared, and by which these may differ
_LAUNCH_NOISE = 1.1  # ratio of two launches of the same work
_BATCH_GAIN = 0.7  # a batch of twice the size is at most 2 ** 0.7 times as fast
_MAX_GAIN = 1.5  # from more devices: a batch of another size, and caches that hold a larger share
_MAX_START_RATIO, _MAX_START_DIFFERENCE_S = 2.5, 30.0  # of start-up times in one table
_NUM_CANDIDATES = 64  # numbers of samples that are tried
_MFU_TOLERANCE = 0.01  # in addition to the rounding
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_MAX_ATTENTION = 0.3
# Without layers and width: N is 12 L H H, so that the share is T over 6 H, and the narrowest model
# has 32 times as much width as layers.
_WIDTH_PER_LAYER = 32
_SIZE_TOLERANCE = 0.25  # of a size in a name: models called 7b have 6.7e9 to 8.5e9 parameters
_SIBLING_TOLERANCE = 0.03  # of MFU over throughput in similar rows, besides the rounding
_TIME_FIGURES = {"e2e_time", "train_time", "step_time", "sample/p/s", *TOKEN_RATES, *RATES}
_PRECISION_WIDTHS = {
    "fp8": 1,
    "fp16": 2,
    "bf16": 2,
    "tf32": 3,
    "fp32": 4,
}  # of precisions, narrow to wide


def check_copies(subjects: AuditSubjects) -> Hits:
    """Yield each launch whose step times are those of another launch, or proportional to them."""
    seen: dict[bytes, tuple[Record, str]] = {}
    for subject in subjects:
        if (record := subject.record) is None:
            continue
        times = record.steps.time_ns
        # Proportional times have the same order.
        order = np.argsort(times, kind="stable").tobytes()
        first, place = seen.setdefault(order, (record, subject.file))
        if first.run_id != record.run_id and is_proportional(times, first.steps.time_ns):
            args = {"run_id": record.run_id, "other": first.run_id, "place": place}
            yield subject, message("audit_copy", same="steps.time_ns", **args)


def check_same_figures(subjects: AuditSubjects) -> Hits:
    """Yield each row that repeats all measured figures of a row of other work.

    Rows of one line, which has a column for each precision, are compared together.
    """
    lines_by_figures: dict[object, list[list[AuditSubject]]] = defaultdict(list)
    for line in group_subjects(subjects, _line_key):
        figures = _identifying_figures(line)
        if figures:
            lines_by_figures[figures].append(line)
    for first, *others in lines_by_figures.values():
        first_work = [_printed_work(subject) for subject in first]
        for other in others:
            other_work = [_printed_work(subject) for subject in other]
            if other_work == first_work or _is_copied_page(first[0], other[0]):
                continue
            place = {"other": first[0].configuration, "file": first[0].file}
            yield other[0], message("audit_same_figures", line=first[0].line, **place)


def _line_key(subject: AuditSubject) -> list[object]:
    """Return the place of a printed line, which has a row for each of its precisions."""
    return [(subject.file, subject.line)] if subject.row else []


def _identifying_figures(line: Sequence[AuditSubject]) -> tuple[object, ...]:
    """Return the figures by which a copy of a line is recognised; empty: too few."""
    # All rows of a card have the same memory.
    figures = [
        (subject.precision, name, value)
        for subject in line
        for name, value in sorted(subject.figures.items())
        if name != "mem_total"
    ]
    has_time = any(name in _TIME_FIGURES for _, name, _ in figures)
    return tuple(figures) if has_time and len(figures) > 1 else ()


def _is_copied_page(first: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether another file has the same line, as the translation of a page does."""
    if first.row is None or other.row is None or first.file == other.file:
        return False
    return bool(first.row.raw) and first.row.raw.split() == other.row.raw.split()


def _printed_work(subject: AuditSubject) -> object:
    section = subject.row.section if subject.row else ""
    return subject.name, section, subject.configuration, subject.precision, subject.changes


def check_ratios(subjects: AuditSubjects) -> Hits:
    """Yield rows of a card whose figures are another card's, or these times one factor."""
    for first, other in combinations(group_subjects(subjects, _card_key), 2):
        if first[0].name != other[0].name:
            continue
        pairs = [(a, b) for b in other for a in first if _scale_key(a) == _scale_key(b)]
        factors = [factor for a, b in pairs for factor in _figure_ratios(a, b)]
        if len(factors) < _MIN_RATIOS:
            continue
        if max(factors) <= min(factors) * (1 + _MAX_RATIO_ROUNDING):
            for a, b in pairs:
                args = {"factor": median(factors), "line": a.line, "device": a.device}
                yield b, message("audit_ratios", figures=len(factors), **args)


def _card_key(subject: AuditSubject) -> list[object]:
    return [(subject.name, subject.device)] if subject.device else []


def _scale_key(subject: AuditSubject) -> object:
    """Return the devices, nodes and settings of a row."""
    num_nodes = subject.row.nnodes if subject.row else None
    return subject.world_size, num_nodes, sorted(subject.changes.items())


def _figure_ratios(a: AuditSubject, b: AuditSubject) -> list[float]:
    """Return the figures of ``b`` over those of ``a``, of those with enough digits."""
    return [
        b.figures[name] / a.figures[name]
        for name in (*RATES, *TOKEN_RATES, "sample/p/s")
        if name in a.figures
        and name in b.figures
        and a.rounding(name) + b.rounding(name) <= _MAX_RATIO_ROUNDING
    ]


def check_scaling(subjects: AuditSubjects) -> Hits:
    """Yield rows whose devices are each 1.5 times as fast as fewer are, or slower all together."""
    for group in group_subjects(subjects, _scaling_key):
        for subject, other in inconsistent_cells(group, _scales_implausibly, _device_rate):
            name, rate = subject.rate_per_device()
            other_rate = _device_rate(other)
            yield (
                subject,
                message(
                    "audit_scaling",
                    figure=name,
                    world_size=subject.world_size,
                    fewer=other.world_size,
                    rate=rate,
                    fewer_rate=other_rate,
                    share=rate / other_rate,
                ),
            )


def _scaling_key(subject: AuditSubject) -> list[object]:
    """Return a key that rows share if they differ only in the number of devices."""
    name, rate = subject.rate_per_device()
    if not subject.world_size or rate <= 0:
        return []
    return [(name, subject.table, subject.device, subject.precision, subject.work_settings)]


def _device_rate(subject: AuditSubject) -> float:
    return subject.rate_per_device()[1]


def _scales_implausibly(subject: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether the rate of more devices is too high or too low for that of fewer."""
    fewer, more = sorted((subject, other), key=lambda row: row.world_size or 0)
    times = (more.world_size or 0) / (fewer.world_size or 1)
    share = _device_rate(more) / _device_rate(fewer)
    slack = 1 + sum(row.rounding(row.rate_per_device()[0]) for row in (fewer, more))
    batch_ratio = _batch_of_device(more) / _batch_of_device(fewer)
    # A larger batch may be faster, or slower if it hardly fits in memory.
    gain = max(batch_ratio, 1 / batch_ratio) ** _BATCH_GAIN
    is_above = share > _MAX_GAIN * slack * gain
    return times > 1 and (is_above or share * times * _LAUNCH_NOISE * slack * gain < 1)


def _batch_of_device(subject: AuditSubject) -> float:
    return subject.setting("micro_batch_size") or subject.setting("batch_size") or 1.0


def inconsistent_cells(
    subjects: AuditSubjects,
    conflicts: Callable[[AuditSubject, AuditSubject], bool],
    value: Callable[[AuditSubject], float],
) -> Iterator[tuple[AuditSubject, AuditSubject]]:
    """Yield the row that conflicts with most others, and one of these, until no rows conflict.

    Of rows with as many conflicts, the one whose value is furthest from the median comes first; of
    equally far ones the last.
    """
    remaining = list(subjects)
    center = median(log(value(subject)) for subject in subjects)
    distances = [round(abs(log(value(subject)) - center), 9) for subject in subjects]
    while remaining:
        opponents = [
            [other for other in remaining if other is not subject and conflicts(subject, other)]
            for subject in remaining
        ]
        ranks = [(len(opponents[n]), distances[n], n) for n in range(len(remaining))]
        _, _, worst = max(ranks)
        if not opponents[worst]:
            return
        distances.pop(worst)
        yield remaining.pop(worst), opponents[worst][0]


def check_side_by_side(subjects: AuditSubjects) -> Hits:
    """Yield the rows of a table that trained another number of samples than most of it."""
    for rows in group_subjects(subjects, _same_samples_key):
        for subject, other in inconsistent_cells(rows, sample_count_conflicts, _max_samples):
            samples, other_samples = _max_samples(subject), _max_samples(other)
            args = {"ratio": samples / other_samples, "line": other.line}
            if size := subject.workload.samples_per_pass:
                passes = ", ".join(f"{_max_samples(row) / size:.1f}" for row in rows)
                yield subject, message("audit_passes_differ", passes=passes, rows=size, **args)
            else:
                counts = {"samples": samples, "others": other_samples}
                yield subject, message("audit_side_by_side", **counts, **args)


def _same_samples_key(subject: AuditSubject) -> list[object]:
    """Return a key that rows share if they should train the same number of samples."""
    if not subject.table or not _max_samples(subject):
        return []
    return [(subject.table, subject.work_settings)]


def _max_samples(subject: AuditSubject) -> float:
    return subject.samples_bounds()[1]


def sample_count_conflicts(subject: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether the two rows cannot have trained the same number of samples.

    End-to-end time includes an unknown start-up time. The rows agree if a number of samples leaves
    similar start-up times in both.
    """
    timings = [(x.seconds, x.figures["p_whole"]) for x in (subject, other)]
    min_samples = max(0.0, subject.samples_bounds()[0], other.samples_bounds()[0])
    rounding = sum(x.rounding("e2e_time", "train_time", "p_whole") for x in (subject, other))
    max_samples = min(rate * seconds for seconds, rate in timings) * (SAME_WORK_RATIO + rounding)
    if min_samples > max_samples:
        return True
    slack = _MAX_START_DIFFERENCE_S
    slack += (SAME_WORK_RATIO - 1) * max(seconds for seconds, _ in timings)
    first = min_samples / SAME_WORK_RATIO
    for candidate in range(_NUM_CANDIDATES + 1):
        samples = first + (max_samples - first) * candidate / _NUM_CANDIDATES
        shorter_start, longer_start = sorted(
            min(max(0.0, seconds - samples / rate), max(0.0, seconds - min_samples / rate))
            for seconds, rate in timings
        )
        if longer_start <= _MAX_START_RATIO * shorter_start + slack:
            return False
    return True


def check_precisions(subjects: AuditSubjects) -> Hits:
    """Yield rows that are 1.5 times as fast in a wider precision as in a narrower one."""
    for line in group_subjects(subjects, _line_key):
        candidates = [
            subject
            for subject in line
            if subject.precision in _PRECISION_WIDTHS and _device_rate(subject) > 0
        ]
        for wide, narrow in permutations(candidates, 2):
            is_wider = (
                _PRECISION_WIDTHS[wide.precision or ""] > _PRECISION_WIDTHS[narrow.precision or ""]
            )
            is_same_figure = wide.rate_per_device()[0] == narrow.rate_per_device()[0]
            times = _device_rate(wide) / _device_rate(narrow)
            if is_wider and is_same_figure and times > _MAX_GAIN:
                args = {"wide": wide.precision, "narrow": narrow.precision}
                yield wide, message("audit_wider_faster", times=times, **args)


def check_mfu(subjects: AuditSubjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput by any published peak."""
    for subject in subjects:
        published = subject.dense_peaks()
        slack = 1 + _MFU_TOLERANCE + subject.rounding("MFU", *TOKEN_RATES)
        if subject.precision == "fp32":  # pages may mean TF32, which the rule on peaks reports
            published += [tflops * 1e12 for tflops in subject.published("tf32_tflops")]
        ranges = _implied_peaks(subject, slack)
        fits = any(low <= peak <= high for low, high in ranges for peak in published)
        if ranges and published and not fits:
            yield subject, _describe_mfu(subject, published[0])
    for rows in group_subjects(subjects, _mfu_key):
        yield from _check_mfu_of_siblings(rows)


def _tokens_of_device(subject: AuditSubject) -> float:
    """Return tokens a second of one device; 0: not printed."""
    if "token/p/s" in subject.figures:
        return subject.figures["token/p/s"]
    return subject.figures.get("p_train_tokens", 0.0) / (subject.world_size or math.inf)


def _implied_peaks(subject: AuditSubject, slack: float) -> list[tuple[float, float]]:
    """Return ranges of the peak in FLOP/s that MFU and token throughput imply.

    One for each number of parameters, FLOPs of each, and way to count attention: none of it, half
    of it because it is causal, or all of it. If layers are not known, any share up to
    ``_MAX_ATTENTION``.
    """
    mfu, rate = subject.figures.get("MFU", 0.0), _tokens_of_device(subject)
    if not mfu or not rate:
        return []
    workload = subject.workload
    is_size_from_name = not workload.names and subject.setting("parameters") is None
    spread = 1 + _SIZE_TOLERANCE if is_size_from_name else 1.0
    ranges = []
    for size in workload.parameters:
        for factor in workload.flops_per_parameter:
            flops = size * 1e9 * factor
            for low, high in _attention_factors(subject, size * 1e9):
                implied = 100 * rate * flops / mfu
                ranges.append((implied * low / slack / spread, implied * high * slack * spread))
    return ranges


def _attention_factors(subject: AuditSubject, parameters: float) -> list[tuple[float, float]]:
    """Return ranges of the factor by which attention may raise the FLOPs of a token."""
    workload, length = subject.workload, subject.setting("seq_length")
    if length is None:
        return [(1.0, 1.0 + _MAX_ATTENTION)]
    if workload.layers is None or workload.width is None:
        min_width = (_WIDTH_PER_LAYER * parameters / 12) ** (1 / 3)
        return [(1.0, 1.0 + length / (6 * min_width))]
    attention = 12 * workload.layers * workload.width * length / (6 * parameters)
    return [(factor, factor) for factor in (1.0, 1 + attention / 2, 1 + attention)]


def _describe_mfu(subject: AuditSubject, peak: float) -> Message:
    """Return the MFU that follows from a row's throughput and a peak, beside the printed one."""
    size, factor = subject.workload.parameters[0], subject.workload.flops_per_parameter[0]
    tokens = _tokens_of_device(subject)
    return message(
        "audit_mfu_row",
        again=100 * tokens * factor * size * 1e9 / peak,
        tokens=tokens,
        factor=factor,
        parameters=size,
        mfu=subject.figures["MFU"],
        tflops=peak / 1e12,
    )


def _mfu_key(subject: AuditSubject) -> list[object]:
    """Return a key that rows share if the same throughput gives them the same MFU."""
    if "MFU" not in subject.figures or not _tokens_of_device(subject) or not subject.table:
        return []
    length, size = subject.changes.get("seq_length"), subject.changes.get("parameters")
    return [(subject.table, subject.device, subject.precision, length, size)]


def _check_mfu_of_siblings(rows: Sequence[AuditSubject]) -> Hits:
    """Yield the row whose ratio of MFU to throughput differs from that of all similar rows."""
    if len(rows) < 3:
        return
    for subject in rows:
        siblings = [other for other in rows if other is not subject]
        ratios = [_mfu_per_token_rate(other) for other in siblings]
        usual = median(ratios)
        slack = _SIBLING_TOLERANCE + subject.rounding("MFU", *TOKEN_RATES)
        slack += max(other.rounding("MFU", *TOKEN_RATES) for other in siblings)
        siblings_agree = max(ratios) <= min(ratios) * (1 + slack)
        if siblings_agree and abs(_mfu_per_token_rate(subject) / usual - 1) > slack:
            yield (
                subject,
                message(
                    "audit_mfu_sibling",
                    rows=len(siblings),
                    line=siblings[0].line,
                    mfu=subject.figures["MFU"],
                    usual=usual * _tokens_of_device(subject),
                ),
            )


def _mfu_per_token_rate(subject: AuditSubject) -> float:
    return subject.figures["MFU"] / _tokens_of_device(subject)
