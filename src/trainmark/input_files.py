"""Open the files that a case reads, or say why that cannot be.

Owns the refusal of what the system refuses and of what is no regular file. Must not know
what the files hold: rule and way out are the case's own.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from errno import EINVAL
from stat import S_ISREG
from typing import TYPE_CHECKING

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def readable(file: Path, *, rule: str, remedy: str) -> Iterator[None]:
    """Turn what the system refuses into a ``DataError`` naming ``file``."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}", where=str(file), rule=rule, remedy=remedy
        ) from None


def file_bytes(file: Path) -> int:
    """Return the length of a regular file that can be opened.

    Raises:
        OSError: it is another kind of file, or cannot be opened; see ``readable``.
    """
    if not S_ISREG(file.stat().st_mode):  # opening a named pipe would wait for ever
        raise OSError(EINVAL, "not a regular file")
    with file.open("rb") as stream:
        return stream.seek(0, os.SEEK_END)
