"""The summary of an analysed log that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.library.analysis.distribution import EXACT_LIMIT, RELATIVE_ERROR

if TYPE_CHECKING:
    from trainmark.library.analysis.engine import Analysis


def text(analysis: Analysis) -> str:
    """Return the lines of the summary."""
    record, all_ = analysis.record, analysis.figures
    names = ("mean", "min", "p50", "p90", "p99", "max")
    lines = [
        f"{record.log_file}: {all_['values']} values, {all_['values_skipped']} skipped, "
        f"{all_['lines_malformed']} malformed lines",
        f"  first value in {all_['first_value']}",
        "  " + "  ".join(f"{name} {all_[name]:.6g}" for name in names),
    ]
    if not all_["percentiles_exact"]:
        lines.append(f"  percentiles within {RELATIVE_ERROR:.1%}: more than {EXACT_LIMIT:,} values")
    if all_["first_malformed"]:
        lines.append(f"  first malformed is {all_['first_malformed']}")
    lines += [f"  note: {note}" for note in all_["notes"]]
    loss = "" if record.LOSS_RESULT is None else f", loss {record.LOSS_RESULT:g}"
    result = f"  result {all_['result']:.12g} {record.UNIT or '(no unit)'} ({all_['how']}){loss}"
    return "\n".join([*lines, result + (", FAILED" if record.JOB_FAIL_FLAG else "")])
