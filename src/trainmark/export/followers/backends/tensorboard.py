"""TensorBoard: a file of events in ``DESTINATION/RUN_ID``, by default in the run's folder.

Written with TensorBoard's own protocol buffers, without TensorFlow and torch. A run that is
followed again gets a new file in place of the earlier one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.export.followers.points import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult

_OUR_SUFFIX = ".trainmark"  # of our files: no others are replaced
_DT_STRING = 7  # in tensorboard/compat/proto/types.proto


def prepare(destination: str | None) -> None:  # noqa: ARG001 - as of every backend
    """Import what takes long, so that it does not delay the run.

    Args:
        destination: not used; other backends prepare their destination here.
    """
    import tensorboard.compat.proto.event_pb2  # noqa: F401


class TensorBoard:
    """Writes the points of one run: values at one time each, such as the loss of a step.

    Attributes:
        _file: the file of events that TensorBoard reads.
        _records: writes an event to this file with its length and checksums.
    """

    def __init__(self, run: FollowedRun, destination: str | None) -> None:
        """Begin a file of events with the settings of the run.

        Args:
            run: its id, its folder, its start and its settings.
            destination: a folder, in which each run has one; None: a folder in that of the run.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = Path(destination, run.run_id) if destination else run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # If an earlier process handed over this run, its file is replaced, because all points come
        # again. Files of other programs, which lack our suffix, are kept.
        for earlier in folder.glob(f"events.out.tfevents.*{_OUR_SUFFIX}"):
            earlier.unlink()
        path = folder / f"events.out.tfevents.{time.time_ns()}{_OUR_SUFFIX}"
        self._file = path.open("wb")
        self._records = RecordWriter(self._file)
        # A file of events begins with the version of its format.
        self._write_event(
            Event(wall_time=run.started_unix_ns / NS_PER_S, file_version="brain.Event:2")
        )
        rows = [f"| {name} | {value} |" for name, value in run.settings.items()]
        text = "\n".join(["| setting | value |", "|---|---|", *rows])
        self._write_text("run", text, step=0, unix_ns=run.started_unix_ns)
        self._file.flush()

    def log(self, points: Sequence[Point]) -> None:
        """Write points, so that TensorBoard can read them at once.

        Args:
            points: values by the name of their series. ``number`` is the position on an axis, such
                as the step.
        """
        for point in points:
            self._write_scalars(point.values, point.number, point.unix_ns)
        self._file.flush()

    def finish(self, result: RunResult | None) -> None:
        """Write the final figures and close the file.

        Args:
            result: how the run ended, with its figures by series; None: it has no record.
        """
        if result is not None:
            self._write_scalars(result.figures, result.num_steps, result.unix_ns)
            # The grade of trust is an identifier, such as `do_not_quote`.
            text = f"{result.status}, {result.trust.replace('_', ' ')}"
            self._write_text("result", text, result.num_steps, result.unix_ns)
        self._file.close()

    def _write_scalars(self, values: dict[str, float], step: int, unix_ns: int) -> None:
        """Write values by their series, all of one step."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        items = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write_event(
            Event(wall_time=unix_ns / NS_PER_S, step=step, summary=Summary(value=items))
        )

    def _write_text(self, tag: str, text: str, step: int, unix_ns: int) -> None:
        """Write a text in Markdown for TensorBoard's page of texts, under the name ``tag``."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(
            tag=tag,
            metadata=SummaryMetadata(plugin_data=plugin),
            tensor=TensorProto(dtype=_DT_STRING, string_val=[text.encode()]),
        )
        self._write_event(
            Event(wall_time=unix_ns / NS_PER_S, step=step, summary=Summary(value=[value]))
        )

    def _write_event(self, event: object) -> None:
        """Write an ``Event``; its class is imported in functions, because that takes long."""
        self._records.write(event.SerializeToString())  # type: ignore[attr-defined]
