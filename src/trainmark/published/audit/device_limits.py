"""Audit rules that compare a row with its device: with its memory and with its peak."""

from __future__ import annotations

from statistics import mode
from typing import TYPE_CHECKING

from trainmark.published.audit.groups import group_subjects
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.spec import Message

_GIB = 2**30
_MEMORY_TOLERANCE = 0.1  # GiB and GB differ by 7%, and drivers reserve some memory
_MEMORY_ROUNDING = 0.02  # a page prints the memory of a card with the same digits everywhere
_MIN_ROWS_OF_CARD = 3  # rows, of which most tell the memory of their card
_MAX_PEAK_RATIO = 1.1  # clocks may be above those of the peak, and FLOPs of a sample are counted


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
