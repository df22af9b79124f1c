"""What reading every byte of a sparse HDF5 file finds, kept for as long as it stays.

Owns the one full read: a digest and the extreme values of each vector, in blocks. Must not
know which values are allowed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.data.cache import replace_file

from .hdf5_groups import open_file

if TYPE_CHECKING:
    from pathlib import Path

    import h5py

FORMAT = 1  # of the kept findings
BLOCK = 1 << 20  # numbers read at a time
PARTS = ("data", "indices", "indptr")


@dataclass(frozen=True, slots=True)
class Extremes:
    """What one vector holds, numbers counted from its start; an empty one: only zeros.

    Args:
        digest: sha256 of its numbers.
        smallest_at, largest_at: where each stands first.
    """

    digest: str
    smallest: int = 0
    smallest_at: int = 0
    largest: int = 0
    largest_at: int = 0


def read_content(file: Path, names: tuple[str, ...], place: Path) -> dict[str, Extremes]:
    """Return the extremes of every vector of the groups ``names``, as ``text/data``.

    A large file takes a minute, so the answer is kept in ``place`` under the file's size
    and time of change. Where nothing can be kept it is computed each time.
    """
    stat = file.stat()  # before reading: a change while we read is then seen next time
    key = {"format": FORMAT, "size_bytes": stat.st_size, "changed_ns": stat.st_mtime_ns}
    kept = place / f"{file.name}.content.json"
    found = _kept(kept, key)
    if found is None or any(f"{name}/{part}" not in found for name in names for part in PARTS):
        with open_file(file) as opened:
            found = {
                f"{name}/{part}": _scan(opened[name][part]) for name in names for part in PARTS
            }
        content = {**key, "found": {name: asdict(entry) for name, entry in found.items()}}
        text = json.dumps(content, indent=1) + "\n"
        replace_file(kept, lambda stream: stream.write(text.encode()))
    return found


def _scan(dataset: h5py.Dataset) -> Extremes:
    """Read a vector once, in blocks."""
    digest = sha256(f"{len(dataset)}".encode())
    low: tuple[int, int] | None = None
    high: tuple[int, int] | None = None
    for first in range(0, len(dataset), BLOCK):
        block = dataset[first : first + BLOCK].astype(np.int64)
        digest.update(block.data)
        smallest, largest = int(block.min()), int(block.max())
        if low is None or smallest < low[0]:
            low = smallest, first + int(block.argmin())
        if high is None or largest > high[0]:
            high = largest, first + int(block.argmax())
    if low is None or high is None:
        return Extremes(digest.hexdigest())
    return Extremes(digest.hexdigest(), *low, *high)


def _kept(file: Path, key: dict[str, int]) -> dict[str, Extremes] | None:
    """Return the kept findings, or none where they are absent, damaged or of other bytes."""
    try:
        content: Any = json.loads(file.read_bytes())
        if any(content[name] != value for name, value in key.items()):
            return None
        found = {name: Extremes(**entry) for name, entry in content["found"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    kinds = {name: str if name == "digest" else int for name in Extremes.__slots__}
    sound = all(
        type(getattr(entry, name)) is kind
        for entry in found.values()
        for name, kind in kinds.items()
    )
    return found if sound else None
