"""Steps of ranks as one series, and statistics over step times and launches, never trimmed.

Series are whole arrays, so that a million steps on eight ranks fit in memory.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, nan
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainmark.rank.events import Window

_Scalar = TypeVar("_Scalar", np.int64, np.float64)

STEADY_DRIFT = 0.05
_STEADY_MIN_STEPS = 12
INTERVAL_MIN_LAUNCHES = 5
_LEAST_NOISE = 1e-4  # of real step times


def summarize_step_times(step_ns: NDArray[np.int64]) -> dict[str, float | None] | None:
    """Return percentiles, median absolute deviation and coefficient of variation of step times.

    In seconds; ``cv`` is the sample standard deviation (n - 1) as a share of the mean, None for one
    step. Nothing of no step.
    """
    if len(step_ns) == 0:
        return None
    seconds = step_ns / 1e9
    p50, p90, p99 = np.percentile(seconds, [50, 90, 99]).tolist()
    mad = float(np.median(np.abs(seconds - p50)))
    return {"p50": p50, "p90": p90, "p99": p99, "mad": mad, "cv": _cv(seconds)}


def _cv(values: NDArray[np.float64]) -> float | None:
    """Return the sample standard deviation over the mean; None if either is undefined."""
    mean = float(values.mean())
    return float(values.std(ddof=1)) / mean if len(values) > 1 and mean else None


def measure_drift(step_ns: NDArray[np.int64]) -> float | None:
    """Return the relative change of the median step time from the first to the last third.

    A share of the first third's median; None if there are too few steps.
    """
    if len(step_ns) < _STEADY_MIN_STEPS:
        return None
    third = len(step_ns) // 3
    first, last = float(np.median(step_ns[:third])), float(np.median(step_ns[-third:]))
    return last / first - 1 if first > 0 else None


@dataclass(frozen=True, slots=True)
class LaunchSummary:
    """A figure over several launches.

    Args:
        mean: geometric; arithmetic where a value is zero or below.
        low: lower end of the mean's 95% interval, by Student's t on the logarithms; of fewer than
            five launches the least value.
        cv: sample standard deviation over the arithmetic mean.
    """

    mean: float
    low: float
    high: float
    cv: float | None
    launches: int

    @property
    def is_range(self) -> bool:
        """Tell whether there are too few launches for an interval."""
        return self.launches < INTERVAL_MIN_LAUNCHES


def summarize_launches(values: Sequence[float]) -> LaunchSummary:
    """Return the mean of one value or more, with its interval or their range."""
    data = np.asarray(values, np.float64)
    logs = bool((data > 0).all())
    middle, low, high = _interval(np.log(data) if logs else data)
    if logs:
        middle, low, high = exp(middle), exp(low), exp(high)
    if data.min() == data.max():  # to the last digit
        middle = low = high = float(data[0])
    if len(data) < INTERVAL_MIN_LAUNCHES:
        low, high = float(data.min()), float(data.max())
    return LaunchSummary(middle, low, high, _cv(data), len(data))


def estimate_ratio(
    a: Sequence[float], b: Sequence[float], *, paired: bool = False
) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of ``b`` over that of ``a``, and both ends of its 95% interval.

    Student's t on logarithms: of pairs on their differences, else Welch's. None of fewer than
    five launches on a side.

    Args:
        a: values above zero.
        paired: launch k of ``a`` and of ``b`` were done one right after the other.
    """
    before, after = np.log(a), np.log(b)
    middle = float(after.mean() - before.mean())
    if min(len(a), len(b)) < INTERVAL_MIN_LAUNCHES:
        return exp(middle), None, None
    if paired:
        middle, low, high = _interval(after - before)
    else:
        of_means = [(x.var(ddof=1) / len(x), len(x) - 1) for x in (before, after)]
        total = sum(variance for variance, _ in of_means)
        rest = sum(variance**2 / freedom for variance, freedom in of_means)
        half = (
            compute_student_quantile(float(total**2 / rest)) * float(total) ** 0.5 if rest else 0.0
        )
        low, high = middle - half, middle + half
    return exp(middle), exp(low), exp(high)


def _interval(data: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean and both ends of its 95% interval; of fewer than five values, the mean."""
    middle, half = float(data.mean()), 0.0
    if len(data) >= INTERVAL_MIN_LAUNCHES:
        half = compute_student_quantile(len(data) - 1) * float(data.std(ddof=1)) / len(data) ** 0.5
    return middle, middle - half, middle + half


@lru_cache(maxsize=256)
def compute_student_quantile(freedom: float, level: float = 0.95) -> float:
    """Return the two-sided point of Student's distribution at ``level``, to five digits.

    With ``x = sqrt(freedom) tan(angle)`` the density over the angle is ``cos(angle)**(freedom-1)``.
    """
    angles = np.linspace(0, np.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(freedom**0.5 * np.tan(np.interp(level * mass[-1], mass, angles)))


def estimate_trend(*sides: Sequence[float]) -> float | None:
    """Return by what share values change from one launch to the next; None: chance explains it.

    The slope of the logarithms over their order, one for all sides, is 99% certain not to be 0.
    """
    order = np.concatenate([np.arange(len(side)) - (len(side) - 1) / 2 for side in sides])
    logs = np.concatenate([np.log(side) - np.log(side).mean() for side in sides])
    freedom, spread_ = len(order) - len(sides) - 1, float(order @ order)
    slope = float(order @ logs) / spread_
    rest = logs - slope * order
    error = float(rest @ rest / freedom / spread_) ** 0.5
    return slope if abs(slope) > compute_student_quantile(freedom, 0.99) * error else None


def is_proportional(a: Sequence[int], b: Sequence[int]) -> bool:
    """Tell whether step times are the same but for a factor, as those of two launches never are.

    Too few times tell nothing, nor a factor of times that hardly vary.
    """
    if len(a) != len(b) or len(a) < _STEADY_MIN_STEPS:
        return False
    first, other = (np.asarray(x, np.float64) / max(1.0, float(np.mean(x))) for x in (a, b))
    varied = np.median(np.abs(first - np.median(first))) > _LEAST_NOISE
    return a == b or bool(varied and np.abs(first - other).max() < _LEAST_NOISE / 10)


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
        self.loss.extend(nan if value is None else value for value in window.loss)


def _no_steps() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


def _lengthen(values: NDArray[_Scalar], length: int) -> NDArray[_Scalar]:
    """Return ``values`` with zeros appended up to ``length``."""
    return np.concatenate([values, np.zeros(length - len(values), values.dtype)])


@dataclass(slots=True)
class Series:
    """Step by step over all ranks: the slowest rank's time, the mean loss, all samples.

    ``announced``: samples as the batches declare them of all ranks; -1 where ranks disagree.
    """

    step_ns: NDArray[np.int64] = field(default_factory=_no_steps)
    loss_sum: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    samples: NDArray[np.int64] = field(default_factory=_no_steps)
    announced: NDArray[np.int64] = field(default_factory=_no_steps)

    def add(self, rank: RankSteps) -> None:
        """Take the steps of a rank; of ranks that stopped early the later steps are absent."""
        num_known = len(self.step_ns)
        num_steps = len(rank.step_ns)
        samples = np.array(rank.samples)
        announced = np.array(rank.step_samples)
        if num_steps > num_known:
            self.step_ns = _lengthen(self.step_ns, num_steps)
            self.loss_sum = _lengthen(self.loss_sum, num_steps)
            self.samples = _lengthen(self.samples, num_steps)
            self.announced = np.concatenate([self.announced, announced[num_known:]])
        steps = slice(0, num_steps)
        np.maximum(self.step_ns[steps], rank.step_ns, out=self.step_ns[steps])
        self.loss_sum[steps] += np.where(samples > 0, np.array(rank.loss) * samples, 0.0)
        self.samples[steps] += samples
        self.announced[steps][self.announced[steps] != announced] = -1

    @property
    def loss(self) -> NDArray[np.float64]:
        """Return the mean loss of each step's samples."""
        return self.loss_sum / np.maximum(self.samples, 1)
