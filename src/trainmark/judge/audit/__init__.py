"""Hold records and printed rows against rules; each finding shows its arithmetic.

Must not know how rows are imported, nor how findings are printed.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark.errors import UsageError
from trainmark.judge.audit import rules
from trainmark.judge.audit.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainmark.judge.audit.finding import Subjects


@cache
def known_rules() -> dict[str, Any]:
    """Return the module of every rule by name, as ``rules`` says what they have."""
    names = sorted(entry.name for entry in pkgutil.iter_modules(rules.__path__))
    return {name: importlib.import_module(f"{rules.__name__}.{name}") for name in names}


def audit(subjects: Subjects, *, only: Iterable[str] = ()) -> list[Finding]:
    """Return what the rules find: errors first, then by place.

    Args:
        only: names of rules; none: all of them.

    Raises:
        UsageError: no such rule.
    """
    known = known_rules()
    wanted = dict.fromkeys(only) or dict.fromkeys(known)
    unknown = sorted(wanted.keys() - known.keys())
    if unknown:
        raise UsageError(f"no rule {unknown[0]!r}", rule=f"rules are {', '.join(known)}")
    found = [
        Finding(name, severity[0] if severity else known[name].SEVERITY, said, subject)
        for name in wanted
        for subject, said, *severity in known[name].find(subjects)
    ]
    found.sort(key=lambda one: (SEVERITIES.index(one.severity), one.subject.file, one.subject.line))
    return found
