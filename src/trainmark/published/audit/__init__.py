"""Check records and printed rows for contradictions; each finding shows its arithmetic.

Owns the list of rules and the severity of their findings. The rules are in modules by topic, such
as ``rates`` and ``copies``. A rule yields each launch or row that breaks it, with a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainmark.published.audit import (
    copies,
    device_limits,
    labels,
    mfu,
    ranges,
    rates,
    routing,
    samples,
    scaling,
)
from trainmark.record.messages import render

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.published.audit.subject import AuditSubject, AuditSubjects, Hits
    from trainmark.spec import Message

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction or doubt, with its place.

    Args:
        message: its code says what is wrong; its arguments are the numbers that show it, in the
            units of the figures.
        subject: the printed row or launch with the contradiction.
    """

    rule: str  # its name in ``RULES``
    severity: Severity
    message: Message
    subject: AuditSubject

    def as_dict(self, lang: str) -> dict[str, Any]:
        """Return the finding in the form that ``audit --json`` prints.

        ``line`` is the line of a printed row in its file, from 1; 0: the finding is about a launch.
        ``configuration`` is the label of the row or the key of the launch's case.
        ``arithmetic`` has the figures that the message shows.
        """
        return {
            "rule": self.rule,
            "severity": self.severity,
            "file": self.subject.file,
            "line": self.subject.line,
            "configuration": self.subject.configuration,
            "code": self.message.code,
            "arithmetic": self.message.args,
            "message": render(self.message, lang),
        }


@dataclass(frozen=True, slots=True)
class AuditRule:
    """A rule of the audit: the check that yields its findings, and their severity.

    Args:
        severity: of its findings, except for those in ``doubts``.
        doubts: codes of findings that are only warnings.
    """

    check: Callable[[AuditSubjects], Hits]
    severity: Severity
    doubts: frozenset[str] = frozenset()

    @property
    def severities(self) -> str:
        """The severities that its findings have, errors first."""
        # Findings whose codes are in ``doubts`` are warnings, all others have the rule's severity.
        return ", ".join(SEVERITIES) if self.doubts else self.severity

    def get_severity(self, code: str) -> Severity:
        """Return the severity of the finding with this code."""
        return "warning" if code in self.doubts else self.severity


# A rule's definition is the sentence ``audit_rule.<name>`` of ``record/messages.toml``.
RULES: dict[str, AuditRule] = {
    "copies": AuditRule(copies.check_copies, "error"),
    "label": AuditRule(labels.check_label, "error", frozenset({"audit_precision_unsure"})),
    "log": AuditRule(
        labels.check_log, "error", frozenset({"log_samples_below_steps", "log_speeds_differ"})
    ),
    "memory": AuditRule(
        device_limits.check_memory,
        "error",
        frozenset({"audit_memory_of_card", "audit_memory_of_others"}),
    ),
    "mfu": AuditRule(mfu.check_mfu, "warning"),
    "ordering": AuditRule(rates.check_ordering, "error"),
    "outlier": AuditRule(ranges.check_outlier, "warning"),
    "passes": AuditRule(samples.check_passes, "error"),
    "peak": AuditRule(
        device_limits.check_peak, "error", frozenset({"audit_tf32", "audit_peak_unsure"})
    ),
    "precisions": AuditRule(scaling.check_precisions, "warning"),
    "range": AuditRule(ranges.check_ranges, "error"),
    "ratios": AuditRule(copies.check_ratios, "warning"),
    "routing": AuditRule(routing.check_routing, "warning"),
    "same_figures": AuditRule(copies.check_same_figures, "warning"),
    "scaling": AuditRule(scaling.check_scaling, "warning"),
    "side_by_side": AuditRule(samples.check_side_by_side, "warning"),
    "target": AuditRule(ranges.check_target, "warning"),
    "totals": AuditRule(rates.check_totals, "error"),
}


def audit(subjects: AuditSubjects) -> list[Finding]:
    """Return the findings of all rules: errors first, then by file and line."""
    findings = []
    for name, rule in RULES.items():
        for subject, reason in rule.check(subjects):  # its code decides the severity
            findings.append(Finding(name, rule.get_severity(reason.code), reason, subject))
    findings.sort(key=lambda x: (SEVERITIES.index(x.severity), x.subject.file, x.subject.line))
    return findings
