"""What the audit's rules find in the records of a page, each with its arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.judge.audit import RULES, audit
from trainmark.judge.audit.subject import of_record
from trainmark.pages import cells
from trainmark.pages.document import Block, Grid, Paragraph, Section, Table, Tone
from trainmark.pages.listing import in_words
from trainmark.pages.tables import numbers, shortened_rows
from trainmark.pages.texts import text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from trainmark.judge.audit.finding import Finding, Severity
    from trainmark.record.record import Record

_TONES: dict[Severity, Tone] = {"error": "bad", "warning": "warn", "note": "plain"}


def audited(records: Sequence[Record], lang: str) -> Section:
    """Return how many rules the records were held against, and what these found."""
    pairs = zip(records, numbers(records), strict=True)
    found = audit([of_record(record, number.strip()) for record, number in pairs])
    blocks: list[Block] = [Paragraph(text("audit.held", lang, rules=len(RULES)), "muted")]
    if found:
        names = ("audit.severity", "audit.rule", "head.judgement", "audit.arithmetic")
        heads = tuple(text(name, lang) for name in names)
        rows = shortened_rows([_row(one, lang) for one in found], lang)
        said = Paragraph(text("audit.found", lang, n=len(found)), _TONES[found[0].severity])
        blocks = [said, *blocks, Grid(Table(heads, rows))]
    else:
        blocks = [Paragraph(text("audit.nothing", lang), "good"), *blocks]
    return Section(text("section.audit", lang), 2, "audit", tuple(blocks))


def _row(one: Finding, lang: str) -> tuple[str, ...]:
    told = one.as_dict(lang)
    values = (f"{name} {_value(value, lang)}" for name, value in told["arithmetic"].items())
    severity = text(f"audit.{one.severity}", lang)
    sentence = f"{one.subject.file} {cells.clean(told['message'])}".strip()
    return severity, one.rule, sentence, text("sep.comma", lang).join(values)


def _value(value: Any, lang: str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else cells.clean(in_words(value, lang))
