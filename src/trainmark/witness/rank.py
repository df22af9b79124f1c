"""Measure the steps of a program from inside it, and write the events of a rank.

The hooks of torch call it. A step ends when the optimizer has stepped; a window of steps ends with
a synchronization of the device. Time that the program spends on an evaluation or a checkpoint
belongs to no window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trainmark.events.schema import drop_non_finite
from trainmark.protocols import Counts
from trainmark.rank.loop import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmark.events.schema import EventWriter
    from trainmark.protocols import Device
    from trainmark.witness.batches import BatchCounter, Fetch
    from trainmark.witness.flops import FlopCounter
    from trainmark.witness.weights import TrainedWeights

Pause = Literal["evaluate", "checkpoint"]  # names of spans
# Length of a window at which to aim if the file of --witness does not set its steps.
_WINDOW_NS = 1_000_000_000
_MAX_WINDOW_STEPS = 1_000
_MAX_KEPT_COUNTS = 10_000  # steps whose counts are kept for their median


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStep:
    """The description of a step in the file of ``--witness``; see ``plan.witness.WitnessSpec``.

    Args:
        counts: counts of this rank in a step; None: they are to be counted.
        samples_of_all: samples of all ranks together in a step; 0: they are to be counted.
        flops_per_unit: model FLOPs of training a token or a sample; None: to be counted in a step.
        unit: field of ``Counts`` to which ``flops_per_unit`` applies.
        optimizers: number of optimizers that step once in every training step.
        window_steps: steps of a window; None: as many as take about a second.
        target_loss: mean loss that the last window must reach; None: no target.
    """

    counts: Counts | None
    samples_of_all: int
    flops_per_unit: float | None
    unit: Literal["samples", "tokens"]
    optimizers: int
    warmup_steps: int
    window_steps: int | None
    target_loss: float | None


@dataclass(slots=True)
class _Step:
    """The observations of one training step.

    Args:
        losses: losses at which backward passes began, on the device.
        backwards: number of backward passes.
        fetches: batches that loaders yielded.
    """

    losses: list[Any] = field(default_factory=list)
    backwards: int = 0
    fetches: list[Fetch] = field(default_factory=list)

    @property
    def fetched_counts(self) -> Counts | None:
        """Return the sum of the counts of the fetched batches; None if none could be counted."""
        counts = [fetch.counts for fetch in self.fetches if fetch.counts is not None]
        return sum(counts, Counts()) if counts else None


@dataclass(slots=True)
class _Window:
    """A window in progress.

    Args:
        phase: name of the phase of the run, as ``Schedule.choose_window`` returns it.
        length: number of steps after which it ends.
        marks: the device's marks at its start and at the end of each step.
    """

    phase: str
    length: int
    start_ns: int
    marks: list[Any]
    steps: list[_Step] = field(default_factory=list)


class _WaitingWindow(NamedTuple):
    """A window that is not emitted yet, because the FLOPs of a step may still be counted.

    Args:
        fields: of its event, without the model FLOPs.
        counts: over all its steps.
    """

    fields: dict[str, Any]
    counts: Counts


@dataclass(slots=True, kw_only=True)
class WitnessedRank:
    """One rank of a user's program: it measures the steps, checks the weights and writes events.

    Steps are measured in windows: steps in a row, with one synchronisation of the device at their
    end. A window ends when it has its number of steps, or when the program pauses the training for
    an evaluation or a checkpoint.

    Args:
        stated: what the user states about a step.
        clock: returns nanoseconds.
        weights: the tensors that the program's optimizers change, and their checks.
        flops: counts the FLOPs of one step.
        batches: the batches that the program's loaders yield.
        count_graphs: returns the number of graphs that torch has compiled.

    Attributes:
        steps: number of training steps.
        _training_end_ns: end of the last window or pause so far.
        _window: the window in progress; None: the training is paused.
        _step: the step in progress.
        _stepped_numbers: numbers of the optimizers that have stepped in this training step, as
            ``weights`` counts them.
        _optimizer_steps: number of steps of each optimizer, by its number.
        _pause: what the program pauses for, and since when in nanoseconds; None: it trains.
        _window_steps: steps of the next window, if the user does not state them.
        _num_graphs: graphs that were compiled until the end of the last window.
        _waiting: windows whose events are not written yet, because the FLOPs of a step may still
            be counted.
        _fetched_counts: samples and tokens of the batches of each step.
        _num_without_batch: steps without a batch whose samples can be counted.
        _num_without_backward: steps without a backward pass.
        _micro_batches: number of backward passes of each step.
        _last_losses: losses of the steps of the last window.
        _pending_check_ns: time of the checks before pauses, which no event has yet.
    """

    stated: StatedStep
    events: EventWriter
    device: Device
    clock: Callable[[], int]
    weights: TrainedWeights
    flops: FlopCounter
    batches: BatchCounter
    count_graphs: Callable[[], int]
    steps: int = 0
    _training_start_ns: int = 0
    _training_end_ns: int = 0
    _window: _Window | None = None
    _step: _Step = field(default_factory=_Step)
    _stepped_numbers: set[int] = field(default_factory=set)
    _optimizer_steps: list[int] = field(default_factory=list)
    _pause: tuple[Pause, int] | None = None
    _window_steps: int = 1
    _num_graphs: int = 0
    _waiting: list[_WaitingWindow] = field(default_factory=list)
    _fetched_counts: list[Counts] = field(default_factory=list)
    _num_without_batch: int = 0
    _num_without_backward: int = 0
    _micro_batches: list[int] = field(default_factory=list)
    _last_losses: list[float] = field(default_factory=list)
    _num_evaluations: int = 0
    _pending_check_ns: int = 0

    def begin(self, start_ns: int) -> None:
        """Start the first window.

        Args:
            start_ns: time of the request for the batch that is trained on first; the current time
                if the program has requested none.
        """
        self._training_start_ns = start_ns
        self._training_end_ns = start_ns  # no window has ended yet
        self._num_graphs = self.count_graphs()
        self._open_window(start_ns)

    def note_backward(self, loss: Any) -> None:
        """Note that a backward pass begins.

        Args:
            loss: the loss, a scalar on the device; None: it is not a single number.
        """
        self.resume()  # a backward pass is training: a pause ends
        self.batches.note_backward()
        self._step.backwards += 1
        if loss is not None:
            self._step.losses.append(loss)

    def note_optimizer_start(self, optimizer: Any) -> None:
        """Note that an optimizer is about to step, which no other optimizer steps."""
        if self.weights.find_number(optimizer) is None:  # this is its first step
            self._optimizer_steps.append(0)
            # If the program has replaced an optimizer, the tensors of the old one may be gone, and
            # could not be compared below. Therefore ``add`` comes first: from here on, values are
            # compared with those of now. Violations that were noted before stay.
            self.weights.add(optimizer)
        self.weights.check_before_step(step=self.steps)

    def note_optimizer_end(self, optimizer: Any) -> None:
        """Note that an optimizer has stepped; a training step ends when all of them have."""
        number = self.weights.find_number(optimizer)
        if number is None:  # this process became a rank after the step began, in another thread
            return
        self.resume()  # a step is training: a pause ends
        self.weights.count_step(optimizer)
        self._optimizer_steps[number] += 1
        is_second_step = number in self._stepped_numbers  # in this training step
        self._stepped_numbers.add(number)
        # Each optimizer is expected to step once in a training step. If one steps for the second
        # time before all others have stepped, the others do not step in every training step. Then
        # the training step ends here, without them, and the record tells that the optimizers step
        # unevenly.
        if is_second_step or len(self._stepped_numbers) >= self.stated.optimizers:
            self._stepped_numbers.clear()
            self._end_step()

    def pause(self, name: Pause) -> None:
        """Close the window, because the program begins to evaluate or save.

        A pause within another one, such as a checkpoint in an evaluation, is part of that one.
        """
        # Before the first step has ended, there is no training that could be interrupted.
        if self._pause is None and self.steps:
            self._close_window(is_whole=False)
            # If the current step is being counted, its FLOPs would include those of the pause.
            self.flops.stop_counting()
            self._pause = (name, self.clock())
            if name == "evaluate":
                self._num_evaluations += 1

    def resume_after(self, name: Pause) -> None:
        """Start a window if the program had paused for ``name``."""
        # A checkpoint within an evaluation is part of this pause, and does not end it.
        if self._pause is not None and self._pause[0] == name:
            self.resume()

    def resume(self) -> None:
        """Start a window if the program had paused, because it trains again."""
        if self._pause is None:
            return
        name, start_ns = self._pause
        self._pause = None
        self._training_end_ns = self.clock()
        self.events.emit("span", name=name, start_ns=start_ns, end_ns=self._training_end_ns)
        # The weights were checked when the pause closed the window. The training time includes this
        # check; the event of the next window reports how long it took.
        self._pending_check_ns += self.weights.take_check_ns()
        self._open_window(self.clock())

    def finish(self) -> None:
        """Write the results of the program at its end."""
        self.resume()
        self._close_window(is_whole=False)
        self.flops.stop_counting()
        self._emit_waiting()
        if self.stated.target_loss is not None and self._last_losses:
            self._emit_target(self.stated.target_loss)
        self.events.emit(
            "trained",
            start_ns=self._training_start_ns,
            end_ns=self._training_end_ns,
            steps=self.steps,
            epochs=1,  # the probe does not know the program's epochs: all steps are one
            # The weights are checked before each pause, and the event of the next window reports
            # the time. Here it is that of a last pause, which no window followed; 0: none.
            check_ns=self._pending_check_ns,
        )
        start_ns = self.clock()
        self.events.emit("parameters", **self.weights.check_at_end())
        self.events.emit("span", name="check", start_ns=start_ns, end_ns=self.clock())
        memory = self.device.memory()
        self.events.emit(
            "result",
            job=self._describe_job(),
            allocator_peak_bytes=memory.allocator_peak_bytes,
            used_bytes=memory.used_bytes,
            flops_counted=self.flops.step_flops,
            rows=self.batches.list_rows(),  # digests, by which rows that were read twice are found
        )
        self.events.emit("end")

    def _end_step(self) -> None:
        """Add the step that just ended to the window; close a window that is complete."""
        window = self._window
        assert window is not None, "a window is open outside of pauses"
        step = self._step
        self._step = _Step()
        step.fetches = self.batches.take_fetches()
        window.steps.append(step)
        window.marks.append(self.device.mark())
        self.steps += 1
        # Counting slows a step down: only steps of the warm-up are counted. The operations of a
        # compiled program cannot be counted.
        is_warmup_next = self.steps < self.stated.warmup_steps
        self.flops.end_step(can_count_next=is_warmup_next and self.count_graphs() == 0)
        if len(window.steps) >= window.length:
            self._close_window(is_whole=True)
            self._open_window(self.clock())

    def _make_schedule(self) -> Schedule:
        """Return the schedule that chooses the phase and the length of the next window."""
        return Schedule(
            max_epochs=1,  # the probe does not know the program's epochs: all steps are one
            warmup_steps=self.stated.warmup_steps,
            window_steps=self.stated.window_steps or self._window_steps,
        )

    def _open_window(self, start_ns: int) -> None:
        """Start a window whose time counts from ``start_ns``."""
        phase, length = self._make_schedule().choose_window(self.steps)
        self._window = _Window(phase, length, start_ns, [self.device.mark()])

    def _close_window(self, *, is_whole: bool) -> None:
        """Emit the window in progress, choose the steps of the next one, and check the weights.

        Args:
            is_whole: the window has all its steps, and ends now. Otherwise it ended with its last
                step, because the program did something else after that.
        """
        window = self._window
        self._window = None
        if window is None or not window.steps:
            return
        device = self.device
        device.synchronize()
        end_ns = self.clock()
        if not is_whole:
            # The first mark was made at ``start_ns``, other than in the compile window. That window
            # has one step, so that it is always whole.
            end_ns = window.start_ns + device.elapsed_ns(window.marks[0], window.marks[-1])
        step_ns = [device.elapsed_ns(before, after) for before, after in pairwise(window.marks)]
        if window.phase == "compile":
            # This window has one step. It began with the request for its batch, at the start of the
            # window. The first mark was made later, when the first backward pass began.
            step_ns = [end_ns - window.start_ns]
        self._training_end_ns = end_ns
        self._emit_window(window, end_ns, step_ns)
        if self.stated.window_steps is None and is_whole:
            self._choose_window_steps(sum(step_ns) / len(step_ns))
        first_step = self.steps - len(window.steps)
        next_phase, _ = self._make_schedule().choose_window(self.steps)
        # The check of a window compares a sample of the elements. Exact sums of all bits are also
        # computed after the last window of the warm-up: the first measured window, which follows,
        # can then be compared with them.
        is_last_of_warmup = next_phase == "train" and window.phase != "train"
        self.weights.check_window(
            first_step=first_step, steps=len(window.steps), exact=is_last_of_warmup
        )

    def _choose_window_steps(self, step_ns: float) -> None:
        """Choose the steps of the next window: about a second, at most twice as many as before.

        Args:
            step_ns: mean time of a step in the last window.
        """
        steps = int(_WINDOW_NS / max(step_ns, 1.0))
        self._window_steps = max(1, min(steps, 2 * self._window_steps, _MAX_WINDOW_STEPS))

    def _emit_window(self, window: _Window, end_ns: int, step_ns: list[int]) -> None:
        """Emit the event of a window, but keep it while the FLOPs of a step may still be counted.

        Args:
            step_ns: device time of each step.
        """
        device = self.device
        counts = [self._count_step(step) for step in window.steps]
        totals = sum(counts, Counts())
        waits_ns = [
            sum(device.elapsed_ns(*fetch.marks) for fetch in step.fetches) for step in window.steps
        ]
        optional: dict[str, Any] = {}
        graphs = self.count_graphs()
        if graphs > self._num_graphs:
            optional["graphs_compiled"] = graphs - self._num_graphs
            self._num_graphs = graphs
        # Time of the checks of the weights since the event of the window before. If a pause
        # followed that window, ``resume`` has moved the time of its check to
        # ``_pending_check_ns``; otherwise it is taken here. The check of this window comes after
        # its event.
        check_ns = self._pending_check_ns + self.weights.take_check_ns()
        self._pending_check_ns = 0
        if check_ns:
            optional["check_ns"] = check_ns
        fields = {
            "phase": window.phase,
            "epoch": 0,  # the probe sees no epochs
            "first_step": self.steps - len(window.steps),  # ``steps`` includes this window's
            "start_ns": window.start_ns,
            "end_ns": end_ns,
            "step_ns": step_ns,
            # A batch may be read before the step that trains it, and take longer than that step.
            "wait_ns": [min(wait, step) for wait, step in zip(waits_ns, step_ns, strict=True)],
            "loss": self._read_losses(window.steps),
            "samples": [step.samples for step in counts],
            # Of all ranks. If the witness file does not state the samples of a step, only those of
            # this rank are known.
            "step_samples": [self.stated.samples_of_all or step.samples for step in counts],
            "sequences": totals.sequences,
            "tokens": totals.tokens,
            "tokens_padded": totals.tokens_padded,
            "micro_batches": sum(step.backwards for step in window.steps),
            "used_bytes": device.memory().used_bytes,
            **optional,
        }
        self._waiting.append(_WaitingWindow(fields, totals))
        # Windows wait until the FLOPs of a step have been counted, or none will be: only a step of
        # the warm-up is counted.
        can_still_count = self.flops.step_flops is None and self.steps < self.stated.warmup_steps
        if not can_still_count:
            self._emit_waiting()

    def _emit_waiting(self) -> None:
        """Emit windows that waited for the FLOPs of a step."""
        for window in self._waiting:
            num_steps = len(window.fields["step_ns"])
            model_flops = self._compute_model_flops(window.counts, num_steps)
            self.events.emit("window", **window.fields, model_flops=model_flops)
        self._waiting.clear()

    def _compute_model_flops(self, counts: Counts, num_steps: int) -> float | None:
        """Return the model FLOPs of a window: as stated, else by the step that was counted."""
        flops_per_unit = self.stated.flops_per_unit
        if flops_per_unit is not None:
            amount = counts.tokens if self.stated.unit == "tokens" else counts.samples
            return flops_per_unit * amount
        step_flops = self.flops.step_flops
        return None if step_flops is None else step_flops * num_steps

    def _count_step(self, step: _Step) -> Counts:
        """Return the counts of a step, and keep those of its batches for the record.

        The record gets medians: the first ``_MAX_KEPT_COUNTS`` steps are enough for them.
        """
        fetched = step.fetched_counts
        if fetched is None:
            self._num_without_batch += 1
        elif len(self._fetched_counts) < _MAX_KEPT_COUNTS:
            self._fetched_counts.append(fetched)
        if step.backwards == 0:
            self._num_without_backward += 1
        if len(self._micro_batches) < _MAX_KEPT_COUNTS:
            self._micro_batches.append(step.backwards)
        # What the user states takes precedence over what the batches hold.
        if self.stated.counts is not None:
            return self.stated.counts
        return Counts() if fetched is None else fetched

    def _read_losses(self, steps: list[_Step]) -> list[float | None]:
        """Return the mean loss of each step's backward passes, read in one copy.

        The means of these steps are also kept: those of the last window are compared with the
        target.
        """
        losses = [loss for step in steps for loss in step.losses]
        # The losses of all steps, one after another: each step takes as many as it has.
        values = iter(self.device.read(losses) if losses else [])
        means: list[float | None] = []
        self._last_losses = []
        for step in steps:
            step_losses = [next(values) for _ in step.losses]
            mean = sum(step_losses) / len(step_losses) if step_losses else None
            means.append(None if mean is None else drop_non_finite(mean))
            if mean is not None:
                self._last_losses.append(mean)
        return means

    def _emit_target(self, target: float) -> None:
        """Emit an evaluation with the mean loss of the last window, compared with the target."""
        value = sum(self._last_losses) / len(self._last_losses)
        self.events.emit(
            "evaluate",
            epoch=0,  # the probe sees no epochs
            step=self.steps,
            start_ns=self._training_end_ns,  # it takes no time and evaluates no samples
            end_ns=self._training_end_ns,
            value=drop_non_finite(value),
            samples=0,
            detail={},
            target_reached=value <= target,
        )

    def _describe_job(self) -> dict[str, Any]:
        """Return the facts that the probe observed, for the record."""
        parameters = self.weights.count_elements()
        is_stated = self.stated.flops_per_unit is not None
        facts: dict[str, Any] = {
            # The probe knows only the tensors that optimizers hold, which are trainable. If there
            # are none, the program has released its optimizers, and the number is not known.
            "parameters": parameters or None,
            "trainable_parameters": parameters or None,
            "flops_formula": "as the user says" if is_stated else "counted in one step",
            "optimizer_steps": self._optimizer_steps,  # of each optimizer
            "evaluations": self._num_evaluations,
            "micro_batches_per_step": int(median(self._micro_batches))
            if self._micro_batches
            else 0,
            "steps_without_backward": self._num_without_backward,
            "steps_without_batch": self._num_without_batch,
            "violations": list(self.weights.violations.values()),  # found by checks of the weights
            "graphs_compiled": self.count_graphs(),
        }
        counts = self._fetched_counts
        if counts:  # what the loaders yielded for a step, whatever the user states
            facts["seen_samples"] = median(step.samples for step in counts)
            facts["seen_tokens"] = median(step.tokens for step in counts)
            facts["seen_tokens_padded"] = median(step.tokens_padded for step in counts)
        if self.flops.matmul_type is not None:
            facts["matmul_type"] = self.flops.matmul_type
        return facts
