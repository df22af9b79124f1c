"""MLflow: a run in the experiment ``trainmark`` of a tracking server, a database or a folder.

The destination is a tracking URI; without one, that of ``MLFLOW_TRACKING_URI``, else MLflow's own
default. The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, if it is set. A run that is followed
again is found by its tag, and only points that it lacks are added.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainmark.export.followers.targets import get_tracking_uri

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult

_RUN_ID_TAG = "trainmark.run_id"
_NS_PER_MS = 1_000_000
_MAX_METRICS = 1000  # of one request
_MAX_PARAMETERS = 100  # of one request
_MAX_VALUE_CHARS = 500  # characters of the value of a parameter
# By default MLflow repeats a request seven times, for minutes; the follower tries again by itself.
_RETRY_VARIABLES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def prepare(destination: str | None) -> None:
    """Import what takes long, and have MLflow make the tables of a database that is new.

    To have the tables made, it looks up the experiment that gets the runs.

    Args:
        destination: a tracking URI; None: that of ``MLFLOW_TRACKING_URI``, else MLflow's default.
    """
    # MLflow repeats a failed request for minutes; the follower itself tries again.
    for name, value in _RETRY_VARIABLES.items():
        os.environ.setdefault(name, value)
    if _is_folder(get_tracking_uri(destination)):
        # MLflow 3 refuses to keep runs in a folder of files unless this variable allows it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    with suppress(Exception):  # a server that is down is noted when the run is handed to it
        MlflowClient(tracking_uri=destination).get_experiment_by_name(_get_experiment_name())


def _is_folder(tracking_uri: str) -> bool:
    """Return whether MLflow keeps the runs of a tracking URI in a folder of files.

    A folder is a path or a URI with ``file:``. MLflow's default, for which the text is empty, does
    not count as one; ``databricks`` alone is a server.
    """
    if tracking_uri in ("", "databricks"):
        return False
    return urlsplit(tracking_uri).scheme in ("", "file")


def _get_experiment_name() -> str:
    """Return the name of the experiment that gets the runs."""
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", "trainmark")


class MLflow:
    """Logs the points of one run: values at one time each, such as the loss of a step.

    Attributes:
        _client: MLflow's client, which sends requests to the destination.
        _run_id: id of the run in MLflow.
        _last_numbers: by name of a metric, the highest step whose value MLflow has from an earlier
            process that handed over the same run.
    """

    def __init__(self, run: FollowedRun, destination: str | None) -> None:
        """Create the run in MLflow, or find the one that an earlier process created.

        Args:
            run: its id, its start and its settings.
            destination: a tracking URI; None: that of ``MLFLOW_TRACKING_URI``, else MLflow's
                default.
        """
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=destination)
        self._run_id, is_new = self._open_run(run)
        self._last_numbers: dict[str, int] = {}
        if not is_new:  # an earlier process has handed over some points of the run
            for name in self._client.get_run(self._run_id).data.metrics:
                history = self._client.get_metric_history(self._run_id, name)
                self._last_numbers[name] = max(metric.step for metric in history)

    def _open_run(self, run: FollowedRun) -> tuple[str, bool]:
        """Return the id of the run in MLflow, and whether it was created now.

        A run of MLflow has the id of our run as a tag, by which it is found again.

        Args:
            run: its id, its start and its settings.
        """
        from mlflow.entities import Param

        client: Any = self._client
        name = _get_experiment_name()
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            experiment_id = client.create_experiment(name)
        else:
            experiment_id = experiment.experiment_id
        existing_runs = client.search_runs(
            [experiment_id], f"tags.`{_RUN_ID_TAG}` = '{run.run_id}'"
        )
        if existing_runs:
            return existing_runs[0].info.run_id, False
        created_run = client.create_run(
            experiment_id,
            start_time=run.started_unix_ns // _NS_PER_MS,
            tags={_RUN_ID_TAG: run.run_id},
            run_name=run.run_id,
        )
        run_id = created_run.info.run_id
        parameters = [
            Param(key, str(value)[:_MAX_VALUE_CHARS]) for key, value in run.settings.items()
        ]
        # MLflow accepts only so many parameters in one request.
        for start in range(0, len(parameters), _MAX_PARAMETERS):
            client.log_batch(run_id, params=parameters[start : start + _MAX_PARAMETERS])
        return run_id, True

    def log(self, points: Sequence[Point]) -> None:
        """Add the points that MLflow's run lacks.

        It may have some from an earlier process that handed over the same run: of each metric those
        up to the step in ``_last_numbers``.

        Args:
            points: values by the name of their series. ``number`` is the position on an axis, such
                as the step.
        """
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, point.unix_ns // _NS_PER_MS, point.number)
            for point in points
            for name, value in point.values.items()
            if point.number > self._last_numbers.get(name, -1)  # -1: MLflow has no such metric
        ]
        # MLflow accepts only so many metrics in one request.
        for start in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MAX_METRICS])

    def finish(self, result: RunResult | None) -> None:
        """Add the final figures and end the run.

        Args:
            result: how the run ended, and its figures by name; None: it has no record.
        """
        from mlflow.entities import Metric

        if result is None:
            # A launcher also writes a record if the run fails. There is none, so the launcher was
            # killed. The time of its end is not known; MLflow takes the current time.
            self._client.set_terminated(self._run_id, "KILLED")
            return
        time_ms = result.unix_ns // _NS_PER_MS
        figures = [
            Metric(name, value, time_ms, result.num_steps)
            for name, value in result.figures.items()
            if name not in self._last_numbers  # MLflow may have them from an earlier process
        ]
        self._client.log_batch(self._run_id, metrics=figures)
        self._client.set_tag(self._run_id, "trainmark.status", result.status)
        self._client.set_tag(self._run_id, "trainmark.trust", result.trust)
        status = "FINISHED" if result.status == "passed" else "FAILED"
        self._client.set_terminated(self._run_id, status, time_ms)
