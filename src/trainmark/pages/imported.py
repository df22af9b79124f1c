"""What was read of others' pages and logs, as a table and as sentences."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainmark.pages.cells import NOTHING, scaled
from trainmark.pages.document import Table
from trainmark.record.messages import render
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.rows import Row, Unread


def table(rows: Sequence[Row]) -> Table:
    """Return place, configuration, figures and notes of each row."""
    lines = []
    for row in rows:
        figures = []
        for name, found in row.figures.items():
            (value,), unit = scaled([found.value], found.unit)
            shown = found.raw if found.value is None else f"{value} {unit}"
            figures.append(f"{name} {shown or NOTHING}".strip())
        notes = (render(note, "en") for note in row.notes)
        lines.append((_place(row), row.configuration, ", ".join(figures), "; ".join(notes)))
    return Table(("place", "configuration", "figures", "notes"), tuple(lines))


def summary(rows: Sequence[Row], unread: Sequence[Unread]) -> list[str]:
    """Return how much was read, and each kind of reason with its number and its first place."""
    lines = [render(message("imported", rows=len(rows), unread=len(unread)), "en")]
    for code, count in Counter(entry.reason.code for entry in unread).most_common():
        first = next(entry for entry in unread if entry.reason.code == code)
        shown = f"{_place(first)}: {render(first.reason, 'en')}"
        lines.append(render(message("imported_unread", count=count, first=shown), "en"))
    return lines


def _place(entry: Row | Unread) -> str:
    return f"{entry.file}:{entry.line}" if entry.line else entry.file
