"""A comparison as blocks: its verdict, figures with intervals, what was left out, what differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainmark.judge.comparison import REGRESSIONS, UNTOLD
from trainmark.pages import cells
from trainmark.pages.document import Block, Paragraph, Tone, table
from trainmark.pages.phrases import heads, trust_paragraph
from trainmark.pages.texts import Phrase, join, t, worded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.judge.comparison import ComparedFigure, Comparison
    from trainmark.judge.comparison.sides import Side


def blocks(found: Comparison, b: str = "B") -> list[Block]:
    """Return the verdict first, then what it is made of, then what else differs.

    Args:
        b: what the other side is called than A.
    """
    tone: Tone = "bad" if found.verdict in REGRESSIONS else "good"
    name, unit, *rest = heads("name", "unit", "interval", "launches", "compare.said")
    columns = (name, "A", b, unit, f"{b}/A", *rest)
    said = replace(found.sentence, args=found.sentence.args | {"b": b})
    shown: list[Block] = [
        Paragraph(said, "warn" if found.verdict in UNTOLD else tone),
        *(
            [trust_paragraph(found.trust, found.verification)]
            if found.trust and found.verification
            else []
        ),
        table(columns, map(_row, found.figures)),
    ]
    if found.quality:
        shown.append(Paragraph(found.quality))
    if not (found.a.evidence or found.b.evidence):
        shown.append(Paragraph(t(f"compare.{'in_pairs' if found.paired else 'apart'}")))
    shown += [*_side("A", found.a), *_side(b, found.b)]
    for kind, facts in (("allowed", found.allowed), ("differences", found.differences)):
        if facts:
            rows = (
                (x.name, *(join(map(worded, of), "semicolon") if of else None for of in (x.a, x.b)))
                for x in facts
            )
            shown.append(Paragraph(t(f"compare.{kind}"), "warn" if kind == "allowed" else "plain"))
            shown.append(table((t("compare.fact"), "A", b), rows))
    return shown


def _side(name: str, side: Side) -> Iterator[Block]:
    """Yield what a reader must know of one side."""
    if side.evidence:
        yield Paragraph(t("compare.published", side=name, level=t(f"evidence.{side.evidence}")))
    for one in side.left_out:
        yield Paragraph(t("compare.left_out", side=name, run=one.name, reason=one.reason), "warn")


def _row(one: ComparedFigure) -> tuple[Phrase, ...]:
    (a, b), unit = cells.scaled([one.a, one.b], one.unit)
    ratio = None if one.ratio is None else f"{one.ratio:.3f}"
    launches = "{}, {}".format(*one.launches)
    said = t(f"compare.{one.verdict}")
    return one.name, a, b, unit, ratio, cells.interval(one.low, one.high), launches, said
