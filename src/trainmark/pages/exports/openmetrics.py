"""The figures of records as OpenMetrics text, as node_exporter's textfile collector takes it.

One gauge a figure in base units, without timestamps, which that collector refuses.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainmark.library.store.columns import COLUMNS
from trainmark.pages.cells import clean
from trainmark.record import figures as figures_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.record.record import Record

_UNITS = {"s": "seconds", "%": "ratio", "W": "watts", "°C": "celsius", "J": "joules"}
_LABELS = (
    "run_id", "case", "device", "vendor", "nnodes", "nproc", "precision", "status", "trust",
)  # fmt: skip


def to_openmetrics(records: Sequence[Record]) -> str:
    """Return a sample a figure and record; a figure that is null has none."""
    families: dict[str, dict[str, str]] = {}
    for record in records:
        labels = {name: COLUMNS[name](record) for name in _LABELS}
        specs = figures_of.specs(record.plan.about.page)
        for name, entry in record.figures.items():
            if entry.value is None:
                continue
            unit = "_per_".join(_UNITS.get(word, word) for word in entry.unit.split("/"))
            unit = _word(unit).replace("_per_seconds", "_per_second")
            family = "_".join(filter(None, ("trainmark", _word(name), unit)))
            means = specs[name].definition.en if name in specs else ""
            told = (labels | {"figure": name}).items()
            sample = ",".join(f'{label}="{_text(value)}"' for label, value in told)
            value = entry.value / 100 if entry.unit == "%" else entry.value
            # A run that is named twice has one sample.
            lines = families.setdefault(family, {"": _head(family, unit, means)})
            lines[sample] = f"{family}{{{sample}}} {value!r}\n"
    return "".join(line for lines in families.values() for line in lines.values()) + "# EOF\n"


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")


def _text(value: object) -> str:
    return clean(value).replace("\\", "\\\\").replace('"', '\\"')


def _head(family: str, unit: str, means: str) -> str:
    # Prometheus' own format, which the collector reads, knows no escaped quote here.
    told = _text(means.replace('"', "'"))
    lines = f"# TYPE {family} gauge\n# HELP {family} {told}\n"
    return f"{lines}# UNIT {family} {unit}\n" if unit else lines
