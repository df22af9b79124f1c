"""Hold the result of an analysis, and summarize it for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmark.published.log import describe_value_count

if TYPE_CHECKING:
    from trainmark.record.index_record import IndexRecord

PERCENTILES = {"min": 0, "p50": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True, slots=True)
class Analysis:
    """A log's record, and all its figures by name: values are in the log's own unit."""

    record: IndexRecord
    figures: dict[str, Any]


def summarize(analysis: Analysis) -> str:
    """Return counts, distribution, notes and result, a line each; the last one says if it failed.

    Values that include other work than training, such as evaluation, are left out. Malformed lines
    have the key of the values but no number. If the log has values, the figures contain a result,
    and ``how`` with the formula by which it was computed; else there is neither.
    """
    record = analysis.record
    figures = analysis.figures
    counts = f"values: {figures['values']}, skipped: {figures['values_skipped']}"
    if figures["values_left_out"]:
        counts += f", left out: {figures['values_left_out']}"
    lines = [f"{record.log_file}: {counts}, malformed lines: {figures['lines_malformed']}"]
    if "mean" in figures:
        lines.append(f"  first value in {figures['first_value']}")
        lines.append(
            "  " + "  ".join(f"{name} {figures[name]:.6g}" for name in ("mean", *PERCENTILES))
        )
    if figures["first_malformed"]:
        lines.append(f"  first malformed value in {figures['first_malformed']}")
    lines += [f"  note: {note}" for note in figures["notes"]]
    for other in figures.get("others", ()):  # other speeds that the log prints besides the result
        lines.append(
            f"  also in the log: {other['result']:.6g} {other['unit']} from {other['read_from']} "
            f"({other['preset']}, {describe_value_count(other['values'])})"
        )
    if "how" in figures:
        loss = "" if record.LOSS_RESULT is None else f", loss {record.LOSS_RESULT:g}"
        unit = record.UNIT or "(no unit: set ips_unit)"
        lines.append(f"  result {figures['result']:.12g} {unit} ({figures['how']}){loss}")
    elif figures["loss"] is not None:
        lines.append(f"  last loss {figures['loss']:g}")
    if record.JOB_FAIL_FLAG:
        lines.append("  FAILED")
    return "\n".join(lines)
