"""What all findings with one code have in common.

Each module that makes findings has a table of their kinds by code, beside the functions that make
them; ``FINDING_KINDS`` of ``findings.py`` is all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trainmark.record.record import Grade


@dataclass(frozen=True, slots=True)
class FindingKind:
    """What all findings with one code have in common.

    Args:
        origin: ``record``: they follow from the values of a record, so that a check of the record
            finds them again; ``events``: only the events show them.
        grade: the best grade of trust that a launch with such a finding can have; ``usable``: the
            finding does not lower the grade.
        severity_arg: the argument that tells how bad the finding is: the further from 0, the worse;
            empty: none does.
    """

    origin: Literal["record", "events"]
    grade: Grade
    severity_arg: str = ""
