"""What was read as a JSON document, which can be read again, and as a table for people.

Owns the form of the document that ``import --json`` prints.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trainmark.pages.cells import NOTHING, scaled
from trainmark.pages.document import Table
from trainmark.record.messages import render
from trainmark.record.rows import Row, Unread
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.spec import Message


def document(rows: Sequence[Row], unread: Sequence[Unread]) -> dict[str, Any]:
    """Return all that was read and what could not be; a reason is its sentence and its code."""
    return {
        "rows": [
            row.model_dump(mode="json") | {"notes": [_said(note, "note") for note in row.notes]}
            for row in rows
        ],
        "unread": [
            entry.model_dump(mode="json") | _said(entry.reason, "reason") for entry in unread
        ],
    }


def _said(found: Message, name: str) -> dict[str, Any]:
    return {name: render(found, "en"), "code": found.code, "args": dict(found.args)}


def entries(parsed: dict[str, Any]) -> Iterator[Row | Unread]:
    """Yield what a document of ``document`` has; raise ValueError or KeyError for another form."""
    for item in parsed["rows"]:
        notes = [{key: note[key] for key in ("code", "args")} for note in item["notes"]]
        yield Row.model_validate(item | {"notes": notes})
    for item in parsed["unread"]:
        reason = {key: item[key] for key in ("code", "args")}
        own = {key: value for key, value in item.items() if key not in reason}
        yield Unread.model_validate(own | {"reason": reason})


def table(rows: Sequence[Row]) -> Table:
    """Return place, configuration, figures and notes of each row, for people."""
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
    said = [render(message("imported", rows=len(rows), unread=len(unread)), "en")]
    for code, count in Counter(entry.reason.code for entry in unread).most_common():
        first = next(entry for entry in unread if entry.reason.code == code)
        shown = f"{_place(first)}: {render(first.reason, 'en')}"
        said.append(render(message("imported_unread", count=count, first=shown), "en"))
    return said


def _place(entry: Row | Unread) -> str:
    return f"{entry.file}:{entry.line}" if entry.line else entry.file
