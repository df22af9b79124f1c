"""Open a file that somebody else may have put there, without waiting for a pipe's writer."""

from __future__ import annotations

import os
import stat
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file, or one that a link leads to, for reading.

    Raises:
        ValueError: a folder, pipe or device.
        OSError: no such file, or not to be read.
    """
    # Without O_NONBLOCK, opening a named pipe waits for a writer.
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: PTH123, SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("not a regular file")
    return file
