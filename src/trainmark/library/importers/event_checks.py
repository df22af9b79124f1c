"""Compare what a log of events says twice: samples, batch, times, ends.

A log that was edited, or written by a program that counts wrongly, contradicts itself only where
it says a thing twice. What it says once is named as not checkable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trainmark.library.importers.events import ENDS
from trainmark.spec import message

if TYPE_CHECKING:
    from trainmark.library.importers.events import Event
    from trainmark.spec import Message

_STEPS = ("step", "step_num")  # metadata: optimizer steps done until the event
_NUMBERS = {"global_batch_size", "micro_batch_size", "gradient_accumulation_steps",
            "train_samples"}  # fmt: skip
# Two statements of one speed differ by evaluations, warm-up and rounding, not by half.
_SAME_SPEED = 1.5
# Processes that print into one log may do so out of order by less than this.
_OUT_OF_ORDER_S = 5.0


class Speeds(NamedTuple):
    """What a log says of the speed of a run.

    Args:
        logged: speeds as printed, in samples a second.
        samples: trained in ``seconds``, by the log's counts and times; NaN: not known.
    """

    logged: list[float]
    samples: float
    seconds: float

    @property
    def measured(self) -> float | None:
        """Samples over seconds; None: not known."""
        is_known = self.seconds > 0 and not math.isnan(self.samples)
        return self.samples / self.seconds if is_known else None


@dataclass
class EventChecks:
    """What the events of one run say of samples, steps and times.

    Args:
        ends: lines of the events that end the run.
        contradictions: found so far.
    """

    ends: list[int] = field(default_factory=list)
    contradictions: list[Message] = field(default_factory=list)
    _numbers: dict[str, float] = field(default_factory=dict)
    _last_samples: tuple[float, int] = (0.0, 0)  # and the line
    _last_time: tuple[float, int] = (-math.inf, 0)
    _furthest: tuple[float, float, float] = (0.0, 0.0, 0.0)  # steps, samples and epochs
    _most_per_epoch: tuple[float, float] = (0.0, 0.0)  # samples and epochs

    def feed(self, event: Event) -> None:
        """Add an event; what it cannot say is left out."""
        if event.name in ENDS:
            self.ends.append(event.line)
        if event.name in _NUMBERS and isinstance(event.value, int | float):
            self._numbers[event.name] = float(event.value)
        if "time_ms" in event.metadata:
            self._feed_time(event)
        if not math.isnan(event.samples):
            self._feed_samples(event)

    def _feed_time(self, event: Event) -> None:
        time_s, (last_s, last_line) = event.time_s, self._last_time
        if time_s < last_s - _OUT_OF_ORDER_S:
            self._add_once("log_time_falls", line=event.line, seconds=last_s - time_s,
                           other=last_line)  # fmt: skip
        self._last_time = max(self._last_time, (time_s, event.line))

    def _feed_samples(self, event: Event) -> None:
        samples, (last, last_line) = event.samples, self._last_samples
        if samples < last:
            self._add_once("log_samples_fall", line=event.line, samples=samples, before=last,
                           other=last_line)  # fmt: skip
        self._last_samples = max(self._last_samples, (samples, event.line))
        steps = next((event.metadata[x] for x in _STEPS if x in event.metadata), None)
        epoch = event.metadata.get("epoch_num")
        epochs = float(epoch) + 1 if epoch is not None else 0.0
        if steps is not None and float(steps) > self._furthest[0]:
            self._furthest = float(steps), samples, epochs
        if epochs and samples > self._most_per_epoch[0]:
            self._most_per_epoch = samples, epochs

    def _add_once(self, code: str, **arguments: float) -> None:
        """Add a contradiction; of its kind the first one is enough."""
        if all(one.code != code for one in self.contradictions):
            self.contradictions.append(message(code, **arguments))

    def find_contradictions(self, speeds: Speeds, world_size: int | None) -> list[Message]:
        """Return all in which the run contradicts itself, each with its numbers.

        Args:
            world_size: devices of the run; None: not known.
        """
        compared = (
            self._compare_steps(), self._compare_epochs(), self._compare_batch(world_size),
            _compare_speeds(speeds), self._count_ends(),
        )  # fmt: skip
        return [*self.contradictions, *(found for found in compared if found is not None)]

    def name_unchecked(self, speeds: Speeds, world_size: int | None) -> list[str]:
        """Return which of samples, batch and times the run says only once."""
        has_speed = bool(speeds.logged) and speeds.measured is not None
        batch = "global_batch_size" in self._numbers
        has_steps = batch and self._furthest[0] > 0
        has_epochs = "train_samples" in self._numbers and self._most_per_epoch[1] > 0
        checked = {
            "samples": has_steps or has_epochs or has_speed,
            "batch": not batch or has_steps or self._planned_batch(world_size) is not None,
            "times": has_speed,
        }
        return [name for name, is_checked in checked.items() if not is_checked]

    def _compare_steps(self) -> Message | None:
        """Compare samples with steps times batch.

        The last batch of each epoch may be smaller, and a program may count each of several
        accumulated batches as a step.
        """
        batch = self._numbers.get("global_batch_size", 0.0)
        accumulated = self._numbers.get("gradient_accumulation_steps", 1.0)
        steps, samples, epochs = self._furthest
        if not batch or not steps:
            return None
        above = samples > (steps + 1) * batch
        smaller_batches = max(epochs, 1.0)
        least = (steps - smaller_batches) * batch / max(accumulated, 1.0)
        if not above and samples >= least:
            return None
        code = "log_samples_above_steps" if above else "log_samples_below_steps"
        return message(code, samples=samples, steps=steps, batch=batch)

    def _compare_epochs(self) -> Message | None:
        """Compare samples with epochs times training samples; a batch an epoch may be padded."""
        rows, batch = (self._numbers.get(x, 0.0) for x in ("train_samples", "global_batch_size"))
        samples, epochs = self._most_per_epoch
        if not rows or samples <= epochs * (rows + batch):
            return None
        return message("log_samples_and_epochs", samples=samples, epochs=epochs, rows=rows)

    def _planned_batch(self, world_size: int | None) -> float | None:
        micro = self._numbers.get("micro_batch_size")
        if micro is None or not world_size:
            return None
        return micro * self._numbers.get("gradient_accumulation_steps", 1.0) * world_size

    def _compare_batch(self, world_size: int | None) -> Message | None:
        """Compare the batch with micro-batch, accumulation and devices.

        Devices that share one model train one batch together, so it may be smaller.
        """
        batch, planned = self._numbers.get("global_batch_size"), self._planned_batch(world_size)
        if batch is None or planned is None or batch <= planned:
            return None
        return message("log_batch_and_devices", batch=batch, most=planned, devices=world_size)

    def _count_ends(self) -> Message | None:
        if len(self.ends) < 2:
            return None
        first, second = self.ends[:2]
        return message("log_ends_twice", count=len(self.ends), line=first, other=second)


def _compare_speeds(speeds: Speeds) -> Message | None:
    """Compare the speed as printed with samples over seconds."""
    measured = speeds.measured
    if not speeds.logged or not measured:
        return None
    logged = sum(speeds.logged) / len(speeds.logged)
    if 1 / _SAME_SPEED < logged / measured < _SAME_SPEED:
        return None
    return message("log_speeds_differ", logged=logged, measured=measured, samples=speeds.samples,
                   seconds=speeds.seconds)  # fmt: skip
