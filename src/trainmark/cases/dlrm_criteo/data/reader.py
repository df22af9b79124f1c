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

from .layout import AGAIN, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
        self.files, self.kinds = spec.files[split], spec.row_types(split)
        self.columns = range(len(spec.cardinalities)) if columns is None else columns
        self.num_rows = spec.num_rows(split)

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
        own = [self.files.categories[number] for number in self.columns]
        with ExitStack() as stack:
            streams = {}
            for file in (self.files.numerical, self.files.label, *own):
                with readable(file):
                    streams[file] = stack.enter_context(file.open("rb", buffering=0)).fileno()

            def read(file: Path, first: int, end: int) -> NDArray[Any]:
                return _rows(file, streams[file], self.kinds[file], first, end)

            for number in numbers:
                first = int(number) * global_batch_size
                rows = min(global_batch_size, self.num_rows - first)
                # As ``train.shards`` cuts a step.
                begin, end = (first + rows * part // world_size for part in (rank, rank + 1))
                categories = np.empty((len(own), rows), np.int32)
                for column, file in zip(categories, own, strict=True):
                    column[:] = read(file, first, first + rows)
                labels = read(self.files.label, begin, end).astype(np.float32)
                numerical = read(self.files.numerical, begin, end)
                yield RawBatch(numerical, labels, categories, rows)


def _rows(file: Path, stream: int, kind: np.dtype[Any], first: int, end: int) -> NDArray[Any]:
    """Return rows of an open file, writable, (end - first,) and the shape of a row."""
    rows = np.empty((end - first) * kind.itemsize, np.uint8)
    with readable(file):
        got = os.preadv(stream, [rows.data], first * kind.itemsize)
    if got != len(rows):
        raise DataError(
            f"it ends before row {end}", where=str(file),
            rule="data stays as it is while a run reads it", remedy=AGAIN,
        )  # fmt: skip
    return rows.view(kind.base).reshape(end - first, *kind.shape)
