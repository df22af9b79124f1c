"""Backends that record their calls, and fail on request.

``STAND_INS`` is the folder of a stand-in for W&B, for the import path of followers' processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainmark.export.followers.points import FollowedRun, Point, RunResult

STAND_INS = Path(__file__).parents[1] / "stand_in_backends"


def write_part(run_dir: Path, source: Path, lines: int) -> None:
    """Write the first lines of every event file of the run in ``source`` into ``run_dir``.

    So ``run_dir`` is like the run in ``source`` at an earlier time.

    Args:
        lines: how many of each file.
    """
    for path in source.glob("events.*.jsonl"):
        text = path.read_text().splitlines(keepends=True)
        (run_dir / path.name).write_text("".join(text[:lines]))


@dataclass
class KeptRun:
    """What a backend that can be opened again has of a run: each point of a series once."""

    fault: Exception | None = None  # what each call raises
    opened: int = 0  # how often
    # Values by the name of the axis, such as ``train/step``, and the number on it.
    points: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    results: list[RunResult | None] = field(default_factory=list)  # of each ``finish``
    destination: str | None = None  # of the last ``open``

    def open(self, run: FollowedRun, destination: str | None) -> KeptRun:
        """Open the run; points and results of an earlier opening stay.

        ``_raise_fault`` raises the error that a test has set, if any.
        """
        self._raise_fault()
        self.opened += 1
        self.destination = destination
        return self

    def log(self, points: Sequence[Point]) -> None:
        self._raise_fault()  # an error that a test has set
        # A point has values by their names at a number of an axis, such as step 7 of
        # ``train/step``. One that is sent again replaces the earlier one.
        for point in points:
            self.points[point.axis, point.number] = point.values

    def finish(self, result: RunResult | None) -> None:
        self._raise_fault()
        self.results.append(result)

    def _raise_fault(self) -> None:
        if self.fault is not None:
            raise self.fault

    def list_steps(self) -> list[int]:
        """Return the steps that have a point, in the order of their first points."""
        return [number for axis, number in self.points if axis == "train/step"]
