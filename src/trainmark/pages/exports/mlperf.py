"""A run as ``:::MLLOG`` lines, which programs that read MLPerf logs can parse; no submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.pages.exports.run_log import LINES, line, moments

if TYPE_CHECKING:
    from pathlib import Path

    from trainmark.record.record import Record

_TYPES = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
_METADATA = {
    "file": "file",
    "lineno": "lineno",
    "epoch_num": "epoch",
    "first_epoch_num": "epoch",
    "samples_count": "trained",
    "step": "step",
}


def to_mlperf(record: Record, folder: Path) -> str:
    """Return the lines of a run whose events are in ``folder``; raises as ``moments`` does."""
    return "".join(
        line(":::MLLOG", _document(entry, values))
        for kind, values in moments(record, folder)
        for entry in LINES["mlperf"].get(kind, ())
    )


def _document(entry: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    metadata = _METADATA | entry.get("metadata", {})
    return {
        "namespace": "",
        "time_ms": values["time_ms"],
        "event_type": _TYPES.get(entry["key"].rpartition("_")[2], "POINT_IN_TIME"),
        "key": entry["key"],
        "value": entry.get("text") or values.get(entry.get("value", "")),
        "metadata": {name: values[source] for name, source in metadata.items()},
    }
