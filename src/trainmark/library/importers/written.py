"""Rows as the JSON document that ``import --json`` prints, which can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.record.messages import render
from trainmark.record.rows import Row, Unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.spec import Message


def document(rows: Sequence[Row], unread: Sequence[Unread]) -> dict[str, Any]:
    """Return all that was read and what could not be; a reason is its sentence and its code."""
    return {
        "rows": [
            row.model_dump(mode="json") | {"notes": [_worded(note, "note") for note in row.notes]}
            for row in rows
        ],
        "unread": [
            entry.model_dump(mode="json") | _worded(entry.reason, "reason") for entry in unread
        ],
    }


def _worded(found: Message, name: str) -> dict[str, Any]:
    return {name: render(found, "en"), "code": found.code, "args": dict(found.args)}


def entries(parsed: dict[str, Any]) -> Iterator[Row | Unread]:
    """Yield what a document of ``document`` has; raise ValueError or KeyError for another form."""
    for item in parsed["rows"]:
        notes = [{key: note[key] for key in ("code", "args")} for note in item["notes"]]
        yield Row.model_validate(item | {"notes": notes})
    for item in parsed["unread"]:
        reason = {key: item.pop(key) for key in ("code", "args")}
        yield Unread.model_validate(item | {"reason": reason})
