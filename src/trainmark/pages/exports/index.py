"""The JSON records of one case, as the fifth founding document has them, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.errors import RecordError
from trainmark.record.index_of_run import index_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record


def to_index(records: Sequence[Record]) -> str:
    """Return the JSON records of each run, one a line; see ``results.index_of_run``.

    Raises:
        RecordError: a case that has no such record.
    """
    lines = []
    for record in records:
        found = index_records(record)
        if not found:
            raise RecordError(
                f"case {record.plan.case} names no mission",
                where=record.run_id,
                rule="an index record files a run under its case's mission",
                remedy="leave this run out, or give the case a mission",
            )
        lines += [item.to_json() for item in found]
    return "".join(f"{line}\n" for line in lines)
