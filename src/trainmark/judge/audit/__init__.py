"""Hold records and printed rows against rules; each finding shows its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from trainmark.errors import UsageError
from trainmark.judge.audit import rules, tables
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainmark.judge.audit.subject import Hits, Subject, Subjects
    from trainmark.spec import Message

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


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


_DOUBTS = ("audit_tf32", "audit_memory_of_card")  # a label that is wrong, not a figure
# A rule's definition is the sentence ``audit_rule.<name>`` of ``record/messages.toml``.
RULES: dict[str, tuple[Severity, Callable[[Subjects], Hits]]] = {
    "convergence": ("warning", tables.convergence),
    "copies": ("error", tables.copies),
    "label": ("error", rules.label),
    "memory": ("error", rules.memory),
    "mfu": ("warning", tables.mfu),
    "ordering": ("error", rules.ordering),
    "passes": ("error", rules.passes),
    "peak": ("error", rules.peak),
    "per_rank": ("error", rules.per_rank),
    "range": ("error", rules.range_),
    "ratios": ("warning", tables.ratios),
    "same_figures": ("warning", tables.same_figures),
    "scaling": ("warning", tables.scaling),
    "side_by_side": ("warning", tables.side_by_side),
    "target": ("warning", rules.target),
}


def audit(subjects: Subjects, *, only: Iterable[str] = ()) -> list[Finding]:
    """Return what the rules find: errors first, then by place.

    Args:
        only: names of rules; none: all of them.

    Raises:
        UsageError: no such rule.
    """
    wanted = dict.fromkeys(only) or RULES
    for name in wanted:
        if name not in RULES:
            raise UsageError(f"no rule {name!r}", rule=f"rules are {', '.join(RULES)}")
    findings = [
        Finding(name, "warning" if found.code in _DOUBTS else RULES[name][0], found, subject)
        for name in wanted
        for subject, found in RULES[name][1](subjects)
    ]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), one.subject.file, one.subject.line)
    )
    return findings
