"""The figures that cases ship of others, each row with what the audit finds in it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from trainmark import cases
from trainmark.judge.audit import audit
from trainmark.judge.audit.finding import SEVERITIES
from trainmark.judge.audit.subject import of_row
from trainmark.library.importers import references
from trainmark.pages.phrases import configuration
from trainmark.pages.sections.performance import reference_cells
from trainmark.plan.reference import of_case
from trainmark.record.rows import Row

if TYPE_CHECKING:
    from trainmark.judge.audit.finding import Finding


@cache
def with_rows() -> tuple[str, ...]:
    """Return the cases that ship published rows."""
    return tuple(name for name in cases.names() if of_case(name).rows)


@cache
def _audited(case: str) -> tuple[list[Row], list[Finding]]:
    # Findings name other rows by their lines: on a page these are the numbers of its rows.
    read = (row for row in references.read(case) if isinstance(row, Row))
    rows = [row.model_copy(update={"line": number}) for number, row in enumerate(read, 1)]
    return rows, audit([of_row(row) for row in rows])


def counted(case: str) -> tuple[int, dict[str, int]]:
    """Return how many rows a case ships, and how many findings of each severity they have."""
    rows, findings = _audited(case)
    found = Counter(one.severity for one in findings)
    return len(rows), {severity: found[severity] for severity in SEVERITIES}


def shown(case: str) -> dict[str, Any]:
    """Return what the page of a case's published rows shows, cells as they are printed.

    Raises:
        UsageError: no such case.
    """
    name = cases.load(case).name
    told = of_case(name)
    return {
        "heads": told.columns,
        "rows": [
            (configuration(row.device, nnodes=row.nnodes, nproc=row.nproc), row.source,
             dict(zip(row.cells, reference_cells(row), strict=True)))
            for row in told.rows
        ],
        "sources": {row.source.id: row.source for row in told.rows}.values(),
        "findings": [
            (one.severity, one.rule, one.subject.line, one.message)
            for one in _audited(name)[1]
        ],
    }  # fmt: skip
