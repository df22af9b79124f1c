"""A lock file that one process at a time holds.

Owns how it is taken and given back. Must not know what it guards.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainmark.errors import EnvironmentFault


@contextmanager
def held(lock: Path, refusal: EnvironmentFault) -> Iterator[None]:
    """Hold ``lock``, a file in a folder that is there; a killed process holds none.

    Raises:
        EnvironmentFault: ``refusal``, at once: another process holds it.
        OSError: the file cannot be made or locked.
    """
    while True:
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise refusal from None
            if not _names(lock, file.fileno()):
                continue  # its last holder removed it after it was opened here
            try:
                yield
            finally:
                with suppress(OSError):  # a file that stays behind holds nothing
                    lock.unlink()
            return


def _names(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
