"""Records as event files of TensorBoard, whose own file writer would put the host into names."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from trainmark.pages.cells import markdown
from trainmark.pages.exports import settings
from trainmark.record.figures import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record


def _points(record: Record) -> list[tuple[int, dict[str, float | None]]]:
    """Return loss, time and throughput of each step, each evaluation, and the figures at the end.

    Each with its step, in order.
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
    return [*found, (last, {f"figure/{name}": x.value for name, x in record.figures.items()})]


def write_tensorboard(records: Sequence[Record], folder: Path) -> None:
    """Write an event file for each record; the wall time of all its events is the run's start.

    A step has no wall-clock time of its own.

    Raises:
        OSError: a run's folder exists, or nothing can be written there.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    for record in records:
        start_s = datetime.fromisoformat(record.started).timestamp()
        rows = [("setting", "value"), ("---", "---"), *settings(record).items()]
        table = "\n".join(f"| {markdown(name)} | {markdown(value)} |" for name, value in rows)
        shown = TensorProto(dtype="DT_STRING", string_val=[table.encode()])
        said = Summary.Value(tag="settings", metadata=text, tensor=shown)
        events = [Event(file_version="brain.Event:2"), Event(summary=Summary(value=[said]))]
        for step, values in _points(record):
            known = {name: x for name, x in values.items() if x is not None}
            made = [Summary.Value(tag=name, simple_value=x) for name, x in known.items()]
            events.append(Event(step=step, summary=Summary(value=made)))
        place = folder / re.sub(r"[^\w-]", "_", record.run_id, flags=re.ASCII)[:100]
        place.mkdir(parents=True)
        with (place / f"events.out.tfevents.{start_s:.0f}.trainmark").open("wb") as file:
            writer = RecordWriter(file)
            for event in events:
                event.wall_time = start_s
                writer.write(event.SerializeToString())
