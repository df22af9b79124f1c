"""The only training loop.

Owns when time is read, when the device is synchronised, and what is counted. Inside a
window nothing is written, read back or logged: the loop takes marks, the job takes steps.
Clock, device and barrier are arguments, so that tests run on fakes with exact numbers.
Knows nothing of cases, processes or files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from trainmark.errors import DivergedError, RunError
from trainmark.measure.events import finite_or_none
from trainmark.protocols import Counts, StepParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainmark.protocols import Batch, Device, Job
    from trainmark.spec import Recipe, Target


class Emit(Protocol):
    """Write one event; see ``EventWriter.emit``."""

    def __call__(self, event: str, **fields: Any) -> None:
        """Write ``event`` with ``fields``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train and where the windows lie, in optimizer steps and epochs."""

    max_epochs: int
    warmup_steps: int
    window_steps: int
    max_steps: int | None = None
    eval_every_epochs: int | None = None
    eval_every_samples: int | None = None
    eval_from_sample: int | None = None
    target: Target | None = None

    @classmethod
    def of(cls, recipe: Recipe, target: Target | None) -> Schedule:
        """Take the schedule out of a recipe."""
        return cls(
            max_epochs=recipe.max_epochs,
            warmup_steps=recipe.warmup_steps,
            window_steps=recipe.window_steps,
            max_steps=recipe.max_steps,
            eval_every_epochs=recipe.eval_every_epochs,
            eval_every_samples=recipe.eval_every_samples,
            eval_from_sample=recipe.eval_from_sample,
            target=target,
        )

    def next_window(self, step: int) -> tuple[str, int]:
        """Return the phase of the window that starts after ``step`` steps, and its length."""
        if step == 0:
            phase, end = "compile", 1
        elif step < self.warmup_steps:
            phase, end = "warmup", min(step + self.window_steps, self.warmup_steps)
        else:
            phase, end = "train", step + self.window_steps
        if self.max_steps is not None:
            end = min(end, self.max_steps)
        return phase, end - step

    def next_evaluation(self, samples: int) -> float:
        """Return how many samples of all ranks call for an evaluation after ``samples``."""
        every = self.eval_every_samples
        if every is None:
            return math.inf
        first = self.eval_from_sample or every
        return first if samples < first else samples + every - (samples - first) % every


@dataclass(slots=True)
class Outcome:
    """What the loop reached."""

    steps: int = 0
    epochs: int = 0
    samples: int = 0
    evaluations: int = 0
    quality: float | None = None
    target_reached: bool = False


@dataclass(slots=True)
class MeteredBatches:
    """Hand batches on, taking a mark around each fetch and adding up what they hold.

    On a CPU the time between the two marks is the time in ``next``. On an asynchronous
    device the first mark completes when the earlier work is done and the second cannot be
    placed before the batch is there, so their distance is the time the device stood idle.
    """

    source: Iterator[Batch]
    device: Device
    counts: Counts = field(default_factory=Counts)
    samples_of_all: int = 0  # of the steps that were handed out whole, over all ranks
    fetches: list[tuple[Any, Any]] = field(default_factory=list)

    def __iter__(self) -> MeteredBatches:
        return self

    def __next__(self) -> Batch:
        before = self.device.mark()
        batch = next(self.source)
        self.fetches.append((before, self.device.mark()))
        self.counts = self.counts + batch.counts
        if batch.closes_step:
            self.samples_of_all += batch.step_samples
        return batch

    def take(self) -> tuple[Counts, list[tuple[Any, Any]], int]:
        """Return counts, marks and the samples of all ranks since the last call; start anew."""
        taken = self.counts, self.fetches, self.samples_of_all
        self.counts, self.fetches, self.samples_of_all = Counts(), [], 0
        return taken


@dataclass(slots=True, kw_only=True)
class MeasuredLoop:
    """Run a job to its target and emit what happened."""

    job: Job
    schedule: Schedule
    device: Device
    clock: Callable[[], int]
    barrier: Callable[[], None]
    emit: Emit
    parts: StepParts = field(default_factory=StepParts)
    enter: Callable[[str], None] = lambda _: None
    outcome: Outcome = field(default_factory=Outcome)
    _samples_of_all: int = field(default=0, init=False)
    _evaluate_at: float = field(default=math.inf, init=False)
    _evaluated_step: int | None = field(default=None, init=False)

    def run(self) -> Outcome:
        """Train until the target, the epochs or the steps are reached.

        Raises:
            DivergedError: a loss was not a finite number; the window is emitted first.
            RunError: an epoch held nothing to train on.
        """
        self.enter("train")
        self.device.synchronize()
        self.barrier()
        start_ns = self.clock()
        self._evaluate_at = self.schedule.next_evaluation(0)
        for epoch in range(self.schedule.max_epochs):
            self._train_epoch(epoch)
            self.outcome.epochs = epoch + 1
            last = self._out_of_steps() or epoch + 1 == self.schedule.max_epochs
            if self._due_after(epoch, last=last):
                self._evaluate(epoch)
            if last or self.outcome.target_reached:
                break
        self.device.synchronize()
        self.barrier()
        self.emit(
            "trained",
            start_ns=start_ns,
            end_ns=self.clock(),
            steps=self.outcome.steps,
            epochs=self.outcome.epochs,
            samples=self.outcome.samples,
            evaluations=self.outcome.evaluations,
            target_reached=self.outcome.target_reached,
        )
        return self.outcome

    def _out_of_steps(self) -> bool:
        limit = self.schedule.max_steps
        return limit is not None and self.outcome.steps >= limit

    def _due_after(self, epoch: int, *, last: bool) -> bool:
        """Tell whether the end of ``epoch`` is evaluated: not where its last step just was."""
        if self._evaluated_step == self.outcome.steps:
            return False
        every = self.schedule.eval_every_epochs
        by_epochs = every is not None and (last or (epoch + 1) % every == 0)
        return by_epochs or (last and self._evaluate_at < math.inf)

    def _train_epoch(self, epoch: int) -> None:
        batches = MeteredBatches(iter(self.job.batches(epoch)), self.device)
        steps_before = self.outcome.steps
        more = True
        while more and not self._out_of_steps() and not self.outcome.target_reached:
            phase, length = self.schedule.next_window(self.outcome.steps)
            more = self._window(batches, epoch=epoch, phase=phase, length=length)
            if self._samples_of_all >= self._evaluate_at:
                self._evaluate(epoch)
                self._evaluate_at = self.schedule.next_evaluation(self._samples_of_all)
        if self.outcome.steps == steps_before:
            raise RunError("epoch_without_batch", epoch=epoch + 1)

    def _window(self, batches: MeteredBatches, *, epoch: int, phase: str, length: int) -> bool:
        """Take up to ``length`` steps between two synchronisations; False at the epoch's end."""
        device = self.device
        losses: list[Any] = []
        counts: list[Counts] = []
        fetches: list[list[tuple[Any, Any]]] = []
        more = True
        start_ns = self.clock()
        marks = [device.mark()]
        while len(losses) < length:
            loss = self.job.step(batches)
            if loss is None:
                more = False
                break
            marks.append(device.mark())
            losses.append(loss)
            step_counts, step_fetches, samples_of_all = batches.take()
            counts.append(step_counts)
            fetches.append(step_fetches)
            self._samples_of_all += samples_of_all
            if self._samples_of_all >= self._evaluate_at:
                break
        device.synchronize()
        end_ns = self.clock()
        if losses:
            values = device.read(losses)
            total = sum(counts, Counts())
            parts_ns = self.parts.take_ns(device)
            self.emit(
                "window",
                phase=phase,
                epoch=epoch,
                first_step=self.outcome.steps,
                start_ns=start_ns,
                end_ns=end_ns,
                step_ns=[device.elapsed_ns(a, b) for a, b in pairwise(marks)],
                wait_ns=[sum(device.elapsed_ns(a, b) for a, b in pairs) for pairs in fetches],
                loss=[finite_or_none(value) for value in values],
                samples=[item.samples for item in counts],
                sequences=total.sequences,
                tokens=total.tokens,
                tokens_padded=total.tokens_padded,
                micro_batches=sum(len(pairs) for pairs in fetches),
                model_flops=self.job.model_flops(total),
                used_bytes=device.memory().used_bytes,
                **({"parts_ns": parts_ns} if parts_ns else {}),
            )
            self._refuse_non_finite(values)
            self.job.check()
            self.outcome.steps += len(losses)
            self.outcome.samples += total.samples
        return more

    def _refuse_non_finite(self, values: list[float]) -> None:
        for offset, value in enumerate(values):
            if not math.isfinite(value):
                step = self.outcome.steps + offset + 1
                raise DivergedError("loss_not_finite", value=str(value), step=step)

    def _evaluate(self, epoch: int) -> None:
        self.enter("evaluate")
        start_ns = self.clock()
        result = self.job.evaluate()
        self.device.synchronize()
        self.parts.take_ns(self.device)  # of no step: dropped
        target = self.schedule.target
        self.outcome.quality = result.value
        self.outcome.evaluations += 1
        self._evaluated_step = self.outcome.steps
        self.outcome.target_reached = target is not None and target.reached(result.value)
        self.emit(
            "evaluate",
            epoch=epoch,
            step=self.outcome.steps,
            start_ns=start_ns,
            end_ns=self.clock(),
            value=finite_or_none(result.value),
            samples=result.samples,
            detail=_finite(result.detail),
            target_reached=self.outcome.target_reached,
            **({} if result.reason is None else {"reason": result.reason.as_dict()}),
            **(
                {"parts": {kind: _finite(part) for kind, part in result.parts.items()}}
                if result.parts
                else {}
            ),
        )
        self.enter("train")


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in figures.items()}
