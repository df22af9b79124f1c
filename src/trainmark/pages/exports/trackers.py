"""Records in the stores of programs that keep runs for comparison: TensorBoard, W&B, MLflow.

A step has no wall-clock time of its own, so that all values have that of the run's start. Nothing
is sent anywhere. TensorBoard's file writer would put the host into file names.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import TYPE_CHECKING

from trainmark.pages.cells import clean, markdown
from trainmark.pages.exports import settings
from trainmark.record.figures import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record

_NAME = "trainmark"
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 500  # of a call: mlflow.utils.validation


def _points(record: Record) -> list[tuple[int, dict[str, float]]]:
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


def _started_s(record: Record) -> float:
    return datetime.fromisoformat(record.started).timestamp()


def _name_of(record: Record) -> str:
    """Return a run's id as a name for a file or an id of others, whatever it contains."""
    return re.sub(r"[^\w-]", "_", record.run_id, flags=re.ASCII)[:100]


def write_tensorboard(records: Sequence[Record], folder: Path) -> None:
    """Write an event file for each record; the wall time of all its events is the run's start.

    Raises:
        OSError: a run's folder exists, or nothing can be written there.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    for record in records:
        start_s = _started_s(record)
        rows = [("setting", "value"), ("---", "---"), *settings(record).items()]
        table = "\n".join(f"| {markdown(name)} | {markdown(value)} |" for name, value in rows)
        shown = TensorProto(dtype="DT_STRING", string_val=[table.encode()])
        said = Summary.Value(tag="settings", metadata=text, tensor=shown)
        events = [Event(file_version="brain.Event:2"), Event(summary=Summary(value=[said]))]
        for step, values in _points(record):
            made = [Summary.Value(tag=name, simple_value=x) for name, x in values.items()]
            events.append(Event(step=step, summary=Summary(value=made)))
        place = folder / _name_of(record)
        place.mkdir(parents=True)
        with (place / f"events.out.tfevents.{start_s:.0f}.trainmark").open("wb") as file:
            writer = RecordWriter(file)
            for event in events:
                event.wall_time = start_s
                writer.write(event.SerializeToString())


def write_wandb(records: Sequence[Record], folder: Path) -> None:
    """Write an offline run for each record into a folder of its name.

    Nothing is sent: no login, no error reports; neither host, user nor program is recorded.

    Raises:
        OSError: a run's folder exists, or nothing can be written there.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # read at import
    import wandb

    private = wandb.Settings(
        mode="offline", silent=True, console="off", host="", username="", program="",
        program_relpath="", disable_git=True, disable_code=True, disable_job_creation=True,
        x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip
    for record in records:
        name, place = _name_of(record), folder / _name_of(record)
        place.mkdir(parents=True)
        run = wandb.init(
            project="trainmark", id=name, name=name, dir=place, config=settings(record),
            settings=private,
        )  # fmt: skip
        for step, values in _points(record):
            run.log(values, step=step)
        run.finish(exit_code=0 if record.passed else 1)
    wandb.teardown()


def write_mlflow(records: Sequence[Record], folder: Path) -> None:
    """Write the records into ``folder/mlflow.db``, beside runs that are there.

    A run of the same name is replaced. The time of all values is the run's start.

    Raises:
        OSError: nothing can be written there.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read at import
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    folder.mkdir(parents=True, exist_ok=True)
    place = folder.resolve()
    client = MlflowClient(tracking_uri=f"sqlite:///{place}/mlflow.db")
    known = client.get_experiment_by_name(_NAME)
    artifacts = (place / "artifacts").as_uri()
    experiment = known.experiment_id if known else client.create_experiment(_NAME, artifacts)
    for record in records:
        name, start_ms = _name_of(record), int(_started_s(record) * 1000)
        for old in client.search_runs([experiment], f"attributes.run_name = '{name}'"):
            client.delete_run(old.info.run_id)
        run = client.create_run(experiment, start_ms, run_name=name).info.run_id
        metrics = [
            Metric(_key(metric), value, start_ms, step)
            for step, values in _points(record)
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
