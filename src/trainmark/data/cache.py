"""What was computed from input files, cached beside them.

Owns that a cached file is there whole or not at all, and that a folder nobody may write costs
time but no run. Must not know what is cached.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from trainmark.digests import hash_stream
from trainmark.documents import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


ARRAYS_FILE = "arrays.json"  # lists a folder's arrays with their sha256


def replace_file(file: Path, write: Callable[[IO[bytes]], object]) -> bool:
    """Give ``file`` the content that ``write`` writes, whole; tell whether that was possible.

    Ranks may do so at once: each writes under a name of its own, the last one stays.
    """
    try:
        file.parent.mkdir(exist_ok=True)
        with write_atomically(file) as stream:
            write(stream)
    except OSError:  # read-only or full: a cache is no condition of a run
        return False
    return True


def mapped_arrays(folder: Path, build: Callable[[], list[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Return the arrays of ``folder``, mapped; one process builds and writes them, others wait.

    Arrays that are not as they were written are built again: orders and places that contradict
    each other would leave rows out.

    Args:
        folder: its name must say all that the arrays depend on.
    """
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    arrays = _read_arrays(folder)
    if arrays is not None:
        return arrays
    writable = os.access(folder, os.W_OK)
    with FileLock(folder / ".lock") if writable else nullcontext():
        arrays = _read_arrays(folder)  # another process may have written them meanwhile
        if arrays is None:
            built = build()
            if not _write_arrays(folder, built):
                return built
            arrays = [np.load(folder / name, mmap_mode="r") for name in _names(built)]
    return arrays


def _names(arrays: Sequence[NDArray[Any]]) -> list[str]:
    return [f"{number:02}.npy" for number in range(len(arrays))]


def _read_arrays(folder: Path) -> list[NDArray[Any]] | None:
    """Return the arrays that ``folder`` lists, mapped; None if one is not as it was written."""
    try:
        listed: dict[str, str] = json.loads((folder / ARRAYS_FILE).read_bytes())
        for name, digest in listed.items():
            with (folder / name).open("rb") as stream:
                if hash_stream(stream).hexdigest() != digest:
                    return None
        return [np.load(folder / name, mmap_mode="r") for name in listed]
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write_arrays(folder: Path, arrays: Sequence[NDArray[Any]]) -> bool:
    """Write arrays and then their list; return whether that was possible."""
    listed = {}
    for name, array in zip(_names(arrays), arrays, strict=True):
        if not replace_file(folder / name, partial(np.save, arr=array)):
            return False
        with (folder / name).open("rb") as stream:
            listed[name] = hash_stream(stream).hexdigest()
    return replace_file(
        folder / ARRAYS_FILE, lambda stream: stream.write(json.dumps(listed).encode())
    )


@dataclass(frozen=True, slots=True)
class Extremes:
    """The sha256 of a vector's bytes, and the least and greatest of its whole numbers."""

    digest: str
    smallest: int
    largest: int


def extremes(
    blocks: Iterable[NDArray[Any]],
    *,
    digest: Any = None,
    comparable: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> Extremes:
    """Return the extremes of a vector that comes in blocks, none of them empty.

    Args:
        digest: a sha256 to go on with; none: a new one.
        comparable: maps a block to the whole numbers that are compared.
    """
    digest = digest or sha256()
    ends: list[int] = []
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
        values = comparable(block)
        ends += (int(values.min()), int(values.max()))
    return Extremes(digest.hexdigest(), min(ends), max(ends))


def cached_scan(
    file: Path, scanned: Mapping[str, Path], scan: Callable[[], Mapping[str, Extremes]]
) -> dict[str, Extremes]:
    """Return what ``scan`` finds, from ``file`` where nothing has changed since.

    A large data set takes minutes to read. Where nothing can be cached it is read each time.

    Args:
        scanned: the files that are read, by names that say all that the findings depend on;
            findings are valid for as long as sizes and times of change stay.

    Raises:
        OSError: one of them cannot be read.
    """
    stats = {name: path.stat() for name, path in scanned.items()}
    before = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    with suppress(OSError, ValueError, KeyError, TypeError):  # absent, or of another version
        cached = json.loads(file.read_bytes())
        if cached["files"] == before:
            return {
                name: Extremes(**extremes_by_name)
                for name, extremes_by_name in cached["found"].items()
            }
    extremes_by_name = dict(scan())
    written = {
        "files": before,
        "found": {name: asdict(item) for name, item in extremes_by_name.items()},
    }
    replace_file(file, lambda stream: stream.write(json.dumps(written, indent=1).encode()))
    return extremes_by_name
