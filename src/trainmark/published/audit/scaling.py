"""Audit rules that compare the speed of rows: with more devices, and in a wider precision."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from trainmark.published.audit.groups import find_inconsistent_rows, get_line_key, group_subjects
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Hashable

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits

_LAUNCH_NOISE = 1.1  # ratio of two launches of the same work
_BATCH_GAIN = 0.7  # a batch of twice the size is at most 2 ** 0.7 times as fast
_MAX_GAIN = 1.5  # from more devices: a batch of another size, and caches that hold a larger share
# Bytes of a number; TF32 stands between 16 and 32 bits, as its speed does.
_PRECISION_WIDTHS = {
    "fp8": 1,
    "fp16": 2,
    "bf16": 2,
    "tf32": 3,
    "fp32": 4,
}


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


def check_precisions(subjects: AuditSubjects) -> Hits:
    """Yield rows that are over 1.5 times as fast as a row of the same line in a narrower precision.

    A line of a table with a column for each precision gives a row for each of them.
    """
    for line in group_subjects(subjects, get_line_key):
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
