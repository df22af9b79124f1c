"""Count what a job is handed, and hold the counts against what else it says.

Owns the rules that one rank can check alone; the record checks the sums over ranks. Every
contradiction is an impossible figure: it would go into each rate.
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
    """What the micro-batches of one optimizer step on one rank say.

    ``step_samples`` holds one entry a micro-batch, ``fetches`` the marks around getting it.
    """

    counts: Counts = field(default_factory=Counts)
    samples_trained: int = 0
    step_samples: list[int] = field(default_factory=list)
    closed: bool = False
    fetches: list[tuple[Any, Any]] = field(default_factory=list)

    def add(self, batch: Batch, fetch: tuple[Any, Any]) -> None:
        """Take a batch that was handed to the job."""
        self.counts = self.counts + batch.counts
        self.samples_trained += batch.samples_trained
        self.step_samples.append(batch.step_samples)
        self.closed = self.closed or batch.closes_step
        self.fetches.append(fetch)

    @property
    def samples_of_all(self) -> int:
        """Return the samples of the step over all ranks; 0 where it was not handed out whole."""
        return self.step_samples[-1] if self.closed else 0


@dataclass(slots=True)
class MeteredBatches:
    """Hand batches on, taking a mark around each fetch and adding up what they hold.

    On a CPU the time between the two marks is the time in ``next``. On an asynchronous
    device the first mark completes when the earlier work is done and the second cannot be
    placed before the batch is there, so their distance is the time the device stood idle.
    """

    source: Iterator[Batch]
    device: Device
    step: StepBatches = field(default_factory=StepBatches)

    def __iter__(self) -> MeteredBatches:
        return self

    def __next__(self) -> Batch:
        before = self.device.mark()
        batch = next(self.source)
        self.step.add(batch, (before, self.device.mark()))
        return batch

    def take(self) -> StepBatches:
        """Return what was handed out since the last call; start anew."""
        taken, self.step = self.step, StepBatches()
        return taken


def refuse_contradictions(steps: Sequence[StepBatches], *, first_step: int) -> None:
    """Hold the batches of each step against each other.

    Raises:
        ContradictionError: counts of a step that cannot be true together.
    """
    for number, taken in enumerate(steps, first_step + 1):
        if not taken.step_samples:
            raise ContradictionError("step_without_batch", step=number)
        least, most = min(taken.step_samples), max(taken.step_samples)
        if least != most:
            raise ContradictionError("step_samples_differ", step=number, least=least, most=most)
        if taken.samples_trained > most:
            raise ContradictionError(
                "samples_above_step", step=number, samples=taken.samples_trained, step_samples=most
            )
        _refuse_counts(taken.counts, number)


def _refuse_counts(counts: Counts, step: int) -> None:
    """A sample has at least one sequence, a sequence one token; padding only adds to them."""
    ascending = ("samples", "sequences", "tokens", "tokens_padded")
    known = [(name, count) for name in ascending if (count := getattr(counts, name))]
    for (less, fewer), (more, count) in pairwise(known):
        if fewer > count:
            raise ContradictionError(
                "counts_contradict", step=step, more=less, most=fewer, less=more, least=count
            )


def refuse_epoch(*, epoch: int, steps: int, planned: int) -> None:
    """Hold the steps of a whole epoch against what the job announced.

    Raises:
        ContradictionError: it took more or fewer.
    """
    if steps != planned:
        raise ContradictionError("steps_of_epoch", epoch=epoch + 1, steps=steps, planned=planned)
