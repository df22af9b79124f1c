"""Decide which rank trains which rows, in which order, and make batches of these rows.

An epoch is split into optimizer steps, ranks and micro-batches, so that every row is trained
exactly once in an epoch and every sample of a step has the same weight. Batches are tensors on the
host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainmark.protocols import Batch, Counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from trainmark.data.splits import Split
    from trainmark.protocols import JobContext
    from trainmark.train.parallel import Ranks


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Row numbers of one micro-batch of one rank.

    Attributes:
        step_samples: rows of the whole step, over all ranks.
        closes_step: it is the last micro-batch of the step.
        weightless: it is a filler. The rank has no more rows in this step and trains one row with
            weight 0, because every rank must take part in each pass and reduction.
    """

    rows: NDArray[np.int64]
    step_samples: int
    closes_step: bool
    weightless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The split of ``num_rows`` rows for one rank.

    A step takes ``micro_batch_size x grad_accum_steps x world_size`` rows of the epoch's
    permutation; the last step takes the remaining rows. A step's rows are split over the ranks
    as evenly as possible.
    """

    num_rows: int
    micro_batch_size: int
    grad_accum_steps: int
    world_size: int
    rank: int
    seed: int

    @classmethod
    def of(cls, context: JobContext, *, num_rows: int, ranks: Ranks | None = None) -> Sharding:
        """Return how an epoch's rows are split for the recipe of ``context``, as its rank sees it.

        Args:
            num_rows: rows of an epoch.
            ranks: coordinates of the rank, if several ranks train a replica together; rows are
                then split over replicas. None: rows are split over all ranks.
        """
        recipe = context.recipe
        return cls(
            num_rows=num_rows,
            micro_batch_size=recipe.micro_batch_size,
            grad_accum_steps=recipe.grad_accum_steps,
            world_size=ranks.data_size if ranks else context.world_size,
            rank=ranks.data_rank if ranks else context.rank,
            seed=recipe.seed,
        )

    @property
    def global_batch_size(self) -> int:
        """Return the rows of a full optimizer step over all ranks."""
        return self.micro_batch_size * self.grad_accum_steps * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Return the optimizer steps of an epoch, including a short last step."""
        return -(-self.num_rows // self.global_batch_size)  # rounded up

    def micro_batches(
        self, epoch: int, *, order: NDArray[np.int64] | None = None, first_step: int = 0
    ) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of ``epoch``.

        Args:
            order: row numbers in the order of training, (num_rows,); None: a permutation that
                depends on seed and epoch.
            first_step: steps of the epoch before this one are left out.
        """
        if order is None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.num_rows)
        assert len(order) == self.num_rows
        first_row = first_step * self.global_batch_size
        for step_start in range(first_row, self.num_rows, self.global_batch_size):
            step_rows = order[step_start : step_start + self.global_batch_size]
            step_samples = len(step_rows)
            start = step_samples * self.rank // self.world_size
            end = step_samples * (self.rank + 1) // self.world_size
            rank_rows = step_rows[start:end]
            # The same number on every rank: each pass of a sharded model involves all ranks.
            num_passes = -(-step_samples // (self.micro_batch_size * self.world_size))  # rounded up
            for number in range(num_passes):
                pass_start = number * self.micro_batch_size
                rows = rank_rows[pass_start : pass_start + self.micro_batch_size]
                is_weightless = len(rows) == 0
                yield MicroBatch(
                    # Without rows of its own, the rank passes any row through the model.
                    rows=step_rows[:1] if is_weightless else rows,
                    step_samples=step_samples,
                    closes_step=number == num_passes - 1,
                    weightless=is_weightless,
                )


def evaluation_rows(num_rows: int, *, rank: int, world_size: int) -> range:
    """Return the rows that ``rank`` scores: all ranks together score each row once."""
    return range(rank, num_rows, world_size)


def convert_to_tensors(arrays: Any) -> Any:
    """Return arrays, also those in tuples, as tensors; anything else stays as it is."""
    if isinstance(arrays, tuple):
        return tuple(map(convert_to_tensors, arrays))
    return torch.from_numpy(arrays) if isinstance(arrays, np.ndarray) else arrays


def training_batches(
    split: Split,
    sharding: Sharding,
    epoch: int,
    *,
    order: NDArray[np.int64] | None = None,
    counted: bool = True,
    first_step: int = 0,
    tensors: Callable[[Any], Any] = convert_to_tensors,
    identity: Callable[[Any], Any] = lambda _: None,
) -> Iterator[Batch]:
    """Yield this rank's micro-batches of ``epoch``.

    Args:
        split: the data; ``split.batch`` returns the arrays and the counts of the rows with some
            numbers.
        sharding: which rows each rank trains in each step.
        order: row numbers in the order of training, (num_rows,); None: a permutation that depends
            on seed and epoch.
        counted: false if another rank of the same replica counts the samples; they are then this
            rank's ``Batch.shared_samples``.
        first_step: steps of the epoch before this one are left out.
        tensors: converts the arrays of ``split.batch`` to tensors.
        identity: returns, from these arrays, values with a row for each sample that tell samples
            apart; None: the tensors do.
    """
    for micro_batch in sharding.micro_batches(epoch, order=order, first_step=first_step):
        arrays, counts = split.batch(micro_batch.rows)
        # A filler row: the rank has no rows left in this step, but takes part in the pass.
        if micro_batch.weightless:
            counts = Counts()
        yield Batch(
            tensors(arrays),
            counts if counted else Counts(),
            micro_batch.step_samples,
            micro_batch.closes_step,
            shared_samples=0 if counted else counts.samples,
            identity=identity(arrays),
        )


def evaluation_batches(
    split: Split, *, size: int, rank: int, world_size: int
) -> Iterator[tuple[Any, int]]:
    """Yield tensors of the rows that ``rank`` scores, and the number of these rows.

    Every rank gets the same number of batches, because each pass of a sharded model involves all
    ranks. A rank that has no more rows gets the tensors of the first row, and the number 0.

    Args:
        split: the data; ``split.batch`` returns the arrays and the counts of the rows with some
            numbers.
        size: rows of a batch.
    """
    rows = np.array(evaluation_rows(len(split), rank=rank, world_size=world_size), np.int64)
    max_rows = -(-len(split) // world_size)  # of the rank with the most rows: rounded up
    filler_rows = np.zeros(1, np.int64)  # row 0, which does not count
    for first in range(0, max_rows, size):
        batch_rows = rows[first : first + size]
        arrays, _counts = split.batch(batch_rows if len(batch_rows) else filler_rows)
        yield convert_to_tensors(arrays), len(batch_rows)
