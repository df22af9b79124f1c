"""Facts in rows: what several records share, and values as people write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.report import cells
from trainmark.report.document import Facts
from trainmark.report.texts import text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.results.record import Record


def shared(records: Sequence[Record], value: Callable[[Record], str]) -> str:
    """Return the value that all records have, or each different one with its numbers."""
    by_value: dict[str, list[int]] = {}
    for place, record in enumerate(records, start=1):
        by_value.setdefault(value(record), []).append(place)
    if len(by_value) == 1:
        return next(iter(by_value))
    return "; ".join(
        f"[{','.join(str(place) for place in places)}] {item}"
        for item, places in by_value.items()
        if item
    )


def listed(
    records: Sequence[Record], lang: str, entries: dict[str, Callable[[Record], str]]
) -> Facts:
    """Return entries by their text key, each with what the records share or differ in."""
    return Facts(tuple((text(key, lang), shared(records, value)) for key, value in entries.items()))


def known(value: Any, lang: str) -> str:
    """Return a value as text, or that it is not known."""
    return text("fact.unknown", lang) if value in (None, "") else cells.clean(value)


def in_words(value: Any, lang: str) -> str:
    """Return a value as people write it: yes, no and none in words."""
    if isinstance(value, bool):
        return text("fact.yes" if value else "fact.no", lang)
    return text("fact.none", lang) if value is None else str(value)


def joined(values: dict[str, Any] | None, lang: str) -> str:
    """Return names and values in a row, none where there are none."""
    if not values:
        return text("fact.none", lang)
    return text("sep.comma", lang).join(
        f"{name} {in_words(value, lang)}" for name, value in values.items()
    )
