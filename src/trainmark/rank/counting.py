"""Count the batches that a job receives, and check the counts against the job's declarations.

Has the rules that a rank can check alone; the record checks the sums over ranks. A run with
contradicting counts fails, because every rate is computed from counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmark.errors import ContradictionError
from trainmark.protocols import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trainmark.protocols import Batch, Device


@dataclass(slots=True)
class StepBatches:
    """Counts of the micro-batches of one optimizer step on one rank.

    Attributes:
        counts: samples, sequences and tokens of the micro-batches.
        samples_trained: samples whose losses the micro-batches add up; see ``Batch``.
        step_samples: of each micro-batch, what it declares as the samples of the whole step.
        is_complete: the last micro-batch of the step was fetched.
        fetches: for each micro-batch, the device's marks before and after it was fetched.
    """

    counts: Counts = field(default_factory=Counts)
    samples_trained: int = 0
    step_samples: list[int] = field(default_factory=list)
    is_complete: bool = False
    fetches: list[tuple[Any, Any]] = field(default_factory=list)

    def add(self, batch: Batch, fetch: tuple[Any, Any]) -> None:
        """Add a micro-batch of the step, which the job received.

        Args:
            fetch: the device's marks before and after it was fetched.
        """
        self.counts = self.counts + batch.counts
        # Ranks that share the model by tensor parallelism train the same samples. One of these
        # ranks has them in ``counts``, but each has them in ``samples_trained``.
        self.samples_trained += batch.samples_trained
        # Each micro-batch declares the samples of the whole step over all ranks, so these are
        # compared later, not summed.
        self.step_samples.append(batch.step_samples)
        self.is_complete = self.is_complete or batch.closes_step
        self.fetches.append(fetch)

    @property
    def samples_of_all_ranks(self) -> int:
        """Return the samples of the step over all ranks; 0 if its last batch was not fetched."""
        # Each batch declares the samples of the whole step; ``refuse_contradictory_counts`` checks
        # that all declare the same number.
        return self.step_samples[-1] if self.is_complete else 0


@dataclass(slots=True)
class MeteredBatches:
    """Iterate over batches, mark the time before and after each fetch, and sum their counts.

    On a CPU the time between the two marks is the time in ``next``. On an asynchronous device the
    first mark completes when the earlier work is done. The second is recorded after the batch was
    fetched and its copy was started, so the time between the marks is idle time and the copy.

    Args:
        source: the batches of an epoch.
        device: marks times in its stream of work.
        step: counts of the batches since the last ``take``.
        kept: a list to which fetched batches are appended, because their window will be repeated;
            None: they are not kept.
    """

    source: Iterator[Batch]
    device: Device
    step: StepBatches = field(default_factory=StepBatches)
    kept: list[Batch] | None = None

    def __iter__(self) -> MeteredBatches:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, and count it in ``step`` with the device's times of its fetch."""
        start_mark = self.device.mark()
        batch = next(self.source)
        end_mark = self.device.mark()
        self.step.add(batch, (start_mark, end_mark))
        if self.kept is not None:  # the window of this batch will be repeated
            self.kept.append(batch)
        return batch

    def take(self) -> StepBatches:
        """Return the batches fetched since the last call, and reset."""
        finished_step = self.step
        self.step = StepBatches()
        return finished_step


def refuse_contradictory_counts(steps: Sequence[StepBatches], *, first_step: int) -> None:
    """Refuse steps whose batches on this rank have counts that contradict each other.

    Args:
        steps: the batches of each step.
        first_step: number of steps before ``steps``.

    Raises:
        ContradictionError: counts of a step that cannot be true together.
    """
    for number, batches in enumerate(steps, first_step + 1):
        if not batches.step_samples:
            raise ContradictionError("step_without_batch", step=number)
        # Each batch declares the samples of the whole step over all ranks: the same number.
        min_samples = min(batches.step_samples)
        max_samples = max(batches.step_samples)
        if min_samples != max_samples:
            raise ContradictionError(
                "step_samples_differ", step=number, least=min_samples, most=max_samples
            )
        # This rank cannot train more samples than all ranks together.
        if batches.samples_trained > max_samples:
            raise ContradictionError(
                "samples_above_step",
                step=number,
                samples=batches.samples_trained,
                step_samples=max_samples,
            )
        _refuse_counts(batches.counts, number)


def _refuse_counts(counts: Counts, step: int) -> None:
    """Refuse counts that contradict each other, such as fewer tokens than sequences.

    A sample has at least one sequence, a sequence at least one token, and padding only adds tokens.

    Raises:
        ContradictionError: with the names and numbers of the containers, such as samples, and of
            the items in them, such as sequences.
    """
    # From the largest unit to the smallest: each count is at least the one before it.
    ascending = {
        "samples": counts.samples,
        "sequences": counts.sequences,
        "tokens": counts.tokens,
        "tokens_padded": counts.tokens_padded,
    }
    # A case without tokens counts 0 of them; a rank without rows counts nothing.
    nonzero_counts = [(name, count) for name, count in ascending.items() if count]
    for (container, num_containers), (item, num_items) in pairwise(nonzero_counts):
        if num_containers > num_items:
            raise ContradictionError(
                "counts_contradict",
                step=step,
                container=container,
                containers=num_containers,
                item=item,
                items=num_items,
            )


def refuse_other_epoch_length(*, epoch: int, steps: int, planned: int) -> None:
    """Refuse a whole epoch whose number of steps is not the one that the job announced.

    Args:
        epoch: its number, from 0.
        steps: its number of steps.
        planned: the number of steps that the job announced.

    Raises:
        ContradictionError: the epoch had more or fewer steps.
    """
    if steps != planned:
        raise ContradictionError("steps_of_epoch", epoch=epoch + 1, steps=steps, planned=planned)
