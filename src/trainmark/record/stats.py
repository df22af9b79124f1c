"""Steps of ranks as one series, and statistics over step times and launches, never trimmed.

Series are whole arrays, so that a million steps on eight ranks fit in memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainmark.rank.events import Window

STEADY_DRIFT = 0.05
_STEADY_MIN_STEPS = 12
DRAWS = 10_000  # of a bootstrap
INTERVAL_MIN_LAUNCHES = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of step times, in seconds.

    ``cv`` is the sample standard deviation (n - 1) as a share of the mean; none for one step.
    """

    p50: float
    p90: float
    p99: float
    mad: float
    cv: float | None


def spread(step_ns: NDArray[np.int64]) -> Spread | None:
    """Return percentiles, median absolute deviation and coefficient of variation."""
    if len(step_ns) == 0:
        return None
    seconds = step_ns / 1e9
    p50, p90, p99 = (float(value) for value in np.percentile(seconds, [50, 90, 99]))
    return Spread(
        p50=p50,
        p90=p90,
        p99=p99,
        mad=float(np.median(np.abs(seconds - p50))),
        cv=_cv(seconds),
    )


def _cv(values: NDArray[np.float64]) -> float | None:
    """Return the sample standard deviation over the mean; None if either is undefined."""
    mean = float(values.mean())
    return float(values.std(ddof=1)) / mean if len(values) > 1 and mean else None


def drift(step_ns: NDArray[np.int64]) -> float | None:
    """Return the relative change of the median step time from the first to the last third.

    A share of the first third's median; None if there are too few steps.
    """
    if len(step_ns) < _STEADY_MIN_STEPS:
        return None
    third = len(step_ns) // 3
    first, last = float(np.median(step_ns[:third])), float(np.median(step_ns[-third:]))
    return last / first - 1 if first > 0 else None


@dataclass(frozen=True, slots=True)
class Launches:
    """A figure over several launches.

    Args:
        descriptive: too few launches to infer anything from the interval.
        is_range: ``low`` and ``high`` are the minimum and maximum over the launches.
    """

    median: float
    low: float
    high: float
    cv: float | None
    launches: int
    descriptive: bool
    is_range: bool


def over_launches(values: Sequence[float], *, seed: int = 0) -> Launches:
    """Return the median with its 95% bootstrap interval and the coefficient of variation."""
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    draws = rng.choice(data, size=(DRAWS, len(data)), replace=True)
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Launches(
        median=float(np.median(data)),
        low=float(low),
        high=float(high),
        cv=_cv(data),
        launches=len(data),
        descriptive=len(data) < INTERVAL_MIN_LAUNCHES,
        is_range=bool(low == data.min() and high == data.max()),
    )


@dataclass(slots=True)
class RankSteps:
    """The steps of one rank, collected while its file is read."""

    step_ns: array[int] = field(default_factory=lambda: array("q"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    step_samples: array[int] = field(default_factory=lambda: array("q"))

    def add(self, window: Window) -> None:
        """Take the steps of a window."""
        self.step_ns.fromlist(window.step_ns)
        self.samples.fromlist(window.samples)
        self.step_samples.fromlist(window.step_samples)
        if None in window.loss:
            self.loss.extend(nan if value is None else value for value in window.loss)
        else:
            self.loss.fromlist(cast("list[float]", window.loss))

    def median_ns(self, last: int) -> float | None:
        """Return the median time of the ``last`` steps; None for 0."""
        return float(np.median(self.step_ns[-last:])) if last else None


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

    @classmethod
    def of_rank(cls, rank: RankSteps) -> Series:
        """Return the series of one rank's steps."""
        samples, loss = _whole(rank.samples), np.array(rank.loss)
        weighted = np.where(samples > 0, loss * samples, 0.0)
        return cls(_whole(rank.step_ns), weighted, samples, _whole(rank.step_samples))

    def add(self, other: Series) -> None:
        """Merge the steps of other ranks; of ranks that stopped early the later steps are absent.

        The last bits of the losses' sums depend on the order: add ranks in that of their numbers.
        """
        known, taken = len(self.step_ns), len(other.step_ns)
        if taken > known:
            for name in ("step_ns", "loss_sum", "samples", "announced"):
                mine = getattr(self, name)
                setattr(self, name, np.concatenate([mine, np.zeros(taken - known, mine.dtype)]))
        steps = slice(0, taken)
        np.maximum(self.step_ns[steps], other.step_ns, out=self.step_ns[steps])
        self.loss_sum[steps] += other.loss_sum
        self.samples[steps] += other.samples
        both = min(known, taken)
        differs = np.flatnonzero(self.announced[:both] != other.announced[:both])
        first = [*differs[:1].tolist(), self.disagreed, other.disagreed]
        self.disagreed = min((step for step in first if step is not None), default=None)
        np.maximum(self.announced[steps], other.announced, out=self.announced[steps])

    @property
    def loss(self) -> NDArray[np.float64]:
        """Return the mean loss of each step's samples."""
        return self.loss_sum / np.maximum(self.samples, 1)


def _whole(numbers: array[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)
