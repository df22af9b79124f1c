"""What reading every byte of a click log finds, kept for as long as the files stay.

Owns the one full read: a digest and the extreme values of each file, in blocks, files side
by side. Must not know which values are allowed.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import replace_file

from .layout import CATEGORY_BYTES, readable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .layout import FeatureSpec

KEPT_FILE = "content.json"  # in the data folder
FORMAT = 1  # of the kept findings
BLOCK_BYTES = 1 << 22
_SIZE_BITS = 0x7FFF  # of a float16: all but the sign; larger numbers have larger bits
_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Extremes:
    """What one file holds, values counted from its start.

    Args:
        digest: sha256 of its bytes.
        smallest, largest: labels and categories as they are; of float16 the bits without
            the sign, which order as the sizes of the numbers do, infinity and nan last.
        smallest_at, largest_at: where each stands first.
    """

    digest: str
    smallest: int
    smallest_at: int
    largest: int
    largest_at: int


def read_content(folder: Path, spec: FeatureSpec) -> dict[Path, Extremes]:
    """Return the extremes of every file that ``spec`` names; none of them is empty.

    A large log takes minutes, so the answer is kept beside the data under all files' sizes
    and times of change. Where nothing can be kept it is computed each time.

    Raises:
        DataError: a file cannot be read.
    """
    kinds = _kinds(spec)
    key = {}
    for file, kind in kinds.items():
        with readable(file):  # before reading: a change while we read is then seen next time
            stat = file.stat()
        key[file.relative_to(folder).as_posix()] = [stat.st_size, stat.st_mtime_ns, kind.str]
    place = folder / KEPT_FILE
    found = _kept(place, key)
    if found is None:
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads, "dlrm-check") as pool:
            found = list(pool.map(_scan, kinds, kinds.values()))
        _keep(place, key, found)
    return dict(zip(kinds, found, strict=True))


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
    digest, at = sha256(), 0
    low: tuple[int, int] | None = None
    high: tuple[int, int] | None = None
    block = np.empty(BLOCK_BYTES // kind.itemsize, kind)
    with readable(file), file.open("rb") as stream:
        while got := stream.readinto(block.view(np.uint8).data):
            digest.update(block.view(np.uint8).data[:got])
            values = _comparable(block[: got // kind.itemsize])
            smallest, largest = int(values.min()), int(values.max())
            if low is None or smallest < low[0]:
                low = smallest, at + int(values.argmin())
            if high is None or largest > high[0]:
                high = largest, at + int(values.argmax())
            at += len(values)
    assert low is not None, "the caller refuses empty files"
    assert high is not None
    return Extremes(digest.hexdigest(), *low, *high)


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    return values.view("<u2") & _SIZE_BITS if values.dtype.kind == "f" else values


def _kept(place: Path, key: dict[str, list[Any]]) -> list[Extremes] | None:
    """Return the kept findings, or none where they are absent, damaged or of other files."""
    try:
        kept = json.loads(place.read_bytes())
        if kept["format"] != FORMAT or kept["files"] != key or len(kept["found"]) != len(key):
            return None
        found = [Extremes(**entry) for entry in kept["found"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    kinds = {name: str if name == "digest" else int for name in Extremes.__slots__}
    sound = all(type(getattr(e, name)) is kind for e in found for name, kind in kinds.items())
    return found if sound else None


def _keep(place: Path, key: dict[str, list[Any]], found: list[Extremes]) -> None:
    """Write the findings."""
    kept = {"format": FORMAT, "files": key, "found": [asdict(entry) for entry in found]}
    text = json.dumps(kept, indent=1) + "\n"
    replace_file(place, lambda stream: stream.write(text.encode()))
