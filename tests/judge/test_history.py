"""Steps in histories: found exactly, in a year of nights within a few, and noise is ignored."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainmark.judge.comparison.history import (
    LEAST_STEP,
    MOST_RUNS,
    SHORTEST,
    Change,
    bounds,
    change_points,
    outlook,
    starts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FIRST = date(2025, 11, 21)
NIGHTS = [
    day for n in range(365) if (day := FIRST + timedelta(n)).weekday() < 5
]  # nothing runs at weekends
OUTLIERS = 0.02  # of the nights: 8% to 12% slower


def years(
    count: int, noise: float, *, seed: int, outliers: float = 0.0, again: float = 0.0
) -> Floats:
    """Return nights of ``count`` years at a level of 100; ``again``: correlation of neighbours."""
    rng = np.random.default_rng(seed)
    size = (count, len(NIGHTS))
    shocks = rng.standard_normal(size)
    for night in range(1, len(NIGHTS) if again else 0):
        shocks[:, night] = again * shocks[:, night - 1] + (1 - again**2) ** 0.5 * shocks[:, night]
    slow = 1 - rng.uniform(0.08, 0.12, size)
    return 100 * (1 + noise * shocks) * np.where(rng.random(size) < outliers, slow, 1)


def judged(data: Floats, nights: range) -> Iterator[tuple[NDArray[np.bool_], ...]]:
    """Yield for each night of many years whether a step is seen, one slow value, a drift."""
    for night in nights:
        seen = data[:, max(0, night + 1 - MOST_RUNS) : night + 1]
        found = [outlook(one, bounds(x)) for one, x in zip(seen, starts(seen), strict=True)]
        beyond = np.array([max(LEAST_STEP, x.noise) < 1 - x.value / x.expected for x in found])
        step = np.array([one.began is not None for one in found])
        yield step & beyond, ~step & beyond, np.array([(one.drift or 0) < 0 for one in found])


@pytest.mark.parametrize(
    ("noise", "again"), [(0.005, 0.0), (0.01, 0.0), (0.02, 0.0), (0.01, 0.6), (0.03, 0.6)]
)
def test_in_years_without_a_step_alarms_are_rare(noise: float, again: float) -> None:
    data = years(8, noise, seed=1, outliers=0 if again else OUTLIERS, again=again)
    step, doubt, drift = map(
        np.stack, zip(*judged(data, range(2 * SHORTEST, len(NIGHTS), 2)), strict=True)
    )
    assert 2 * (step | drift).sum() / 8 <= 1
    assert doubt.mean() <= 1.5 * OUTLIERS  # each outlier is a doubt once, and nothing else is


@pytest.mark.parametrize(("noise", "most"), [(0.005, 5), (0.01, 6)])
def test_planted_steps_are_found_within_nights(noise: float, most: int) -> None:
    data = years(20, noise, seed=2, outliers=OUTLIERS)
    data[:, 150:] *= 0.95
    red = np.stack([step for step, _, _ in judged(data, range(150, 164))])
    delays = np.where(red.any(axis=0), red.argmax(axis=0) + 1, 99)
    assert np.median(delays) <= 4
    assert np.mean(delays <= most) >= 0.9


@pytest.mark.parametrize(("noise", "outliers"), [(0.002, 0.0), (0.005, OUTLIERS), (0.01, OUTLIERS)])
def test_a_drift_of_a_thousandth_a_night_is_found_within_thirty(
    noise: float, outliers: float
) -> None:
    data = years(20, noise, seed=4, outliers=outliers)
    data[:, 150:180] *= 1 - 0.001 * np.arange(1, 31)
    found = np.stack([step | drift for step, _, drift in judged(data, range(150, 180))])
    assert found.any(axis=0).mean() >= 0.95


def test_a_year_with_steps_and_drift_tells_the_steps_alone() -> None:
    data = years(1, 0.01, seed=3, outliers=OUTLIERS)[0]
    data *= np.linspace(1.0, 1.02, len(data))  # slowly faster
    data[90:] *= 0.95
    data[180:] *= 1.05
    found = [change for change in change_points(NIGHTS, data) if _share(change) > LEAST_STEP]
    assert [abs(change.index - at) <= 2 for change, at in zip(found, (90, 180), strict=True)]
    for change, factor in zip(found, (0.95, 1.05), strict=True):
        assert change.after / change.before == pytest.approx(factor, abs=0.01)
        assert change.time == NIGHTS[change.index]


def _share(change: Change) -> float:
    return abs(change.after / change.before - 1)


def test_a_step_counts_until_it_is_over_or_long_ago() -> None:
    level = [100.0, 100.2, 99.8, 100.1, 99.9]
    for after, began in ((5, 30), (14, 30), (15, None)):
        data = level * 6 + [value * 0.9 for value in level * 3][:after]
        seen = outlook(data, bounds(starts(data)))
        assert seen.began == began
        assert seen.expected == pytest.approx(100.0 if began else 90.0)
        assert seen.value == pytest.approx(90.0 if began else data[-1])
    over = outlook([*data[:38], 100.0], bounds(starts([*data[:38], 100.0])))
    assert (over.began, over.value) == (None, 100.0)


def test_values_that_repeat_to_the_last_digit_have_steps_too() -> None:
    data = [5.0] * 12 + [5.0] * 3 + [6.0] * 9
    assert change_points(range(24), data) == [Change(15, 15, 5.0, 6.0)]
    assert change_points(range(9), data[:9]) == []
    assert change_points([], []) == []
