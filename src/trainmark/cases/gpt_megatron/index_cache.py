"""Built indices kept on disk: one vector of whole numbers a file.

Owns that a damaged one is built again, that the newest few stay, and that a rank works on
where none can be kept. Must not know what the numbers mean.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from trainmark.data.cache import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

KEPT_FILES = 16  # a run asks for one epoch after another; old ones would only fill the disk


def kept(file: Path, length: int, build: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the vector that ``file`` keeps, mapped; build and keep it when it is not there.

    Args:
        length: elements that ``build`` returns, int64 (length,).
    """
    found = _load(file, length)
    if found is not None:
        return found
    built = build()
    assert built.shape == (length,)
    checked = np.append(built, _checksum(built))
    if replace_file(file, lambda stream: _save(stream, checked)):
        _prune(file.parent)
    found = _load(file, length)  # mapped: the ranks of a machine share one copy, whoever wrote it
    return built if found is None else found


def _prune(folder: Path) -> None:
    """Remove all but the newest files, what a killed process left half-written included.

    A rank that has an old one mapped keeps it until it ends.
    """
    with suppress(OSError):  # another rank was first; the next file written prunes again
        files = [file for file in folder.iterdir() if file.suffix in {".npy", ".part"}]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-KEPT_FILES]:
            file.unlink()


def _load(file: Path, length: int) -> NDArray[np.int64] | None:
    """Return the vector, or none where the file is absent, unreadable or damaged."""
    header = _header(length + 1)
    try:
        with file.open("rb") as stream:
            start = stream.read(len(header))
        if start != header or file.stat().st_size != len(header) + 8 * (length + 1):
            return None
        vector: NDArray[np.int64] = np.memmap(file, "<i8", mode="r", offset=len(header))
    except OSError:
        return None
    return vector[:-1] if vector[-1] == _checksum(vector[:-1]) else None


def _save(stream: BinaryIO, vector: NDArray[np.int64]) -> None:
    stream.write(_header(len(vector)))
    stream.write(np.ascontiguousarray(vector, "<i8").data)


def _header(length: int) -> bytes:
    """Return the start of an ``.npy`` file; comparing it spares parsing a damaged one."""
    buffer = BytesIO()
    kind = {"descr": "<i8", "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, kind)
    return buffer.getvalue()


def _checksum(vector: NDArray[np.int64]) -> int:
    return zlib.crc32(vector.data)
