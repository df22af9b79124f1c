"""Hold records and printed rows against rules; each finding shows its arithmetic.

Owns the rules that look at each launch and row alone; ``tables`` has those that look at several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from statistics import mode
from typing import TYPE_CHECKING, Any, Literal

from trainmark.judge.audit import tables
from trainmark.judge.audit.subject import RATES, TIMES, grouped
from trainmark.record.messages import render
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.spec import Message

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")
_GIB = 2**30
_ORDER_SUMS = 1e-9  # figures of a record are not rounded
_SAME_MEMORY = 0.1  # GiB and GB differ by 7%, and drivers keep some for themselves
_ROUNDED_MEMORY = 0.02  # a page prints one card's memory to the same digits
_MORE_SAMPLES = 1.1  # than the data, with the time that starting may have taken left out
_ABOVE_PEAK = 1.1  # clocks may be above those of the peak, and FLOPs of a sample are counted
_NEAR, _MOST = 0.03, 64  # of a whole multiple of the ranks
_POSITIVE = {*RATES, *TIMES, "token/p/s", "p_train_tokens", "mem", "mem_total", "MFU", "MAMFU",
             "steps", "epochs"}  # fmt: skip
# Qualities that are shares, or per cent.
_SHARE = re.compile(
    r"acc|精度|auc|\bmap|bleu|rouge|(\b|_)f1|mmlu|iou|recall|top-?[15]", re.IGNORECASE
)
# Pages do not say in which direction a quality is better; of these there is no doubt.
_LOWER = re.compile(r"loss|perplexity|ppl", re.IGNORECASE)
_NARROW = ("tf32", "bf16", "fp8", "fp4")  # precisions that cards have from some generation on
_DOUBTS = ("audit_tf32", "audit_memory_of_card")  # a label that is wrong, not a figure


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction or doubt, with where it stands.

    Args:
        message: its code; the arguments are the arithmetic, in the units of the figures.
    """

    rule: str
    severity: Severity
    message: Message
    subject: Subject

    def as_dict(self, lang: str) -> dict[str, Any]:
        """Return the finding in the form that ``audit --json`` prints.

        ``line`` is that of a printed row, from 1; 0: a record.
        """
        place = {name: getattr(self.subject, name) for name in ("file", "line", "configuration")}
        named = {"code": self.message.code, "arithmetic": self.message.args}
        text = render(self.message, lang)
        return {"rule": self.rule, "severity": self.severity, **place, **named, "message": text}


def label(subjects: Subjects) -> Hits:
    """Yield rows whose label contradicts itself, or names a precision that the card lacks."""
    for one in subjects:
        for note in one.row.notes if one.row else ():
            if note.code == "label_contradicts_itself":
                yield one, note
        for name in _NARROW:
            if name in one.precisions and one.lacks(name):
                yield one, message("audit_precision", precision=name, device=one.device)


def range_(subjects: Subjects) -> Hits:
    """Yield rows with a figure outside its range, and qualities in another unit than the rest."""
    for one in subjects:
        for name, value in one.printed.items():
            # A loss that is a likelihood's may be below zero, the ones of known models are not.
            loss = "loss" in name and one.workload.names
            if (name in _POSITIVE and value <= 0) or (loss and value < 0):
                yield one, message("audit_not_positive", figure=name, value=value)
        if one.figures.get("MFU", 0.0) > 100:
            yield one, message("audit_range", figure="MFU", value=one.figures["MFU"], most=100)
    for name in {name for one in subjects for name in one.printed if _SHARE.search(name)}:
        if not name.endswith("_target"):
            yield from _shares(subjects, name)


def _shares(subjects: Subjects, name: str) -> Hits:
    """Yield the rows whose quality is no share, or per cent, as in most rows of their table."""
    for rows in grouped(
        subjects, lambda one: [one.table or one.file] if name in one.printed else []
    ):
        values = [one.printed[name] for one in rows]
        # The unit that most rows have; of two rows alone, per cent.
        whole = 1 if 2 * sum(0 <= x <= 1 for x in values) > len(values) else 100
        for one in rows:
            value = one.printed[name]
            if not 0 < value <= whole:
                yield one, message("audit_range", figure=name, value=value, most=whole)
            elif whole > 1 >= value and len(values) > 1:
                yield one, message("audit_unit", figure=name, value=value)


def ordering(subjects: Subjects) -> Hits:
    """Yield figures that are larger than one that leaves out more time."""
    for one in subjects:
        known = [name for name in ("p_core", "p_train", "p_whole") if name in one.figures]
        for above, below in pairwise(known):
            rates = {"above_rate": one.figures[above], "below_rate": one.figures[below]}
            slack = 1 + one.rounding(above, below) + _ORDER_SUMS
            if rates["below_rate"] > rates["above_rate"] * slack:
                yield one, message("audit_order", above=above, below=below, **rates)
        seconds, whole = map(one.figures.get, ("train_time", "e2e_time"))
        slack = 1 + one.rounding("train_time", "e2e_time") + _ORDER_SUMS
        if seconds and whole and seconds > whole * slack:
            yield one, message("audit_time", train_time=seconds, e2e_time=whole)


def memory(subjects: Subjects) -> Hits:
    """Yield more memory than there is, and cards with another memory than theirs."""
    for one in subjects:
        used, total = (one.figures.get(name, 0.0) / _GIB for name in ("mem", "mem_total"))
        if total and used > total * (1 + one.rounding("mem")):
            yield one, message("audit_memory", used=used, total=total)
        sizes = sorted(set(one.published("memory_gb")))
        other = [abs(total / size - 1) > _SAME_MEMORY for size in sizes] if total else (
            [used > size * (1 + _SAME_MEMORY) for size in sizes])  # fmt: skip
        if sizes and all(other):
            yield one, _of_another_card(one, total or used, sizes)
    cards = [one for one in subjects if one.device and "mem_total" in one.figures]
    for rows in grouped(cards, lambda one: [(one.table, one.device)]):
        usual = mode(one.figures["mem_total"] for one in rows)
        for one in rows if len(rows) > 2 else ():
            total = one.figures["mem_total"]
            if abs(total / usual - 1) > _ROUNDED_MEMORY:
                yield one, _of_another_card(one, total / _GIB, [usual / _GIB])


def _of_another_card(one: Subject, total: float, sizes: list[float]) -> Message:
    known = ", ".join(f"{size:g}" for size in sizes)
    return message("audit_memory_of_card", total=total, device=one.device, sizes=known)


def passes(subjects: Subjects) -> Hits:
    """Yield rows with more samples than their data and epochs have, and how they were counted."""
    for one in subjects:
        rows, epochs = one.workload.samples_per_pass or 0, one.workload.epochs or 0
        least, most = one.samples_bounds()
        if not rows * epochs or least <= _MORE_SAMPLES * rows * epochs:
            continue
        args = {name: one.figures[name] for name in ("e2e_time", "p_whole")}
        args |= {"rows": rows, "epochs": epochs}
        world, multiple = one.world_size or 0, most / (rows * epochs)
        each = round(multiple / world) if world else 0
        if 0 < each <= _MOST and abs(multiple / world / each - 1) <= _NEAR:
            args |= {"times": each * world, "each": each, "world_size": world}
            once = rows * epochs / args["e2e_time"]
            yield one, message("audit_per_rank", once=once, **args)
        else:
            yield one, message("audit_passes", passes=most / rows, **args)


def peak(subjects: Subjects) -> Hits:
    """Yield what computed faster than its device can in the precision that it declares."""
    for one in subjects:
        rate, most = one.flops_per_device(), max(one.dense_peaks(), default=0.0)
        if not most or rate <= _ABOVE_PEAK * most:
            continue
        shares = {"tflops": rate / 1e12, "peak": most / 1e12, "share": rate / most}
        tf32 = max(one.published("tf32_tflops"), default=0.0)
        if one.precision == "fp32" and rate <= tf32 * 1e12:
            yield one, message("audit_tf32", tf32=tf32, device=one.device, **shares)
        else:
            named = {"precision": one.precision, "device": one.device}
            yield one, message("audit_peak", **named, **shares)


def target(subjects: Subjects) -> Hits:
    """Yield rows that print a target they missed."""
    for one in subjects:
        metric = one.row.metric if one.row else None
        value, wanted = (one.figures.get(name) for name in (metric or "", f"{metric}_target"))
        if metric is None or value is None or wanted is None:
            continue
        sign = -1 if _LOWER.search(metric) else 1 if _SHARE.search(metric) else 0
        if sign * value < sign * wanted:
            yield one, message("audit_target_row", metric=metric, value=value, target=wanted)


# A rule's definition is the sentence ``audit_rule.<name>`` of ``record/messages.toml``.
RULES: dict[str, tuple[Severity, Callable[[Subjects], Hits]]] = {
    "copies": ("error", tables.copies),
    "label": ("error", label),
    "memory": ("error", memory),
    "mfu": ("warning", tables.mfu),
    "ordering": ("error", ordering),
    "passes": ("error", passes),
    "peak": ("error", peak),
    "range": ("error", range_),
    "ratios": ("warning", tables.ratios),
    "same_figures": ("warning", tables.same_figures),
    "scaling": ("warning", tables.scaling),
    "side_by_side": ("warning", tables.side_by_side),
    "target": ("warning", target),
}


def audit(subjects: Subjects) -> list[Finding]:
    """Return what the rules find: errors first, then by place."""
    findings = [
        Finding(name, "warning" if found.code in _DOUBTS else severity, found, subject)
        for name, (severity, rule) in RULES.items()
        for subject, found in rule(subjects)
    ]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), one.subject.file, one.subject.line)
    )
    return findings
