"""The published rows of a case on its page, as printed, with what their figures imply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages import cells
from trainmark.pages.document import Block, Facts, Grid, Paragraph, Section, Table
from trainmark.pages.tables import reference_table
from trainmark.pages.texts import text
from trainmark.plan.reference import implied_passes, same_work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.plan.plan import PlannedCase
    from trainmark.plan.reference import References
    from trainmark.record.record import Record


def _other_work(records: Sequence[Record], lang: str) -> list[Block]:
    """Return warnings where the runs are of other work than the published rows."""
    by_key: dict[str, dict[str, None]] = {}
    for record in records:
        name = cells.clean(record.plan.recipe_name)
        if record.plan.data.origin == "generated":
            by_key.setdefault("reference.other", {})[name] = None
        elif name.split("-")[0] not in ("standard", "published"):
            by_key.setdefault("reference.unlike", {})[name] = None
    return [
        Paragraph(text(key, lang, recipes=", ".join(names)), "warn")
        for key, names in by_key.items()
    ]


def references(records: Sequence[Record], about: PlannedCase, lang: str) -> Section | None:
    """Return published rows as printed, what their own figures imply, and their provenance."""
    found = about.references
    if not found.rows:
        return None
    table = reference_table(found, lang=lang)
    blocks = _other_work(records, lang)
    if found.samples_per_pass is None:
        blocks.append(Grid(table))
    else:
        blocks.append(Grid(with_passes(table, found, lang=lang)))
        rows = cells.count(found.samples_per_pass)
        blocks.append(Paragraph(text("reference.audit", lang, rows=rows)))
        same = same_work(found)
        if same is not None:
            tone, key = ("plain", "reference.same") if same else ("warn", "reference.differ")
            blocks.append(Paragraph(text(key, lang), tone))  # type: ignore[arg-type]
    for source in {row.source.id: row.source for row in found.rows}.values():
        items = [
            (text("reference.source", lang), source.text.in_language(lang)),
            (text("reference.date", lang), source.date or text("fact.unknown", lang)),
            (text("reference.evidence", lang), text(f"evidence.{source.evidence}", lang)),
        ]
        if source.url:
            items.insert(1, ("URL", source.url))
        if source.remark:
            items.append((text("reference.remark", lang), source.remark.in_language(lang)))
        blocks.append(Facts(tuple(items)))
    return Section(text("section.references", lang), 3, "references", tuple(blocks))


def with_passes(table: Table, found: References, *, lang: str) -> Table:
    """Return the printed table with one more column: the passes each row's figures imply."""
    assert found.samples_per_pass is not None
    rows = []
    for printed, row in zip(table.rows, found.rows, strict=True):
        passes = implied_passes(row, samples_per_pass=found.samples_per_pass)
        rows.append((*printed, cells.NOTHING if passes is None else f"{passes:.1f}"))
    return Table((*table.headers, text("head.passes", lang)), tuple(rows))
