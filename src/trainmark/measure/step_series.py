"""Steps as a series over all ranks.

Owns how one rank's steps are merged into those of the run: whole arrays, so that a million
steps on eight ranks fit in memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class RankSteps:
    """The steps of one rank, collected while its file is read."""

    step_ns: array[int] = field(default_factory=lambda: array("q"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    step_samples: array[int] = field(default_factory=lambda: array("q"))

    def add(self, window: dict[str, Any]) -> None:
        """Take the steps of a ``window`` event."""
        self.step_ns.fromlist(window["step_ns"])
        losses = window["loss"]
        if None in losses:
            losses = [nan if value is None else value for value in losses]
        self.loss.fromlist(losses)
        self.samples.fromlist(window["samples"])
        self.step_samples.fromlist(window["step_samples"])


@dataclass(slots=True)
class Series:
    """Step by step over all ranks: the slowest rank's time, the mean loss, all samples."""

    step_ns: NDArray[np.int64]
    loss_sum: NDArray[np.float64]
    samples: NDArray[np.int64]
    announced: NDArray[np.int64]  # samples over all ranks, as the batches declare
    disagreed: int | None = None  # the first step for which ranks give different counts

    @classmethod
    def empty(cls) -> Series:
        """Return a series without steps."""
        whole, real = np.empty(0, np.int64), np.empty(0, np.float64)
        return cls(whole, real, whole.copy(), whole.copy())

    def add_rank(self, rank: RankSteps) -> None:
        """Merge one rank's steps; a rank that stopped early does not change the later ones."""
        known, taken = len(self.step_ns), len(rank.step_ns)
        for name in ("step_ns", "loss_sum", "samples", "announced"):
            mine = getattr(self, name)
            longer = np.zeros(max(0, taken - known), mine.dtype)
            setattr(self, name, np.concatenate([mine, longer]))
        steps = slice(0, taken)
        samples, announced = _whole(rank.samples), _whole(rank.step_samples)
        loss = np.array(rank.loss)
        np.maximum(self.step_ns[steps], _whole(rank.step_ns), out=self.step_ns[steps])
        self.loss_sum[steps] += np.where(samples > 0, loss * samples, 0.0)
        self.samples[steps] += samples
        both = min(known, taken)
        differs = np.flatnonzero(self.announced[:both] != announced[:both])
        if len(differs) and (self.disagreed is None or differs[0] < self.disagreed):
            self.disagreed = int(differs[0])
        np.maximum(self.announced[steps], announced, out=self.announced[steps])

    @property
    def loss(self) -> NDArray[np.float64]:
        """Return the mean loss of each step's samples."""
        return self.loss_sum / np.maximum(self.samples, 1)


def _whole(numbers: array[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)
