"""Number the categories of one column by falling frequency, in bounded memory.

Owns adding up the runs of all days, the numbers, and looking them up. Must not know rows.

Number 0 is for all that are rarer than the threshold or never counted. An empty field is a
category of its own and takes number 1 if it is frequent enough. The rest follow, the most
frequent first, equally frequent ones by value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .prepare_counts import HALF, add_up, categories_of, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from .prepare_counts import Counts

SLICE_COUNTS = 1 << 24  # added up at once: some 600 MB with all copies
CATEGORIES = 1 << 32
BUCKETS = 1 << 24  # at most, of one column: 64 MB, so 1.7 GB of all 26
STEPS = 3


def read_run(folder: Path, run: Mapping[str, Any], column: int) -> Counts:
    """Map one column of a run into memory."""
    sizes = run["sizes"]
    if not sizes[column]:
        return np.empty(0, np.uint64)  # nothing cannot be mapped
    start = 8 * sum(sizes[:column])
    return np.memmap(folder / run["file"], "<u8", "r", start, (sizes[column],))


def number_column(
    runs: Sequence[Counts], missing: int, threshold: int, folder: Path
) -> dict[str, int]:
    """Write ``values.bin`` (uint32, sorted) and ``numbers.bin`` (int32) of the frequent ones.

    Args:
        runs: sorted counts, of which any number may name the same category.
        missing: how often the field is empty.
        threshold: the least count of a category with a number of its own.
        folder: where the two files go; a third is left there that holds the counts.

    Returns:
        ``size``: frequent values; ``missing``: number of an empty field; ``cardinality``.
    """
    levels: Counter[int] = Counter()
    counts = folder / "counts.bin"
    size = 0
    with counts.open("wb") as kept, (folder / "values.bin").open("wb") as values:
        for words in _slices(runs):
            frequent = words[times_of(words) >= threshold]
            found, often = np.unique(times_of(frequent), return_counts=True)
            levels.update(dict(zip(found.tolist(), often.tolist(), strict=True)))
            kept.write(times_of(frequent).astype("<u4").data)
            values.write(categories_of(frequent).astype("<u4").data)
            size += len(frequent)
    first = 1 + (missing >= threshold)
    with counts.open("rb") as kept, (folder / "numbers.bin").open("wb") as numbers:
        for part in _number(kept, levels, first):
            numbers.write(part.astype("<i4").data)
    return {"size": size, "missing": first - 1, "cardinality": first + size}


def _number(kept: Any, levels: Mapping[int, int], first: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of counts read piece by piece from ``kept``: a counting sort."""
    ordered = np.array(sorted(levels), np.int64)
    sizes = np.array([levels[level] for level in ordered.tolist()], np.int64)
    following = first + sizes.sum() - np.cumsum(sizes)  # the next number of each level
    while data := kept.read(4 * SLICE_COUNTS):
        level = np.searchsorted(ordered, np.frombuffer(data, "<u4"))
        order = np.argsort(level, kind="stable")
        often = np.bincount(level, minlength=len(ordered))
        before = np.cumsum(often) - often
        numbers = np.empty(len(level), np.int64)
        numbers[order] = (following - before)[level[order]] + np.arange(len(level))
        following += often
        yield numbers


def _slices(runs: Sequence[Counts]) -> Iterator[Counts]:
    """Yield all counts added up, in order, cutting the values until a slice can be held."""
    waiting = [(0, CATEGORIES)]
    while waiting:
        low, high = waiting.pop()
        parts = [_between(run, low, high) for run in runs]
        if sum(map(len, parts)) > SLICE_COUNTS and high - low > 1:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]
        else:
            yield add_up(parts)


def _between(run: Counts, low: int, high: int) -> Counts:
    """Return the counts of categories from ``low`` up to ``high``, without it."""
    start = np.searchsorted(run, np.uint64(low) << HALF)
    end = len(run) if high == CATEGORIES else np.searchsorted(run, np.uint64(high) << HALF)
    return run[start:end]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The numbers of one column, looked up.

    The upper bits of a category give the place where those with the same bits begin: mostly
    none or one. What is not found in ``STEPS`` steps from there is searched for.

    Args:
        values: uint32, sorted; may lie on disk.
        numbers: int32, of each value.
        begins: int32, the place of the first value in each bucket.
        shift: bits of a category below those that choose the bucket.
        missing: number of an empty field.
    """

    values: NDArray[np.uint32]
    numbers: NDArray[np.int32]
    begins: NDArray[np.int32]
    shift: np.uint32
    missing: int

    @classmethod
    def open(cls, folder: Path, facts: Mapping[str, int]) -> Vocabulary:
        """Open what ``number_column`` wrote and returned."""
        size = facts["size"]
        if not size:
            values, numbers = np.empty(0, np.uint32), np.empty(0, np.int32)
        else:
            # Mapped: a large vocabulary is the system's to drop from memory and read again.
            values = np.asarray(np.memmap(folder / "values.bin", "<u4", "r", 0, (size,)))
            numbers = np.asarray(np.memmap(folder / "numbers.bin", "<i4", "r", 0, (size,)))
        bits = min(max(2 * size, 2).bit_length(), BUCKETS.bit_length() - 1)
        shift = 32 - bits
        ends = np.zeros(1 << bits, np.int32)
        for start in range(0, size, SLICE_COUNTS):
            buckets = values[start : start + SLICE_COUNTS] >> np.uint32(shift)
            ends += np.bincount(buckets, minlength=1 << bits).astype(np.int32)
        begins = np.zeros_like(ends)
        np.cumsum(ends[:-1], out=begins[1:])
        return cls(values, numbers, begins, np.uint32(shift), facts["missing"])

    def look_up(
        self, categories: NDArray[np.uint32], missing: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """Return the number of each category, int32 of the same shape (rows,)."""
        if not len(self.values):
            return np.where(missing, np.int32(self.missing), np.int32(0))
        places = self.begins[categories >> self.shift]
        found = self.values.take(places, mode="clip")
        later = np.flatnonzero(found < categories)
        for _ in range(STEPS):
            places[later] += 1
            found[later] = self.values.take(places[later], mode="clip")
            later = later[found[later] < categories[later]]
        if len(later):
            places[later] = np.searchsorted(self.values, categories[later])
            found[later] = self.values.take(places[later], mode="clip")
        numbers: NDArray[np.int32] = self.numbers.take(places, mode="clip")
        numbers[found != categories] = 0
        numbers[missing] = self.missing
        return numbers
