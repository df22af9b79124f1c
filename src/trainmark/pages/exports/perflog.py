"""A run as PerfLog lines, as the programs of the public collection print them.

A step line stands at the end of a window: those programs, too, print only some of their steps.
``metadata`` names file and line of the event that a line was written from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages.exports.run_log import LINES, line, moments

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record


def to_perflog(record: Record, folder: Path) -> str:
    """Return the lines of a run whose events are in ``folder``; raises as ``moments`` does."""
    return "".join(
        line("[PerfLog]", _document(entry, values))
        for kind, values in moments(record, folder)
        for entry in LINES["perflog"].get(kind, ())
    )


def _document(entry: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    metric = values["quality_metric"]
    named = {
        name.replace("<metric>", metric): values[source]
        for name, source in entry.get("value", {}).items()
    }
    step = {"step": values[entry["step"]]} if "step" in entry else {}
    metadata = {name: values[name] for name in ("file", "lineno", "time_ms")} | {"rank": 0}
    return {"event": entry["event"], "value": named} | step | {"metadata": metadata}
