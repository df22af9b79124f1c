"""What was computed from input files, kept beside them.

Owns that a kept file is there whole or not at all, and that a folder nobody may write
costs time but no run. Must not know what is kept.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
