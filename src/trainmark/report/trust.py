"""How a run ended and how far its figures can be trusted, as tones and as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells
from trainmark.report.document import Paragraph, Tone
from trainmark.report.texts import text
from trainmark.results.messages import render

if TYPE_CHECKING:
    from trainmark.results.record import Record, Trust

TONES: dict[str, Tone] = {"usable": "good", "noisy": "warn", "do_not_quote": "bad"}


def tone_of(record: Record) -> Tone:
    """Return the tone of a run's status."""
    if record.passed:
        return "good"
    return "warn" if record.status in ("target_missed", "interrupted") else "bad"


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
