"""Batches of a split: the rows that a rank trains or scores, as tensors on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainmark.protocols import Batch, Counts
from trainmark.train.shards import evaluation_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from trainmark.data.split import Split
    from trainmark.train.shards import Sharding


def tensors_of(arrays: Any) -> Any:
    """Return arrays in tuples as tensors; anything else as it is."""
    if isinstance(arrays, tuple):
        return tuple(map(tensors_of, arrays))
    return torch.from_numpy(arrays) if isinstance(arrays, np.ndarray) else arrays


def training_batches(
    split: Split,
    sharding: Sharding,
    epoch: int,
    *,
    order: NDArray[np.int64] | None = None,
    counted: bool = True,
    tensors: Callable[[Any], Any] = tensors_of,
) -> Iterator[Batch]:
    """Yield this rank's micro-batches of ``epoch``.

    Args:
        order: see ``Sharding.micro_batches``.
        counted: false where another rank of the same replica counts the samples.
        tensors: turns what ``split.batch`` returns into tensors.
    """
    for part in sharding.micro_batches(epoch, order=order):
        arrays, counts = split.batch(part.rows)
        if part.weightless:
            counts = Counts()
        yield Batch(
            tensors(arrays), counts if counted else Counts(), part.step_samples, part.closes_step,
            shared_samples=0 if counted else counts.samples,
        )  # fmt: skip


def evaluation_batches(
    split: Split,
    *,
    size: int,
    rank: int,
    world_size: int,
    tensors: Callable[[Any], Any] = tensors_of,
) -> Iterator[tuple[Any, int]]:
    """Yield tensors of the rows that ``rank`` scores, and how many they are.

    Every rank gets as many batches, as a sharded model needs: one without rows of its own gets
    a row of the others, and 0.
    """
    rows = np.array(evaluation_rows(len(split), rank=rank, world_size=world_size), np.int64)
    most = -(-len(split) // world_size)
    for first in range(0, most, size):
        mine = rows[first : first + size]
        arrays, _ = split.batch(mine if len(mine) else np.zeros(1, np.int64))
        yield tensors(arrays), len(mine)
