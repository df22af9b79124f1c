"""The stopwatch of an honest program: when its steps ended, by its own clock."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

RESULT_VARIABLE = "STOPWATCH_FILE"  # where the times go


class Stopwatch:
    """Times of a program's steps, and the steps whose time is not that of training alone."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.interrupted: list[int] = []

    def step_ended(self) -> None:
        """Take the time of a step's end."""
        self.ends_s.append(time.perf_counter())

    def interrupt(self) -> None:
        """Note that the program evaluates or saves: the next step begins later."""
        self.interrupted.append(len(self.ends_s))

    def write(self) -> None:
        """Write the times for the benchmark."""
        document = {"ends_s": self.ends_s, "interrupted": self.interrupted}
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(document), encoding="utf-8")
