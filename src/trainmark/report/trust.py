"""The line under a status that says how far the figures can be trusted, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells
from trainmark.report.texts import text
from trainmark.results.messages import render

if TYPE_CHECKING:
    from trainmark.results.record import Trust


def trust_line(trust: Trust, lang: str) -> str:
    """Return grade and reasons in one line, safe to print."""
    grade = text(f"trust.{trust.grade}", lang)
    if not trust.reasons:
        return grade
    reasons = text("sep.semicolon", lang).join(render(item, lang) for item in trust.reasons)
    return cells.clean(grade + text("sep.colon", lang) + reasons)
