"""Audit rules on the rates and times of one row, which follow from each other by arithmetic.

Figures have their names in records: ``p_core``, ``p_train`` and ``p_whole`` are samples a second of
all devices, without waiting and evaluation, without evaluation, and with both; ``p_train_tokens``
is tokens a second of all devices; ``sample/p/s`` and ``token/p/s`` are rates of one device.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from trainmark.published.audit.subject import SAMPLE_RATES
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits

_FLOAT_ERROR = 1e-9  # relative, of sums of times that a program computed as floating-point numbers
_RATE_TOLERANCE = 0.03  # of figures that are equal by arithmetic, besides their rounding
# Some pages truncate instead of rounding, which changes a figure by up to twice as much.
_TRUNCATION_FACTOR = 2
_MAX_PADDING = 200  # a sample is not more than this many times shorter than the longest one
_STEP_TOLERANCE = 0.25  # relative: step time and throughput may be means over different steps


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
