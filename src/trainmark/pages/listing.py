"""Texts from records: sentences of messages, shared facts, and the trust line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages import cells
from trainmark.pages.document import Facts, Paragraph, Tone
from trainmark.pages.texts import text
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.record.record import Record, Trust
    from trainmark.spec import Message


TONES: dict[str, Tone] = {"usable": "good", "noisy": "warn", "do_not_quote": "bad"}


def sentence(record: Record, message: Message | None, lang: str, *, none: str = "") -> str:
    """Return the sentence of ``message`` in ``lang``, escaped; ``none`` if there is no message."""
    if message is None:
        return none
    return cells.clean(render(message, lang, record.plan.about.messages))


def shared(values: Sequence[str]) -> str:
    """Return the value that all records have, or each different one with their numbers."""
    by_value: dict[str, list[int]] = {}
    for place, value in enumerate(values, start=1):
        by_value.setdefault(value, []).append(place)
    if len(by_value) == 1:
        return values[0]
    return "; ".join(
        f"[{','.join(str(place) for place in places)}] {value}"
        for value, places in by_value.items()
        if value
    )


def listed(records: Sequence[Record], read: Callable[[Record], dict[str, str]]) -> Facts:
    """Return the facts that ``read`` finds by name, each with what the records share."""
    found = [read(record) for record in records]
    names = dict.fromkeys(name for facts in found for name in facts)
    return Facts(tuple((name, shared([facts.get(name, "") for facts in found])) for name in names))


def known(value: Any, lang: str) -> str:
    """Return a value as text, or that it is not known."""
    return text("fact.unknown", lang) if value in (None, "") else cells.clean(value)


def in_words(value: Any, lang: str) -> str:
    """Return a value as text, with words for true, false and null."""
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


def tone_of(record: Record) -> Tone:
    """Return the tone of a run's status."""
    return status_tone(record.status)


def status_tone(status: str) -> Tone:
    """Return the tone of a status."""
    if status == "passed":
        return "good"
    return "warn" if status in ("target_missed", "interrupted") else "bad"


def trust_line(trust: Trust, lang: str) -> str:
    """Return grade and reasons in one line, safe to print."""
    grade = text(f"trust.{trust.grade}", lang)
    if not trust.reasons:
        return grade
    reasons = text("sep.semicolon", lang).join(render(item, lang) for item in trust.reasons)
    return cells.clean(grade + text("sep.colon", lang) + reasons)


def trust_paragraph(trust: Trust, lang: str) -> Paragraph:
    """Return the line with its label, in its tone."""
    label = text("trust.label", lang) + text("sep.colon", lang)
    return Paragraph(label + trust_line(trust, lang), TONES[trust.grade])
