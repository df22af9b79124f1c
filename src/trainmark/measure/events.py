"""Write and read event files, one JSON object a line.

Owns the promise that a file is valid line by line after a kill at any byte: a line is one
``write`` call with its newline last, and the reader drops a torn last line and says so.
Knows nothing of what the events mean.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAUNCHER_FILE = "events.launcher.jsonl"


def rank_file(rank: int) -> str:
    """Return the name of one rank's event file."""
    return f"events.rank{rank}.jsonl"


def finite_or_none(value: float) -> float | None:
    """Return ``value``, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


class EventWriter:
    """Append events to one file; each is on disk or absent, never interleaved.

    A line torn by a full disk or by the death of an earlier writer is closed before the
    next one, so that it takes no other event with it.

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


@dataclass(slots=True)
class EventFile:
    """Read one event file. ``malformed_lines`` and ``torn`` are known once read through."""

    path: Path
    malformed_lines: int = 0
    torn: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.malformed_lines = 0
        self.torn = False
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                try:
                    event = from_json(line, allow_inf_nan=False)
                except ValueError:
                    self.malformed_lines += 1
                    continue
                if isinstance(event, dict) and "event" in event:
                    yield event
                else:
                    self.malformed_lines += 1
