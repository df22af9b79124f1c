"""MLflow: a run in the experiment ``trainmark`` of a tracking server, a database or a folder.

The destination is a tracking URI; without one MLflow's own default holds. The experiment is that of
``MLFLOW_EXPERIMENT_NAME``, if it is set. A run that is followed again is found by its tag, and only
points that it lacks are added.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult

_TAG = "trainmark.run_id"
_NS_PER_MS = 1_000_000
_MAX_METRICS, _MAX_PARAMETERS, _MAX_LENGTH = 1000, 100, 500  # of one request, of a value
# MLflow itself tries seven times, for minutes: the follower tries again by itself.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def prepare(destination: str | None) -> None:
    """Import what takes long, and have MLflow make the tables of a database that is new."""
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    if (destination or "").startswith("file:"):
        # MLflow 3 asks who names a folder of files whether that is meant.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    with suppress(Exception):  # a server that is down is noted when the run is handed to it
        MlflowClient(tracking_uri=destination).get_experiment_by_name(_get_experiment_name())


def _get_experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "trainmark")


class MLflow:
    """Logs the points of one run."""

    def __init__(self, run: FollowedRun, destination: str | None) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=destination)
        self._run_id, is_new = self._open_run(run)
        self._last_numbers: dict[str, int] = {}
        if not is_new:
            for name in self._client.get_run(self._run_id).data.metrics:
                history = self._client.get_metric_history(self._run_id, name)
                self._last_numbers[name] = max(metric.step for metric in history)

    def _open_run(self, run: FollowedRun) -> tuple[str, bool]:
        """Return the id of the run in MLflow, and whether it was created now."""
        from mlflow.entities import Param

        client: Any = self._client
        name = _get_experiment_name()
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        known = client.search_runs([number], f"tags.`{_TAG}` = '{run.run_id}'")
        if known:
            return known[0].info.run_id, False
        created = client.create_run(
            number,
            start_time=run.started_unix_ns // _NS_PER_MS,
            tags={_TAG: run.run_id},
            run_name=run.run_id,
        )
        parameters = [Param(key, str(value)[:_MAX_LENGTH]) for key, value in run.settings.items()]
        for first in range(0, len(parameters), _MAX_PARAMETERS):
            part = parameters[first : first + _MAX_PARAMETERS]
            client.log_batch(created.info.run_id, params=part)
        return created.info.run_id, True

    def log(self, points: Sequence[Point]) -> None:
        """Add the points that the run lacks."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, point.unix_ns // _NS_PER_MS, point.number)
            for point in points
            for name, value in point.values.items()
            if point.number > self._last_numbers.get(name, -1)
        ]
        for first in range(0, len(metrics), _MAX_METRICS):
            part = metrics[first : first + _MAX_METRICS]
            self._client.log_batch(self._run_id, metrics=part)

    def finish(self, result: RunResult | None) -> None:
        """Add the final figures and end the run."""
        from mlflow.entities import Metric

        if result is None:
            self._client.set_terminated(self._run_id, "KILLED")
            return
        time_ms = result.unix_ns // _NS_PER_MS
        figures = [
            Metric(name, value, time_ms, result.number)
            for name, value in result.figures.items()
            if name not in self._last_numbers
        ]
        self._client.log_batch(self._run_id, metrics=figures)
        self._client.set_tag(self._run_id, "trainmark.status", result.status)
        self._client.set_tag(self._run_id, "trainmark.trust", result.trust)
        status = "FINISHED" if result.status == "passed" else "FAILED"
        self._client.set_terminated(self._run_id, status, time_ms)
