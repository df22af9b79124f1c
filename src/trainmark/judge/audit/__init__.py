"""Hold records and printed rows against rules; each finding shows its arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.judge.audit.finding import SEVERITIES, Finding
from trainmark.judge.audit.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.judge.audit.finding import Subjects

__all__ = ["RULES", "audit"]


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
        Finding(name, severity[0] if severity else RULES[name].severity, found, subject)
        for name in wanted
        for subject, found, *severity in RULES[name].find(subjects)
    ]
    findings.sort(
        key=lambda one: (SEVERITIES.index(one.severity), one.subject.file, one.subject.line)
    )
    return findings
