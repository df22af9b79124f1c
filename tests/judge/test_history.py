"""Steps in histories: found exactly, in a year of nights within a few, and noise is ignored."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trainmark.judge.comparison.history import (
    LEAST_STEP,
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
WINDOW = 60  # as `trainmark gate --history` has it
OUTLIERS = 0.02  # of the nights: 8% to 12% slower


def years(count: int, noise: float, *, seed: int, outliers: float = 0.0) -> Floats:
    """Return nights of ``count`` years at a level of 100."""
    rng = np.random.default_rng(seed)
    size = (count, len(NIGHTS))
    data = 100 * (1 + noise * rng.standard_normal(size))
    slow = 1 - rng.uniform(0.08, 0.12, size)
    return np.where(rng.random(size) < outliers, data * slow, data)


def judged(
    data: Floats, nights: range
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]]:
    """Yield for each night of many years at once where a step is seen, and where one value is."""
    for night in nights:
        seen = data[:, max(0, night - WINDOW) : night + 1]
        outlooks = [
            outlook(one, bounds(found)) for one, found in zip(seen, starts(seen), strict=True)
        ]
        beyond = [
            max(LEAST_STEP, one.noise) < abs(one.value / one.expected - 1) for one in outlooks
        ]
        step = np.array([one.began is not None for one in outlooks])
        yield night, step & beyond, ~step & beyond


@pytest.mark.parametrize(
    ("noise", "most_nights"), [(0.002, 0.0), (0.005, 0.0), (0.01, 0.0), (0.02, 0.001)]
)
def test_in_years_without_a_step_alarms_are_rare(noise: float, most_nights: float) -> None:
    """docs/compare.md states the rates over 60 years; here are 12 for each noise."""
    data = years(12, noise, seed=1, outliers=OUTLIERS)
    found = [(red, doubt) for _, red, doubt in judged(data, range(2 * SHORTEST, data.shape[1]))]
    red, doubt = (np.stack(kind) for kind in zip(*found, strict=True))
    assert red.mean() <= most_nights
    assert doubt.mean() <= 1.5 * OUTLIERS  # each outlier is a doubt once, and nothing else is


@pytest.mark.parametrize(("noise", "typical", "most"), [(0.005, 3, 4), (0.01, 3, 5), (0.02, 5, 14)])
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_planted_steps_are_found_within_nights(
    noise: float, typical: int, most: int, factor: float
) -> None:
    data = years(40, noise, seed=2, outliers=OUTLIERS)
    data[:, 150:] *= factor
    red = np.stack([red for _, red, _ in judged(data, range(150, 164))])
    delays = np.where(red.any(axis=0), red.argmax(axis=0) + 1, 99)
    assert np.median(delays) <= typical
    assert np.mean(delays <= most) >= 0.95


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


def test_a_drift_of_a_tenth_in_a_year_is_no_step() -> None:
    data = years(8, 0.005, seed=4) * np.linspace(1.0, 0.9, len(NIGHTS))
    red = np.stack([red for _, red, _ in judged(data, range(60, data.shape[1], 2))])
    assert not red.any()


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


@pytest.mark.parametrize("seed", range(8))
def test_no_other_segments_cost_less(seed: int) -> None:
    """Noise is bounded here, so that no value is moved as an outlier."""
    rng = np.random.default_rng(seed)
    data = 100 + rng.uniform(-1, 1, 22)
    data[rng.integers(6, 16) :] += rng.uniform(-2, 2)
    noise = 1.4826 * np.median(np.abs(np.diff(data))) / np.sqrt(2)

    def cost(edges: tuple[int, ...]) -> float:
        within = sum(float(data[a:b].var()) * (b - a) for a, b in pairwise(edges))
        return within + (len(edges) - 1) * 6.0 * np.log(len(data)) * noise**2

    inner = (chosen for count in range(4) for chosen in combinations(range(1, 22), count))
    whole = ((0, *chosen, 22) for chosen in inner)
    valid = (edges for edges in whole if min(b - a for a, b in pairwise(edges)) >= SHORTEST)
    assert tuple(bounds(starts(data))) == min(valid, key=cost)
