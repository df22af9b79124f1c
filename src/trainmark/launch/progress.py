"""Launch a run and show its progress on standard error, in one line.

Reads new events from the first rank's event file; does not communicate with the ranks.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from trainmark.errors import escape_controls
from trainmark.events.schema import (
    Evaluate,
    EventTail,
    Facts,
    RunEvent,
    Span,
    Start,
    Window,
    name_rank_file,
)
from trainmark.plan.recipes import compute_step_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trainmark.plan.plan import Plan

_LINE_EVERY_S = 10.0  # interval of lines if standard error is not a terminal
_MIN_TRAINED_SHARE = 0.05  # of the time limit; before, the speed of the first steps may mislead
_AFTER_SPAN = {
    "init": "measuring the matmul rate",
    "preflight": "building data",
    "data_build": "building the model",
    "model_build": "first step",
    "finish": "done",
}


class ProgressPart(NamedTuple):
    """A part of the progress line; the part with the lowest priority is dropped first."""

    text: str
    priority: int


# Priorities of the parts, the lowest first.
_EPOCH = 0
_EVALUATION = 1
_MEMORY = 2
_QUALITY = 3
_LOSS = 4
_TIME_LEFT = 5
_STEP = 6
_ENGINE = 7
_SPEED = 8


def fit_line(label: str, parts: Iterable[ProgressPart], width: int) -> str:
    """Return label and parts in one line, without those that do not fit into ``width`` columns.

    The part with the lowest priority is dropped first. The step, the speed and the engine's words,
    which are what a launcher such as Slurm says of a job, have the highest priorities: the label is
    dropped before any of these. If a single part or the label alone is too long, it stays.
    """
    shown_parts = list(parts)
    line = _join_parts(label, shown_parts)
    while cell_len(line) > width and shown_parts and (label or len(shown_parts) > 1):
        least_important = min(shown_parts, key=lambda part: part.priority)
        if label and least_important.priority >= _STEP:  # step, engine's words or speed
            label = ""
        else:
            shown_parts.remove(least_important)
        line = _join_parts(label, shown_parts)
    return line


def _join_parts(label: str, parts: Iterable[ProgressPart]) -> str:
    """Return label and parts in one line, whose length is not limited."""
    text = "  ".join(part.text for part in parts)
    return f"{label}: {text}" if label else text


@dataclass(slots=True)
class RunProgress:
    """The progress of a run's first rank.

    Args:
        parts: of the progress line, as of the last ``poll``.
        limit_warning: a sentence once it is known that the run will miss its time limit.
    """

    plan: Plan
    parts: Sequence[ProgressPart] = (ProgressPart("starting ranks", priority=_STEP),)
    limit_warning: str = ""
    _started_ns: int = 0
    _total_steps: int = 0
    _steps_per_epoch: int = 0
    _samples: int = 0  # of all ranks
    _quality: float | None = None
    _steps: int = 0
    _train_ns: int = 0  # of windows after the warm-up
    _train_steps: int = 0  # of these windows
    _tail: EventTail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = EventTail(Path(self.plan.run_dir) / name_rank_file(0))

    @property
    def has_read_events(self) -> bool:
        """Tell whether any event of the first rank was read.

        None was read while the job of an engine such as Slurm waits for its nodes, or if its first
        rank is on a machine whose files are not visible here.
        """
        return not self._tail.is_unread

    def poll(self) -> Sequence[ProgressPart]:
        """Read new events of the first rank and return the parts of the progress line."""
        for event in self._tail.read_new():
            self._process_event(event)
        return self.parts

    def _process_event(self, event: RunEvent) -> None:
        """Update the progress by one event."""
        match event:
            case Start():
                self._show("importing")  # a rank's first work after its start
                self._started_ns = event.t_ns
            # A user's own program starts after its rank is ready; its work has no spans.
            case Span(name="init") if self.plan.witness is not None:
                self._show("running the program")
            case Span() if event.name in _AFTER_SPAN:  # the span has ended: show what follows it
                self._show(_AFTER_SPAN[event.name])
            case Facts():
                self._process_facts(event)
            case Evaluate():
                self._quality = event.value
            case Window():
                self._process_window(event)

    def _show(self, text: str) -> None:
        """Set the progress to a single text."""
        self.parts = (ProgressPart(text, priority=_STEP),)

    def _process_facts(self, event: Facts) -> None:
        """Note how many steps the run has at most; warn if it cannot end within its time limit.

        Args:
            event: what the first rank reports of its device and its job before training.
        """
        recipe = self.plan.recipe
        steps_of_epochs = event.steps_per_epoch * recipe["max_epochs"]
        self._total_steps = steps_of_epochs
        if recipe["max_steps"]:  # None: the epochs alone limit the steps
            self._total_steps = min(steps_of_epochs, recipe["max_steps"])
        self._steps_per_epoch = event.steps_per_epoch
        limit_s = recipe["timeout_s"]
        # A run with a target may end before its last step.
        prefix = "" if self.plan.target is None else "at most "
        steps = f"first of {prefix}{self._total_steps} steps"
        if not self._total_steps:  # a user's own program does not report its number of steps
            steps = "first step"
        self._show(f"{steps}, limit {_format_duration(limit_s)}")
        if not event.step_flops or not event.matmul_flops_per_second:  # not known
            return
        # The shortest time that a step can take: FLOPs of a step on the first rank, by the matmul
        # rate of its device, which no step exceeds.
        step_s = event.step_flops / event.matmul_flops_per_second
        needed_s = self._find_earliest_last_step() * step_s
        if needed_s > limit_s:
            self.limit_warning = (
                "this run will not finish within its time limit of "
                f"{_format_duration(limit_s)}: its steps "
                f"{self._format_end_condition()}take about {_format_duration(needed_s)} "
                "at the measured matmul rate; raise --timeout or lower max_steps"
            )

    def _process_window(self, event: Window) -> None:
        """Add the steps of a window to the totals, and replace the parts of the progress line."""
        num_steps = len(event.step_ns)
        window_ns = event.end_ns - event.start_ns
        num_samples = sum(event.step_samples)  # of all ranks
        self._steps += num_steps
        self._samples += num_samples
        # Windows of compilation and warm-up may be slower: the remaining time ignores them.
        if event.phase == "train":
            self._train_ns += window_ns
            self._train_steps += num_steps
        # The speed is that of this window alone.
        samples_per_s = num_samples * 1e9 / max(window_ns, 1)
        speed = f"{samples_per_s:,.1f}" if samples_per_s < 1000 else f"{samples_per_s:,.0f}"
        # A user's own program does not report how many steps it will do.
        total = f"/{self._total_steps}" if self._total_steps else ""
        # If the line is too long for a terminal, parts are dropped, the lowest priority first.
        parts = [
            ProgressPart(f"step {self._steps}{total}", priority=_STEP),
            ProgressPart(f"{speed} samples/s", priority=_SPEED),
        ]
        last_loss = event.loss[-1]
        if last_loss is not None:
            parts.append(ProgressPart(f"loss {last_loss:.4f}", priority=_LOSS))
        # None: the loss was not finite. In a user's own program it may also be unknown, because the
        # program has no loss that is a single number: then the part is left out.
        elif self.plan.witness is None:
            parts.append(ProgressPart("loss nan", priority=_LOSS))
        parts += self._estimate_times(event.end_ns)
        if event.used_bytes is not None:  # None: the device does not report its memory
            parts.append(ProgressPart(f"{event.used_bytes / 2**30:.1f} GiB", priority=_MEMORY))
        if self._quality is not None:  # of the last evaluation; None: there was none yet
            parts.append(ProgressPart(f"quality {self._quality:.4f}", priority=_QUALITY))
        epoch = event.epoch + 1  # events count from 0
        parts.append(ProgressPart(f"epoch {epoch}", priority=_EPOCH))
        self.parts = parts

    def _estimate_times(self, now_ns: int) -> Iterator[ProgressPart]:
        """Yield the remaining time and the time to the next evaluation.

        Sets ``limit_warning`` if the time limit comes first. A run with a target may end at any
        evaluation: its remaining time is an upper bound.

        Args:
            now_ns: time of the last event of the first rank.
        """
        # During the warm-up the speed is not known yet, and the number of steps of a user's own
        # program is never known.
        if not self._train_steps or not self._total_steps:
            return
        step_s = self._train_ns / self._train_steps / 1e9
        timeout_s = float(self.plan.recipe["timeout_s"])
        time_to_limit_s = timeout_s - (now_ns - self._started_ns) / 1e9
        remaining_s = (self._total_steps - self._steps) * step_s
        if self.plan.target is None:
            yield ProgressPart(f"{_format_duration(remaining_s)} left", priority=_TIME_LEFT)
        else:
            upper_bound_s = min(remaining_s, time_to_limit_s)
            yield ProgressPart(f"up to {_format_duration(upper_bound_s)} left", priority=_TIME_LEFT)
        evaluation_step = self._find_next_evaluation_step()
        if evaluation_step < self._total_steps:  # else it is due when the run ends
            due_s = (evaluation_step - self._steps) * step_s
            yield ProgressPart(f"evaluation in {_format_duration(due_s)}", priority=_EVALUATION)
        needed_s = (self._find_earliest_last_step() - self._steps) * step_s
        # The speed of the first windows is no basis for a warning.
        is_speed_known = self._train_ns / 1e9 >= _MIN_TRAINED_SHARE * timeout_s
        # The first warning stays: it is shown once.
        if needed_s > time_to_limit_s and is_speed_known and not self.limit_warning:
            self.limit_warning = (
                f"this run will not finish: its steps {self._format_end_condition()}take "
                f"{_format_duration(needed_s)} more at this speed, but only "
                f"{_format_duration(time_to_limit_s)} of its time limit remain; start it again "
                "with a larger --timeout or a smaller max_steps"
            )

    def _find_earliest_last_step(self) -> int:
        """Return the number of the first step after which the run can end.

        That is the last step. A run with a target can already end after its next evaluation, if it
        reaches the target there.
        """
        if self.plan.target is None:
            return self._total_steps
        return self._find_next_evaluation_step()

    def _format_end_condition(self) -> str:
        """Return which steps the run needs at least, as a part of a sentence; empty: all."""
        return "" if self.plan.target is None else "up to the next evaluation "

    def _find_next_evaluation_step(self) -> int:
        """Return the step after which the next evaluation is due; at the latest the last step.

        A recipe evaluates every few epochs, every few samples or both, and after the last step.
        """
        recipe = self.plan.recipe
        next_step = self._total_steps  # the last evaluation is after the last step
        interval_epochs = recipe["eval_every_epochs"]
        if interval_epochs and self._steps_per_epoch:  # 0: the first rank has not reported it
            interval_steps = self._steps_per_epoch * interval_epochs
            next_step = min(next_step, (self._steps // interval_steps + 1) * interval_steps)
        interval_samples = recipe["eval_every_samples"]
        if interval_samples:
            # Both are numbers of samples of all ranks. By default the first of these evaluations is
            # due after one interval.
            first_due_samples = recipe["eval_from_sample"] or interval_samples
            due_samples = first_due_samples
            if self._samples >= first_due_samples:  # the first evaluation is over
                num_intervals = (self._samples - first_due_samples) // interval_samples + 1
                due_samples += num_intervals * interval_samples
            # It is due after the first step with which the samples reach that number.
            samples_left = due_samples - self._samples  # above 0
            steps_left = math.ceil(samples_left / self._compute_samples_per_step())
            next_step = min(next_step, self._steps + steps_left)
        return next_step

    def _compute_samples_per_step(self) -> float:
        """Return the mean samples of a step on all ranks so far; before the first, as planned."""
        if self._steps:
            return self._samples / self._steps
        return compute_step_samples(self.plan.recipe, self.plan.world_size)


def _format_duration(seconds: float) -> str:
    """Return a duration as ``2:05`` (minutes and seconds) or ``1:02:05`` (with hours)."""
    # An overdue time is negative; it is shown as 0:00.
    total_minutes, whole_seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(total_minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{whole_seconds:02}"
    return f"{minutes}:{whole_seconds:02}"


class ProgressLine:
    """A line about a launch on standard error: updated on a terminal, else written at times.

    Args:
        label: name of the run, with which the line begins.
    """

    def __init__(self, plan: Plan, label: str) -> None:
        self._progress = RunProgress(plan)
        self._label = label
        self._shown_text = ""  # the line as it was written last
        self._shown_s = 0.0  # when that was, by the monotonic clock
        self._has_warned = False  # of the time limit

    def show(self, engine_state: str = "") -> None:
        """Show how far the first rank is.

        Args:
            engine_state: the engine's words about the job, shown first; empty: no engine.
        """
        rank_parts = self._progress.poll()
        parts = [ProgressPart(engine_state, priority=_ENGINE)] if engine_state else []
        # Before the first event the ranks' part is "starting ranks". It would contradict the
        # engine's words about a job that waits.
        if not engine_state or self._progress.has_read_events:
            parts += rank_parts
        parts = [part._replace(text=escape_controls(part.text)) for part in parts]
        label = escape_controls(self._label)
        text = _join_parts(label, parts)
        now_s = time.monotonic()
        on_terminal = sys.stderr.isatty()
        # A terminal shows each change; a log gets a line at most every ``_LINE_EVERY_S`` seconds.
        if text != self._shown_text and (on_terminal or now_s - self._shown_s >= _LINE_EVERY_S):
            self._shown_text = text
            self._shown_s = now_s
            line = fit_line(label, parts, _get_columns()) if on_terminal else text
            _write(line, is_replaceable=True)
        if self._progress.limit_warning and not self._has_warned:
            self._has_warned = True
            # ``end_line`` escapes its text itself.
            end_line(f"{self._label}: {self._progress.limit_warning}")


def end_line(text: str) -> None:
    """Replace the progress line by ``text``, escaped; it may take several lines."""
    _write(escape_controls(text), is_replaceable=False)


def _get_columns() -> int:
    """Return the columns of a line; in the last one a terminal would begin the next line."""
    return shutil.get_terminal_size().columns - 1


def _write(text: str, *, is_replaceable: bool) -> None:
    """Write a line to standard error.

    Args:
        is_replaceable: on a terminal, the next line will replace this one, which is cut to the
            terminal's width.
    """
    end = "\n"
    # The program that reads standard error may have exited; the run continues.
    with suppress(OSError):
        if sys.stderr.isatty():
            width = _get_columns()
            if is_replaceable:
                text = set_cell_size(text, width)
                end = ""
            # Spaces cover the rest of the previous line, which may be longer.
            text = f"\r{text}{' ' * (width - cell_len(text))}"
        sys.stderr.write(text + end)
        sys.stderr.flush()
