"""What reading every byte of a click log finds, cached for as long as the files stay.

Owns which files are read and as what, several at a time. Must not know which values are
allowed.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import Extremes, cached_scan, extremes

from .layout import CATEGORY_BYTES, readable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .layout import FeatureSpec

CACHE_FILE = "content.json"  # in the data folder
BLOCK_BYTES = 1 << 22
_SIZE_BITS = 0x7FFF  # of a float16: all but the sign; larger numbers have larger bits
_MOST_THREADS = 8


def read_content(folder: Path, spec: FeatureSpec) -> dict[Path, Extremes]:
    """Return the extremes of every file that ``spec`` names; none of them is empty.

    Labels and categories are compared as they are; of float16 the bits without the sign,
    which order as the sizes of the numbers do, infinity and nan last. A large log takes
    minutes; see ``cached_scan``.

    Raises:
        DataError: a file cannot be read.
    """
    kinds = _kinds(spec)
    names = {f"{file.relative_to(folder).as_posix()} {kinds[file].str}": file for file in kinds}

    def scan() -> dict[str, Extremes]:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            found = list(pool.map(_scan, kinds, kinds.values()))
        return dict(zip(names, found, strict=True))

    for file in kinds:
        with readable(file):
            file.stat()
    found = cached_scan(folder / CACHE_FILE, names, scan)
    return {file: found[name] for name, file in names.items()}


def _kinds(spec: FeatureSpec) -> dict[Path, np.dtype[Any]]:
    """Return the element type of every file."""
    label, numerical = np.dtype("u1"), np.dtype("<f2")
    columns = [np.dtype(f"<i{CATEGORY_BYTES[dtype]}") for dtype in spec.category_dtypes]
    kinds: dict[Path, np.dtype[Any]] = {}
    for files in spec.files.values():
        kinds |= {files.label: label, files.numerical: numerical}
        kinds |= zip(files.categories, columns, strict=True)
    return kinds


def _scan(file: Path, kind: np.dtype[Any]) -> Extremes:
    """Read a file once, in blocks."""

    def blocks() -> Iterator[NDArray[Any]]:
        with readable(file), file.open("rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                yield np.frombuffer(block, kind)

    return extremes(blocks(), comparable=_comparable)


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    return values.view("<u2") & _SIZE_BITS if values.dtype.kind == "f" else values
