"""The rules of an audit that look at each row alone, or at the qualities of one table.

A rule yields the rows that break it, each with a message. Figures have their names in records:
``p_core``, ``p_train`` and ``p_whole`` are samples a second of all devices, without waiting and
evaluation, without evaluation, and with both; ``p_train_tokens`` is tokens a second of all devices;
``sample/p/s`` and ``token/p/s`` are rates of one device.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from statistics import median, mode
from typing import TYPE_CHECKING

from trainmark.plan.reference import SAME_WORK_RATIO
from trainmark.published.audit.qualities import is_fraction, is_lower_better
from trainmark.published.audit.subject import (
    RATES,
    SAMPLE_RATES,
    TIMES,
    TOKEN_RATES,
    group_subjects,
)
from trainmark.published.audit.workloads import is_mixture
from trainmark.record.work import LOG_CONTRADICTIONS
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.spec import Message

_GIB = 2**30
_FLOAT_ERROR = 1e-9  # relative, of sums of times that a program computed as floating-point numbers
_MEMORY_TOLERANCE = 0.1  # GiB and GB differ by 7%, and drivers reserve some memory
_MEMORY_ROUNDING = 0.02  # a page prints the memory of a card with the same digits everywhere
_MIN_ROWS_OF_CARD = 3  # rows, of which most tell the memory of their card
_MAX_PASSES = 1000  # over a data set: no published configuration of a known one trains so many
_SECONDS_PER_DAY = 86400.0
_MAX_TIME_S = 366 * _SECONDS_PER_DAY  # no published run took longer than a year
_MAX_PEAK_RATIO = 1.1  # clocks may be above those of the peak, and FLOPs of a sample are counted
# If too many samples were trained by a whole multiple of the ranks, each rank may have counted all.
_MULTIPLE_TOLERANCE = 0.03  # relative distance from the whole multiple
_MAX_MULTIPLE = 64  # times that each rank may have counted them; for more, no cause is named
_RATE_TOLERANCE = 0.03  # of figures that are equal by arithmetic, besides their rounding
# Some pages truncate instead of rounding, which changes a figure by up to twice as much.
_TRUNCATION_FACTOR = 2
_MAX_PADDING = 200  # a sample is not more than this many times shorter than the longest one
_STEP_TOLERANCE = 0.25  # relative: step time and throughput may be means over different steps
# A value in per cent is a hundred times as large as the same value as a fraction; two qualities of
# one table may differ by this factor besides.
_PER_CENT_SPREAD = 3.0
_MAX_SPREAD = 1.3  # ratio of the highest to the lowest quality of a table whose rows agree
_MIN_OUTLIER_RATIO = 4.0  # ratio to the median of the others from which a quality is an outlier
_POSITIVE_FIGURES = {
    *RATES,
    *TIMES,
    *TOKEN_RATES,
    "sample/p/s",
    "step/s",
    "mem",
    "mem_total",
    "MFU",
    "MAMFU",
    "model_flops_per_device",
    "steps",
    "epochs",
}
_SPEED_FIGURES = {*RATES, *TOKEN_RATES, "MFU", "model_flops_per_device"}
# How settings and headings of training programs name what a router of experts does.
_OFF_VALUES = {"", "/", "-", "0", "0.0", "false", "no", "none", "null", "off"}
_FORCED_KEYS = ("force_load_balanc", "forced_balanc", "force_balanc", "balanced_router")
_FORCED_PHRASES = (
    "force_load_balancing",
    "forced balance",
    "force balance",
    "balanced routing",
    "routing=balanced",
    "uniform routing",
)
_FORCED_VALUES = {"balanced", "forced", "uniform", "random"}
_DROP_KEYS = ("token_drop", "capacity_factor", "drop_rate", "dropped")
_DROP_PHRASES = ("tokens dropped", "token dropping", "drops tokens", "capacity factor")
_ROUTING_KEYS = ("rout", "load_balanc", "aux_loss", "dropless")
_ROUTING_PHRASES = (
    "routing",
    "router",
    "dropless",
    "no token drop",
    "aux loss",
    "aux-loss",
    "load balanc",
)
# Precisions that cards have from some generation on.
_REDUCED_PRECISIONS = ("tf32", "bf16", "fp8", "fp4")


def check_label(subjects: AuditSubjects) -> Hits:
    """Yield rows whose label contradicts itself, or names a precision that the card lacks.

    The label is the name of the configuration as a page prints it, such as ``A100单机8卡（1x8）``.
    It contradicts itself if its words (one node, 8 cards) and its numbers (1x8) differ.
    """
    for subject in subjects:
        # The program that read the page left notes on what is odd about the row.
        for note in _get_notes(subject):
            if note.code == "label_contradicts_itself":
                yield subject, note
        # "Mixed precision" names neither FP16 nor BF16: one that the card has may be meant.
        if subject.is_mixed:
            continue
        # Without a vendor's document on the card, a missing precision is only a doubt.
        code = "audit_precision" if subject.has_data_sheet else "audit_precision_unsure"
        for precision in _REDUCED_PRECISIONS:  # those that older cards lack
            if precision in subject.precisions and subject.lacks_precision(precision):
                yield subject, message(code, precision=precision, device=subject.device)


def check_log(subjects: AuditSubjects) -> Hits:
    """Yield rows whose log contradicts itself, as the reader of the log has noted.

    Such a row was read from a log of events; its notes are messages on what is odd about it.
    """
    for subject in subjects:
        for note in _get_notes(subject):  # none if the row is a launch
            if note.code in LOG_CONTRADICTIONS:
                yield subject, note


def _get_notes(subject: AuditSubject) -> Sequence[Message]:
    """Return what the reader of a page noted about a row; nothing for a launch."""
    return subject.row.notes if subject.row else ()


def check_routing(subjects: AuditSubjects) -> Hits:
    """Yield speeds of mixtures of experts that do not route as in training, or do not say how.

    Their router was forced to balance the load, or it may have dropped tokens.
    A forced or dropping router is faster than one that trains, and its MFU counts tokens that no
    expert computed.
    """
    for subject in subjects:
        row = subject.row
        if row is None:  # a launch, not a printed row
            continue
        model = row.model or subject.name  # ``name`` is that of the case, else of the model
        if not is_mixture(model) or row.figures.keys().isdisjoint(_SPEED_FIGURES):
            continue
        settings = {}  # by name, of which only lower-case letters and `_` between them are kept
        # ``changes`` are the settings of the row by name, ``cells`` all its columns as printed.
        for name, value in {**row.changes, **row.cells}.items():
            settings[re.sub(r"[^a-z]+", "_", name.lower())] = value
        # The headings above the table, the label of the row, and all its text as printed.
        text = f"{row.section} {row.configuration} {row.raw}".lower()
        has_routing_setting = any(key in name for name in settings for key in _ROUTING_KEYS)
        forced_balance = (
            _find_setting(settings, _FORCED_KEYS)
            # `routing=balanced` forces the router, `routing=top2` does not.
            or _find_setting(settings, ("rout",), accepted_values=_FORCED_VALUES)
            or _find_phrase(text, _FORCED_PHRASES)
        )
        token_drop = _find_setting(settings, _DROP_KEYS) or _find_phrase(text, _DROP_PHRASES)
        if forced_balance:
            yield subject, message("audit_routing_forced", setting=forced_balance)
        elif token_drop:
            yield subject, message("audit_routing_drops", setting=token_drop)
        elif not has_routing_setting and not _find_phrase(text, _ROUTING_PHRASES):
            yield subject, message("audit_routing_unnamed", model=model)


def _find_setting(
    settings: Mapping[str, str], keys: Sequence[str], *, accepted_values: Collection[str] = ()
) -> str | None:
    """Return the first setting whose name has one of ``keys`` and that is switched on.

    Args:
        settings: values by name. Names have only lower-case letters and ``_``.
        keys: parts of names.
        accepted_values: values that count as on; empty: all values but those that mean off.

    Returns:
        ``name=value``; None: there is no such setting.
    """
    for name, value in settings.items():
        lowered = value.strip().lower()
        is_on = lowered in accepted_values if accepted_values else lowered not in _OFF_VALUES
        if is_on and any(key in name for key in keys):
            return f"{name}={value}"
    return None


def _find_phrase(text: str, phrases: Sequence[str]) -> str | None:
    """Return the first of ``phrases`` that is a part of a text, even of a word; None: none is."""
    for phrase in phrases:
        if phrase in text:
            return phrase
    return None


def check_ranges(subjects: AuditSubjects) -> Hits:
    """Yield rows with a figure outside its range, or a quality in another unit than its table."""
    for subject in subjects:  # printed rows and launches
        # Known models train with losses that are never negative. Of other models nothing is known:
        # some losses, such as a log-likelihood of densities, may be negative. The names of a
        # workload are those of its model on pages; there are none if the model is not known.
        is_known_model = len(subject.workload.names) > 0
        # ``printed_figures`` has all values, ``figures`` only those above zero.
        for name, value in subject.printed_figures.items():
            is_wrong = (
                name in _POSITIVE_FIGURES and value <= 0 and not _is_rounded_to_zero(subject, name)
            )
            is_wrong_loss = is_known_model and "loss" in name and value < 0
            if is_wrong or is_wrong_loss:
                yield subject, message("audit_not_positive", figure=name, value=value)
        mfu = subject.figures.get("MFU", 0.0)
        if mfu > 100:
            yield subject, message("audit_range", figure="MFU", value=mfu, most=100)
        for name in TIMES:
            if subject.figures.get(name, 0.0) > _MAX_TIME_S:  # no published run took a year
                days = subject.figures[name] / _SECONDS_PER_DAY
                yield subject, message("audit_years", figure=name, days=days)
    for name, rows in _group_fractions_by_table(subjects):
        yield from _check_fractions(name, rows)


def _is_rounded_to_zero(subject: AuditSubject, name: str) -> bool:
    """Tell whether a rate of samples is printed as 0 because it is below the last digit.

    The true rate is that of tokens divided by the tokens of a sample. It is compared with the unit
    of the last printed digit, 0.1 if the rate is printed as 0.0.

    Args:
        name: of a figure that is printed as 0 or less.
    """
    # ``printed_figures`` has all values, ``figures`` only those above zero.
    if name not in SAMPLE_RATES or subject.printed_figures[name] < 0:
        return False
    token_rate = subject.figures.get("p_train_tokens")  # tokens a second of all devices
    if token_rate is None:
        # The rate of one device times the number of devices; 0: it is not printed or not known.
        token_rate = subject.figures.get("token/p/s", 0.0) * (subject.world_size or 0)
    sequence_length = subject.read_setting("seq_length")
    if not token_rate or not sequence_length:
        return False
    return token_rate / sequence_length < subject.get_last_digit_unit(name)


def _group_fractions_by_table(subjects: AuditSubjects) -> Iterator[tuple[str, list[AuditSubject]]]:
    """Yield each quality that is a fraction, by name, with the rows of one table that have it.

    Such a quality, for example the accuracy, is between 0 and 1, or between 0 and 100 per cent.
    A quality in several tables is yielded once for each of them.
    """
    names = {name for subject in subjects for name in subject.printed_figures if is_fraction(name)}
    for name in sorted(names):
        if name.endswith("_target"):  # what was wanted, not what was measured
            continue
        subjects_with_name = [subject for subject in subjects if name in subject.printed_figures]
        # A row has the table in which it stands. Records of launches have none: those of one file
        # are compared with each other.
        for rows in group_subjects(subjects_with_name, lambda x: x.table or x.file):
            yield name, rows


def _check_fractions(name: str, rows: Sequence[AuditSubject]) -> Hits:
    """Yield the rows whose quality is out of range, or in another unit than in most rows.

    The unit is either a fraction of 1 or per cent. A quality of 0 is out of range: like other
    figures, it must be above 0.

    Args:
        name: of the quality.
        rows: of one table; all have the quality.
    """
    values = [subject.printed_figures[name] for subject in rows]
    max_value = 1 if _are_fractions(values) else 100
    for subject, value in zip(rows, values, strict=True):
        if not 0 < value <= max_value:
            yield subject, message("audit_range", figure=name, value=value, most=max_value)
        elif max_value > 1 >= value:  # a fraction among per cents
            yield subject, message("audit_unit", figure=name, value=value)


def _are_fractions(values: Sequence[float]) -> bool:
    """Tell whether qualities are fractions of 1 rather than per cent: most of them are at most 1.

    If there are as many values above 1 as below, those above are per cent if they are about a
    hundred times as large as the others; else all are fractions, and those above 1 are wrong.
    """
    fractions = [value for value in values if 0 <= value <= 1]
    larger = [value for value in values if value > 1]
    if len(fractions) != len(larger):
        return 2 * len(fractions) > len(values)
    if not fractions:  # nor larger ones: all values are negative, so wrong in either unit
        return False
    usual_fraction = median(fractions)
    if usual_fraction == 0:
        return True  # a ratio to 0 would not show that the others are per cent
    ratio = median(larger) / usual_fraction / 100  # about 1 if the larger values are per cent
    are_larger_per_cent = 1 / _PER_CENT_SPREAD < ratio < _PER_CENT_SPREAD
    return not are_larger_per_cent


def check_outlier(subjects: AuditSubjects) -> Hits:
    """Yield rows with a quality far from that of all other rows of their table, which agree.

    A quality is a figure of the trained model, such as its accuracy.
    """
    for name, rows in _group_fractions_by_table(subjects):
        for subject in rows:
            value = subject.printed_figures[name]
            others = [other.printed_figures[name] for other in rows if other is not subject]
            # One other value cannot show what is usual; ratios need values above zero.
            if len(others) < 2 or value <= 0 or min(others) <= 0:
                continue
            others_agree = max(others) <= _MAX_SPREAD * min(others)
            usual = median(others)
            is_far = max(value / usual, usual / value) >= _MIN_OUTLIER_RATIO
            # A value in another unit, per cent or fraction, is reported by ``check_ranges``.
            is_in_same_unit = (value <= 1) == (usual <= 1)
            if others_agree and is_far and is_in_same_unit:
                args = {"value": value, "usual": usual}
                yield subject, message("audit_outlier", figure=name, rows=len(others), **args)


def check_ordering(subjects: AuditSubjects) -> Hits:
    """Yield rows whose throughputs or times contradict their definitions.

    A throughput that includes more of the time must not be higher than one that includes less, and
    training must not take longer than the whole run.
    """
    for subject in subjects:  # printed rows and launches
        # Samples a second: of training without waiting for data, of all training, and with
        # evaluations. So each rate divides by more time than the one before it.
        names = [name for name in SAMPLE_RATES if name in subject.figures]
        # Names of two such rates: the second must not be the higher one.
        for above, below in pairwise(names):
            above_rate = subject.figures[above]
            below_rate = subject.figures[below]
            # Of figures with all their digits, as programs write them to logs, rounding explains
            # nothing: figures that should be equal may still differ by an error of floating point.
            slack = 1 + subject.compute_rounding(above, below) + _FLOAT_ERROR
            if below_rate > above_rate * slack:
                rates = {"above_rate": above_rate, "below_rate": below_rate}
                yield subject, message("audit_order", above=above, below=below, **rates)
        train_time = subject.figures.get("train_time")
        e2e_time = subject.figures.get("e2e_time")
        time_slack = 1 + subject.compute_rounding("train_time", "e2e_time") + _FLOAT_ERROR
        if train_time and e2e_time and train_time > e2e_time * time_slack:
            yield subject, message("audit_time", train_time=train_time, e2e_time=e2e_time)


def check_totals(subjects: AuditSubjects) -> Hits:
    """Yield rows whose rates contradict each other, or contradict batch and step time.

    These are rates of one device and of all, of tokens and of samples, and of samples and steps.
    """
    for subject in subjects:  # printed rows and launches
        yield from _compare_device_and_total(subject)
        yield from _compare_tokens_and_samples(subject)
        yield from _compare_batch_and_step(subject)


def _compare_device_and_total(subject: AuditSubject) -> Hits:
    """Yield the row if the total rate is not the rate of a device times the number of devices."""
    if not subject.world_size:
        return
    # ``token/p/s`` and ``sample/p/s`` are rates of one device; the other two are of all devices.
    for device_figure, total_figure in (("token/p/s", "p_train_tokens"), ("sample/p/s", "p_whole")):
        if device_figure not in subject.figures or total_figure not in subject.figures:
            continue
        device_rate = subject.figures[device_figure]
        total_rate = subject.figures[total_figure]
        times = total_rate / device_rate  # should be the number of devices
        # The relative error that the printed digits of both figures allow.
        rounding = subject.compute_rounding(device_figure, total_figure)
        # Some pages truncate figures instead of rounding them.
        slack = 1 + _RATE_TOLERANCE + _TRUNCATION_FACTOR * rounding
        if not 1 / slack <= times / subject.world_size <= slack:
            conflict = message(
                "audit_total",
                of_one=device_figure,
                of_all=total_figure,
                world_size=subject.world_size,
                rate=device_rate,
                total=total_rate,
                times=times,
            )
            yield subject, conflict


def _compare_tokens_and_samples(subject: AuditSubject) -> Hits:
    """Yield the row if its samples have more tokens than the sequence length, or hardly any."""
    token_rate = subject.figures.get("p_train_tokens")  # tokens a second in training
    # Like the tokens, `p_train` excludes evaluations. If a page has only one column of samples a
    # second, that is read as `p_whole`, whatever its time includes.
    sample_figure = "p_train" if "p_train" in subject.figures else "p_whole"
    sample_rate = subject.figures.get(sample_figure)
    sequence_length = subject.read_setting("seq_length")
    if not token_rate or not sample_rate or not sequence_length:
        return
    tokens_per_sample = token_rate / sample_rate  # both rates are those of all devices
    # The relative error that the printed digits of both figures allow.
    rounding = subject.compute_rounding("p_train_tokens", sample_figure)
    # Some pages truncate figures instead of rounding them.
    slack = 1 + _RATE_TOLERANCE + _TRUNCATION_FACTOR * rounding
    are_too_many = tokens_per_sample > sequence_length * slack
    # Padded samples are shorter than the longest one, but hardly by that much.
    are_too_few = tokens_per_sample < sequence_length / _MAX_PADDING
    if are_too_many or are_too_few:
        args = {"tokens": token_rate, "samples": sample_rate, "length": sequence_length}
        yield subject, message("audit_tokens", ratio=tokens_per_sample, **args)


def _compare_batch_and_step(subject: AuditSubject) -> Hits:
    """Yield the row if throughput times step time is not the batch of a step.

    The batch is that of all devices. If the settings of the row do not fix it, any batch between
    two bounds is accepted.
    """
    seconds = subject.figures.get("step_time")
    sample_rate = _compute_sample_rate(subject)
    if not seconds or sample_rate is None:
        return
    rate, rate_figure = sample_rate
    min_batch, max_batch = _compute_batch_bounds(subject)
    # Step time and throughput may be means over different steps, and both are rounded.
    slack = 1 + _STEP_TOLERANCE + subject.compute_rounding("step_time", rate_figure)
    samples = seconds * rate
    if samples * slack < min_batch:
        bound = min_batch
    elif samples > max_batch * slack:
        bound = max_batch
    else:
        return
    args = {"step_time": seconds, "rate": rate, "batch": bound, "samples": samples}
    yield subject, message("audit_batch", **args)


def _compute_sample_rate(subject: AuditSubject) -> tuple[float, str] | None:
    """Return samples per second of all devices, and the name of the figure that they follow from.

    The figure is a rate of tokens if samples are not printed.

    None: no rate is printed, or what is needed to convert it. ``sample/p/s`` and ``token/p/s`` are
    rates of one device, ``p_train_tokens`` are tokens a second of all devices.
    """
    figures = subject.figures
    num_devices = subject.world_size
    # These are samples a second of all devices. The first divides by the time of training alone;
    # the time of the next ones includes waiting for data, and then evaluations.
    for name in SAMPLE_RATES:
        if name in figures:
            return figures[name], name
    if num_devices and "sample/p/s" in figures:
        return figures["sample/p/s"] * num_devices, "sample/p/s"
    sequence_length = subject.read_setting("seq_length")
    if not sequence_length:
        return None
    if "p_train_tokens" in figures:
        return figures["p_train_tokens"] / sequence_length, "p_train_tokens"
    if num_devices and "token/p/s" in figures:
        return figures["token/p/s"] * num_devices / sequence_length, "token/p/s"
    return None


def _compute_batch_bounds(subject: AuditSubject) -> tuple[float, float]:
    """Return the smallest and largest batch of a step, of all devices, that a row's settings allow.

    If the settings do not name a batch, any batch is allowed.
    """
    global_batch = subject.read_setting("global_batch_size")
    if global_batch:
        return global_batch, global_batch
    micro_batch = subject.read_setting("micro_batch_size")
    if not micro_batch:
        return 0.0, math.inf
    num_micro_batches = subject.read_setting("grad_accum_steps")
    if num_micro_batches is None or not subject.world_size:
        return micro_batch, math.inf  # a step has one micro-batch or more
    # Devices that share one model (tensor or pipeline parallel) train a micro-batch together. The
    # batch is smallest if all devices share one model, and largest if each has its own.
    batch_of_model = micro_batch * num_micro_batches
    return batch_of_model, batch_of_model * subject.world_size


def check_memory(subjects: AuditSubjects) -> Hits:
    """Yield rows that use more memory than there is, or whose memory is not that of their card."""
    for subject in subjects:  # printed rows and launches
        # Figures of memory are in bytes, of one card; 0: not printed.
        used = subject.figures.get("mem", 0.0) / _GIB
        total = subject.figures.get("mem_total", 0.0) / _GIB
        # The total is the card's own size; only the used memory is a rounded measurement.
        if total and used > total * (1 + subject.compute_rounding("mem")):
            yield subject, message("audit_memory", used=used, total=total)
        # The memory of each product that the printed name of the device can mean.
        sizes = sorted(set(subject.list_product_figures("memory_gb")))
        if sizes and not _fits_any_card(used, total, sizes):
            yield subject, _describe_other_card(subject, total or used, sizes)
    # Rows of one table about one kind of card should all print the same total.
    rows_with_total = [row for row in subjects if row.device and "mem_total" in row.figures]
    for rows in group_subjects(rows_with_total, lambda row: (row.table, row.device)):
        yield from _check_memory_of_one_card(rows)


def _check_memory_of_one_card(rows: Sequence[AuditSubject]) -> Hits:
    """Yield the rows that print another total memory than most rows of the same card.

    Args:
        rows: of one table and one kind of device; each prints ``mem_total``, the memory of a
            device. Figures of memory are in bytes.
    """
    if len(rows) < _MIN_ROWS_OF_CARD:  # too few to tell which memory is the usual one
        return
    usual = mode(subject.figures["mem_total"] for subject in rows)
    for subject in rows:
        total = subject.figures["mem_total"]
        if abs(total / usual - 1) > _MEMORY_ROUNDING:  # more than rounding explains
            args = {"device": subject.device, "total": total / _GIB, "usual": usual / _GIB}
            yield subject, message("audit_memory_of_others", **args)


def _fits_any_card(used: float, total: float, sizes: Sequence[float]) -> bool:
    """Tell whether a card of one of these sizes can have the memory that a row prints.

    The printed total must be one of the sizes. Without a total, the used memory must fit in one.

    Args:
        used: memory in GiB; 0: not printed.
        total: memory in GiB; 0: not printed.
        sizes: published memory of each product that the device's name can mean, in GB or GiB.
    """
    # GiB and GB differ by 7%, and drivers reserve some memory.
    if total:
        return any(abs(total / size - 1) <= _MEMORY_TOLERANCE for size in sizes)
    return any(used <= size * (1 + _MEMORY_TOLERANCE) for size in sizes)


def _describe_other_card(subject: AuditSubject, total: float, sizes: Sequence[float]) -> Message:
    """Return the message that the device has another memory than is printed.

    Args:
        subject: the row, which names the device.
        total: printed memory in GiB: the total, or what was used if no total is printed.
        sizes: memory of the device, in GB or GiB, for each product that its name can mean.
    """
    listed_sizes = "/".join(f"{size:g}" for size in sizes)
    return message("audit_memory_of_card", total=total, device=subject.device, sizes=listed_sizes)


def check_passes(subjects: AuditSubjects) -> Hits:
    """Yield rows that trained more samples than their epochs over the data set have.

    Rows are left out if the size of their model's data set is not known.
    """
    for subject in subjects:
        if subject.workload.samples_per_pass:
            yield from _check_passes_of_row(subject, subject.workload.samples_per_pass)


def _check_passes_of_row(subject: AuditSubject, samples_per_pass: int) -> Hits:
    """Yield the row if it trained too many samples for its epochs over a data set.

    Samples are the time of the run multiplied by ``p_whole``, its samples a second.

    Args:
        samples_per_pass: size of the data set.
    """
    # The most epochs that the model's published configuration allows; if that is not known, the
    # epochs that the row prints; 0: not known either.
    epochs = subject.workload.epochs or subject.read_setting("epochs") or 0
    rate = subject.figures.get("p_whole", 0.0)
    # Values for the texts of the messages below, which call the samples of a data set its rows.
    args = {"e2e_time": subject.run_time_s, "p_whole": rate, "rows": samples_per_pass}
    # The tests below use `min_samples`, from which a start-up time is taken off. The messages show
    # `max_samples`, the product of the two figures as printed.
    passes = subject.max_samples / samples_per_pass
    if not epochs:  # not printed: only an impossible number of passes is reported
        if subject.min_samples > _MAX_PASSES * samples_per_pass:
            reason = message("audit_passes_unnamed", passes=passes, most=_MAX_PASSES, **args)
            yield subject, reason
        return
    expected_samples = samples_per_pass * epochs
    # A difference within this ratio counts as the same work.
    if subject.min_samples <= SAME_WORK_RATIO * expected_samples:
        return
    args["epochs"] = round(epochs)
    times = subject.max_samples / expected_samples  # how often each sample was counted
    # If every rank counted the samples of all ranks, there are `world_size` times as many, or a
    # whole multiple of that.
    times_per_rank = _find_multiple_of_ranks(times, subject.world_size)
    # The second test is for the type checker: without a world size, ``times_per_rank`` is None.
    if times_per_rank is not None and subject.world_size:
        args |= {
            "times": times_per_rank * subject.world_size,
            "each": times_per_rank,
            "world_size": subject.world_size,
        }
        rate_if_counted_once = expected_samples / subject.run_time_s  # each sample by one rank only
        yield subject, message("audit_per_rank", once=rate_if_counted_once, **args)
    else:
        yield subject, message("audit_passes", passes=passes, **args)


def _find_multiple_of_ranks(times: float, world_size: int | None) -> int | None:
    """Return n if ``times`` is about n times the number of ranks; None: it is no such multiple.

    Such a multiple has a likely cause: each rank counted every sample of all ranks n times. In the
    published rows of DLRM n is 2. A large n is refused: any number is near a large multiple.

    Args:
        times: the counted samples divided by the expected ones.
        world_size: number of ranks; None: not known.
    """
    if not world_size:
        return None
    times_per_rank = round(times / world_size)
    if not 0 < times_per_rank <= _MAX_MULTIPLE:
        return None
    is_near = abs(times / world_size / times_per_rank - 1) <= _MULTIPLE_TOLERANCE
    return times_per_rank if is_near else None


def check_peak(subjects: AuditSubjects) -> Hits:
    """Yield rows that compute faster than their device can in the precision that they name."""
    for subject in subjects:
        flop_rate = subject.estimate_device_flops()  # FLOP/s of one device, at least
        bound = subject.find_peak_bound()  # its published peak; None: not known
        # A correct rate may be a little above the peak: the clock may be higher than the one for
        # which the peak is published, and FLOPs are counted, not measured.
        if bound is None or flop_rate <= _MAX_PEAK_RATIO * bound.flops:
            continue
        args = {
            "tflops": flop_rate / 1e12,
            "peak": bound.flops / 1e12,
            "share": flop_rate / bound.flops,
        }
        tf32_tflops = max(subject.list_product_figures("tf32_tflops"), default=0.0)
        # Libraries may compute in TF32 what a page calls FP32. A rate up to the peak of TF32 is
        # correct then, and only the label is wrong.
        if subject.precision == "fp32" and flop_rate <= tf32_tflops * 1e12:
            yield subject, message("audit_tf32", tf32=tf32_tflops, device=subject.device, **args)
        else:
            # `is_sure`: the peak is from a vendor's document, so that the row is wrong. Otherwise
            # the peak may be wrong.
            code = "audit_peak" if bound.is_sure else "audit_peak_unsure"
            yield subject, message(code, precision=bound.precision, device=subject.device, **args)


def check_target(subjects: AuditSubjects) -> Hits:
    """Yield rows that print a target that their quality misses.

    The quality of the trained model is a figure that has the name of its metric, such as
    ``accuracy``; its target is the figure ``accuracy_target``.
    """
    for subject in subjects:
        metric = subject.row.metric if subject.row else None
        if metric is None:
            continue
        value = subject.figures.get(metric)
        target = subject.figures.get(f"{metric}_target")
        if value is None or target is None:
            continue
        if _is_target_missed(metric, value, target):
            yield subject, message("audit_target_row", metric=metric, value=value, target=target)


def _is_target_missed(metric: str, value: float, target: float) -> bool:
    """Tell whether a quality is worse than its target.

    False if it is not known whether a higher or a lower quality is better.

    Args:
        metric: name of the quality.
    """
    if is_lower_better(metric):
        return value > target
    # A quality between 0 and 1, or 0 and 100%, is better if it is higher. Others are not known.
    return is_fraction(metric) and value < target
