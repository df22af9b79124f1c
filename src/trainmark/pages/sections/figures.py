"""All figures of the records: beyond the table, counts, evaluations, telemetry, repeats, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.audit import RULES, audit
from trainmark.judge.audit.subject import of_record
from trainmark.pages import cells, charts
from trainmark.pages.charts import intervals
from trainmark.pages.document import Block, Paragraph, Section, Tone, table
from trainmark.pages.phrases import definition, heads, numbers, sentence, value_heads
from trainmark.pages.summary import remarks, summary, summary_table
from trainmark.pages.texts import Phrase, join, known, say, shared, t, term, worded
from trainmark.record import figures as figures_of
from trainmark.record.work import groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.audit.finding import Finding, Severity
    from trainmark.record.record import Record
    from trainmark.record.run.telemetry import Use

_SHOWN_WITH = {"mem_total"}  # printed in the cell of another figure
_TONES: dict[Severity, Tone] = {"error": "bad", "warning": "warn", "note": "plain"}
_USE = (
    "rank", "memory", "busy", "power", "temperature", "clock", "throttled", "energy", "readings",
)  # fmt: skip


def same_launches(records: Sequence[Record]) -> bool:
    """Tell whether the records are several launches of one piece of work."""
    return len(records) > 1 and len(groups(records)) == 1


def further(records: Sequence[Record], columns: Sequence[str]) -> Section:
    """Return the figures that the performance table has no column for, with unit or reason."""
    names = dict.fromkeys(
        name
        for record in records
        for name in record.figures
        if name not in columns and name not in _SHOWN_WITH
    )
    specs = figures_of.specs(records[0].plan.about.page)
    rows: list[list[Phrase]] = []
    for name in names:
        unit = next(record.figures[name].unit for record in records if name in record.figures)
        values, shown_unit = cells.scaled([record.figure(name) for record in records], unit)
        remark: list[Phrase] = []
        if name in specs:  # plans of earlier versions do not declare the figures of a case
            remark = [join((specs[name].label, definition(specs[name], records)), "colon")]
        note = shared([_figure_remark(record, name) for record in records])
        told = say(join(remark), "en")
        remark += [] if told.endswith(say(note, "en")) else [note]  # a note may say the same
        rows.append([name, *values, shown_unit, join(remark, "semicolon")])
    shown = table((t("head.name"), *value_heads(records), *heads("unit", "remark")), rows)
    return Section(t("section.further"), "further", (shown,), 3)


def _figure_remark(record: Record, name: str) -> Phrase:
    entry = record.figures.get(name)
    if entry is None or entry.value is not None:
        return "" if entry is None else sentence(record, entry.note)
    return t("figure.null", reason=sentence(record, entry.reason, "?"))


def counts(records: Sequence[Record]) -> Section:
    """Return the counts of the training, and the passes over the data."""
    rows: list[list[Phrase]] = []
    for name in type(records[0].counts).model_fields:
        values = [getattr(record.counts, name) for record in records]
        shown = (None if value is None else cells.count(value) for value in values)
        rows.append([term("count", name), *shown])
    passes = (f"{x.counts.samples / x.plan.data.train_samples:.2f}" for x in records)
    rows.append([t("count.passes"), *passes])
    shown_table = table((t("head.count"), *value_heads(records)), rows)
    return Section(t("section.counts"), "counts", (shown_table,), 3)


def quality(records: Sequence[Record]) -> Section | None:
    """Return every evaluation of every record; None when there was none."""
    rows: list[list[Phrase]] = []
    for place, record in enumerate(records, start=1):
        for point in record.quality.history:
            detail = [
                (_called(record, name), " ", _figure(value)) for name, value in point.detail.items()
            ]
            rows.append([
                f"[{place}]", point.epoch + 1, cells.count(point.step),
                cells.quality(point.value, target=record.quality.target),
                cells.count(point.samples), join(detail) if detail else None,
            ])  # fmt: skip
    if not rows:
        return None
    first = 0 if len(records) > 1 else 1
    metric = records[0].quality.metric
    names = [*heads("run", "epoch", "step"), metric, *heads("samples", "detail")]
    shown = table(names[first:], (row[first:] for row in rows))
    return Section(t("section.quality"), "quality", (shown, *_breakdown(records)), 3)


def _breakdown(records: Sequence[Record]) -> list[Block]:
    """Return a table for each kind of breakdown in the last evaluations."""
    last = [x.quality.history[-1].parts if x.quality.history else {} for x in records]
    blocks: list[Block] = []
    for kind in dict.fromkeys(kind for parts in last for kind in parts):
        names = dict.fromkeys(name for parts in last for name in parts.get(kind, {}))
        rows = ((n, *(_figure(parts.get(kind, {}).get(n)) for parts in last)) for n in names)
        called = _called(records[0], kind)
        blocks.append(Paragraph(t("quality.parts", kind=called), "muted"))
        blocks.append(table((called, *value_heads(records)), rows))
    return blocks


def _called(record: Record, name: str) -> Phrase:
    """Return the label of a figure of an evaluation: the case's own, else the common one."""
    return record.plan.about.page.terms.get(name) or term("term", name)


def _figure(value: float | None) -> str | None:
    return None if value is None else format(value, ".4g")


def telemetry(records: Sequence[Record]) -> list[Section]:
    """Return a section of each record that has readings."""
    return [
        Section((t("section.telemetry"), number), f"telemetry{place}", tuple(found), 3)
        for place, (number, record) in enumerate(zip(numbers(records), records, strict=True), 1)
        if (found := telemetry_blocks(record))
    ]


def telemetry_blocks(record: Record) -> list[Block]:
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
    caption = t(f"telemetry.{over}", seconds=f"{end_s - start_s:.1f}", interval=every)
    sources = ", ".join(name for name in (found.monitor, *found.host_sources) if name)
    return [
        Paragraph(join((caption, sources), "semicolon"), "muted"),
        table((t(f"use.{name}") for name in _USE), rows, short=True),
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


def repeats(records: Sequence[Record]) -> list[Section]:
    """Return the figures over the launches of each piece of work that was launched repeatedly."""
    found = []
    for place, members in enumerate(groups(records), start=1):
        if len(members) < 2:
            continue
        of, anchor = summary(members), f"repeats{place}"
        plot = intervals.launches(members, of, anchor)
        ids = join((t("foot.run"), ", ".join(record.run_id for record in members)), "colon")
        blocks: list[Block] = [] if plot is None else [plot]
        blocks += [summary_table(of)] if of.figures else []
        blocks += [*(Paragraph(line) for line in remarks(of)), Paragraph(ids, "muted")]
        found.append(Section(t("section.repeats"), anchor, tuple(blocks)))
    return found


def per_record(records: Sequence[Record]) -> list[Section]:
    """Return the charts of each record; of several launches of the same work the median one's."""
    shown = list(zip(range(1, len(records) + 1), numbers(records), records, strict=True))
    if same_launches(records):
        ordered = sorted(
            (one for one in shown if one[2].passed or not any(x.passed for x in records)),
            key=lambda one: one[2].figure("p_train") or 0.0,
        )
        shown = [ordered[(len(ordered) - 1) // 2]]
    return [
        section.of_several(f"run{place}-" if len(shown) > 1 else "", number)
        for place, number, record in shown
        for section in charts.of_record(record)
    ]


def audited(records: Sequence[Record]) -> Section:
    """Return how many rules the records were held against, and what these found."""
    pairs = zip(records, numbers(records), strict=True)
    found = audit([of_record(record, number.strip()) for record, number in pairs])
    blocks: list[Block] = [Paragraph(t("audit.held", rules=len(RULES)), "muted")]
    if not found:
        blocks.insert(0, Paragraph(t("audit.nothing"), "good"))
        return Section(t("section.audit"), "audit", tuple(blocks))
    said = Paragraph(t("audit.found", n=len(found)), _TONES[found[0].severity])
    return Section(t("section.audit"), "audit", (said, *blocks, findings_table(found)))


def findings_table(found: Sequence[Finding]) -> Block:
    """Return findings of the audit with their arithmetic; of rows with the row's number."""
    rows = (
        (
            t(f"audit.{one.severity}"), one.rule,
            (_place(one), one.message),
            join((name, " ", f"{value:.6g}" if isinstance(value, float) else worded(value))
                 for name, value in one.message.args.items()),
        )
        for one in found
    )  # fmt: skip
    return table(heads("audit.severity", "audit.rule", "judgement", "audit.arithmetic"), rows,
                 short=True)  # fmt: skip


def _place(one: Finding) -> str:
    return f"{one.subject.file} " if one.subject.record else f"{one.subject.line}: "
