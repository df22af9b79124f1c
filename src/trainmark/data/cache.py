"""What was computed from input files, kept beside them.

Owns that a kept file is there whole or not at all, and that a folder nobody may write
costs time but no run. Must not know what is kept.
"""

from __future__ import annotations

import secrets
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


def replace_file(file: Path, write: Callable[[BinaryIO], object]) -> bool:
    """Give ``file`` the content that ``write`` writes, whole; tell whether that was possible.

    Ranks may do so at once: each writes under a name of its own, the last one stays.
    """
    staging = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        file.parent.mkdir(exist_ok=True)
        with staging.open("xb") as stream:
            write(stream)
        staging.replace(file)
    except OSError:  # read-only or full: a cache is no condition of a run
        with suppress(OSError):  # the folder cannot be written, or another rank was first
            staging.unlink(missing_ok=True)
        return False
    return True


def cached_arrays(file: Path, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays kept in ``file``, an ``.npz``; build and keep them where it is not there.

    A damaged file is built again. Where nothing can be kept they are built each time.

    Args:
        file: its name must say all that the arrays depend on.
    """
    found = read_arrays(file)
    if found is None:
        found = build()
        replace_file(file, lambda stream: np.savez(stream, **found))  # type: ignore[arg-type]
    return found


def read_arrays(file: Path) -> Arrays | None:
    """Return the arrays of a file, none where it is absent, unreadable or damaged."""
    try:
        # A zip file has a checksum for each member. What is no zip file gives an array.
        with file.open("rb") as stream, np.load(stream) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None
