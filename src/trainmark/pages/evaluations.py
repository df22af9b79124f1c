"""The page's section on evaluations: each one, and the breakdown of the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Section, Table
from trainmark.pages.tables import value_heads
from trainmark.pages.texts import term, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def quality(records: Sequence[Record], lang: str) -> Section | None:
    """Return every evaluation of every record; None when there was none."""
    several = len(records) > 1
    rows = []
    for place, record in enumerate(records, start=1):
        for point in record.quality.history:
            detail = text("sep.comma", lang).join(
                f"{_called(record, name, lang)} {_figure(value)}"
                for name, value in point.detail.items()
            )
            shown = cells.quality(point.value, target=record.quality.target)
            row = (
                str(point.epoch + 1),
                cells.count(point.step),
                shown,
                cells.count(point.samples),
                detail or cells.NOTHING,
            )
            rows.append((f"[{place}]", *row) if several else row)
    if not rows:
        return None
    heads = [text(f"head.{name}", lang) for name in ("epoch", "step")]
    heads += [records[0].quality.metric]
    heads += [text(f"head.{name}", lang) for name in ("samples", "detail")]
    if several:
        heads.insert(0, text("head.run", lang))
    blocks = (Grid(Table(tuple(heads), tuple(rows))), *_parts(records, lang))
    return Section(text("section.quality", lang), 3, "quality", blocks)


def _parts(records: Sequence[Record], lang: str) -> list[Block]:
    """Return a table for each kind of breakdown in the last evaluations."""
    last = [
        record.quality.history[-1].parts if record.quality.history else {} for record in records
    ]
    blocks: list[Block] = []
    for kind in dict.fromkeys(kind for parts in last for kind in parts):
        names = dict.fromkeys(name for parts in last for name in parts.get(kind, {}))
        rows = [
            (name, *(_figure(parts.get(kind, {}).get(name)) for parts in last)) for name in names
        ]
        called = _called(records[0], kind, lang)
        blocks.append(Paragraph(text("quality.parts", lang, kind=called), "muted"))
        blocks.append(Grid(Table((called, *value_heads(records, lang)), tuple(rows))))
    return blocks


def _called(record: Record, name: str, lang: str) -> str:
    """Return the label of a figure of an evaluation: the case's own, else the common one."""
    own = record.plan.about.page.terms.get(name)
    return term(name, lang) if own is None else own.in_language(lang)


def _figure(value: float | None) -> str:
    return cells.NOTHING if value is None else format(value, ".4g")
