"""Hold records and printed rows against rules; each finding shows its arithmetic.

Owns which rules there are and how grave their findings are; ``rows`` has those that look at each
row alone, ``tables`` those that look at several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.judge.audit import rows, tables
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Callable

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
        named = {"code": self.message.code, "arithmetic": self.message.args}
        text = render(self.message, lang)
        return {"rule": self.rule, "severity": self.severity, **place, **named, "message": text}


@dataclass(frozen=True, slots=True)
class Rule:
    """What yields findings, and how grave they are.

    Args:
        doubts: codes of findings that are warnings, of a rule whose others are errors.
    """

    check: Callable[[Subjects], Hits]
    severity: Severity
    doubts: frozenset[str] = frozenset()

    @property
    def severities(self) -> str:
        """The severities that its findings have, the gravest first."""
        return ", ".join(SEVERITIES) if self.doubts else self.severity

    def severity_of(self, code: str) -> Severity:
        """Return how grave a finding is."""
        return "warning" if code in self.doubts else self.severity


# A rule's definition is the sentence ``audit_rule.<name>`` of ``record/messages.toml``.
RULES: dict[str, Rule] = {
    "copies": Rule(tables.copies, "error"),
    "label": Rule(rows.label, "error", frozenset({"audit_precision_unsure"})),
    "log": Rule(rows.log, "error", frozenset({"log_samples_below_steps", "log_speeds_differ"})),
    "memory": Rule(rows.memory, "error", frozenset({"audit_memory_of_card"})),
    "mfu": Rule(tables.mfu, "warning"),
    "ordering": Rule(rows.ordering, "error"),
    "outlier": Rule(rows.outlier, "warning"),
    "passes": Rule(rows.passes, "error"),
    "peak": Rule(rows.peak, "error", frozenset({"audit_tf32", "audit_peak_unsure"})),
    "precisions": Rule(tables.precisions, "warning"),
    "range": Rule(rows.range_, "error"),
    "ratios": Rule(tables.ratios, "warning"),
    "same_figures": Rule(tables.same_figures, "warning"),
    "scaling": Rule(tables.scaling, "warning"),
    "side_by_side": Rule(tables.side_by_side, "warning"),
    "target": Rule(rows.target, "warning"),
    "totals": Rule(rows.totals, "error"),
}


def audit(subjects: Subjects) -> list[Finding]:
    """Return what the rules find: errors first, then by place."""
    findings = [
        Finding(name, rule.severity_of(reason.code), reason, subject)
        for name, rule in RULES.items()
        for subject, reason in rule.check(subjects)
    ]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), one.subject.file, one.subject.line)
    )
    return findings
