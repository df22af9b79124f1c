"""Records in the forms that other programs read, and what makes each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_json as to_json_text

from trainmark.errors import RecordError, UsageError
from trainmark.pages import exports
from trainmark.pages.exports import run_log, tensorboard
from trainmark.record.index_record import index_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.record.record import Record


def to_json(records: Sequence[Record]) -> str:
    """Return the whole records as a JSON array, one record a line."""
    lines = ",\n".join(to_json_text(record).decode() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def to_index(records: Sequence[Record]) -> str:
    """Return the JSON records of one case of each run, as the fifth founding document has them.

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


TEXTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": exports.to_csv,
    "json": to_json,
    "index": to_index,
}
LOGS = {"perflog": run_log.to_perflog, "mlperf": run_log.to_mlperf}  # of one run, with its events
WRITERS: dict[str, Callable[[Sequence[Record], Path], None]] = {
    "parquet": exports.write_parquet,  # a file, the other is a folder
    "tensorboard": tensorboard.write_tensorboard,
}


def to_text(form: str, records: Sequence[Record], places: Sequence[str]) -> str:
    """Return records in a form that is a text.

    Args:
        places: the path that each was read from.

    Raises:
        UsageError: a log of several runs, or of none.
        RecordError: a record that the form cannot hold.
    """
    if form in TEXTS:
        return TEXTS[form](records)
    if len(records) != 1:
        raise UsageError(f"{len(records)} runs in one log", remedy="write a file for each run")
    path = Path(places[0])
    return LOGS[form](records[0], path if path.is_dir() else path.parent)
