"""The rules of an audit that compare launches or rows with each other.

A rule yields the launch or row that does not fit the others, with a message. Figures have their
names in records: ``p_whole`` is samples a second of all devices, with evaluation;
``p_train_tokens`` is tokens a second of all devices; ``sample/p/s`` and ``token/p/s`` are rates of
one device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, permutations
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.published.audit.subject import RATES, TOKEN_RATES, group_subjects
from trainmark.record.stats import is_proportional
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.record.record import Record
    from trainmark.spec import Message

_MIN_RATIOS = 3  # fewer may agree by chance
_MAX_RATIO_ROUNDING = 2e-3  # of figures whose ratios are compared, and by which these may differ
_LAUNCH_NOISE = 1.1  # ratio of two launches of the same work
_BATCH_GAIN = 0.7  # a batch of twice the size is at most 2 ** 0.7 times as fast
_MAX_GAIN = 1.5  # from more devices: a batch of another size, and caches that hold a larger share
# Start-up times in one table differ at most by this factor and by these seconds besides.
_MAX_START_RATIO = 2.5
_MAX_START_DIFFERENCE_S = 30.0
_NUM_CANDIDATES = 64  # numbers of samples that are tried
_MFU_TOLERANCE = 0.01  # in addition to the rounding
# Attention's share of a token's FLOPs over those of the parameters, at most: 12 L H T over 6 N at
# 8192 tokens and 8e9 parameters is 0.27 (PaLM, appendix B, https://arxiv.org/abs/2204.02311).
_MAX_ATTENTION = 0.3
# Without layers and width: N is 12 L H H, so that the share is T over 6 H, and the narrowest model
# has 32 times as much width as layers.
_WIDTH_PER_LAYER = 32
_SIZE_TOLERANCE = 0.25  # of a size in a name: models called 7b have 6.7e9 to 8.5e9 parameters
_MIN_SIBLINGS = 2  # similar rows that must agree before another one is wrong
_SIBLING_TOLERANCE = 0.03  # of MFU over throughput in similar rows, besides the rounding
_TIMES_AND_RATES = {"e2e_time", "train_time", "step_time", "sample/p/s", *TOKEN_RATES, *RATES}
# Bytes of a number; TF32 stands between 16 and 32 bits, as its speed does.
_PRECISION_WIDTHS = {
    "fp8": 1,
    "fp16": 2,
    "bf16": 2,
    "tf32": 3,
    "fp32": 4,
}


def check_copies(subjects: AuditSubjects) -> Hits:
    """Yield each launch whose step times are those of another launch, or proportional to them."""
    # The steps of a launch are sorted by their time. Proportional times have the same order of
    # steps, so that only launches with the same order are compared. By each order, this is the
    # first launch that has it, with its file.
    first_by_order: dict[bytes, tuple[Record, str]] = {}
    for subject in subjects:
        record = subject.record
        if record is None:  # a printed row, not a launch
            continue
        times = record.steps.time_ns  # one for each step
        order = np.argsort(times, kind="stable").tobytes()
        if order not in first_by_order:
            first_by_order[order] = (record, subject.file)
            continue
        first, first_file = first_by_order[order]
        # The same launch may be read twice: it is no copy of itself.
        if first.run_id != record.run_id and is_proportional(times, first.steps.time_ns):
            args = {"run_id": record.run_id, "other": first.run_id, "place": first_file}
            yield subject, message("audit_copy", same="steps.time_ns", **args)


def check_same_figures(subjects: AuditSubjects) -> Hits:
    """Yield each row that repeats all measured figures of a row that did different work.

    A line of a table gives one row, or one for each precision if it has a column for each. All rows
    of a line are compared with all rows of another line.
    """
    lines_by_figures: dict[Hashable, list[list[AuditSubject]]] = defaultdict(list)
    for rows_of_line in group_subjects(subjects, _get_line_key):
        figures = _list_identifying_figures(rows_of_line)
        if figures:  # empty: too few to tell a copy from chance
            lines_by_figures[figures].append(rows_of_line)
    for first_line, *other_lines in lines_by_figures.values():
        first = first_line[0]
        first_work = [_describe_printed_work(row) for row in first_line]
        for other_line in other_lines:
            other_work = [_describe_printed_work(row) for row in other_line]
            # The same row may be printed twice, in one page or in its translation.
            if other_work == first_work or _is_same_text(first, other_line[0]):
                continue
            # `configuration` is the row's label as printed.
            place = {"other": first.configuration, "file": first.file}
            yield other_line[0], message("audit_same_figures", line=first.line, **place)


# The functions ``_get_…_key`` return the key by which ``group_subjects`` groups rows; a row whose
# key is None is in no group.


def _get_line_key(subject: AuditSubject) -> Hashable | None:
    """Return the place of a printed line, which rows for its precisions share; None: no row."""
    return (subject.file, subject.line) if subject.row else None


def _list_identifying_figures(line: Sequence[AuditSubject]) -> tuple[object, ...]:
    """Return the figures by which a copy of a line is recognised.

    Empty if they are too few or none of them is a time or a rate: then they may agree by chance.

    Args:
        line: the rows of one line of a table, one for each precision of its columns.

    Returns:
        precision, name and value of each figure.
    """
    figures = []
    for subject in line:
        for name, value in sorted(subject.figures.items()):
            if name != "mem_total":  # the card's own memory: the same in all its rows
                figures.append((subject.precision, name, value))
    has_time_or_rate = any(name in _TIMES_AND_RATES for _, name, _ in figures)
    return tuple(figures) if has_time_or_rate and len(figures) > 1 else ()


def _is_same_text(first: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether two files have the same line, as a page and its translation do."""
    # Without a row it is a launch.
    if first.row is None or other.row is None or first.file == other.file:
        return False
    # `raw` is the text of the line as printed; it is compared word by word.
    return bool(first.row.raw) and first.row.raw.split() == other.row.raw.split()


def _describe_printed_work(subject: AuditSubject) -> object:
    """Return all that a row prints of its work and no measurement; equal for the same work.

    It is model, headings above the table, label of the row, precision and settings.
    """
    section = subject.row.section if subject.row else ""
    return subject.name, section, subject.configuration, subject.precision, subject.settings


def check_ratios(subjects: AuditSubjects) -> Hits:
    """Yield rows of a card whose figures are those of another card, all times the same factor.

    Measured speeds of two cards differ by a different factor in each row. So rows that all have the
    same factor were computed, not measured.
    """
    # All rows of a group are of one card and one model.
    for rows_a, rows_b in combinations(group_subjects(subjects, _get_card_key), 2):
        if rows_a[0].name != rows_b[0].name:  # another model: speeds cannot be compared
            continue
        # Only rows with the same number of devices and the same settings are compared.
        pairs = [(a, b) for b in rows_b for a in rows_a if _get_setup(a) == _get_setup(b)]
        ratios: list[float] = []
        for a, b in pairs:
            ratios += _compute_figure_ratios(a, b)
        if len(ratios) < _MIN_RATIOS:  # fewer may agree by chance
            continue
        are_equal = max(ratios) <= min(ratios) * (1 + _MAX_RATIO_ROUNDING)
        if not are_equal:
            continue
        # The second group of a combination appears later in the tables: its card is reported.
        for a, b in pairs:
            args = {"factor": median(ratios), "line": a.line, "device": a.device}
            yield b, message("audit_ratios", figures=len(ratios), **args)


def _get_card_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows of one model on one kind of device share; None: it is not named."""
    return (subject.name, subject.device) if subject.device else None


def _get_setup(subject: AuditSubject) -> object:
    """Return what must be equal in two rows so that their speeds on two cards can be compared.

    It is the number of devices and of nodes, and the names and values of all printed settings.
    """
    num_nodes = subject.row.nnodes if subject.row else None  # without a row it is a launch
    return subject.world_size, num_nodes, sorted(subject.settings.items())


def _compute_figure_ratios(a: AuditSubject, b: AuditSubject) -> list[float]:
    """Return the rates of one row divided by the same rates of another row.

    A rate is left out if one of the rows does not print it, or if the two rows print it with so few
    digits that their ratio is uncertain.

    Args:
        a: whose rates are the divisors.
        b: the other row.
    """
    return [
        b.figures[name] / a.figures[name]
        for name in (*RATES, *TOKEN_RATES, "sample/p/s")
        if name in a.figures
        and name in b.figures
        and a.compute_rounding(name) + b.compute_rounding(name) <= _MAX_RATIO_ROUNDING
    ]


def check_scaling(subjects: AuditSubjects) -> Hits:
    """Yield rows whose speed does not fit that of a row with another number of devices.

    Of two such rows, the one with more devices has devices that are each more than 1.5 times as
    fast as those of the other row, or all its devices together are slower.
    """
    for group in group_subjects(subjects, _get_scaling_key):
        # Of two rows in conflict, the one whose rate is further from the median is yielded.
        for subject, other in find_inconsistent_rows(
            group, _has_implausible_scaling, get_value=_get_device_rate
        ):
            # The throughput of one device, and the name of the figure that it follows from.
            figure, rate = subject.find_device_rate()
            other_rate = _get_device_rate(other)
            conflict = message(
                "audit_scaling",
                figure=figure,
                world_size=subject.world_size,
                # `fewer` and `fewer_rate` are those of the other row, even if it has more devices.
                fewer=other.world_size,
                # Six digits, but never with an exponent.
                rate=float(f"{rate:.6g}"),
                fewer_rate=float(f"{other_rate:.6g}"),
                share=rate / other_rate,
            )
            yield subject, conflict


def _get_scaling_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows share if their throughputs can be compared across device counts.

    Such rows are of one table, model, device and precision, and have equal settings but for batch
    and learning rate. None: the row lacks the number of devices or a throughput.
    """
    # ``table`` has the name of the model, too. The name of the figure is in the key, because one
    # figure includes waiting for data or evaluations and another does not, and some count samples
    # and others tokens.
    figure, rate = subject.find_device_rate()
    if not subject.world_size or rate <= 0:
        return None
    return figure, subject.table, subject.device, subject.precision, subject.work_settings


def _get_device_rate(subject: AuditSubject) -> float:
    """Return the throughput of one device, in the unit of the figure that it follows from."""
    return subject.find_device_rate().value


def _has_implausible_scaling(subject: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether of two rows the one with more devices is too fast or too slow for the other.

    It is too fast if each of its devices is much faster than one of the other row, and too slow if
    all its devices together are slower than all of the other row.
    """
    # All rows that are compared have a number of devices: the defaults are for the types alone.
    fewer, more = sorted((subject, other), key=lambda row: row.world_size or 0)
    world_ratio = (more.world_size or 0) / (fewer.world_size or 1)
    if world_ratio <= 1:  # rows of as many devices are not compared
        return False
    rate_ratio = _get_device_rate(more) / _get_device_rate(fewer)
    # The factor by which rounding of the two printed rates may change their ratio.
    slack = 1 + sum(row.compute_rounding(row.find_device_rate().figure) for row in (fewer, more))
    batch_ratio = _read_device_batch(more) / _read_device_batch(fewer)
    # The factor by which the difference in batch may change the rate of a device, up or down: a
    # larger batch may be faster, or slower if it hardly fits in memory.
    batch_gain: float = max(batch_ratio, 1 / batch_ratio) ** _BATCH_GAIN
    # Among more devices, each may be somewhat faster: its caches hold a larger share of its work.
    is_device_too_fast = rate_ratio > _MAX_GAIN * slack * batch_gain
    total_ratio = rate_ratio * world_ratio
    # Lower by more than rounding, batch and the noise between launches can explain.
    is_total_lower = total_ratio * _LAUNCH_NOISE * slack * batch_gain < 1
    return is_device_too_fast or is_total_lower


def _read_device_batch(subject: AuditSubject) -> float:
    """Return the batch of one device; 1 if it is not printed."""
    return subject.read_setting("micro_batch_size") or subject.read_setting("batch_size") or 1.0


def find_inconsistent_rows(
    subjects: AuditSubjects,
    have_conflict: Callable[[AuditSubject, AuditSubject], bool],
    get_value: Callable[[AuditSubject], float],
) -> Iterator[tuple[AuditSubject, AuditSubject]]:
    """Yield rows that conflict with others, each with one of these, until no rows conflict.

    The row with most conflicts comes first and then no longer counts. Of rows with equally many
    conflicts, the one whose value is furthest from the median comes first; of equally far ones the
    last.

    Args:
        subjects: rows that should agree.
        have_conflict: tells whether two rows conflict.
        get_value: returns the value, above zero, by which rows are compared with the median.
    """
    remaining = list(subjects)
    # Of logarithms, because twice and half the median are equally far from it.
    logarithms = [math.log(get_value(subject)) for subject in subjects]
    center = median(logarithms)
    # Rounded, so that equally far rows stay equally far whatever the error of the logarithms is.
    distances = [round(abs(logarithm - center), 9) for logarithm in logarithms]
    while remaining:
        # The rows with which each of the remaining rows conflicts.
        opponents = [
            [other for other in remaining if other is not subject and have_conflict(subject, other)]
            for subject in remaining
        ]
        # The index of the row that comes first by the order above.
        worst = max(
            range(len(remaining)),
            key=lambda index: (len(opponents[index]), distances[index], index),
        )
        if not opponents[worst]:
            return
        conflicting = remaining.pop(worst)
        distances.pop(worst)
        yield conflicting, opponents[worst][0]


def check_side_by_side(subjects: AuditSubjects) -> Hits:
    """Yield the rows of a table that trained another number of samples than most of it."""
    for rows in group_subjects(subjects, _get_samples_key):
        # Of two rows in conflict, the one whose samples are further from the median is yielded.
        for subject, other in find_inconsistent_rows(
            rows, have_different_samples, get_value=_get_max_samples
        ):
            samples = _get_max_samples(subject)
            other_samples = _get_max_samples(other)
            # The number of samples in the model's data set; None: not known.
            samples_per_pass = subject.workload.samples_per_pass
            args: dict[str, Any]
            # With it, the message counts passes over the data set instead of samples. Its argument
            # ``rows`` is the size of the data set, not the rows of the table.
            if samples_per_pass:
                code = "audit_passes_differ"
                passes = [_get_max_samples(row) / samples_per_pass for row in rows]
                listed_passes = ", ".join(f"{x:.1f}" for x in passes)
                args = {"passes": listed_passes, "rows": samples_per_pass}
            else:
                code = "audit_side_by_side"
                args = {"samples": samples, "others": other_samples}
            ratio = samples / other_samples
            yield subject, message(code, **args, ratio=ratio, line=other.line)


def _get_samples_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows share if they should train the same number of samples.

    Such rows are of one table and model, on any device, and have equal settings but for batch and
    learning rate. None: it is not a row of a table, or lacks a time or a throughput.
    """
    if not subject.table or not _get_max_samples(subject):
        return None
    return subject.table, subject.work_settings


def _get_max_samples(subject: AuditSubject) -> float:
    """Return the most samples that the row can have trained; 0: not known."""
    return subject.max_samples


def have_different_samples(subject: AuditSubject, other: AuditSubject) -> bool:
    """Tell whether the two rows cannot have trained the same number of samples.

    Samples are time times throughput, but end-to-end time includes an unknown start-up time. So
    several numbers of samples are tried. Each implies one start-up time for each row. The rows
    agree if any number implies similar start-up times.
    """
    rows = (subject, other)
    # `row.min_samples` assumes the longest possible start-up time of a row, `row.max_samples` none.
    min_samples = max(0.0, subject.min_samples, other.min_samples)
    # Rounding of the printed times and of `p_whole`, the samples a second of the whole run.
    rounding = sum(row.compute_rounding("e2e_time", "train_time", "p_whole") for row in rows)
    # Numbers of samples whose ratio is at most `SAME_WORK_RATIO` count as equal: if one row trained
    # the number that is tried, the other may have trained more or fewer by this ratio.
    max_samples = min(row.max_samples for row in rows) * (SAME_WORK_RATIO + rounding)
    if min_samples > max_samples:
        return True  # no number is possible for both, whatever their start-up times
    longest_s = max(row.run_time_s for row in rows)
    # Start-up times of one table may differ by a factor, and by these seconds besides: a constant,
    # and the time of the samples that the longer run may have trained more or fewer.
    slack_s = _MAX_START_DIFFERENCE_S + (SAME_WORK_RATIO - 1) * longest_s
    for index in range(_NUM_CANDIDATES + 1):
        # The candidates are spread evenly from the smallest to the largest possible number.
        candidate = min_samples + (max_samples - min_samples) * index / _NUM_CANDIDATES
        starts_s = [_compute_start_up(row, candidate) for row in rows]
        if max(starts_s) <= _MAX_START_RATIO * min(starts_s) + slack_s:
            return False
    return True


def _compute_start_up(subject: AuditSubject, samples: float) -> float:
    """Return the start-up time in seconds of a row if it trained this number of samples.

    It is the time of the run minus the time of training the samples; 0 if that would be longer.
    """
    rate = subject.figures["p_whole"]  # samples a second of the whole run
    return max(0.0, subject.run_time_s - samples / rate)


def check_precisions(subjects: AuditSubjects) -> Hits:
    """Yield rows that are over 1.5 times as fast as a row of the same line in a narrower precision.

    A line of a table with a column for each precision gives a row for each of them.
    """
    for line in group_subjects(subjects, _get_line_key):
        candidates = [
            subject
            for subject in line
            if subject.precision in _PRECISION_WIDTHS and _get_device_rate(subject) > 0
        ]
        for wide, narrow in permutations(candidates, 2):  # both orders: the wider one is sought
            # All candidates have a precision: the defaults are for the types alone.
            wide_bytes = _PRECISION_WIDTHS[wide.precision or ""]
            narrow_bytes = _PRECISION_WIDTHS[narrow.precision or ""]
            wide_rate = wide.find_device_rate()
            narrow_rate = narrow.find_device_rate()
            # Different figures are not compared: one includes waiting for data or evaluations and
            # another does not, and some count samples and others tokens.
            if wide_bytes <= narrow_bytes or wide_rate.figure != narrow_rate.figure:
                continue
            times = wide_rate.value / narrow_rate.value
            if times > _MAX_GAIN:  # the same bound as between numbers of devices
                args = {"wide": wide.precision, "narrow": narrow.precision}
                yield wide, message("audit_wider_faster", times=times, **args)


def check_mfu(subjects: AuditSubjects) -> Hits:
    """Yield rows whose MFU does not follow from their throughput by any published peak.

    A mixture of experts may drop assignments of tokens to experts, which then compute nothing. A
    row whose MFU follows only if these FLOPs are counted is yielded too, with another message.

    Rows of one table that differ only in their throughput are also compared with each other.
    """
    for subject in subjects:
        published_peaks = subject.list_dense_peaks()
        # The factor by which rounding of MFU and throughput may change a peak that they imply.
        slack = 1 + _MFU_TOLERANCE + subject.compute_rounding("MFU", *TOKEN_RATES)
        if subject.precision == "fp32":  # pages may mean TF32, which the rule on peaks reports
            published_peaks += [
                tflops * 1e12 for tflops in subject.list_product_figures("tf32_tflops")
            ]
        ranges = _compute_implied_peaks(subject, slack)
        if not ranges or not published_peaks:  # nothing to compare
            continue
        computed_share = _get_computed_share(subject)
        if _has_peak_in(ranges, published_peaks, factor=computed_share):
            continue
        if _has_peak_in(ranges, published_peaks):  # only with the FLOPs of dropped tokens
            conflict = message(
                "audit_mfu_dropped",
                mfu=subject.figures["MFU"],
                dropped=subject.dropped_share,
                computed=subject.figures["MFU"] * computed_share,
            )
            yield subject, conflict
        else:
            # The message calculates with one peak: the highest of the precisions that the row
            # names. TF32, which is last, is taken only if they have none.
            yield subject, _describe_mfu_conflict(subject, published_peaks[0])
    for rows in group_subjects(subjects, _get_mfu_key):
        yield from _check_mfu_of_siblings(rows)


def _get_computed_share(subject: AuditSubject) -> float:
    """Return the share of the FLOPs of a row's tokens that were computed.

    A mixture of experts may drop assignments of tokens to experts, which then compute nothing. The
    share is 1 if the row states no drops, or if the size of the experts is not known.
    """
    workload = subject.workload  # what is known of the model
    if workload.expert_billions is None:
        return 1.0
    # FLOPs are in proportion to the parameters that a token uses: billions of those in experts,
    # divided by billions of all. The first of the latter numbers is that in the model's name.
    dropped_billions = subject.dropped_share * workload.expert_billions
    return 1 - dropped_billions / workload.parameter_billions[0]


def _has_peak_in(
    ranges: Sequence[tuple[float, float]], published_peaks: Sequence[float], *, factor: float = 1.0
) -> bool:
    """Tell whether any of the ranges, times ``factor``, holds a published peak.

    Args:
        ranges: those in which a row's MFU and throughput put the peak of its device: lower and
            upper end of each, in FLOP/s.
        published_peaks: of the device, in FLOP/s.
        factor: the share of the FLOPs that was computed.
    """
    for low, high in ranges:
        if any(low * factor <= peak <= high * factor for peak in published_peaks):
            return True
    return False


def _get_device_token_rate(subject: AuditSubject) -> float:
    """Return the tokens a second of one device; 0: not known."""
    if "token/p/s" in subject.figures:  # printed for one device
        return subject.figures["token/p/s"]
    if not subject.world_size:  # the number of devices is not known
        return 0.0
    # `p_train_tokens` is the rate of all devices.
    return subject.figures.get("p_train_tokens", 0.0) / subject.world_size


def _compute_implied_peaks(subject: AuditSubject, slack: float) -> list[tuple[float, float]]:
    """Return ranges of the peak in FLOP/s that MFU and token throughput imply.

    There is a range for each possible number of parameters, number of FLOPs per parameter, and way
    to count attention.

    Args:
        slack: factor by which rounding may move a peak up or down.

    Returns:
        lower and upper end of each range; empty: the row lacks MFU or throughput.
    """
    mfu = subject.figures.get("MFU", 0.0)
    token_rate = _get_device_token_rate(subject)
    if not mfu or not token_rate:
        return []
    workload = subject.workload
    # A size is exact if `workloads.toml` lists the model, which then has names, or if a column of
    # the row has all its digits. Otherwise it is one such as `7b`, mostly from the model's name.
    is_size_rounded = not workload.names and subject.read_setting("parameters") is None
    size_slack = 1 + _SIZE_TOLERANCE if is_size_rounded else 1.0
    ranges = []
    for billions in workload.parameter_billions:
        for flops_per_parameter in workload.flops_per_parameter:
            flops_per_token = billions * 1e9 * flops_per_parameter
            # MFU is in per cent of the peak. Attention is not counted yet.
            implied_peak = 100 * token_rate * flops_per_token / mfu
            for low, high in _compute_attention_factors(subject, billions * 1e9):
                min_peak = implied_peak * low / slack / size_slack
                max_peak = implied_peak * high * slack * size_slack
                ranges.append((min_peak, max_peak))
    return ranges


def _compute_attention_factors(
    subject: AuditSubject, parameters: float
) -> list[tuple[float, float]]:
    """Return ranges of the factor by which attention may raise the FLOPs of a token.

    If layers and width are known, there are three exact factors: pages count none of the attention,
    half of it because it is causal, or all of it. Else the factor is somewhere between 1 and the
    most that is possible.

    Args:
        parameters: number of parameters of the model.

    Returns:
        lower and upper end of each range.
    """
    workload = subject.workload  # what is known of the model
    length = subject.read_setting("seq_length")  # tokens of a sequence
    if length is None:
        return [(1.0, 1.0 + _MAX_ATTENTION)]
    if workload.layers is None or workload.width is None:
        # A transformer has about 12 x layers x width^2 parameters. Its width is assumed to be at
        # least 32 x layers, so that width^3 is at least 32 x parameters / 12.
        min_width = (_WIDTH_PER_LAYER * parameters / 12) ** (1 / 3)
        # A token needs 12 x layers x width x length FLOPs for attention, and 6 for each parameter,
        # which is 72 x layers x width^2: the quotient is length / (6 x width).
        return [(1.0, 1.0 + length / (6 * min_width))]
    # The FLOPs of attention for a token, relative to the 6 for each parameter.
    attention = 12 * workload.layers * workload.width * length / (6 * parameters)
    return [(factor, factor) for factor in (1.0, 1 + attention / 2, 1 + attention)]


def _describe_mfu_conflict(subject: AuditSubject, peak: float) -> Message:
    """Return the message that a printed MFU is not the one that throughput and peak give.

    Args:
        peak: in FLOP/s.
    """
    # The workload lists possible numbers of parameters, and of FLOPs per parameter. The message
    # calculates with the first of each. The first number of parameters is that in the model's name.
    billions = subject.workload.parameter_billions[0]
    flops_per_parameter = subject.workload.flops_per_parameter[0]
    token_rate = _get_device_token_rate(subject)
    return message(
        "audit_mfu_row",
        # The MFU in per cent, computed again from what the row prints.
        again=100 * token_rate * flops_per_parameter * billions * 1e9 / peak,
        tokens=token_rate,
        factor=flops_per_parameter,
        parameters=billions,
        mfu=subject.figures["MFU"],
        tflops=peak / 1e12,
    )


def _get_mfu_key(subject: AuditSubject) -> Hashable | None:
    """Return a key that rows share if the same throughput gives them the same MFU.

    Such rows are of one table, model, device, precision, sequence length and number of parameters.
    None: it is not a row of a table, or lacks the MFU or the throughput.
    """
    has_both = "MFU" in subject.figures and _get_device_token_rate(subject) > 0
    if not subject.table or not has_both:
        return None
    sequence_length = subject.settings.get("seq_length")
    parameters = subject.settings.get("parameters")
    return subject.table, subject.device, subject.precision, sequence_length, parameters


def _check_mfu_of_siblings(rows: Sequence[AuditSubject]) -> Hits:
    """Yield the row whose ratio of MFU to throughput differs from that of all other rows.

    It is yielded only if the other rows, its siblings, agree with each other.

    Args:
        rows: of one table, model, device, precision and sequence length, so that the ratio should
            be the same in all.
    """
    if len(rows) < _MIN_SIBLINGS + 1:  # too few others to tell which ratio is usual
        return
    for subject in rows:
        siblings = [other for other in rows if other is not subject]
        ratios = [_divide_mfu_by_token_rate(other) for other in siblings]
        usual_ratio = median(ratios)
        # Relative difference that may come from rounding of the printed MFU and throughputs.
        slack = _SIBLING_TOLERANCE + subject.compute_rounding("MFU", *TOKEN_RATES)
        slack += max(other.compute_rounding("MFU", *TOKEN_RATES) for other in siblings)
        siblings_agree = max(ratios) <= min(ratios) * (1 + slack)
        deviation = abs(_divide_mfu_by_token_rate(subject) / usual_ratio - 1)
        if siblings_agree and deviation > slack:
            conflict = message(
                "audit_mfu_sibling",
                rows=len(siblings),
                line=siblings[0].line,
                mfu=subject.figures["MFU"],
                # The MFU that this row would have by the usual ratio.
                usual=usual_ratio * _get_device_token_rate(subject),
            )
            yield subject, conflict


def _divide_mfu_by_token_rate(subject: AuditSubject) -> float:
    """Return MFU per token a second, which is the same in all rows of one model and device."""
    return subject.figures["MFU"] / _get_device_token_rate(subject)
