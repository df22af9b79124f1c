"""What the programs share that keep runs for comparison: values by step, and what is missing."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from trainmark.errors import EnvironmentFault, RecordError, UsageError
from trainmark.record.figures import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.record.record import Record


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Import in the block a package of the extra that has its name.

    Raises:
        EnvironmentFault: it is missing.
    """
    try:
        yield
    except ImportError as error:
        raise EnvironmentFault(str(error), remedy=f"pip install 'trainmark[{extra}]'") from error


def points(record: Record) -> list[tuple[int, dict[str, float]]]:
    """Return loss, time and throughput of each step, each evaluation, and the figures at the end.

    Each with its step, in order. A step has no wall-clock time of its own.
    """
    steps, quality = record.steps, record.quality
    found: list[tuple[int, dict[str, float | None]]] = []
    series = zip(steps.loss, steps.time_ns, steps.samples, strict=True)
    for step, (loss, time_ns, samples) in enumerate(series, start=1):
        rate = samples * NS_PER_S / time_ns if time_ns else None
        values = {"loss": loss, "step_time_s": time_ns / NS_PER_S, "samples_per_s": rate}
        found.append((step, {f"train/{name}": value for name, value in values.items()}))
    found += [(point.step, {f"eval/{quality.metric}": point.value}) for point in quality.history]
    found.sort(key=lambda point: point[0])
    last = found[-1][0] if found else 0
    found.append((last, {f"figure/{name}": x.value for name, x in record.figures.items()}))
    return [(step, {k: v for k, v in values.items() if v is not None}) for step, values in found]


def started_s(record: Record) -> float:
    """Return when the run was started, in seconds since 1970.

    Raises:
        RecordError: the record's text is no time.
    """
    try:
        return datetime.fromisoformat(record.started).timestamp()
    except (ValueError, OverflowError):
        raise RecordError("started is no time", where=record.run_id, rule="ISO 8601") from None


def safe_name(record: Record) -> str:
    """Return a run's id as a name for a file or an id of others, whatever it contains."""
    return re.sub(r"[^\w-]", "_", record.run_id, flags=re.ASCII)[:100]


def run_folder(folder: Path, record: Record) -> Path:
    """Make the folder of one run.

    Raises:
        UsageError: it exists.
        OSError: it cannot be made.
    """
    found = folder / safe_name(record)
    if found.exists():
        raise UsageError("the run is there already", where=str(found), remedy="choose another -o")
    found.mkdir(parents=True)
    return found
