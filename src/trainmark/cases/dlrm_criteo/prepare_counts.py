"""How often every category occurs, in bounded memory.

Owns the counts of one day: gathering them block by block and writing sorted runs when there
are too many to hold. Must not know files of rows, splits or how categories are numbered.

A count is one word: the category in its upper 32 bits, how often in its lower ones. So a
plain sort orders counts by category, and adding up is one pass over the sorted words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .prepare_rows import NUM_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from numpy.typing import NDArray

    from trainmark.preparing import Unfinished

    from .prepare_rows import Columns

    Counts = NDArray[np.uint64]

# Held in memory, 256 MB; adding up copies a column several times, two columns at once.
HELD_COUNTS = 1 << 25
HALF = np.uint64(32)
MOST = (1 << 32) - 1  # a count that is larger stays at this; thresholds are far smaller


def counts_of(columns: Columns) -> tuple[list[Counts], NDArray[np.int64]]:
    """Return each column's counts, and how often its field is empty, int64 (26,)."""
    present = ~columns.missing
    found = []
    for values, kept in zip(columns.categories, present, strict=True):
        ordered = np.sort(values[kept])
        starts = _group_starts(ordered)
        often = np.diff(starts, append=len(ordered)).astype(np.uint64)
        found.append(ordered[starts].astype(np.uint64) << HALF | often)
    return found, columns.missing.sum(axis=1)


def add_up(parts: Sequence[Counts]) -> Counts:
    """Return one sorted array in which every category occurs once."""
    words = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    words.sort()
    categories = categories_of(words)
    starts = _group_starts(categories)
    if not len(starts):
        return words
    often = np.minimum(np.add.reduceat(words & np.uint64(MOST), starts), np.uint64(MOST))
    return categories[starts].astype(np.uint64) << HALF | often


def categories_of(words: Counts) -> NDArray[np.uint32]:
    """Return the categories of counts."""
    return (words >> HALF).astype(np.uint32)


def times_of(words: Counts) -> NDArray[np.int64]:
    """Return how often each category of counts occurs."""
    return (words & np.uint64(MOST)).astype(np.int64)


def _group_starts(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each run of equal values starts."""
    if not len(ordered):
        return np.empty(0, np.int64)
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.concatenate([np.zeros(1, np.int64), changes])


class DayCounts:
    """Counts of one day on their way to disk.

    Args:
        unfinished: where the runs are written.
        folder: their folder below it.
        pool: adds up several columns at once.
    """

    def __init__(self, unfinished: Unfinished, folder: str, pool: Executor) -> None:
        self._unfinished = unfinished
        self._folder = folder
        self._pool = pool
        self._parts: list[list[Counts]] = [[] for _ in range(NUM_CATEGORIES)]
        self._held = 0
        self._missing = np.zeros(NUM_CATEGORIES, np.int64)
        self._rows = 0
        self._runs: list[dict[str, Any]] = []

    @property
    def rows(self) -> int:
        """Rows counted so far."""
        return self._rows

    def add(self, counts: Sequence[Counts], missing: NDArray[np.int64], rows: int) -> None:
        """Take the counts of one block; write a run when too many are held."""
        for parts, new in zip(self._parts, counts, strict=True):
            parts.append(new)
            self._held += len(new)
        self._missing += missing
        self._rows += rows
        if self._held > HELD_COUNTS:
            self._shrink()
            if self._held > HELD_COUNTS * 3 // 4:
                self._write()

    def close(self) -> dict[str, Any]:
        """Write what is left; return ``rows``, ``missing`` and ``runs`` for the manifest."""
        self._shrink()
        self._write()
        return {"rows": self._rows, "missing": self._missing.tolist(), "runs": self._runs}

    def _shrink(self) -> None:
        self._parts = [[words] for words in self._pool.map(add_up, self._parts)]
        self._held = sum(len(words) for (words,) in self._parts)

    def _write(self) -> None:
        """Write all columns, one after the other, as one run."""
        columns = [words for (words,) in self._parts]
        relative = f"{self._folder}/run_{len(self._runs)}.bin"

        def write(file: Path) -> None:
            with file.open("wb") as stream:
                for words in columns:
                    stream.write(words.astype("<u8", copy=False).data)

        self._unfinished.write(relative, write)
        self._runs.append({"file": relative, "sizes": [len(words) for words in columns]})
        self._parts = [[] for _ in range(NUM_CATEGORIES)]
        self._held = 0
