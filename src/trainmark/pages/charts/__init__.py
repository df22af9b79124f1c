"""The charts: a function each, from a record or a table to what Vega-Lite draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.charts import over_time, ranks, spans, steps
from trainmark.pages.document import Block, Paragraph, Section
from trainmark.pages.texts import t
from trainmark.record.series import bucket_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.record.record import Record


def of_record(record: Record) -> Iterator[Section]:
    """Yield the sections with the charts of one record, in the order of a page."""
    yield Section(t("section.spans"), "spans", (*_spans(record),))
    drawn = (steps.step_time(record), steps.loss(record), steps.quality(record))
    course: list[Block] = [chart for chart in drawn if chart is not None]
    stretch = bucket_steps(len(record.steps.time_ns))
    if course and stretch > 1:
        course.append(Paragraph(t("chart.note", stretch=cells.count(stretch)), "muted"))
    if course:
        yield Section(t("section.steps"), "steps", tuple(course))
    lines = [*over_time.charts(record)]
    if lines:
        note = Paragraph(t("time.note"), "muted")
        yield Section(t("time.heading"), "time", (*lines, note))
    maps: list[Block] = [*ranks.blocks(record)]
    maps += [Paragraph(t("ranks.note"), "muted")] if maps else []
    why = record.series.no_steps
    maps += [Paragraph(why, "warn")] if why else []
    if maps:
        yield Section(t("ranks.heading"), "ranks", tuple(maps))


def _spans(record: Record) -> Iterator[Block]:
    """Yield where the wall time went."""
    found, timeline = record.spans, spans.spans(record)
    if timeline is None:
        yield Paragraph(t("spans.none"), "muted")
        return
    named = cells.percent(None if found.reconciled is None else 100 * found.reconciled)
    wall = cells.spent(found.wall_ns or 0)
    yield Paragraph(t("spans.caption", wall=wall, rank=found.rank, named=named), "muted")
    yield timeline
