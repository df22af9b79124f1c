"""The log of changes: one line of JSON each, appended before the change is made, never rewritten.

Names tokens, never their secrets. Several processes may append at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STATE = ".serve"  # in the data folder; the index looks into no folder that begins with a point


def state(folder: Path) -> Path:
    """Return where a server keeps its own files in its data folder, which only it may read."""
    made = folder / STATE
    made.mkdir(mode=0o700, parents=True, exist_ok=True)
    return made


def sync(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def utc_now() -> datetime:
    """Return the time of now."""
    return datetime.now(UTC)


class Changes:
    """The log of one data folder.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        self.folder, self.file, self._now = folder, folder / STATE / "changes.jsonl", now

    def add(self, action: str, result: str, *, token: str | None, **more: Any) -> None:
        """Append a line and return when it is on the disk.

        Raises:
            OSError: it cannot be written; the log is as it was.
        """
        told = {"time": self._now().isoformat(), "action": action, "token": token, "result": result}
        line = json.dumps(told | more, ensure_ascii=True).encode() + b"\n"
        state(self.folder)
        log = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(log, fcntl.LOCK_EX)
            size = os.fstat(log).st_size
            if size and os.pread(log, 1, size - 1) != b"\n":  # the power failed within a line
                line = b"\n" + line
            if os.write(log, line) < len(line):
                os.ftruncate(log, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
            os.fsync(log)
        finally:
            os.close(log)

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the lines, the oldest first, but for one that the power cut off."""
        if self.file.exists():
            with self.file.open("rb") as lines:
                for line in lines:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue
