"""Records in a local store of MLflow, a SQLite file that ``mlflow ui`` shows."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from trainmark.errors import UsageError
from trainmark.pages.cells import clean
from trainmark.pages.exports.tables import settings
from trainmark.pages.exports.trackers import needed, points, safe_name, started_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record

_NAME = "trainmark"
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 500  # of a call: mlflow.utils.validation


def write_mlflow(records: Sequence[Record], folder: Path) -> None:
    """Write the records into ``folder/mlflow.db``, beside runs that are there.

    The time of all values is the run's start.

    Raises:
        EnvironmentFault: the package mlflow is missing.
        UsageError: a run is there already.
        OSError: nothing can be written there.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read at import
    with needed("mlflow"):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    folder.mkdir(parents=True, exist_ok=True)
    place = folder.resolve()
    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    known = client.get_experiment_by_name(_NAME)
    artifacts = (place / "artifacts").as_uri()
    experiment = known.experiment_id if known else client.create_experiment(_NAME, artifacts)
    for record in records:
        name, start_ms = safe_name(record), int(started_s(record) * 1000)
        if client.search_runs([experiment], f"attributes.run_name = '{name}'"):
            raise UsageError("the run is there already", where=name, remedy="choose another -o")
        run = client.create_run(experiment, start_ms, run_name=name).info.run_id
        metrics = [
            Metric(_key(metric), value, start_ms, step)
            for step, values in points(record)
            for metric, value in values.items()
        ]
        params = [Param(_key(n), clean(text)[:_LONGEST]) for n, text in settings(record).items()]
        for first in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run, metrics=metrics[first : first + _MOST_METRICS])
        for first in range(0, len(params), _MOST_PARAMS):
            client.log_batch(run, params=params[first : first + _MOST_PARAMS])
        client.set_terminated(run, "FINISHED" if record.passed else "FAILED", start_ms)


def _key(name: str) -> str:
    """Return a name that MLflow takes, of which the first part is a folder."""
    return "/".join(re.sub(r"[^\w-]", "_", part)[:120] for part in name.split("/", 1))
