"""All figures of a run: those beyond the table with its spans, evaluations, doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, Section, folded, table
from trainmark.pages.phrases import definition, heads, sentence, trust_line, verdict
from trainmark.pages.sections.limits import rules_table
from trainmark.pages.texts import Phrase, join, known, t, term
from trainmark.record import figures as figures_of
from trainmark.record.trust import trust_of, verification_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record
    from trainmark.record.run.telemetry import IntervalName, Use

_EVALUATIONS = 5  # rows of the page; the record has all
# Columns of what was read of a device: which end of the range stands beside the mean.
_USE = {
    "utilization_percent": "highest", "power_w": "highest", "temperature_c": "highest",
    "clock_mhz": "lowest",
}  # fmt: skip
_RANKS = ("rank", "node", "step_ms", "wait_ms", "tflops", "memory", *_USE, "throttled")


def figures(record: Record) -> Section:
    """Return all figures with their definitions and why some are null, counts, spans."""
    rows: list[list[Phrase]] = []
    specs, quality = figures_of.specs(record.plan.about.page), record.quality
    for name, entry in record.figures.items():
        (value,), unit = cells.scaled([entry.value], entry.unit)
        remark: list[Phrase] = []
        if name in specs:  # plans of earlier versions do not declare the figures of a case
            remark = [join((specs[name].label, definition(specs[name], record)), "colon")]
        if entry.value is None:
            remark.append(t("figure.null", reason=sentence(record, entry.reason, "?")))
        elif entry.note is not None:
            remark.append(sentence(record, entry.note))
        rows.append([name, value, unit, join(remark, "semicolon")])
    reached = cells.quality_and_target(quality.value, quality.target)
    rows.append([quality.metric, reached, "", record.plan.about.metric_note])
    for name, count in record.counts:
        rows.append([term("count", name), None if count is None else cells.count(count), "", ""])
    wall = record.spans.wall_ns or sum(record.spans.by_name_ns.values())
    for name, ns in ((name, ns) for name, ns in record.spans.by_name_ns.items() if ns):
        share = t("spans.share", share=f"{ns / wall:.1%}", rank=record.spans.rank)
        rows.append([term("span", name), cells.spent(ns), "s", share])
    passes = record.counts.samples / record.plan.data.train_samples
    rows.append([t("count.passes"), f"{passes:.2f}", "", ""])
    return folded("figures", table(heads("name", "value", "unit", "remark"), rows))


def evaluations(record: Record) -> Section | None:
    """Return the last evaluations, and the breakdown of the last; None when there was none."""
    history = record.quality.history
    if not history:
        return None
    rows = [
        [
            point.epoch + 1, cells.count(point.step),
            cells.quality(point.value, target=record.quality.target), cells.count(point.samples),
            join((_called(record, x), " ", _figure(value)) for x, value in point.detail.items())
            if point.detail else None,
        ]
        for point in history[-_EVALUATIONS:]
    ]  # fmt: skip
    names = [*heads("epoch", "step"), record.quality.metric, *heads("samples", "detail")]
    blocks: list[Block] = [Paragraph(verdict(record)), table(names, rows)]
    if len(history) > _EVALUATIONS:
        blocks.append(Paragraph(t("quality.earlier", n=len(history) - _EVALUATIONS), "muted"))
    for kind, parts in history[-1].parts.items():
        called = _called(record, kind)
        of_parts = ((name, _figure(value)) for name, value in parts.items())
        blocks.append(Paragraph(t("quality.parts", kind=called), "muted"))
        blocks.append(table((called, t("head.value")), of_parts))
    return folded("quality", *blocks)


def _called(record: Record, name: str) -> Phrase:
    """Return the label of a figure of an evaluation: the case's own, else the common one."""
    return record.plan.about.page.terms.get(name) or term("term", name)


def _figure(value: float | None) -> str | None:
    return None if value is None else format(value, ".4g")


def ranks(record: Record) -> Section | None:
    """Return a row a rank with what was read of its device, the slowest first; None of one alone.

    Readings are of the training, or else of the run.
    """
    found, blocks = record.telemetry, list[Block]()
    over: IntervalName = "train" if found and "train" in found.intervals_s else "run"
    uses = {rank: x.over.get(over) for x in (found.devices if found else ()) for rank in x.ranks}
    if not uses and sum(one.step_ns is not None for one in record.ranks) < 2:
        return None
    rows = (
        [
            one.rank, one.rank // record.plan.nproc,
            *(None if ns is None else f"{ns / 1e6:.4g}" for ns in (one.step_ns, one.wait_ns)),
            (rate := one.matmul_flops_per_second) and f"{rate / 1e12:.4g}",
            cells.memory(one.used_bytes, None), *_readings(uses.get(one.rank)),
        ]
        for one in sorted(record.ranks, key=lambda one: -(one.step_ns or 0))
    )  # fmt: skip
    blocks.append(table(heads(*(f"ranks.{name}" for name in _RANKS)), rows, short=True))
    if found and over in found.intervals_s:
        start_s, end_s = found.intervals_s[over]
        every = known(None if found.interval_s is None else f"{found.interval_s:g}")
        said = t(
            "telemetry.caption",
            over=t(f"telemetry.{over}"), seconds=f"{end_s - start_s:.1f}", interval=every,
        )  # fmt: skip
        sources = ", ".join(name for name in (found.monitor, *found.host_sources) if name)
        blocks.append(Paragraph(join((said, sources), "semicolon"), "muted"))
    return folded("ranks", *blocks)


def _readings(use: Use | None) -> list[Phrase]:
    """Return mean and peak, or mean and lowest, of each quantity, and throttling."""
    row: list[Phrase] = []
    for name, end in _USE.items():
        found = use.quantities.get(name) if use else None
        values = [] if found is None else [found.mean, getattr(found, end)]
        row.append("/".join(f"{x:.0f}" for x in values) or None)
    if use is None or use.throttled is None:
        return [*row, None]
    return [*row, ", ".join(f"{x:.0%} {why}" for why, x in use.throttled.items()) or "0%"]


def doubts(records: Sequence[Record]) -> Section:
    """Return how far figures can be trusted: reasons, findings, the limits."""
    record, trust = records[0], trust_of(records)
    blocks: list[Block] = [Paragraph(trust_line(trust, verification_of(records)))]
    doubtful = {reason.code for reason in trust.reasons}
    for one in {str(x): x for of in records for x in of.findings}.values():
        line = join((t("terminal.finding"), sentence(record, one)), "colon")
        blocks.append(Paragraph(line, "warn" if one.code in doubtful else "plain"))
    return folded("trust", *blocks, rules_table(record))
