"""Batches of a click log, read from its files one after another.

Owns which bytes a rank reads. Must not know what the values mean; that they lie in their range
was checked before.
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
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .layout import FeatureSpec


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


class SplitReader:
    """The rows of one split in batches; ``columns`` are the tables this rank holds.

    Raises:
        DataError: files are missing, cut off or of different rows; see ``FeatureSpec``.
    """

    def __init__(self, spec: FeatureSpec, split: str, columns: Sequence[int] | None = None) -> None:
        numbers = range(len(spec.cardinalities)) if columns is None else columns
        files, dtypes = spec.files[split], spec.category_dtypes
        self.num_rows = spec.num_rows(split)
        self._numerical = _Rows(files.numerical, "<f2", spec.num_numerical)
        self._label = _Rows(files.label, "u1")
        self._categories = [
            _Rows(files.categories[number], f"<i{CATEGORY_BYTES[dtypes[number]]}")
            for number in numbers
        ]

    def __len__(self) -> int:
        return self.num_rows

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
        count = -(-self.num_rows // global_batch_size)
        numbers = range(count) if order is None else order
        assert len(numbers) == count, f"an order of {len(numbers)} for {count} batches"
        with ExitStack() as stack:
            for source in (self._numerical, self._label, *self._categories):
                stack.enter_context(source)
            yield from self._read(numbers, global_batch_size, rank, world_size)

    def _read(
        self, numbers: Iterable[int], global_batch_size: int, rank: int, world_size: int
    ) -> Iterator[RawBatch]:
        for number in numbers:
            first = int(number) * global_batch_size
            rows = min(global_batch_size, self.num_rows - first)
            # As ``train.shards`` cuts a step.
            begin, end = (first + rows * part // world_size for part in (rank, rank + 1))
            categories = np.empty((len(self._categories), rows), np.int32)
            for row, column in zip(categories, self._categories, strict=True):
                row[:] = column.read(first, first + rows)
            numerical, labels = self._numerical.read(begin, end), self._label.read(begin, end)
            yield RawBatch(numerical, labels.astype(np.float32), categories, rows)


class _Rows:
    """One file of rows of one size, open while batches are read."""

    def __init__(self, file: Path, dtype: str, width: int | None = None) -> None:
        self.file, self.dtype, self.width = file, np.dtype(dtype), width
        self.row_bytes = self.dtype.itemsize * (width or 1)

    def __enter__(self) -> None:
        with readable(self.file):
            self._stream = self.file.open("rb", buffering=0)

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, first: int, end: int) -> NDArray[Any]:
        """Return rows, writable, (end - first,) or (end - first, width)."""
        rows = np.empty(((end - first) * self.row_bytes,), np.uint8)
        with readable(self.file):
            got = os.preadv(self._stream.fileno(), [rows.data], first * self.row_bytes)
        if got != len(rows):
            raise DataError(
                f"it ends before row {end}", where=str(self.file),
                rule="data stays as it is while a run reads it", remedy=AGAIN,
            )  # fmt: skip
        found = rows.view(self.dtype)
        return found if self.width is None else found.reshape(-1, self.width)
