"""The only training loop: all cases run in it.

It decides when time is read, when the device is synchronised, and what is counted. Inside a
window nothing is written, read back or logged: the loop records marks, and the job takes steps.
Clock, device and barrier are arguments, so that tests run on fakes with exact numbers. The loop
knows nothing about cases, processes or files.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmark.errors import DivergedError, RunError
from trainmark.events.schema import drop_non_finite
from trainmark.protocols import Counts, Progress, StepStages
from trainmark.rank.counting import (
    MeteredBatches,
    StepBatches,
    refuse_contradictory_counts,
    refuse_other_epoch_length,
)
from trainmark.rank.scores import summarize_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from trainmark.protocols import Batch, Device, Evaluation, Job
    from trainmark.rank.parameters import ParameterCheck
    from trainmark.rank.replay import WindowReplay
    from trainmark.recipe import Recipe
    from trainmark.spec import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long to train and where windows start and end, in optimizer steps and epochs.

    A window is some steps in a row that are timed together. A launch is one start of the ranks; a
    run that continues from a checkpoint has several.

    Args:
        max_epochs: epochs to train, with those of earlier launches.
        warmup_steps: steps before the measured ones; they include the first step.
        window_steps: steps of a window, but for the first step and shorter last windows.
        max_steps: of this launch; None: epochs alone limit training.
        eval_every_epochs, eval_every_samples: intervals of evaluations; None: not by this interval.
        eval_from_sample: samples of all ranks at the first evaluation; None: the interval.
        target: quality at which training ends; None: there is none.
    """

    max_epochs: int
    warmup_steps: int
    window_steps: int
    max_steps: int | None = None
    eval_every_epochs: int | None = None
    eval_every_samples: int | None = None
    eval_from_sample: int | None = None
    target: Target | None = None

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, target: Target | None, *, earlier_steps: int = 0
    ) -> Schedule:
        """Return the schedule of a recipe, after ``earlier_steps`` steps in earlier launches.

        Only ``max_steps`` is reduced: epochs keep their numbers over launches.
        """
        max_steps = recipe.max_steps
        return cls(
            max_epochs=recipe.max_epochs,
            warmup_steps=recipe.warmup_steps,
            window_steps=recipe.window_steps,
            max_steps=None if max_steps is None else max_steps - earlier_steps,
            eval_every_epochs=recipe.eval_every_epochs,
            eval_every_samples=recipe.eval_every_samples,
            eval_from_sample=recipe.eval_from_sample,
            target=target,
        )

    def choose_window(self, step: int) -> tuple[str, int]:
        """Return the phase of the window that starts after ``step`` steps, and its length.

        Phases: ``compile``, the first step alone; ``warmup``; ``train``, which is measured. A
        resumed launch compiles and warms up again.

        Args:
            step: number of steps that this launch has taken.
        """
        if step == 0:
            phase = "compile"
            end = 1
        elif step < self.warmup_steps:
            phase = "warmup"
            end = min(step + self.window_steps, self.warmup_steps)
        else:
            phase = "train"
            end = step + self.window_steps
        if self.max_steps is not None:
            end = min(end, self.max_steps)
        return phase, end - step

    def find_next_evaluation(self, samples: int) -> float:
        """Return the samples of all ranks at which the next evaluation after ``samples`` is due.

        The first one is due at ``eval_from_sample``, or without it after one interval. Infinity if
        evaluations are not due by samples.
        """
        interval = self.eval_every_samples
        if interval is None:
            return math.inf
        first_due = self.eval_from_sample or interval
        if samples < first_due:
            return first_due
        samples_since_due = (samples - first_due) % interval
        return samples - samples_since_due + interval


@dataclass(slots=True)
class LoopResult:
    """The result of the loop.

    Attributes:
        whole_epochs: epochs that were trained to their end.
        evaluation_unchecked: an evaluation did not tell which rows it scored.
    """

    steps: int = 0
    epochs: int = 0
    whole_epochs: int = 0
    target_reached: bool = False
    evaluation_unchecked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """The measurement of a window: the steps between two synchronisations.

    Args:
        start_ns, end_ns: times of the host's clock, both taken while the device was idle.
        ended_epoch: the epoch has no further batch.
        step_ns: time of each step by the device's clock.
        losses: loss of each step.
        batches: counts of each step's batches.
        stage_ns: total time of each stage of a step, if the job marks stages.
        graphs_compiled: graphs that ``torch.compile`` made during the window.
    """

    start_ns: int
    end_ns: int
    ended_epoch: bool
    step_ns: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    batches: list[StepBatches] = field(default_factory=list)
    stage_ns: dict[str, int] = field(default_factory=dict)
    graphs_compiled: int = 0


@dataclass(slots=True, kw_only=True)
class MeasuredLoop:
    """Run a job to its target and emit events.

    The steps are taken in windows: the device is synchronised only at the end of a window, and each
    window gives one event. A launch is one start of the ranks; a run that continues from a
    checkpoint has several.

    Args:
        open_batches: returns the batches of an epoch, on the device; of the epoch of ``begin``
            only those of the steps that are left.
        schedule: how long to train, and where windows start and end.
        clock: returns the host's time in nanoseconds.
        barrier: waits for all ranks.
        emit: writes an event, see ``EventWriter.emit``.
        stages: device time of the parts of a step that the job reports separately.
        enter: called with the name of each phase, for error reports.
        parameters: checks the trained parameters; None: they are not checked.
        replay: repeats some windows, to find results that differ bit by bit; None: no window is
            repeated.
        count_graphs: returns the number of graphs that were compiled so far; None: unknown.
        first_window: context of the first window, which has one step.
        begin: progress of the checkpoint from which training continues; zeros without one.
        save: called with the progress before each window; saves a checkpoint if one is due.
        check_agreement: refuses an evaluation whose quality differs from that of rank 0.
        trained_keys: keys of some rows of training, which evaluations are compared with. What reads
            the batches adds them, so that an evaluation has those of the rows read before it.

    Attributes:
        outcome: steps and epochs that this launch has trained so far, and what it reached.
        _samples_of_all_ranks: samples trained so far by all ranks in all launches.
        _evaluate_at: number of these samples at which the next evaluation is due.
        _last_evaluated_step: steps of this launch at the last evaluation; None: there was none.
    """

    job: Job
    open_batches: Callable[[int], Generator[Batch, None, None]]
    schedule: Schedule
    device: Device
    clock: Callable[[], int]
    barrier: Callable[[], None]
    emit: Callable[..., None]
    stages: StepStages = field(default_factory=StepStages)
    enter: Callable[[str], None] = lambda _: None
    parameters: ParameterCheck | None = None
    replay: WindowReplay | None = None
    count_graphs: Callable[[], int | None] = lambda: None
    first_window: AbstractContextManager[Any] = field(default_factory=nullcontext)
    begin: Progress = field(default_factory=Progress)
    save: Callable[[Progress], None] = lambda _: None
    check_agreement: Callable[[Evaluation], None] = lambda _: None
    trained_keys: Sequence[int] = ()
    outcome: LoopResult = field(default_factory=LoopResult)
    _samples_of_all_ranks: int = field(default=0, init=False)
    _evaluate_at: float = field(default=math.inf, init=False)
    _last_evaluated_step: int | None = field(default=None, init=False)

    def run(self) -> LoopResult:
        """Train until the target, the epochs or the steps are reached.

        Raises:
            DivergedError: a loss was not a finite number; the window is emitted first.
            ContradictionError: counts of batches or results of ranks contradict each other.
            NotTrainedError: parameters did not change in a window, or their gradients were zero.
            UntimedWorkError: parameters changed outside the timed steps.
            RunError: an epoch had no batch.
        """
        self.enter("train")
        self.device.synchronize()
        self.barrier()
        start_ns = self.clock()
        self._samples_of_all_ranks = self.begin.samples
        self._evaluate_at = self.schedule.find_next_evaluation(self._samples_of_all_ranks)
        for epoch in range(self.begin.epoch, self.schedule.max_epochs):
            self._train_epoch(epoch)
            self.outcome.epochs = epoch + 1  # also if it was not trained to its end
            is_last = self._is_out_of_steps() or epoch + 1 == self.schedule.max_epochs
            if self._is_evaluation_due(epoch, is_last=is_last):
                self._evaluate(epoch)
            if is_last or self.outcome.target_reached:
                break
        self.device.synchronize()
        self.barrier()
        self.emit(
            "trained",
            start_ns=start_ns,
            end_ns=self.clock(),
            steps=self.outcome.steps,
            epochs=self.outcome.epochs,
            whole_epochs=self.outcome.whole_epochs,
            **self._take_check_time(),
        )
        return self.outcome

    def _is_out_of_steps(self) -> bool:
        """Tell whether this launch has taken all its steps; False if only epochs limit it."""
        limit = self.schedule.max_steps
        return limit is not None and self.outcome.steps >= limit

    def _is_evaluation_due(self, epoch: int, *, is_last: bool) -> bool:
        """Tell whether to evaluate at the end of ``epoch``.

        Not if the state after the last step was evaluated already.

        Args:
            is_last: whether training ends with this epoch.
        """
        if self._last_evaluated_step == self.outcome.steps:
            return False
        # With either interval the state at the end of training is evaluated, even if the next
        # evaluation is not due yet.
        interval = self.schedule.eval_every_epochs
        is_due_by_epochs = interval is not None and (is_last or (epoch + 1) % interval == 0)
        evaluates_by_samples = self._evaluate_at < math.inf
        return is_due_by_epochs or (is_last and evaluates_by_samples)

    def _train_epoch(self, epoch: int) -> None:
        """Train one epoch, window by window, until the epoch or the run ends."""
        # Steps of this epoch that an earlier launch has taken. ``open_batches`` leaves out their
        # batches: the job has loaded the same checkpoint.
        earlier_steps = self.begin.steps_of_epoch if epoch == self.begin.epoch else 0
        # The steps of this launch at the first step of the epoch; negative if an earlier launch has
        # taken that step.
        epoch_start = self.outcome.steps - earlier_steps
        has_more = True
        with closing(self.open_batches(epoch)) as source:  # the run may end before the last batch
            batches = MeteredBatches(source, self.device)
            while has_more and not self._is_out_of_steps() and not self.outcome.target_reached:
                steps = self.outcome.steps
                total_steps = self.begin.steps + steps
                epoch_steps = steps - epoch_start
                # Saves a checkpoint if one is due; its counts include those of earlier launches.
                self.save(
                    Progress(
                        steps=total_steps,
                        epoch=epoch,
                        steps_of_epoch=epoch_steps,
                        samples=self._samples_of_all_ranks,
                    )
                )
                self.enter("train")
                phase, length = self.schedule.choose_window(steps)
                # The first window has one step, whose FLOPs and precision ``first_window`` notes.
                # This may slow the step down, because the window is not measured.
                with self.first_window if phase == "compile" else nullcontext():
                    has_more = self._run_window(batches, epoch=epoch, phase=phase, length=length)
                samples = self._samples_of_all_ranks
                if samples >= self._evaluate_at:
                    self._evaluate(epoch)
                    self._evaluate_at = self.schedule.find_next_evaluation(samples)
        epoch_steps = self.outcome.steps - epoch_start
        if epoch_steps == 0:
            raise RunError("epoch_without_batch", epoch=epoch + 1)
        if not has_more:
            refuse_other_epoch_length(
                epoch=epoch, steps=epoch_steps, planned=self.job.steps_per_epoch
            )
            # The record compares the samples of whole epochs with the data. After a resume it does
            # not know the samples of earlier launches, so no epoch counts as whole.
            if self.begin.steps == 0:
                self.outcome.whole_epochs += 1

    def _run_window(self, batches: MeteredBatches, *, epoch: int, phase: str, length: int) -> bool:
        """Measure, emit and check a window of up to ``length`` steps.

        Returns:
            False if the epoch has no further batch.
        """
        replay = self._save_for_replay(batches, phase)
        window = self._measure_window(batches, length, replay)
        if window.losses:
            self._emit_window(window, epoch=epoch, phase=phase)
            if replay is not None:  # before the loss is checked: a wrong bit may have spoiled it
                self._repeat_window(replay, batches, window.losses)
            self._refuse_non_finite(window.losses)
            refuse_contradictory_counts(window.batches, first_step=self.outcome.steps)
            self.enter("job_check")  # errors of the next line are reported with this place
            self.job.check()  # failures that the loss does not show, such as overflows in gradients
            self.enter("train")
            # Every measured window counts for the interval of repeats, also one that was repeated.
            if self.replay is not None and phase == "train":
                self.replay.count_window()
            self._check_parameters(len(window.losses))
            # Last: until here ``steps`` is the number of steps before the window.
            self.outcome.steps += len(window.losses)
        elif replay is not None:  # the epoch ended before a step: there is nothing to repeat
            replay.cancel()
        return not window.ended_epoch

    def _save_for_replay(self, batches: MeteredBatches, phase: str) -> WindowReplay | None:
        """Before a window that is to be repeated, save the state and begin to keep batches.

        The time of saving belongs to no window.

        Returns:
            The object that repeats the window; None: the window is not to be repeated.
        """
        batches.kept = None  # the batches of a window that is not repeated are not kept
        if self.replay is None or phase != "train" or not self.replay.is_due():
            return None
        start_ns = self.clock()
        self.replay.save()
        self.device.synchronize()
        # This span has the time of saving; the event ``replay`` later has that of the repeats.
        self.emit("span", name="replay", start_ns=start_ns, end_ns=self.clock())
        batches.kept = []  # ``batches`` appends each batch of this window to it
        return self.replay

    def _repeat_window(
        self, replay: WindowReplay, batches: MeteredBatches, losses: list[float]
    ) -> None:
        """Repeat the window that just ended; emit whether it gives the same results bit by bit.

        ``outcome.steps`` does not count the window yet.
        """
        assert batches.kept is not None, "batches of a window that is repeated are kept"
        self.enter("replay")
        start_ns = self.clock()
        result = replay.repeat(batches.kept, losses, first_step=self.outcome.steps)
        # Discard the times of stages in the repeats: they belong to no measured step.
        self.stages.take_ns(self.device)
        self.emit(
            "replay",
            start_ns=start_ns,
            end_ns=self.clock(),
            first_step=self.outcome.steps,
            steps=len(losses),
            **result._asdict(),
        )
        self.enter("train")

    def _measure_window(
        self, batches: MeteredBatches, length: int, replay: WindowReplay | None
    ) -> WindowResult:
        """Take up to ``length`` steps between two synchronisations, and measure them.

        The window ends early at the end of the epoch, or when an evaluation is due.

        Args:
            length: the most steps of the window.
            replay: is told the end of each step; None: the window is not to be repeated.
        """
        device = self.device
        losses: list[Any] = []
        step_batches: list[StepBatches] = []
        ended_epoch = False
        graphs_before = self.count_graphs() or 0  # a number that is unknown counts as 0
        start_ns = self.clock()
        marks = [device.mark()]
        while len(losses) < length:
            loss = self.job.step(batches)
            if loss is None:  # the epoch had no batch for another step
                ended_epoch = True
                break
            marks.append(device.mark())
            if replay is not None:
                # Its time counts to the next step, but it only begins new dicts on the host. What
                # does slow this window down are the digests that its hooks compute in the steps.
                replay.end_step()
            losses.append(loss)
            step_batches.append(batches.take())
            self._samples_of_all_ranks += step_batches[-1].samples_of_all_ranks
            if self._samples_of_all_ranks >= self._evaluate_at:
                break
        device.synchronize()
        end_ns = self.clock()
        if not losses:
            return WindowResult(start_ns=start_ns, end_ns=end_ns, ended_epoch=ended_epoch)
        loss_values = device.read(losses)  # one copy for all losses
        return WindowResult(
            start_ns=start_ns,
            end_ns=end_ns,
            ended_epoch=ended_epoch,
            step_ns=[device.elapsed_ns(before, after) for before, after in pairwise(marks)],
            losses=loss_values,
            batches=step_batches,
            stage_ns=self.stages.take_ns(device),
            graphs_compiled=(self.count_graphs() or 0) - graphs_before,
        )

    def _emit_window(self, window: WindowResult, *, epoch: int, phase: str) -> None:
        """Emit the event of a window; a field that has nothing to report is left out."""
        device = self.device
        totals = sum((step.counts for step in window.batches), Counts())
        optional_fields: dict[str, Any] = {}
        if window.stage_ns:
            optional_fields["parts_ns"] = window.stage_ns
        if window.graphs_compiled:
            optional_fields["graphs_compiled"] = window.graphs_compiled
        self.emit(
            "window",
            phase=phase,
            epoch=epoch,
            first_step=self.outcome.steps,
            start_ns=window.start_ns,
            end_ns=window.end_ns,
            step_ns=window.step_ns,
            # Of each step, the time in which its batches were fetched.
            wait_ns=[
                sum(device.elapsed_ns(before, after) for before, after in step.fetches)
                for step in window.batches
            ],
            loss=[drop_non_finite(loss) for loss in window.losses],
            # ``samples`` are those of this rank; ``step_samples`` those of all ranks, as this
            # rank's batches declare them. All other counts are sums of this rank over the window.
            samples=[step.counts.samples for step in window.batches],
            step_samples=[
                # If the batches of a step declare different numbers,
                # ``refuse_contradictory_counts`` raises an error after this event.
                step.step_samples[-1] if step.step_samples else 0
                for step in window.batches
            ],
            sequences=totals.sequences,
            tokens=totals.tokens,
            tokens_padded=totals.tokens_padded,
            micro_batches=sum(len(step.fetches) for step in window.batches),
            model_flops=self.job.model_flops(totals),
            used_bytes=device.memory().used_bytes,
            **optional_fields,
            **self._take_check_time(),
        )

    def _check_parameters(self, steps: int) -> None:
        """Check that the window that just ended changed the trained parameters.

        Args:
            steps: number of its steps; ``outcome.steps`` does not count them yet.
        """
        if self.parameters is None:  # this loop runs without the check
            return
        first_step = self.outcome.steps
        phase, _length = self.schedule.choose_window(first_step)
        next_phase, _length = self.schedule.choose_window(first_step + steps)
        is_last_of_warmup = phase != "train" and next_phase == "train"
        # The check compares a sample of the elements before and after each window. If the sample is
        # the same, only exact sums of all bits can tell whether the window changed anything. They
        # are computed at the end of the warm-up, so that the first measured window has sums to be
        # compared with.
        self.parameters.check_window(first_step=first_step, steps=steps, exact=is_last_of_warmup)

    def _take_check_time(self) -> dict[str, int]:
        """Return the time of parameter checks since the last call, as a field of an event.

        No field if there was no check.
        """
        spent_ns = 0 if self.parameters is None else self.parameters.take_ns()
        return {"check_ns": spent_ns} if spent_ns else {}

    def _refuse_non_finite(self, losses: list[float]) -> None:
        """Raise ``DivergedError`` if a loss of the window that just ended is not finite.

        ``outcome.steps`` does not count the steps of this window yet.
        """
        for number, loss in enumerate(losses, start=1):
            if not math.isfinite(loss):
                step = self.outcome.steps + number
                raise DivergedError("loss_not_finite", value=str(loss), step=step)

    def _evaluate(self, epoch: int) -> None:
        """Evaluate, emit and check the evaluation, and note whether it reached the target.

        Args:
            epoch: the epoch that is being trained, from 0.
        """
        self.enter("evaluate")
        start_ns = self.clock()
        result = self.job.evaluate()
        self.check_agreement(result)
        self.device.synchronize()
        # Discard the times of stages that the evaluation has marked: they belong to no step.
        self.stages.take_ns(self.device)
        optional_fields: dict[str, Any] = {}
        if result.reason is not None:  # why there is no value
            optional_fields["reason"] = result.reason.as_dict()
        if result.breakdown:  # figures of groups of rows, such as questions of one subject
            optional_fields["parts"] = {
                kind: _replace_non_finite(figures) for kind, figures in result.breakdown.items()
            }
        if result.scores is None:  # the job does not tell which rows it scored
            self.outcome.evaluation_unchecked = True
        else:
            optional_fields["scores"] = summarize_scores(result.scores, self.trained_keys)
        target = self.schedule.target
        self._last_evaluated_step = self.outcome.steps  # ``_is_evaluation_due`` reads it
        self.outcome.target_reached = target is not None and target.reached(result.value)
        self.emit(
            "evaluate",
            epoch=epoch,
            step=self.outcome.steps,
            start_ns=start_ns,
            # The comparison over ranks and the summary of scores belong to the evaluation, not to
            # training.
            end_ns=self.clock(),
            value=drop_non_finite(result.value),
            samples=result.samples,
            detail=_replace_non_finite(result.detail),  # further figures over all rows
            target_reached=self.outcome.target_reached,
            **optional_fields,
        )
        if self.parameters is not None:
            self.parameters.check_evaluation(step=self.outcome.steps)
        self.enter("train")


def _replace_non_finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return the figures with None for NaN and infinity, which JSON does not have."""
    return {name: drop_non_finite(value) for name, value in figures.items()}
