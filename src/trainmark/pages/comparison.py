"""A comparison as blocks: its verdict, figures with intervals, what was left out, what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison import REGRESSIONS, UNTOLD
from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Table, Tone
from trainmark.pages.listing import in_words, trust_paragraph
from trainmark.pages.texts import text
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.judge.comparison import ComparedFigure, Comparison


def blocks(found: Comparison, lang: str) -> list[Block]:
    """Return the verdict first, then what it is made of, then what else differs."""
    tone: Tone = "bad" if found.verdict in REGRESSIONS else "good"
    shown: list[Block] = [
        Paragraph(render(found.sentence, lang), "warn" if found.verdict in UNTOLD else tone),
        *([trust_paragraph(found.trust, lang)] if found.trust else []),
    ]
    heads = [text(f"head.{name}", lang) for name in ("name", "unit", "interval", "launches")]
    columns = (heads[0], "A", "B", heads[1], "B/A", heads[2], heads[3], text("compare.said", lang))
    shown.append(Grid(Table(columns, tuple(_row(figure, lang) for figure in found.figures))))
    if found.quality:
        shown.append(Paragraph(render(found.quality, lang)))
    if not (found.a.evidence or found.b.evidence):
        shown.append(Paragraph(text(f"compare.{'in_pairs' if found.paired else 'apart'}", lang)))
    for name, side in (("A", found.a), ("B", found.b)):
        if side.evidence:
            level = text(f"evidence.{side.evidence}", lang)
            shown.append(Paragraph(text("compare.published", lang, side=name, level=level)))
        if side.untold:
            keys = ", ".join(side.untold)
            shown.append(Paragraph(text("compare.untold", lang, side=name, keys=keys), "warn"))
        for one in side.left_out:
            why = {"side": name, "run": one.name, "reason": render(one.reason, lang)}
            shown.append(Paragraph(text("compare.left_out", lang, **why), "warn"))
    for kind, facts in (("allowed", found.allowed), ("differences", found.differences)):
        if facts:
            rows = [(one.name, _values(one.a, lang), _values(one.b, lang)) for one in facts]
            tone = "warn" if kind == "allowed" else "plain"
            table = Table((text("compare.fact", lang), "A", "B"), tuple(rows))
            shown += [Paragraph(text(f"compare.{kind}", lang), tone), Grid(table)]
    return shown


def _row(one: ComparedFigure, lang: str) -> tuple[str, ...]:
    (a, b), unit = cells.scaled([one.a, one.b], one.unit)
    ratio = cells.NOTHING if one.ratio is None else f"{one.ratio:.3f}"
    interval = cells.NOTHING if one.low is None else f"{one.low:.3f} – {one.high:.3f}"
    launches = "{}, {}".format(*one.launches)
    return one.name, a, b, unit, ratio, interval, launches, text(f"compare.{one.verdict}", lang)


def _values(values: Sequence[Any], lang: str) -> str:
    return "; ".join(cells.clean(in_words(value, lang)) for value in values) or cells.NOTHING
