"""Write and read event files, one JSON object a line.

Guarantees that every complete line of a file is valid after a kill at any byte: a line is one
``write`` call with its newline last, and the reader drops an incomplete last line and reports
it. Does not interpret the events. Imports pydantic only to read: the sampler, which only writes,
starts without it.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from trainmark.data.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAUNCHER_FILE = "events.launcher.jsonl"
JOB_EVENTS_FILE = "events.job.jsonl"  # what an engine said of the job
TELEMETRY_FILE = "telemetry.jsonl"


def node_file(node: int) -> str:
    """Return the name of the event file of one machine's node process."""
    return f"events.node{node}.jsonl"


def telemetry_file(node: int | None) -> str:
    """Return the name of a machine's samples; None: of a run on one machine."""
    return TELEMETRY_FILE if node is None else f"telemetry.node{node}.jsonl"


def rank_file(rank: int) -> str:
    """Return the name of one rank's event file."""
    return f"events.rank{rank}.jsonl"


def finite_or_none(value: float) -> float | None:
    """Return ``value``, or None if it is NaN or infinite, which JSON cannot represent."""
    return value if math.isfinite(value) else None


class EventWriter:
    """Append events to one file; each is on disk or absent, never interleaved.

    An incomplete line, left by a full disk or by a writer that was killed, is ended by a newline
    before the next event, so that only one event is lost.

    Raises:
        OSError: from the file system, a full disk for instance; the caller decides.
    """

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._fd).st_size
        self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event, stamped with the host clock in nanoseconds."""
        line = {"event": event, "t_ns": self._clock(), **fields}
        data = (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        if self._torn:
            data = b"\n" + data
        written = os.write(self._fd, data)
        while written < len(data):
            self._torn = data[written - 1 : written] != b"\n"
            written += os.write(self._fd, data[written:])
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


MAX_LINE_BYTES = 64 << 20  # a window of a million steps has about 30 MB


def any_event(line: bytes) -> dict[str, Any]:
    """Return the event of a line without checking its fields.

    Raises:
        ValueError: not a JSON object, or one without a name.
    """
    from pydantic_core import from_json

    event = from_json(line, allow_inf_nan=False)
    if not isinstance(event, dict) or "event" not in event:
        raise ValueError("an event is an object with a name")
    return event


@dataclass(slots=True)
class EventFile:
    """Read one event file. ``malformed_lines`` and ``torn`` are known once read through.

    Args:
        parse: parses a line to an event; a line for which it raises ``ValueError`` is malformed.
    """

    path: Path
    parse: Callable[[bytes], dict[str, Any]] = any_event
    malformed_lines: int = 0
    torn: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.malformed_lines = 0
        self.torn = False
        try:
            file = open_regular(self.path)
        except ValueError:  # a pipe or a folder with that name
            self.malformed_lines = 1
            return
        with file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    if len(line) == MAX_LINE_BYTES and self._skip_line(file):
                        self.malformed_lines += 1
                        continue
                    self.torn = True
                    return
                try:
                    event = self.parse(line)
                except ValueError:
                    self.malformed_lines += 1
                    continue
                yield event

    @staticmethod
    def _skip_line(file: IO[bytes]) -> bool:
        """Read to the end of a line that is too long; tell whether it has one."""
        while line := file.readline(MAX_LINE_BYTES):
            if line.endswith(b"\n"):
                return True
        return False
