"""Launch a run and show its progress on standard error, in one line.

Reads new events from the first rank's event file; does not communicate with the ranks.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import escaped
from trainmark.launch import local, submission
from trainmark.launch.cluster import LOCAL
from trainmark.rank.events import (
    MAX_LINE_BYTES,
    Evaluate,
    Facts,
    RunEvent,
    Span,
    Start,
    Window,
    rank_file,
    read_event,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainmark.launch.cluster import Cluster
    from trainmark.launch.processes import StopRequest
    from trainmark.plan.plan import Plan
    from trainmark.record.record import Record

_LINE_EVERY_S = 10.0  # interval of lines if standard error is not a terminal
_STEADY = 0.05  # of the time limit: as long as this, the first steps may yet mislead
_AFTER_SPAN = {
    "init": "measuring the matmul rate",
    "preflight": "building data",
    "data_build": "building the model",
    "model_build": "first step",
    "finish": "done",
}


@dataclass(slots=True)
class Progress:
    """The progress of a run's first rank.

    Args:
        beyond_limit: what is said once when the run is found to need more time than it has.
    """

    plan: Plan
    text: str = "starting ranks"
    beyond_limit: str = ""
    _started_ns: int = 0
    _total_steps: int = 0
    _steps_per_epoch: int = 0
    _samples: int = 0
    _offset: int = 0
    _rest: bytes = b""
    _quality: str = ""
    _steps: int = 0
    _train_ns: int = 0
    _train_steps: int = 0

    @property
    def unstarted(self) -> bool:
        """Tell whether the first rank's events were not seen yet, as where they are elsewhere."""
        return self._offset == 0

    def poll(self) -> str:
        """Read new events and return the line to show."""
        path = Path(self.plan.run_dir) / rank_file(0)
        if not path.exists():
            return self.text
        with path.open("rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read(MAX_LINE_BYTES)
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:  # no event: a hole in the file
            self._rest = b""
        for line in lines:
            with suppress(ValueError):  # the record counts malformed lines
                self._take(read_event(line))
        return self.text

    def _take(self, event: RunEvent) -> None:
        match event:
            case Start():
                self.text, self._started_ns = "importing", event.t_ns
            case Span():
                self.text = _AFTER_SPAN.get(event.name, self.text)
            case Facts():
                recipe = self.plan.recipe
                of_epochs = event.steps_per_epoch * recipe["max_epochs"]
                self._total_steps = min(of_epochs, recipe["max_steps"] or of_epochs)
                limit_s, self._steps_per_epoch = recipe["timeout_s"], event.steps_per_epoch
                self.text = f"first of {self._total_steps} steps, limit {_shown(limit_s)}"
                steps_s = self._total_steps * (event.step_flops or 0.0)
                steps_s /= event.matmul_flops_per_second or math.inf
                if steps_s > limit_s:
                    self.beyond_limit = (
                        f"at the matmul rate measured here all steps take about "
                        f"{_shown(steps_s)}, and the limit is {_shown(limit_s)}: raise "
                        "--timeout, or lower max_steps"
                    )
            case Evaluate():
                if event.value is not None:
                    self._quality = f"  quality {event.value:.4f}"
            case Window():
                self._window(event)

    def _window(self, event: Window) -> None:
        steps, spent_ns = len(event.step_ns), event.end_ns - event.start_ns
        samples = sum(event.step_samples)  # of all ranks
        self._steps += steps
        self._samples += samples
        if event.phase == "train":
            self._train_ns += spent_ns
            self._train_steps += steps
        loss = event.loss[-1]
        parts = [
            f"step {self._steps}/{self._total_steps}",
            *self._left(event.end_ns),
            f"epoch {event.epoch + 1}",
            "loss nan" if loss is None else f"loss {loss:.4f}",
            f"{samples * 1e9 / max(spent_ns, 1):,.1f} samples/s",
        ]
        if event.used_bytes is not None:
            parts.append(f"{event.used_bytes / 2**30:.1f} GiB")
        self.text = "  ".join(parts) + self._quality

    def _left(self, now_ns: int) -> Iterator[str]:
        """Yield how long it is to the next evaluation, the end, and a limit well known before."""
        if not self._train_steps or not self._total_steps:
            return
        step_s = self._train_ns / self._train_steps / 1e9
        left_s = (self._total_steps - self._steps) * step_s
        if (due := self._next_evaluation()) < self._total_steps:
            yield f"evaluation in {_shown((due - self._steps) * step_s)}"
        timeout_s = float(self.plan.recipe["timeout_s"])
        limit_s = timeout_s - (now_ns - self._started_ns) / 1e9
        yield f"about {_shown(left_s)} left"
        if left_s <= limit_s or self._train_ns / 1e9 < _STEADY * timeout_s:
            return
        yield f"limit in {_shown(limit_s)}"
        unless = "" if self.plan.target is None else ", unless the target is reached before"
        self.beyond_limit = self.beyond_limit or (
            f"the limit comes in {_shown(limit_s)} and ends the run{unless}: all steps take "
            f"{_shown(left_s)} more at this speed; the next run needs a larger --timeout or a "
            "smaller max_steps"
        )

    def _next_evaluation(self) -> int:
        """Return after which step the next evaluation is due, at the latest the last one."""
        recipe, due = self.plan.recipe, self._total_steps
        if every := recipe["eval_every_epochs"]:
            steps = max(1, self._steps_per_epoch * every)
            due = min(due, (self._steps // steps + 1) * steps)
        if every := recipe["eval_every_samples"]:
            first = recipe["eval_from_sample"] or every
            later = self._samples + every - (self._samples - first) % every
            samples = first if self._samples < first else later
            due = min(due, round(samples * self._steps / self._samples))
        return due


def _shown(seconds: float) -> str:
    return str(timedelta(seconds=max(0, round(seconds))))


class Line:
    """A line about a launch on standard error: updated on a terminal, else written at times."""

    def __init__(self, plan: Plan, label: str) -> None:
        self._progress, self._label = Progress(plan), label
        self._shown, self._shown_s, self._limit_told = "", 0.0, False

    def show(self, said: str = "") -> None:
        """Show how far the first rank is, after an engine's words of its job."""
        steps = self._progress.poll()
        parts = [said] if said and self._progress.unstarted else filter(None, [said, steps])
        text, now_s = f"{self._label}: {'  '.join(parts)}", time.monotonic()
        if text != self._shown and (sys.stderr.isatty() or now_s - self._shown_s >= _LINE_EVERY_S):
            self._shown, self._shown_s = text, now_s
            _write(text, moving=True)
        if self._progress.beyond_limit and not self._limit_told:
            self._limit_told = True
            end_line(f"{self._label}: {self._progress.beyond_limit}")


def end_line(text: str) -> None:
    """Replace the updated line by ``text``."""
    _write(text, moving=False)


def _write(text: str, *, moving: bool) -> None:
    text, end = escaped(text), "\n"
    # The reader of our standard error may have exited; the run continues.
    with suppress(OSError):
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            text, end = f"\r{text[:width]:<{width}}", "" if moving else "\n"
        sys.stderr.write(text + end)
        sys.stderr.flush()


def launch_shown(
    single: Plan, cluster: Cluster, label: str, stop: StopRequest, *, quiet: bool
) -> Record:
    """Launch here or through the plan's launcher, with a progress line; return the record."""
    if single.repeat_count > 1:
        label = f"{label} {single.repeat_index}/{single.repeat_count}"
    show = (lambda _: None) if quiet else Line(single, label).show
    if single.launcher == LOCAL:
        record = local.launch(single, stop, show)
    else:
        record = submission.launch(single, cluster, stop, show)
    if not quiet:
        end_line(f"{label}: {record.status}")
    return record
