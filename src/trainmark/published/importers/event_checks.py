"""Compare the facts that a log of events states twice: samples, batch, times, ends.

A log that was edited, or whose program counts wrongly, contradicts itself only in facts that it
states twice. A fact that it states once is listed as not checkable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainmark.published.importers.events import END_EVENTS
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.published.importers.events import Event
    from trainmark.spec import Message

_STEP_KEYS = ("step", "step_num")  # of metadata: optimizer steps done until the event
# Events whose value is a number that is compared with others.
_NUMERIC_SETTINGS = {
    "global_batch_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "train_samples",
}
# Two statements of one speed differ by evaluations, warm-up and rounding, but by less than this.
_MAX_SPEED_RATIO = 1.5
# Processes that print into one log may do so out of order by less than this.
_MAX_DISORDER_S = 5.0


class _SamplesAtLine(NamedTuple):
    """Samples trained until an event, and the line of the event."""

    samples: float
    line: int


class _TimeAtLine(NamedTuple):
    """The time of an event in seconds, and its line."""

    time_s: float
    line: int


class _Progress(NamedTuple):
    """Optimizer steps, samples and epochs that were trained until an event; 0: not known."""

    steps: float
    samples: float
    epochs: float


_NO_PROGRESS = _Progress(0.0, 0.0, 0.0)


class Speeds(NamedTuple):
    """The speed of a run by a log: as the program printed it, and as counts and times give it.

    Args:
        logged: each speed that the program printed, in samples a second.
        samples: trained in ``seconds``, by the log's counts; NaN: not known.
        seconds: of training without evaluations, by the log's times; 0: not known.
    """

    logged: list[float]
    samples: float
    seconds: float

    @property
    def measured(self) -> float | None:
        """Samples a second by the counts and times in the log; None: not known.

        Not known are seconds of 0, and samples that are NaN.
        """
        is_known = self.seconds > 0 and not math.isnan(self.samples)
        return self.samples / self.seconds if is_known else None


@dataclass
class EventChecks:
    """The samples, steps and times of the events of one run, and their contradictions.

    Args:
        end_lines: lines of the events that end the run.
        contradictions: those found while reading.
    """

    end_lines: list[int] = field(default_factory=list)
    contradictions: list[Message] = field(default_factory=list)
    _settings: dict[str, float] = field(default_factory=dict)  # numbers, by the name of the event
    _max_samples: _SamplesAtLine = field(default=_SamplesAtLine(0.0, 0))
    _latest_time: _TimeAtLine = field(default=_TimeAtLine(-math.inf, 0))
    # At the event with the most steps.
    _progress_at_max_steps: _Progress = _NO_PROGRESS
    # Of the events that state an epoch, at the one with the most samples.
    _progress_at_max_samples: _Progress = _NO_PROGRESS

    def feed(self, event: Event) -> None:
        """Read an event: keep its facts, and add the contradictions to those of earlier lines.

        An event has only some of the facts; those that it lacks are skipped.
        """
        if event.name in END_EVENTS:
            self.end_lines.append(event.line)
        if event.name in _NUMERIC_SETTINGS and isinstance(event.value, int | float):
            self._settings[event.name] = float(event.value)
        if "time_ms" in event.metadata:
            self._feed_time(event)
        if not math.isnan(event.samples):
            self._feed_samples(event)

    def _feed_time(self, event: Event) -> None:
        """Add a contradiction if the time of an event is before that of an earlier line.

        Processes that print into one log may do so out of order by a few seconds.
        """
        latest = self._latest_time
        if event.time_s < latest.time_s - _MAX_DISORDER_S:
            seconds = latest.time_s - event.time_s
            # ``other`` is the line of the latest time so far.
            self._add_once("log_time_falls", line=event.line, seconds=seconds, other=latest.line)
        if event.time_s >= latest.time_s:  # a late line does not set the clock back
            self._latest_time = _TimeAtLine(event.time_s, event.line)

    def _feed_samples(self, event: Event) -> None:
        """Keep the samples, steps and epochs until an event if they are the highest so far.

        Samples below those of an earlier event are a contradiction. Steps are kept with the samples
        at the same event, and so are epochs, as each is later compared with these samples.
        """
        samples = event.samples
        highest = self._max_samples
        if samples < highest.samples:
            self._add_once(
                "log_samples_fall",
                line=event.line,
                samples=samples,
                before=highest.samples,
                other=highest.line,
            )
        if samples >= highest.samples:
            self._max_samples = _SamplesAtLine(samples, event.line)
        steps = 0.0  # the event does not state them
        for key in _STEP_KEYS:  # programs name them differently
            if key in event.metadata:
                steps = float(event.metadata[key])
                break
        epoch = event.metadata.get("epoch_num")  # from 0; the epoch that goes on counts whole
        epochs = float(epoch) + 1 if epoch is not None else 0.0  # 0: the event does not state them
        # Only the highest counts are compared: late lines and restarts repeat lower ones.
        if steps > self._progress_at_max_steps.steps:
            self._progress_at_max_steps = _Progress(steps, samples, epochs)
        if epochs and samples > self._progress_at_max_samples.samples:
            self._progress_at_max_samples = _Progress(steps, samples, epochs)

    def _add_once(self, code: str, **arguments: float) -> None:
        """Add a contradiction unless there is one with this code: the first one shows the fault.

        Args:
            code: of the message in the catalog.
            arguments: the numbers in its text.
        """
        if all(earlier.code != code for earlier in self.contradictions):
            self.contradictions.append(message(code, **arguments))

    def find_contradictions(self, speeds: Speeds, world_size: int | None) -> list[Message]:
        """Return all contradictions in the log of the run, each with its numbers.

        Some were found while the events were read; the others compare sums over the whole run.

        Args:
            speeds: the speed as printed, and as samples and seconds give it.
            world_size: devices of the run; None: not known.
        """
        comparisons = (
            self._compare_steps(),
            self._compare_epochs(),
            self._compare_batch(world_size),
            _compare_speeds(speeds),
            self._find_second_end(),
        )
        return [*self.contradictions, *(x for x in comparisons if x is not None)]

    def list_unchecked(self, speeds: Speeds, world_size: int | None) -> list[str]:
        """Return which of samples, batch and times cannot be checked.

        The run states these facts only once, so there is nothing to compare them with.

        Args:
            speeds: the speed as printed, and as samples and seconds give it.
            world_size: devices of the run; None: not known.
        """
        has_both_speeds = bool(speeds.logged) and speeds.measured is not None
        has_batch = "global_batch_size" in self._settings
        has_steps = has_batch and self._progress_at_max_steps.steps > 0
        has_epochs = "train_samples" in self._settings and self._progress_at_max_samples.epochs > 0
        has_planned_batch = self._compute_planned_batch(world_size) is not None
        unchecked = []
        # Samples are compared with steps times batch, with epochs, and with speed times seconds.
        if not (has_steps or has_epochs or has_both_speeds):
            unchecked.append("samples")
        # The batch is compared with samples per step and with micro-batch x accumulation x devices.
        if has_batch and not has_steps and not has_planned_batch:
            unchecked.append("batch")
        if not has_both_speeds:  # times are compared only as part of a speed
            unchecked.append("times")
        return unchecked

    def _compare_steps(self) -> Message | None:
        """Return a contradiction if samples are more or fewer than steps times batch.

        None: they agree, or the log does not state the batch or the steps. Samples may be fewer for
        two reasons: the last batch of each epoch may be smaller, and a program may count each of
        the micro-batches that it accumulates as a step.
        """
        batch = self._settings.get("global_batch_size", 0.0)
        accumulation = self._settings.get("gradient_accumulation_steps", 1.0)
        steps, samples, epochs = self._progress_at_max_steps
        if not batch or not steps:
            return None
        is_above = samples > (steps + 1) * batch  # programs count steps from 0 or from 1
        num_smaller_batches = max(epochs, 1.0)  # 0 epochs: the log does not state them
        # A smaller batch may have almost no samples, so it is left out.
        min_samples = (steps - num_smaller_batches) * batch / max(accumulation, 1.0)
        if not is_above and samples >= min_samples:
            return None
        code = "log_samples_above_steps" if is_above else "log_samples_below_steps"
        return message(code, samples=samples, steps=steps, batch=batch)

    def _compare_epochs(self) -> Message | None:
        """Return a contradiction if more samples were trained than the epochs have.

        None: they were not, or the log does not state the samples of an epoch. In each epoch, the
        last batch may be padded to its full size, so an epoch may have one batch more.
        """
        train_samples = self._settings.get("train_samples", 0.0)  # of one epoch; 0: not stated
        batch = self._settings.get("global_batch_size", 0.0)
        _, samples, epochs = self._progress_at_max_samples  # without an epoch: all are 0
        if not train_samples or samples <= epochs * (train_samples + batch):
            return None
        return message("log_samples_and_epochs", samples=samples, epochs=epochs, rows=train_samples)

    def _compute_planned_batch(self, world_size: int | None) -> float | None:
        """Return micro-batch x accumulation x devices; None: micro-batch or devices are not known.

        The numbers are those that events of the log state. A log without an event for accumulation
        has no accumulation.

        Args:
            world_size: devices of the run; None: not known.
        """
        micro_batch = self._settings.get("micro_batch_size")
        accumulation = self._settings.get("gradient_accumulation_steps", 1.0)
        if micro_batch is None or not world_size:
            return None
        return micro_batch * accumulation * world_size

    def _compare_batch(self, world_size: int | None) -> Message | None:
        """Return a contradiction if the batch is larger than micro-batch x accumulation x devices.

        None: it is not, or a number is not known. Devices that share one model train one batch
        together, so it may be smaller.

        Args:
            world_size: devices of the run; None: not known.
        """
        batch = self._settings.get("global_batch_size")
        planned_batch = self._compute_planned_batch(world_size)
        if batch is None or planned_batch is None or batch <= planned_batch:
            return None
        return message("log_batch_and_devices", batch=batch, most=planned_batch, devices=world_size)

    def _find_second_end(self) -> Message | None:
        """Return a contradiction if the log has several events that end the run; else None."""
        if len(self.end_lines) < 2:
            return None
        first, second = self.end_lines[:2]
        return message("log_ends_twice", count=len(self.end_lines), line=first, other=second)


def _compare_speeds(speeds: Speeds) -> Message | None:
    """Return a contradiction if the speed as printed is not that of samples divided by seconds.

    None: these two speeds agree, or one of them is not known. Evaluations, warm-up and rounding may
    make one of them larger, but not ``_MAX_SPEED_RATIO`` times as large.

    Args:
        speeds: all printed speeds, and samples and seconds of the run by its other events.
    """
    measured = speeds.measured  # samples divided by seconds
    if not speeds.logged or not measured:
        return None
    logged = sum(speeds.logged) / len(speeds.logged)  # as ``EventRun.speed`` reports it
    if 1 / _MAX_SPEED_RATIO < logged / measured < _MAX_SPEED_RATIO:
        return None
    return message(
        "log_speeds_differ",
        logged=logged,
        measured=measured,
        samples=speeds.samples,
        seconds=speeds.seconds,
    )
