"""Which forms there are, and what makes each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.pages.exports import (
    documents,
    index,
    mlflow,
    mlperf,
    openmetrics,
    perflog,
    tables,
    tensorboard,
    wandb,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmark.record.record import Record

TEXTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "csv": tables.to_csv,
    "json": documents.to_json,
    "index": index.to_index,
    "openmetrics": openmetrics.to_openmetrics,
}
LOGS = {"perflog": perflog.to_perflog, "mlperf": mlperf.to_mlperf}  # of one run, with its events
WRITERS: dict[str, Callable[[Sequence[Record], Path], None]] = {
    "parquet": tables.write_parquet,  # a file, the others are folders
    "tensorboard": tensorboard.write_tensorboard,
    "wandb": wandb.write_wandb,
    "mlflow": mlflow.write_mlflow,
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
