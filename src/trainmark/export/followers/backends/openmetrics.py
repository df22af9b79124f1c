"""OpenMetrics: a text file with the newest value of each series, replaced by a rename.

The textfile collector of Prometheus's node_exporter reads it; its files end in ``.prom``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.documents import write_atomically
from trainmark.export.followers.points import TRAIN_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult

# The series of a reading: `sys/power_watts`, `sys/gpu0/power_watts`, `sys/node1/gpu0/power_watts`.
_READING = re.compile(r"sys/(?:node(?P<node>\d+)/)?(?:gpu(?P<gpu>\d+)/)?(?P<quantity>.+)")


def prepare(destination: str | None) -> None:  # noqa: ARG001 - as of every backend
    """Import what takes long, so that it does not delay the run.

    Args:
        destination: not used; other backends prepare their destination here.
    """
    import prometheus_client.openmetrics.exposition  # noqa: F401


class OpenMetrics:
    """Writes the newest values of one run to a text file, which Prometheus collects.

    A run has points, which are values at one time each, such as the loss of a step.

    Attributes:
        _path: the file.
        _registry: has all metrics of the run, each with its present value.
        _gauges: the metrics by name.
        _labels: labels of all metrics of the run, by name.
    """

    def __init__(self, run: FollowedRun, destination: str | None) -> None:
        """Write the file with the first metric, which tells that the run is active.

        Args:
            destination: a file, or a folder with a file for each run; None: a file in the folder of
                the run.
        """
        from prometheus_client import CollectorRegistry

        self._path = Path(destination) if destination else run.folder / "metrics.prom"
        if self._path.is_dir():
            self._path = self._path / f"trainmark_{run.run_id}.prom"
        self._registry = CollectorRegistry()
        self._gauges: dict[str, object] = {}
        self._labels = {"run_id": run.run_id, "case": run.case}
        self._set_gauge("trainmark_run_active", 1)  # 0 after the end of the run
        self._write_file()

    def log(self, points: Sequence[Point]) -> None:
        """Replace the file by one with the newest values.

        Args:
            points: values by the name of their series, each with its number on an axis.
        """
        for point in points:
            # The file has values without axes. So that it tells how far the training is, the number
            # of the step is a metric of its own.
            if point.axis == TRAIN_STEP:
                self._set_series(TRAIN_STEP, point.number)
            for name, value in point.values.items():
                self._set_series(name, value)
        self._write_file()

    def finish(self, result: RunResult | None) -> None:
        """Write the final figures; the run is no longer active.

        Args:
            result: how the run ended; None: it has no record.
        """
        self._set_gauge("trainmark_run_active", 0)
        if result is not None:
            self._set_gauge("trainmark_run_passed", int(result.status == "passed"))
            for name, value in result.figures.items():
                self._set_series(name, value)  # a gauge, whose name is made from that of the figure
        self._write_file()

    def _set_series(self, name: str, value: float) -> None:
        """Set the gauge of a series, such as ``train/loss`` or ``sys/node1/gpu0/power_watts``.

        The second one is a reading of a machine. Its gauge has the name without ``node1`` and with
        ``gpu`` for ``gpu0``; the numbers of the node and of the device are labels.
        """
        labels: dict[str, str] = {}
        gauge_name = name
        parts = _READING.fullmatch(name)  # None: the series is no reading of a machine
        if parts is not None:
            # `sys/power_watts` has no gpu: it is of the host.
            kind = "gpu" if parts["gpu"] is not None else "host"
            gauge_name = f"sys/{kind}/{parts['quantity']}"
            # A run whose series name no node has only one machine, which counts as node 0.
            labels["node"] = parts["node"] or "0"
            if kind == "gpu":
                labels["gpu"] = parts["gpu"]
        # Names of metrics may have only these characters.
        metric = f"trainmark_{re.sub('[^a-zA-Z0-9_]', '_', gauge_name)}"
        self._set_gauge(metric, value, **labels)

    def _set_gauge(self, metric: str, value: float, **labels: str) -> None:
        """Set the value of a metric; its gauge is made at its first value.

        Args:
            metric: name of the metric.
            labels: values of labels by name, besides those that all metrics of the run have.
        """
        from prometheus_client import Gauge

        all_labels = self._labels | labels
        if metric not in self._gauges:
            description = metric.removeprefix("trainmark_").replace("_", " ")
            self._gauges[metric] = Gauge(
                metric, description, list(all_labels), registry=self._registry
            )
        self._gauges[metric].labels(**all_labels).set(value)  # type: ignore[attr-defined]

    def _write_file(self) -> None:
        """Replace the file by one with the present values of all metrics."""
        from prometheus_client.openmetrics.exposition import generate_latest

        with write_atomically(self._path) as file:
            file.write(generate_latest(self._registry))
