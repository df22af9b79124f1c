"""Records in the forms that other programs read, and what makes each."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import to_json as to_json_text
from pydantic_core import to_jsonable_python

from trainmark.errors import RecordError, UsageError
from trainmark.library.store.columns import COLUMNS
from trainmark.pages import exports
from trainmark.pages.cells import clean
from trainmark.pages.exports import run_log, tensorboard
from trainmark.pages.summary import summary
from trainmark.record import figures as figures_of
from trainmark.record.index_record import index_records
from trainmark.record.trust import verification_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.record.record import Record

_UNITS = {"s": "seconds", "%": "ratio", "W": "watts", "°C": "celsius", "J": "joules"}
_LABELS = (
    "run_id", "case", "device", "vendor", "nnodes", "nproc", "precision", "status", "trust",
)  # fmt: skip


def to_json(records: Sequence[Record]) -> str:
    """Return the whole records as a JSON array, one record a line."""
    lines = ",\n".join(to_json_text(record).decode() for record in records)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def repeats_json(records: Sequence[Record]) -> str:
    """Return the statistics over launches of the same work as JSON; figures by name.

    Raises:
        RecordError: the launches are not of the same work.
    """
    found = summary(records)
    document = {
        "run_ids": [record.run_id for record in records],
        "passed": found.passed,
        "descriptive": found.descriptive,
        **asdict(found),
        "trust": to_jsonable_python(found.trust),
        "verification": verification_of(records),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


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


def to_openmetrics(records: Sequence[Record]) -> str:
    """Return a gauge a figure in base units, as node_exporter's textfile collector takes it.

    Without timestamps, which that collector refuses; a figure that is null has no sample.
    """
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


TEXTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": exports.to_csv,
    "json": to_json,
    "index": to_index,
    "openmetrics": to_openmetrics,
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
