"""Batches of a click log, read in portions of several batches.

Owns which bytes a rank reads and in what portions. Must not know what the values mean; that
they lie in their range was checked before.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainmark.errors import DataError

from .layout import AGAIN, CATEGORY_BYTES, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .layout import FeatureSpec

PORTION_ROWS = 1 << 18  # read at a time of each file: 256 KiB to 1 MiB of a column
Rows = tuple[int, int]  # first row and the one after the last


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """One global batch as one rank sees it.

    Args:
        numerical: this rank's slice, float16 (b_local, num_numerical); no row where the
            batch has fewer rows than ranks.
        labels: of the same rows, float32 (b_local,).
        categories: this rank's columns of the whole batch, int32 (columns, step_samples).
        step_samples: rows of the whole batch.
    """

    numerical: NDArray[np.float16]
    labels: NDArray[np.float32]
    categories: NDArray[np.int32]
    step_samples: int


def batches_per_portion(global_batch_size: int) -> int:
    """Return how many batches are read at a time."""
    return max(1, PORTION_ROWS // global_batch_size)


class SplitReader:
    """The rows of one split in batches; ``columns`` are the tables this rank holds.

    Raises:
        DataError: files are missing, cut off or of different rows; see ``FeatureSpec``.
    """

    def __init__(self, spec: FeatureSpec, split: str, columns: Sequence[int] | None = None) -> None:
        numbers = range(len(spec.cardinalities)) if columns is None else columns
        files = spec.files[split]
        self.num_rows = spec.num_rows(split)
        self._numerical = _Source(files.numerical, np.dtype("<f2"), (spec.num_numerical,))
        self._label = _Source(files.label, np.dtype("u1"))
        self._categories = [
            _Source(files.categories[i], np.dtype(f"<i{CATEGORY_BYTES[spec.category_dtypes[i]]}"))
            for i in numbers
        ]

    def batches(
        self,
        global_batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        order: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> Iterator[RawBatch]:
        """Yield the batches of one pass; the split's last one is short.

        Args:
            order: numbers of the batches in the order to read; None: the order of the files.

        Raises:
            DataError: a file can no longer be read as it was when the reader was made.
        """
        assert global_batch_size > 0
        assert 0 <= rank < world_size
        count = -(-self.num_rows // global_batch_size)
        numbers = range(count) if order is None else order
        assert len(numbers) == count, f"an order of {len(numbers)} for {count} batches"
        starts = [int(number) * global_batch_size for number in numbers]
        spans = [(start, min(start + global_batch_size, self.num_rows)) for start in starts]
        return self._read(spans, batches_per_portion(global_batch_size), rank, world_size)

    def _read(
        self, spans: list[Rows], portion: int, rank: int, world_size: int
    ) -> Iterator[RawBatch]:
        with ExitStack() as stack:
            for source in (self._numerical, self._label, *self._categories):
                stack.enter_context(source)
            at, size = 0, 1  # the first batch must not wait for a whole portion
            while at < len(spans):
                yield from self._portion(spans[at : at + size], rank, world_size)
                at, size = at + size, min(2 * size, portion)

    def _portion(self, spans: list[Rows], rank: int, world_size: int) -> Iterator[RawBatch]:
        mine = [_slice_of(span, rank, world_size) for span in spans]
        for source, wanted in (
            (self._numerical, mine), (self._label, mine),
            *((column, spans) for column in self._categories),
        ):  # fmt: skip
            source.announce(wanted)
        numerical, labels = self._numerical.read(mine), self._label.read(mine)
        columns = [column.read(spans) for column in self._categories]
        for number, (first, end) in enumerate(spans):
            categories = np.empty((len(columns), end - first), np.int32)
            for row, column in zip(categories, columns, strict=True):
                row[:] = column[number]
            yield RawBatch(
                numerical[number], labels[number].astype(np.float32), categories, end - first
            )


def _slice_of(span: Rows, rank: int, world_size: int) -> Rows:
    """Return the rows of a batch that a rank trains, cut as ``training.shards`` cuts them."""
    first, end = span
    rows = end - first
    return first + rows * rank // world_size, first + rows * (rank + 1) // world_size


class _Source:
    """One file of rows of one size, open while batches are read."""

    def __init__(self, file: Path, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> None:
        self.file, self.dtype, self.shape = file, dtype, shape
        self.row_bytes = dtype.itemsize * int(np.prod(shape))

    def __enter__(self) -> _Source:
        with readable(self.file):
            self._stream = self.file.open("rb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def announce(self, wanted: list[Rows]) -> None:
        """Have the system fetch rows while others are read: files are then read at once."""
        for first, end in _joined(wanted):
            place, length = first * self.row_bytes, (end - first) * self.row_bytes
            os.posix_fadvise(self._stream.fileno(), place, length, os.POSIX_FADV_WILLNEED)

    def read(self, wanted: list[Rows]) -> list[NDArray[Any]]:
        """Return the rows of each stretch; stretches that follow each other are read as one."""
        sizes = [end - first for first, end in wanted]
        rows = np.empty((sum(sizes), *self.shape), self.dtype)
        room = rows.reshape(-1).view(np.uint8).data
        for first, end in _joined(wanted):
            length = (end - first) * self.row_bytes
            self._fill(room[:length], first)
            room = room[length:]
        return np.split(rows, np.cumsum(sizes)[:-1])

    def _fill(self, room: memoryview, first: int) -> None:
        with readable(self.file):
            self._stream.seek(first * self.row_bytes)
            while room:
                got = self._stream.readinto(room)
                if not got:
                    raise DataError(
                        f"it ends before row {first + 1} and those that follow are whole",
                        where=str(self.file),
                        rule="data stays as it is while a run reads it", remedy=AGAIN,
                    )  # fmt: skip
                room = room[got:]


def _joined(wanted: list[Rows]) -> list[Rows]:
    """Return the stretches that are not empty, those that follow each other as one."""
    joined: list[Rows] = []
    for first, end in wanted:
        if first == end:
            continue
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((first, end))
    return joined
