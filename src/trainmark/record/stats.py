"""Statistics over step times and over launches. Medians and intervals, never trimmed means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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
