"""Show the progress of a run on standard error, in one line.

Reads new events from the first rank's event file; does not communicate with the ranks.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainmark.errors import escaped
from trainmark.rank.events import (
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
    from collections.abc import Callable

    from trainmark.plan.plan import Plan

_LINE_EVERY_S = 10.0  # interval of lines if standard error is not a terminal
_AFTER_SPAN = {
    "init": "measuring the matmul rate",
    "preflight": "building data",
    "data_build": "building the model",
    "model_build": "first step",
    "finish": "done",
}


@dataclass(slots=True)
class Progress:
    """The progress of a run's first rank."""

    plan: Plan
    text: str = "starting ranks"
    _total_steps: int | None = None
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
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            with suppress(ValueError):  # the record counts malformed lines
                self._take(read_event(line))
        return self.text

    def _take(self, event: RunEvent) -> None:
        match event:
            case Start():
                self.text = "importing"
            case Span():
                self.text = _AFTER_SPAN.get(event.name, self.text)
            case Facts():
                recipe = self.plan.recipe
                of_epochs = event.steps_per_epoch * recipe["max_epochs"]
                self._total_steps = min(of_epochs, recipe["max_steps"] or of_epochs)
            case Evaluate():
                if event.value is not None:
                    self._quality = f"  quality {event.value:.4f}"
            case Window():
                self._window(event)

    def _window(self, event: Window) -> None:
        steps, spent_ns = len(event.step_ns), event.end_ns - event.start_ns
        self._steps += steps
        if event.phase == "train":
            self._train_ns += spent_ns
            self._train_steps += steps
        rate = sum(event.samples) * self.plan.world_size * 1e9 / max(spent_ns, 1)
        loss = event.loss[-1]
        parts = [
            f"step {self._steps}/{self._total_steps}",
            f"epoch {event.epoch + 1}",
            "loss nan" if loss is None else f"loss {loss:.4f}",
            f"{rate:,.1f} samples/s",
        ]
        if event.used_bytes is not None:
            parts.append(f"{event.used_bytes / 2**30:.1f} GiB")
        if self._train_steps and self._total_steps:
            left_s = (self._total_steps - self._steps) * self._train_ns / self._train_steps / 1e9
            parts.append(f"at most {timedelta(seconds=round(left_s))} left")
        self.text = "  ".join(parts) + self._quality


def progress_line(label: str, poll: Callable[[], str]) -> Callable[[], None]:
    """Return a function that shows progress: an updated line on a terminal, else lines at times."""
    shown, shown_at = "", 0.0

    def show() -> None:
        nonlocal shown, shown_at
        text = f"{label}: {poll()}"
        now = time.monotonic()
        if text == shown or (not sys.stderr.isatty() and now - shown_at < _LINE_EVERY_S):
            return
        shown, shown_at = text, now
        _write(text, moving=True)

    return show


def job_line(progress: Progress, label: str) -> Callable[[str], None]:
    """Return what shows an engine's words of a job, and the progress of its first rank."""
    words = ""

    def text() -> str:
        steps = progress.poll()
        return words if progress.unstarted else f"{words}  {steps}"

    line = progress_line(label, text)

    def show(said: str) -> None:
        nonlocal words
        words = said
        line()

    return show


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
