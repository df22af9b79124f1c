"""Measure the steps of a program from inside it, and write the events of a rank.

Knows no torch hooks: ``hooks`` calls it. A step ends when the optimizer has stepped; a window of
steps ends with a synchronization of the device. Time that the program spends on an evaluation or
a checkpoint belongs to no window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

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
_WINDOW_NS = 1_000_000_000  # of a window, where the file does not say how many steps it has
_MAX_WINDOW_STEPS = 1_000
_MAX_KEPT_COUNTS = 10_000  # steps of which what was seen is kept for its median


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStep:
    """What the file of ``--witness`` says of a step; see ``plan.witness.WitnessSpec``.

    Args:
        counts: of this rank in a step; None: they are counted.
        samples_of_all: of all ranks in a step; 0: they are counted.
        flops_per_unit: model FLOPs of training a token or a sample; None: counted in a step.
        unit: field of ``Counts`` that ``flops_per_unit`` is of.
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
    """What was seen of one training step.

    Args:
        losses: where backward passes began, on the device.
        backwards: how many began.
    """

    losses: list[Any] = field(default_factory=list)
    backwards: int = 0
    fetches: list[Fetch] = field(default_factory=list)

    @property
    def seen(self) -> Counts | None:
        """Return what loaders yielded for the step; None if they yielded nothing countable."""
        counted = [fetch.counts for fetch in self.fetches if fetch.counts is not None]
        return sum(counted, Counts()) if counted else None


@dataclass(slots=True)
class _Window:
    """A window that is under way, or that waits for the FLOPs of a step.

    Args:
        marks: of its start and of each step's end.
    """

    phase: str
    length: int
    start_ns: int
    marks: list[Any]
    steps: list[_Step] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class WitnessedRank:
    """One rank of a program: its windows, its checks, its events."""

    stated: StatedStep
    events: EventWriter
    device: Device
    clock: Callable[[], int]
    weights: TrainedWeights
    flops: FlopCounter
    batches: BatchCounter
    compiled: Callable[[], int]  # graphs that torch made so far
    place: str = "train"  # for the report of an error
    steps: int = 0
    _start_ns: int = 0
    _end_ns: int = 0
    _window: _Window | None = None
    _step: _Step = field(default_factory=_Step)
    _stepped: set[int] = field(default_factory=set)
    _pause: tuple[Pause, int] | None = None
    _window_steps: int = 1
    _graphs: int = 0
    _waiting: list[tuple[dict[str, Any], Counts]] = field(default_factory=list)
    _seen: list[Counts] = field(default_factory=list)
    _unseen_steps: int = 0
    _without_backward: int = 0
    _micro_batches: list[int] = field(default_factory=list)
    _last_losses: list[float] = field(default_factory=list)
    _optimizer_steps: dict[int, int] = field(default_factory=dict)  # by the optimizer's id
    _stepping: list[int] = field(default_factory=list)  # ids; one may step others
    _pauses: int = 0
    _checked_ns: int = 0  # of checks that no event has yet

    def begin(self, start_ns: int) -> None:
        """Start the first window.

        Args:
            start_ns: when the first batch was asked for, or the first backward pass began.
        """
        self._start_ns = self._end_ns = start_ns
        self._graphs = self.compiled()
        self._open_window(start_ns)

    def backward(self, loss: Any) -> None:
        """Take the loss of a backward pass that begins; None: it is no single number."""
        self.resume()
        self.batches.backward()
        self._step.backwards += 1
        if loss is not None:
            self._step.losses.append(loss)

    def before_optimizer(self, optimizer: Any) -> None:
        """Take an optimizer that is about to step; those that it steps itself do not count."""
        self._stepping.append(id(optimizer))
        if len(self._stepping) == 1 and id(optimizer) not in self._optimizer_steps:
            self._optimizer_steps[id(optimizer)] = 0
            self.weights.add(optimizer)
        self._checked_ns += self.weights.take_ns()
        self.weights.before_step(step=self.steps)
        self.weights.take_ns()  # it is part of the step, not between windows

    def after_optimizer(self, optimizer: Any) -> None:
        """Take an optimizer that has stepped; the training step ends when all of them did."""
        del self._stepping[self._stepping.index(id(optimizer)) :]
        if self._stepping:
            return
        self.resume()
        self.weights.after_step(optimizer)
        self._optimizer_steps[id(optimizer)] += 1
        is_again = id(optimizer) in self._stepped
        self._stepped.add(id(optimizer))
        if is_again or len(self._stepped) >= self.stated.optimizers:
            self._stepped.clear()
            self._end_step()

    def pause(self, name: Pause) -> None:
        """Close the window: the program evaluates or saves from now on."""
        if self._pause is None and self.steps:
            self._close_window(is_whole=False)
            self.flops.abandon()
            self._pause = (name, self.clock())
            self._pauses += name == "evaluate"

    def resume_after(self, name: Pause) -> None:
        """Start a window if the program paused for this."""
        if self._pause is not None and self._pause[0] == name:
            self.resume()

    def resume(self) -> None:
        """Start a window if the program paused: it trains again."""
        if self._pause is None:
            return
        name, start_ns = self._pause
        self._pause = None
        self._end_ns = self.clock()
        self.events.emit("span", name=name, start_ns=start_ns, end_ns=self._end_ns)
        self._checked_ns += self.weights.take_ns()
        self._open_window(self.clock())

    def finish(self) -> None:
        """Write what the program trained, at its end."""
        self.resume()
        self._close_window(is_whole=False)
        self.flops.abandon()
        self._emit_waiting()
        if self.stated.target_loss is not None and self._last_losses:
            self._emit_target(self.stated.target_loss)
        self.events.emit(
            "trained",
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            steps=self.steps,
            epochs=1,
            check_ns=self._checked_ns,  # not that of the last window, which was after it
        )
        start_ns = self.clock()
        self.events.emit("parameters", **self.weights.end())
        self.events.emit("span", name="check", start_ns=start_ns, end_ns=self.clock())
        memory = self.device.memory()
        self.events.emit(
            "result",
            job=self._describe(),
            allocator_peak_bytes=memory.allocator_peak_bytes,
            used_bytes=memory.used_bytes,
            flops_counted=self.flops.counted,
            rows=self.batches.list_rows(),
        )
        self.events.emit("end")

    def _end_step(self) -> None:
        window = self._window
        assert window is not None, "a window is open outside of pauses"
        step, self._step = self._step, _Step()
        step.fetches = self.batches.take_step()
        window.steps.append(step)
        window.marks.append(self.device.mark())
        self.steps += 1
        self.flops.step_ended(
            can_count=self.steps < self.stated.warmup_steps and self.compiled() == 0
        )
        if len(window.steps) >= window.length:
            self._close_window(is_whole=True)
            self._open_window(self.clock())

    def _schedule(self) -> Schedule:
        return Schedule(
            max_epochs=1,
            warmup_steps=self.stated.warmup_steps,
            window_steps=self.stated.window_steps or self._window_steps,
        )

    def _open_window(self, start_ns: int) -> None:
        phase, length = self._schedule().next_window(self.steps)
        self._window = _Window(phase, length, start_ns, [self.device.mark()])

    def _close_window(self, *, is_whole: bool) -> None:
        """Emit the window under way; what the program did after its last step is not in it."""
        window, self._window = self._window, None
        if window is None or not window.steps:
            return
        device = self.device
        device.synchronize()
        end_ns = self.clock()
        if not is_whole:
            end_ns = window.start_ns + device.elapsed_ns(window.marks[0], window.marks[-1])
        step_ns = [device.elapsed_ns(before, after) for before, after in pairwise(window.marks)]
        if window.phase == "compile":
            step_ns = [end_ns - window.start_ns]  # it began before the first mark
        self._end_ns = max(self._end_ns, end_ns)
        self._emit_window(window, end_ns, step_ns)
        if self.stated.window_steps is None and is_whole:
            self._choose_window_steps(sum(step_ns) / len(step_ns))
        first = self.steps - len(window.steps)
        next_phase, _ = self._schedule().next_window(self.steps)
        exact = next_phase == "train" and window.phase != "train"
        self.weights.after_window(first_step=first, steps=len(window.steps), exact=exact)

    def _choose_window_steps(self, step_ns: float) -> None:
        """Choose as many steps as take about a second, at most twice as many as before."""
        wanted = int(_WINDOW_NS / max(step_ns, 1.0))
        self._window_steps = max(1, min(wanted, 2 * self._window_steps, _MAX_WINDOW_STEPS))

    def _emit_window(self, window: _Window, end_ns: int, step_ns: list[int]) -> None:
        device = self.device
        counts = [self._count_step(step) for step in window.steps]
        totals = sum(counts, Counts())
        waits_ns = [
            sum(device.elapsed_ns(*fetch.marks) for fetch in step.fetches) for step in window.steps
        ]
        optional: dict[str, Any] = {}
        graphs = self.compiled()
        if graphs > self._graphs:
            optional["graphs_compiled"] = graphs - self._graphs
            self._graphs = graphs
        checked_ns, self._checked_ns = self._checked_ns + self.weights.take_ns(), 0
        if checked_ns:
            optional["check_ns"] = checked_ns
        fields = {
            "phase": window.phase,
            "epoch": 0,
            "first_step": self.steps - len(window.steps),
            "start_ns": window.start_ns,
            "end_ns": end_ns,
            "step_ns": step_ns,
            # A batch may be read before the step that trains it.
            "wait_ns": [min(wait, step) for wait, step in zip(waits_ns, step_ns, strict=True)],
            "loss": self._read_losses(window.steps),
            "samples": [step.samples for step in counts],
            "step_samples": [self.stated.samples_of_all or step.samples for step in counts],
            "sequences": totals.sequences,
            "tokens": totals.tokens,
            "tokens_padded": totals.tokens_padded,
            "micro_batches": sum(step.backwards for step in window.steps),
            "used_bytes": device.memory().used_bytes,
            **optional,
        }
        self._waiting.append((fields, totals))
        if not self.flops.may_count(self.steps < self.stated.warmup_steps):
            self._emit_waiting()

    def _emit_waiting(self) -> None:
        """Emit windows that waited for the FLOPs of a step."""
        for fields, totals in self._waiting:
            self.events.emit("window", **fields, model_flops=self._model_flops(totals, fields))
        self._waiting.clear()

    def _model_flops(self, counts: Counts, fields: dict[str, Any]) -> float | None:
        per_unit = self.stated.flops_per_unit
        if per_unit is not None:
            amount = counts.tokens if self.stated.unit == "tokens" else counts.samples
            return per_unit * amount
        counted = self.flops.counted
        return None if counted is None else counted * len(fields["step_ns"])

    def _count_step(self, step: _Step) -> Counts:
        """Return what a step trained, and keep what was seen of it."""
        seen = step.seen
        if seen is None:
            self._unseen_steps += 1
        elif len(self._seen) < _MAX_KEPT_COUNTS:
            self._seen.append(seen)
        if step.backwards == 0:
            self._without_backward += 1
        if len(self._micro_batches) < _MAX_KEPT_COUNTS:
            self._micro_batches.append(step.backwards)
        return self.stated.counts or seen or Counts()

    def _read_losses(self, steps: list[_Step]) -> list[float | None]:
        """Return the mean loss of each step's backward passes, read in one copy."""
        losses = [loss for step in steps for loss in step.losses]
        values = iter(self.device.read(losses) if losses else [])
        means: list[float | None] = []
        self._last_losses = []
        for step in steps:
            of_step = [next(values) for _ in step.losses]
            mean = sum(of_step) / len(of_step) if of_step else None
            means.append(None if mean is None else drop_non_finite(mean))
            if mean is not None:
                self._last_losses.append(mean)
        return means

    def _emit_target(self, target: float) -> None:
        value = sum(self._last_losses) / len(self._last_losses)
        self.events.emit(
            "evaluate",
            epoch=0,
            step=self.steps,
            start_ns=self._end_ns,
            end_ns=self._end_ns,
            value=drop_non_finite(value),
            samples=0,
            detail={},
            target_reached=value <= target,
        )

    def _describe(self) -> dict[str, Any]:
        """Return what the probe saw of the program, for the record."""
        parameters = self.weights.count_elements()
        is_counted = self.stated.flops_per_unit is None
        facts: dict[str, Any] = {
            "parameters": parameters or None,
            "trainable_parameters": parameters or None,
            "flops_formula": "counted in one step" if is_counted else "as the user says",
            "optimizer_steps": list(self._optimizer_steps.values()),
            "evaluations": self._pauses,
            "micro_batches_per_step": int(median(self._micro_batches or [0])),
            "steps_without_backward": self._without_backward,
            "steps_without_batch": self._unseen_steps,
            "violations": list(self.weights.violations.values()),
            "graphs_compiled": self.compiled(),
        }
        if self._seen:
            facts["seen_samples"] = median(step.samples for step in self._seen)
            facts["seen_tokens"] = median(step.tokens for step in self._seen)
            facts["seen_tokens_padded"] = median(step.tokens_padded for step in self._seen)
        if self.flops.matmul_type is not None:
            facts["matmul_type"] = self.flops.matmul_type
        return facts
