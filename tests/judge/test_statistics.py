"""Intervals of ratios: exact cases, and how often they hold on data whose effect is known."""

from __future__ import annotations

from math import exp, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tools.comparison_power import (
    LAUNCH_CVS,
    REGIMES,
    Noise,
    called,
    coverage,
    intervals,
    seen,
    settled,
)

from trainmark.judge.comparison.statistics import Group, block_length, ratio, step_noise

ROOT = Path(__file__).parents[2]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def logs(*values: float) -> Group:
    return Group(np.array(values), None)


def series(steps: int, correlation: float, seed: int) -> np.ndarray:
    shocks = rng(seed).standard_normal(steps + 100)
    for step in range(1, steps + 100):
        shocks[step] = correlation * shocks[step - 1] + sqrt(1 - correlation**2) * shocks[step]
    return 1 + 0.05 * shocks[100:]


def test_two_groups_have_welchs_interval() -> None:
    """Means 0.1 and 0, variances of the means 0.0002 and 0.0008, 5.88 degrees of freedom."""
    spread = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) / sqrt(2.5)  # variance 1
    a, b = logs(*(sqrt(0.004) * spread)), logs(*(0.1 + sqrt(0.001) * spread))
    found = ratio(a, b, paired=False, draws=200_000, rng=rng())
    half = 2.459 * sqrt(0.001)  # Student's 97.5% point of 5.88 degrees of freedom
    assert found.value == pytest.approx(exp(0.1))
    assert np.log(found.low) == pytest.approx(0.1 - half, abs=0.04 * half)
    assert np.log(found.high) == pytest.approx(0.1 + half, abs=0.04 * half)


def test_launches_that_agree_have_a_point_and_single_ones_have_nothing() -> None:
    same = ratio(logs(0.0, 0.0), logs(0.5, 0.5), paired=False, rng=rng())
    assert (same.low, same.value, same.high) == (exp(0.5), exp(0.5), exp(0.5))
    one = ratio(logs(0.0), logs(0.5), paired=False, rng=rng())
    assert (one.low, one.value, one.high) == (None, exp(0.5), None)


def test_two_launches_that_differ_by_orders_of_magnitude_have_finite_ends() -> None:
    found = ratio(logs(-300.0, 300.0), logs(300.0, -300.0), paired=True, rng=rng())
    assert found.value == 1.0
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low < 1e-140
    assert 1e140 < found.high < float("inf")


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=8),
    st.lists(st.floats(-3, 3), min_size=2, max_size=8),
    st.floats(-5, 5),
)
@example([0.5, -1.285811910665264], [0.5, -1.285811910665264], 5.0)  # one bit of the variance
def test_an_interval_holds_its_ratio_and_moves_with_it(
    a: list[float], b: list[float], moved: float
) -> None:
    found = ratio(logs(*a), logs(*b), paired=False, draws=1_000, rng=rng())
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.high
    other = ratio(logs(*a), logs(*(x + moved for x in b)), paired=False, draws=1_000, rng=rng())
    for mine, its in ((found.value, other.value), (found.low, other.low), (found.high, other.high)):
        assert np.log(its) == pytest.approx(np.log(mine) + moved, abs=1e-6)


def test_blocks_are_as_long_as_steps_depend_on_each_other() -> None:
    assert block_length(series(1_000, 0.0, 1)) == 10  # the cube root of 1,000
    assert 12 <= block_length(series(1_000, 0.9, 1)) <= 50  # at least 20 blocks
    assert block_length(series(100_000, 0.0, 1)) == 500  # 200 blocks
    assert block_length(np.ones(20)) == 1
    assert block_length(np.ones(1_000)) == 10


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_blocks_vary_as_the_mean_of_an_autocorrelated_series(correlation: float) -> None:
    """The variance of its mean is that of a step over the steps, times (1 + r) / (1 - r)."""
    samples = np.full(1_000, 32.0)
    drawn = [step_noise(1e6 * series(1_000, correlation, seed), samples, draws=500, rng=rng(seed))
             for seed in range(12)]  # fmt: skip
    variance = np.mean([one.var() for one in drawn if one is not None])
    known = 0.05**2 / 1_000 * (1 + correlation) / (1 - correlation)
    assert variance == pytest.approx(known, rel=0.25)
    assert abs(np.mean(drawn)) < 0.1 * sqrt(known)


def test_a_short_batch_takes_less_time_without_being_faster() -> None:
    """Every tenth step has half of the samples and takes half of the time."""
    samples = np.tile([32.0] * 9 + [16.0], 50)
    drawn = step_noise(samples * 1e5, samples, draws=100, rng=rng())
    assert drawn is not None
    assert np.abs(drawn).max() < 1e-9


def test_too_few_steps_tell_nothing() -> None:
    assert step_noise(np.ones(19), np.ones(19), draws=10, rng=rng()) is None
    assert step_noise(np.zeros(50), np.ones(50), draws=10, rng=rng()) is None
    assert step_noise(np.ones(50), np.zeros(50), draws=10, rng=rng()) is None


def test_steps_are_not_counted_twice() -> None:
    """Launches vary by their steps alone: the interval is that of the steps, not of twice them."""
    noise = Noise(0.0, 0.05, 0.0, steps=100)
    low, high = intervals(10, noise, repetitions=150, draws=400)[False]
    ends = np.log(high / low)
    known = 2 * 2.10 * 0.05 * sqrt(2 / (10 * 100))  # Student's 97.5% point of 18 degrees
    assert np.median(ends) == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize(("name", "launches"), [
    ("launches alone, normal", 5), ("launches alone, normal", 10),
    ("launches 0.5%, steps 5%", 5), ("steps 5% alone", 10),
])  # fmt: skip
def test_intervals_hold_the_true_ratio_as_often_as_they_say(name: str, launches: int) -> None:
    noise = REGIMES[name]._replace(steps=100)
    repetitions, draws = (3_000, 500) if noise.step_cv == 0 else (600, 300)
    found = intervals(launches, noise, repetitions=repetitions, draws=draws, seed=3)
    for ends in found.values():
        assert 0.93 <= coverage(*ends) <= 0.97


@pytest.mark.parametrize("cv", [*LAUNCH_CVS, 0.2])
def test_equal_sides_are_rarely_called_slower(cv: float) -> None:
    found = intervals(5, Noise(cv), repetitions=1_500, draws=500, seed=4)
    for _, high in found.values():
        assert called(high) < 0.02


def stated(cv: str) -> list[list[float]]:
    """Return loss seen, settled and false calls in percent, as docs/compare.md states them."""
    lines = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8").splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {cv} |"))
    return [[float(part) for part in cell.split(";")] for cell in row.split("|")[2:-1]]


def test_what_is_seen_is_as_the_page_states() -> None:
    for place, (count, cv) in enumerate([(5, 0.01), (7, 0.01), (10, 0.01)]):
        loss, equal, false = stated("1%")[place]
        low, high = intervals(count, Noise(cv), repetitions=800, draws=500, seed=9)[False]
        assert 100 * seen(high) == pytest.approx(loss, abs=0.3)
        assert 100 * settled(low, high) == pytest.approx(equal, abs=2.5)
        assert 100 * called(high) == pytest.approx(false, abs=0.2)
