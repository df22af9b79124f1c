"""Records as event files of TensorBoard, a folder a run.

Written by TensorBoard's record writer, not its file writer, which puts the host into file names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.pages.cells import markdown
from trainmark.pages.exports.tables import settings
from trainmark.pages.exports.trackers import needed, points, run_folder, started_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.record.record import Record


def write_tensorboard(records: Sequence[Record], folder: Path) -> None:
    """Write an event file for each record; the wall time of all its events is the run's start.

    Raises:
        EnvironmentFault: the package tensorboard is missing.
        UsageError: a run's folder exists.
        OSError: nothing can be written there.
    """
    with needed("tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.record_writer import RecordWriter
    text = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    for record in records:
        start_s = started_s(record)
        rows = [("setting", "value"), ("---", "---"), *settings(record).items()]
        table = "\n".join(f"| {markdown(name)} | {markdown(value)} |" for name, value in rows)
        shown = TensorProto(dtype="DT_STRING", string_val=[table.encode()])
        said = Summary.Value(tag="settings", metadata=text, tensor=shown)
        events = [Event(file_version="brain.Event:2"), Event(summary=Summary(value=[said]))]
        for step, values in points(record):
            made = [Summary.Value(tag=name, simple_value=x) for name, x in values.items()]
            events.append(Event(step=step, summary=Summary(value=made)))
        path = run_folder(folder, record) / f"events.out.tfevents.{start_s:.0f}.trainmark"
        with path.open("wb") as file:
            writer = RecordWriter(file)
            for event in events:
                event.wall_time = start_s
                writer.write(event.SerializeToString())
