"""All figures of a run: those beyond the table, where its time went, evaluations, doubts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.audit import RULES, audit
from trainmark.judge.audit.subject import of_record
from trainmark.pages import cells
from trainmark.pages.document import Bar, Bars, Block, Paragraph, Section, Tone, table
from trainmark.pages.phrases import definition, heads, sentence, trust_line, verdict
from trainmark.pages.sections.limits import rules_table
from trainmark.pages.texts import Phrase, join, known, t, term, worded
from trainmark.record import figures as figures_of
from trainmark.record.trust import of_repeats, verification_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.audit import Finding, Severity
    from trainmark.record.record import Record
    from trainmark.record.run.telemetry import Use

_SHOWN_WITH = {"mem_total"}  # printed in the cell of another figure
_TONES: dict[Severity, Tone] = {"error": "bad", "warning": "warn"}
_COLOURS = {"evaluate": "evaluation", "compile": "compute", "warmup": "compute", "train": "compute"}
_EVALUATIONS = 5  # rows of the page; the record has all
_USE = (
    "rank", "memory", "busy", "power", "temperature", "clock", "throttled", "energy", "readings",
)  # fmt: skip


def further(record: Record, columns: Sequence[str]) -> Section:
    """Return the figures that the performance table has no column for, and the counts."""
    rows: list[list[Phrase]] = []
    specs = figures_of.specs(record.plan.about.page)
    for name, entry in record.figures.items():
        if name in columns or name in _SHOWN_WITH:
            continue
        (value,), unit = cells.scaled([entry.value], entry.unit)
        remark: list[Phrase] = []
        if name in specs:  # plans of earlier versions do not declare the figures of a case
            remark = [join((specs[name].label, definition(specs[name], record)), "colon")]
        if entry.value is None:
            remark.append(t("figure.null", reason=sentence(record, entry.reason, "?")))
        elif entry.note is not None:
            remark.append(sentence(record, entry.note))
        rows.append([name, value, unit, join(remark, "semicolon")])
    for name in type(record.counts).model_fields:
        count = getattr(record.counts, name)
        rows.append([term("count", name), None if count is None else cells.count(count), "", ""])
    passes = record.counts.samples / record.plan.data.train_samples
    rows.append([t("count.passes"), f"{passes:.2f}", "", ""])
    shown = table(heads("name", "value", "unit", "remark"), rows)
    return Section(t("section.figures"), "figures", (shown,), folded=True)


def spans(record: Record) -> Section:
    """Return a bar for each span of the wall time of the rank that ended last."""
    found, at, items = record.spans, 0.0, []
    wall = found.wall_ns or sum(found.by_name_ns.values())
    for name, spent in sorted(found.by_name_ns.items(), key=lambda one: one[0] == "other"):
        share = spent / wall if wall else 0.0
        if cells.spent(spent) != cells.spent(0):
            shown = f"{cells.spent(spent)} s · {share:.1%}"
            colour = _COLOURS.get(name, "rest")
            label = t("spans.name", name=name, means=term("span", name))
            items.append(Bar(label, min(at, 1.0), min(at + share, 1.0), colour, shown))
        at += share
    if not items:
        return Section(t("section.spans"), "spans", (Paragraph(t("spans.none")),), folded=True)
    named = known(None if found.reconciled is None else f"{found.reconciled:.1%}")
    said = t("spans.caption", wall=cells.spent(wall), rank=found.rank, named=named)
    shown_bars = Bars(t("head.span"), tuple(items), said)
    return Section(t("section.spans"), "spans", (shown_bars,), folded=True)


def evaluations(record: Record) -> Section | None:
    """Return the last evaluations, and the breakdown of the last; None when there was none."""
    rows: list[list[Phrase]] = []
    history = record.quality.history
    for point in history[-_EVALUATIONS:]:
        detail = [
            (_called(record, name), " ", _figure(value)) for name, value in point.detail.items()
        ]
        rows.append([
            point.epoch + 1, cells.count(point.step),
            cells.quality(point.value, target=record.quality.target),
            cells.count(point.samples), join(detail) if detail else None,
        ])  # fmt: skip
    if not rows:
        return None
    names = [*heads("epoch", "step"), record.quality.metric, *heads("samples", "detail")]
    blocks: list[Block] = [Paragraph(verdict(record)), table(names, rows)]
    if len(history) > _EVALUATIONS:
        blocks.append(Paragraph(t("quality.earlier", n=len(history) - _EVALUATIONS), "muted"))
    for kind, parts in history[-1].parts.items():
        called = _called(record, kind)
        blocks.append(Paragraph(t("quality.parts", kind=called), "muted"))
        of_parts = ((name, _figure(value)) for name, value in parts.items())
        blocks.append(table((called, t("head.value")), of_parts))
    return Section(t("section.quality"), "quality", tuple(blocks), folded=True)


def _called(record: Record, name: str) -> Phrase:
    """Return the label of a figure of an evaluation: the case's own, else the common one."""
    return record.plan.about.page.terms.get(name) or term("term", name)


def _figure(value: float | None) -> str | None:
    return None if value is None else format(value, ".4g")


def telemetry(record: Record) -> list[Block]:
    """Return the devices and the host, a row each, over the training or else over the run."""
    found = record.telemetry
    if found is None:
        return []
    over: Any = "train" if "train" in found.intervals_s else "run"
    uses: list[tuple[Phrase, Use | None]] = [
        (", ".join(map(str, device.ranks)), device.over.get(over)) for device in found.devices
    ]
    uses.append((t("use.host"), found.host.get(over)))
    rows = [_row(name, use) for name, use in uses if use is not None and use.readings]
    if not rows:
        return []
    start_s, end_s = found.intervals_s[over]
    every = known(None if found.interval_s is None else f"{found.interval_s:g}")
    caption = t(
        "telemetry.caption",
        over=t(f"telemetry.{over}"),
        seconds=f"{end_s - start_s:.1f}",
        interval=every,
    )
    sources = ", ".join(name for name in (found.monitor, *found.host_sources) if name)
    return [
        table((t(f"use.{name}") for name in _USE), rows, short=True),
        Paragraph(join((caption, sources), "semicolon"), "muted"),
    ]


def _row(name: Phrase, use: Use) -> tuple[Phrase, ...]:
    throttled = None
    if use.throttled is not None:
        throttled = ", ".join(f"{x:.0%} {why}" for why, x in use.throttled.items()) or "0%"
    (energy,), unit = cells.scaled([use.energy.joules], "J")
    return (
        name,
        _pair(use, "memory_used_bytes", unit=cells.GIB),
        _pair(use, "utilization_percent", "cpu_percent"),
        _pair(use, "power_w", "node_power_w"),
        _pair(use, "temperature_c"),
        _pair(use, "clock_mhz", lowest=True),
        throttled,
        energy if use.energy.joules is None else f"{energy} {unit}",
        use.readings,
    )


def _pair(use: Use, *names: str, unit: float = 1.0, lowest: bool = False) -> str | None:
    """Return mean and peak, or mean and lowest, of the quantity that the device or host has."""
    for found in (use.quantities[name] for name in names if name in use.quantities):
        values = (found.mean / unit, (found.lowest if lowest else found.highest) / unit)
        return "/".join(f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values)
    return None


def doubts(records: Sequence[Record]) -> Section:
    """Return how far figures can be trusted: reasons, findings, notes, the audit, the limits."""
    record = records[0]
    trust = record.trust if len(records) == 1 else of_repeats(records)
    said = join((t("trust.label"), trust_line(trust, verification_of(records))), "colon")
    blocks: list[Block] = [Paragraph(said)]
    for kind, tone in (("finding", "warn"), ("note", "plain")):
        found = {str(x): x for one in records for x in getattr(one, f"{kind}s")}
        blocks += [
            Paragraph(join((t(f"terminal.{kind}"), sentence(record, x)), "colon"), tone)  # type: ignore[arg-type]
            for x in found.values()
        ]
    audited = audit([of_record(one, "") for one in records])
    blocks.append(Paragraph(t("audit.found", n=len(audited), rules=len(RULES)),
                            _TONES[audited[0].severity] if audited else "good"))  # fmt: skip
    blocks += [findings_table(audited)] if audited else []
    limits = rules_table(record)
    blocks += [limits] if limits else []
    return Section(t("section.trust"), "trust", tuple(blocks), folded=True)


def findings_table(found: Sequence[Finding]) -> Block:
    """Return findings of the audit with their arithmetic; of rows with the row's number."""
    rows = (
        (
            t(f"audit.{one.severity}"), one.rule,
            ("" if one.subject.record else f"{one.subject.line}: ", one.message),
            join((name, " ", f"{value:.6g}" if isinstance(value, float) else worded(value))
                 for name, value in one.message.args.items()),
        )
        for one in found
    )  # fmt: skip
    return table(heads("audit.severity", "audit.rule", "judgement", "audit.arithmetic"), rows,
                 short=True)  # fmt: skip
