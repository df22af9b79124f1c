"""Which rank holds which embedding tables, as a table of the page and of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report.document import Grid, Section
from trainmark.report.tables import Table
from trainmark.report.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.results.record import Record

_HEADS = ("rank", "rows", "gib", "lookups", "tables")


def placement_table(record: Record, lang: str) -> Table | None:
    """Return one row a rank; None where the run's job placed no tables."""
    ranks = (record.environment.get("job") or {}).get("placement")
    if not ranks:
        return None
    rows = tuple(
        (
            str(row["rank"]), f"{row['rows']:,}", f"{row['gib']:.4f}",
            f"{100 * row['lookups_share']:.1f}%", row["tables"],
        )
        for row in ranks
    )  # fmt: skip
    return Table(tuple(text(f"head.placement.{head}", lang) for head in _HEADS), rows)


def placement(records: Sequence[Record], lang: str) -> Section | None:
    """Return each different placement of the records, once; None where there is none."""
    found = (placement_table(record, lang) for record in records)
    tables = dict.fromkeys(table for table in found if table is not None)
    if not tables:
        return None
    blocks = tuple(Grid(table) for table in tables)
    return Section(text("section.placement", lang), 3, "placement", blocks)
