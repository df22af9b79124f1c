"""What an audit finds: a rule, a row or record that breaks it, and the arithmetic that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from trainmark.judge.audit.subject import Subject
from trainmark.record.messages import render
from trainmark.spec import Message

__all__ = ["SEVERITIES", "Finding", "Hits", "Severity", "Subject", "Subjects"]

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Subjects = Sequence[Subject]
# What a rule yields; where the severity is not the rule's own, with it.
Hits = Iterator[tuple[Subject, Message] | tuple[Subject, Message, Severity]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction or doubt, with where it stands.

    Args:
        message: its code; the arguments are the arithmetic, in the units of the figures.
    """

    rule: str
    severity: Severity
    message: Message
    subject: Subject

    def as_dict(self, lang: str) -> dict[str, Any]:
        """Return the finding in the form that ``audit --json`` prints.

        ``line`` is that of a printed row, from 1; 0: a record.
        """
        place = {name: getattr(self.subject, name) for name in ("file", "line", "configuration")}
        args = self.message.args  # JSON has no infinity, as of one absurd figure over another
        args = {name: None if value in (inf, -inf) else value for name, value in args.items()}
        named = {"code": self.message.code, "arithmetic": args}
        text = render(self.message, lang)
        return {"rule": self.rule, "severity": self.severity, **place, **named, "message": text}
