"""Open the files that a case reads, or say why that cannot be.

Owns the refusal of what the system refuses and of what is no regular file, and the names of
a split's numbered parts. Must not know what the files hold: rule and way out are the case's
own.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from errno import EINVAL
from stat import S_ISREG
from typing import TYPE_CHECKING

from trainmark.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PART_NAME = re.compile(r".*-([0-9]+)-of-([0-9]+)(-[0-9a-f]+)?")  # older hub names end in a hash


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


def split_files(folder: Path, split: str, ending: str) -> list[Path]:
    """Return ``split.ending``, or its numbered parts ``split-00000-of-00001.ending``.

    Raises:
        DataError: a numbered part is missing, or there twice.
    """
    whole = folder / f"{split}.{ending}"
    if whole.is_file():
        return [whole]
    named = [
        (file, match)
        for file in sorted(folder.glob(f"{split}-[0-9]*-of-[0-9]*.{ending}"))
        if (match := PART_NAME.fullmatch(file.stem))
    ]
    if not named:
        return []
    parts = [file for file, _ in named]
    numbers = [int(match[1]) for _, match in named]
    total = int(named[0][1][2])
    rule = f"{parts[0].name} says that the split has {total} parts"
    absent = next((number for number in range(total) if number not in numbers), None)
    if absent is not None:
        raise DataError(
            "no such file",
            where=str(folder / f"{split}-{absent:05d}-of-{total:05d}.{ending}"),
            rule=rule,
            remedy="fetch the missing part",
        )
    if len(parts) > total:
        raise DataError(
            f"{len(parts)} numbered files: {', '.join(part.name for part in parts)}",
            where=str(folder),
            rule=rule,
            remedy="move all but one version of the split away",
        )
    return parts
