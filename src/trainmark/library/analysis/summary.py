"""The figures of an analysed log for people and, as one object, for programs.

Owns wording and order. Must not know how figures are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.library.analysis.distribution import EXACT_LIMIT, RELATIVE_ERROR
from trainmark.library.analysis.modes import MODES

if TYPE_CHECKING:
    from trainmark.library.analysis.engine import Analysis

_SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


def figures(analysis: Analysis) -> dict[str, Any]:
    """Return all figures by name; values are in the log's own unit."""
    reading, values, evidence = analysis.reading, analysis.reading.values, analysis.reading.evidence
    return {
        "log_file": analysis.record.log_file,
        "lines_matched": evidence.matched,
        "lines_malformed": evidence.malformed,
        "first_malformed": str(evidence.first_malformed) if evidence.first_malformed else None,
        "first_value": str(evidence.first) if evidence.first else None,
        "values": values.count,
        "values_skipped": values.skipped,
        "mean": values.mean,
        "min": values.minimum,
        **dict(zip(_SHARES, values.percentiles(*_SHARES.values()), strict=True)),
        "max": values.maximum,
        "percentiles_exact": values.exact,
        "statistic": reading.statistic,
        "model_mode": reading.mode,
        "time_unit": reading.time_unit,
        "batch": reading.batch,
        "devices_in_formula": reading.devices,
        "result": analysis.measured,
        "unit": analysis.record.UNIT,
        "loss": analysis.loss,
        "notes": reading.notes,
    }


def text(analysis: Analysis) -> str:
    """Return the summary that a person reads."""
    record, reading, evidence = analysis.record, analysis.reading, analysis.reading.evidence
    all_ = figures(analysis)
    names = ("mean", "min", *_SHARES, "max")
    lines = [
        f"{record.log_file}: {all_['values']} values, {all_['values_skipped']} skipped, "
        f"{evidence.malformed} malformed lines",
        f"  first value in {evidence.first}",
        "  " + "  ".join(f"{name} {all_[name]:.6g}" for name in names),
    ]
    if not all_["percentiles_exact"]:
        lines.append(f"  percentiles within {RELATIVE_ERROR:.1%}: more than {EXACT_LIMIT:,} values")
    if evidence.first_malformed:
        lines.append(f"  first malformed is {evidence.first_malformed}")
    if evidence.cut_value:
        lines.append(f"  left out, its end is missing: {evidence.cut_value}")
    lines += [f"  note: {note}" for note in reading.notes]
    formula = MODES[reading.mode].formula.replace("mean", reading.statistic)
    how = f"mode {reading.mode}: {formula}" if record.index == 1 else "as it is"
    result = f"  result {analysis.measured:.12g} {record.UNIT or '(no unit)'} ({how})"
    if record.LOSS_RESULT is not None:
        result += f", loss {record.LOSS_RESULT:g}"
    lines.append(result + (", FAILED" if record.JOB_FAIL_FLAG else ""))
    return "\n".join(lines)
