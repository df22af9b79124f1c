"""The charts of a record: a module each, which returns what is drawn and the table behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import loss, over_time, quality, ranks, spans, step_time, throughput
from trainmark.pages.document import Block, Paragraph, Section
from trainmark.pages.texts import text
from trainmark.record.thinning import bucket_steps

if TYPE_CHECKING:
    from trainmark.record.record import Record


def of_record(record: Record, lang: str) -> list[Section]:
    """Return the sections with the charts of one record, in the order of a page."""
    sections = [_spans(record, lang)]
    traced = step_time.chart(record, lang, throttled=record.series.lowered)
    drawn = [traced, loss.chart(record, lang), quality.chart(record, lang)]
    blocks: list[Block] = [chart for chart in drawn if chart is not None]
    stretch = bucket_steps(len(record.steps.time_ns))
    if blocks and stretch > 1:
        note = text("chart.note", lang, stretch=cells.count(stretch))
        blocks.append(Paragraph(note, "muted"))
    if blocks:
        sections.append(Section(text("section.steps", lang), 2, "steps", tuple(blocks)))
    found = [ranks.section(record, lang), over_time.section(record, lang)]
    return [*sections, *(section for section in reversed(found) if section is not None)]


def _spans(record: Record, lang: str) -> Section:
    """Return where the wall time went, and what it cost in throughput."""
    found, blocks = record.spans, list[Block]()
    timeline, cost = spans.chart(record, lang), throughput.chart(record, lang)
    if cost is not None:
        blocks.append(cost)
    if timeline is None:
        blocks.append(Paragraph(text("spans.none", lang), "muted"))
    else:
        named = cells.NOTHING if found.reconciled is None else f"{100 * found.reconciled:.1f}%"
        wall = cells.spent(found.wall_ns or 0)
        caption = text("spans.caption", lang, wall=wall, rank=found.rank, named=named)
        blocks += [Paragraph(caption, "muted"), timeline]
    return Section(text("section.spans", lang), 2, "spans", tuple(blocks))
