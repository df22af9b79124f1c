"""Caches, beside the input files, what was computed from them.

A cached file is complete or absent. If the folder cannot be written, the result is computed again
by each run. This module does not know what is cached.
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
    """Replace ``file`` by what ``write`` writes; return whether that was possible.

    Ranks may do so at the same time: each writes a temporary file, and the last rename wins.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(file) as stream:
            write(stream)
    except OSError:  # a read-only or full disk: a run does not need the cache
        return False
    return True


def load_or_build_arrays(
    folder: Path, build: Callable[[], list[NDArray[Any]]]
) -> list[NDArray[Any]]:
    """Return the arrays cached in ``folder``, memory-mapped; build them if they are missing.

    One process builds and writes them while the others wait. Arrays whose digests do not match are
    built again: damaged arrays, or some of another call, would give wrong samples.

    Args:
        folder: its name must contain everything that the arrays depend on.
        build: computes the arrays.
    """
    with suppress(OSError):  # a read-only or full disk: the arrays are then built, but not cached
        folder.mkdir(parents=True, exist_ok=True)
    arrays = _read_arrays(folder)
    if arrays is not None:
        return arrays
    # Without permission to write there can be no lock file: each process then builds for itself.
    is_writable = os.access(folder, os.W_OK)
    with FileLock(folder / ".lock") if is_writable else nullcontext():
        arrays = _read_arrays(folder)  # another process may have written them meanwhile
        if arrays is None:
            built_arrays = build()
            if not _write_arrays(folder, built_arrays):
                return built_arrays
            # Map them from the files: all processes of a machine then share one copy in memory.
            names = _name_arrays(built_arrays)
            arrays = [np.load(folder / name, mmap_mode="r") for name in names]
    return arrays


def _name_arrays(arrays: Sequence[NDArray[Any]]) -> list[str]:
    """Return the name of the file of each array."""
    return [f"{number:02}.npy" for number in range(len(arrays))]


def _read_arrays(folder: Path) -> list[NDArray[Any]] | None:
    """Return the arrays that are cached in ``folder``, memory-mapped.

    The file ``ARRAYS_FILE`` lists the file of each array with its digest. None if it or an array is
    missing or damaged, or if a digest differs.
    """
    try:
        digests: dict[str, str] = json.loads((folder / ARRAYS_FILE).read_bytes())
        for name, digest in digests.items():
            with (folder / name).open("rb") as stream:
                if hash_stream(stream).hexdigest() != digest:
                    return None
        return [np.load(folder / name, mmap_mode="r") for name in digests]
    except (OSError, ValueError, TypeError, AttributeError):  # missing, or not what was written
        return None


def _write_arrays(folder: Path, arrays: Sequence[NDArray[Any]]) -> bool:
    """Write the arrays, then their digests; return whether that was possible.

    The digests come last. Arrays without digests count as missing, so nothing of an interrupted
    call is used.
    """
    digests = {}
    for name, array in zip(_name_arrays(arrays), arrays, strict=True):
        if not replace_file(folder / name, partial(np.save, arr=array)):
            return False
        with (folder / name).open("rb") as stream:
            digests[name] = hash_stream(stream).hexdigest()
    return replace_file(
        folder / ARRAYS_FILE, lambda stream: stream.write(json.dumps(digests).encode())
    )


@dataclass(frozen=True, slots=True)
class Extremes:
    """The sha256 of an integer vector's bytes, and its smallest and largest value."""

    digest: str
    smallest: int
    largest: int


def compute_extremes(
    blocks: Iterable[NDArray[Any]],
    *,
    digest: Any = None,
    to_integers: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray,
) -> Extremes:
    """Return digest, minimum and maximum of a vector that comes in blocks.

    Args:
        blocks: at least one, none of them empty.
        digest: the sha256 object to update; None: a new one.
        to_integers: converts a block to the integers whose extremes are returned. Floats, for
            example, become their bits without the sign: the largest tells whether all are finite,
            because those of infinity and nan are the largest. The digest is always that of the
            block itself.
    """
    if digest is None:
        digest = sha256()
    minima: list[int] = []
    maxima: list[int] = []
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
        values = to_integers(block)
        minima.append(int(values.min()))
        maxima.append(int(values.max()))
    return Extremes(digest.hexdigest(), min(minima), max(maxima))


def load_or_scan(
    file: Path, inputs: Mapping[str, Path], scan: Callable[[], Mapping[str, Extremes]]
) -> dict[str, Extremes]:
    """Return the result of ``scan``, cached in ``file`` until one of the scanned inputs changes.

    A large data set takes minutes to read. If nothing can be cached, it is read each time.

    Args:
        file: the cache.
        inputs: the files that ``scan`` reads, by name. A file has changed if its name, size or
            modification time differs; if the result depends on anything else, the caller puts that
            into the names.
        scan: returns digest, smallest and largest value of each part of the data, by its name.

    Raises:
        OSError: an input cannot be read.
    """
    stats = {name: path.stat() for name, path in inputs.items()}
    versions = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}
    # The cache is absent, damaged or of another version of this program: scan.
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(file.read_bytes())
        if cached["files"] == versions:
            return {name: Extremes(**fields) for name, fields in cached["found"].items()}
    extremes_by_name = dict(scan())
    document = {
        "files": versions,
        "found": {name: asdict(extremes) for name, extremes in extremes_by_name.items()},
    }
    # Does nothing if the disk is full or read-only.
    replace_file(file, lambda stream: stream.write(json.dumps(document, indent=1).encode()))
    return extremes_by_name
