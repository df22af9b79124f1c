"""Messages of a record as sentences; a case's own codes with the texts that the plan carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.report import cells
from trainmark.results.messages import render

if TYPE_CHECKING:
    from trainmark.results.record import Record
    from trainmark.spec import Message


def sentence(record: Record, message: Message | None, lang: str, *, none: str = "") -> str:
    """Return what ``message`` says in ``lang``, safe to print; ``none`` where there is none."""
    if message is None:
        return none
    return cells.clean(render(message, lang, record.plan.about.messages))
