"""Intervals over launches: exact cases, and their coverage on data with known truth."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from tools.comparison_power import KINDS, LAUNCHES, measure_coverage, measure_power, measure_trends

from trainmark.judge.comparison import find_suspicious_drift
from trainmark.record.stats import (
    compute_student_quantile,
    estimate_ratio,
    estimate_trend,
    is_proportional,
    summarize_launches,
)

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def test_quantiles_of_students_distribution_match_the_tables() -> None:
    """Values of textbook tables: degrees of freedom, and the quantile; 5.88 is between two rows."""
    for freedom, point in ((1, 12.7062), (4, 2.77645), (5.88, 2.45907), (30, 2.04227)):
        assert compute_student_quantile(freedom) == pytest.approx(point, rel=1e-4)
    # Two-sided, 95% unless another confidence is given.
    quantile = compute_student_quantile(degrees_of_freedom=3, level=0.99)
    assert quantile == pytest.approx(5.84091, rel=1e-4)


def test_launches_have_a_geometric_mean_and_students_interval() -> None:
    """Logarithms -0.02 … 0.02: variance 0.00025, t(4) = 2.776.

    t(4) is Student's quantile for 95% and 4 degrees of freedom, one less than the five launches.
    ``is_range``: the bounds are only the least and the largest value.
    """
    summary = summarize_launches([100 * exp(number / 100) for number in range(-2, 3)])
    half_width = 2.77645 * sqrt(0.00025 / 5)
    assert summary.mean == pytest.approx(100.0)
    assert (log(summary.low / 100), log(summary.high / 100)) == pytest.approx(
        (-half_width, half_width), rel=1e-4
    )
    assert not summary.is_range


def test_fewer_than_five_values_have_range() -> None:
    # The mean is geometric, the root of 1 x 4; the bounds are the least and the largest value.
    summary = summarize_launches([1.0, 4.0])
    assert (summary.mean, summary.low, summary.high, summary.is_range) == (
        pytest.approx(2),
        1,
        4,
        True,
    )
    # A ratio, here 2 / 1, has no interval at all if a side has fewer than five values, here four.
    assert estimate_ratio([1.0] * 5, [2.0] * 4) == (pytest.approx(2.0), None, None)


def test_mean_is_arithmetic_if_value_is_not_positive() -> None:
    # The five values have variance 2.5, their mean 0.5; 2.77645 is Student's t for 4 degrees
    # of freedom.
    summary = summarize_launches([-1.0, 0.0, 1.0, 2.0, 3.0])
    assert (summary.mean, summary.low) == (1.0, pytest.approx(1 - 2.77645 * sqrt(0.5), rel=1e-4))


def test_ratio_of_two_groups_has_welchs_interval() -> None:
    """The interval is that of Welch for the logarithms, with 5.88 degrees of freedom.

    Logarithms of A have mean 0, those of B 0.1; the variances of the means are 0.0008 and 0.0002:
    the variances of the groups, 0.004 and 0.001, divided by their five values.
    """
    spread = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]) / sqrt(2.5)  # variance 1
    a, b = np.exp(sqrt(0.004) * spread), np.exp(0.1 + sqrt(0.001) * spread)
    value, low, high = estimate_ratio(a.tolist(), b.tolist())
    # 2.45907 is t(5.88); the variances of the means add up to 0.001.
    half_width = 2.45907 * sqrt(0.001)
    assert value == pytest.approx(exp(0.1))
    assert (log(low or 0), log(high or 0)) == pytest.approx(
        (0.1 - half_width, 0.1 + half_width), rel=1e-3
    )


def test_trend_is_a_significant_change() -> None:
    """``estimate_trend`` returns the relative change from one launch to the next.

    It is None if chance explains the change. Each row is a side of five launches.
    """
    rng = np.random.default_rng(3)
    noise = np.exp(0.002 * rng.standard_normal((2, 5)))
    drift = np.exp(0.006 * np.arange(10)).reshape(2, 5)
    # Two sides of five launches, one after the other, with a trend of 0.6% a launch.
    assert estimate_trend(*(noise * drift).tolist()) == pytest.approx(0.006, rel=0.3)
    # Without a trend, about 1% of pairs seem to have one: the level of significance.
    chance = np.exp(0.01 * rng.standard_normal((2_000, 2, 5)))
    assert (
        0.005 <= np.mean([estimate_trend(*pair) is not None for pair in chance.tolist()]) <= 0.015
    )


def test_step_times_are_proportional_only_for_a_copy() -> None:
    """50 times of a step, near 0.1 s with a noise of 1%, in ns.

    Proportional: all of them multiplied by 0.93. Not so: the same times in another order.
    """
    rng = np.random.default_rng(4)
    times = (1e8 * (1 + 0.01 * rng.standard_normal(50))).astype(int)
    assert is_proportional(times.tolist(), (0.93 * times).astype(int).tolist())
    assert not is_proportional(times.tolist(), rng.permutation(times).tolist())
    assert not is_proportional([5] * 50, [7] * 50)  # constant times prove nothing


def read_documented_table(name: str) -> list[list[float]]:
    """Return the numbers in each cell of the row ``name`` of a table on the page.

    The first column, which has the name, is left out. A comma or a semicolon separates the numbers
    of a cell.
    """
    (row,) = (
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {name} |")
    )
    return [[float(x) for x in cell.replace(";", ",").split(",")] for cell in row.split("|")[2:-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_coverage_of_intervals_matches_page(kind: str) -> None:
    """``KINDS``: kinds of noise, each a row of the page's table; ``LAUNCHES``: its columns.

    A share is that of intervals that contain the true value. 600 repetitions move a share of 95% by
    up to 3 in 100 by chance.
    """
    # The first two numbers of launches, with fewer repetitions than the page has, to be quick.
    for count, known in zip(LAUNCHES[:2], read_documented_table(kind), strict=False):
        share = measure_coverage(kind, count, repetitions=600, seed=3)
        assert [100 * x for x in share.values()] == pytest.approx(known, abs=3)


def test_detected_differences_match_page() -> None:
    """The page docs/compare.md has a table with a row for noise of 1%; [0] is its first column.

    The page has percent from more repetitions than the 800 here, so that chance moves each number
    by up to 2.5.
    """
    # Five launches a side with 1% noise: the loss that nine of ten comparisons call slower, and of
    # equal sides the share that is found equal, and the share that is called slower by chance.
    loss, equal, false = measure_power(count=5, cv=0.01, repetitions=800, seed=9)
    assert [100 * loss, 100 * equal, 100 * false] == pytest.approx(
        read_documented_table("1%")[0], abs=2.5
    )


def test_false_drifts_are_as_frequent_as_page_says() -> None:
    """``measure_trends`` returns the share of comparisons in which chance looks like a drift.

    The launches are simulated, with a noise of 1% (``cv``) and no drift. The page docs/compare.md
    has the share in percent, from more repetitions than the 800 here, so that chance moves it by up
    to 1.5.
    """
    # The first column: percent of comparisons with five launches a side.
    (known,) = read_documented_table("false alarms, CV 1%")[0]
    assert 100 * measure_trends(count=5, cv=0.01, repetitions=800, seed=9) == pytest.approx(
        known, abs=1.5
    )


def test_drift_below_third_of_threshold_is_ignored() -> None:
    # Both rise with every launch, so both trends are significant; a third of the threshold is 1%.
    steady = [100.0 + 0.001 * index for index in range(5)]  # 0.005% over five launches
    drifting = [100.0 + index for index in range(5)]  # 1 of a mean of 102 a launch: 0.0098
    assert find_suspicious_drift(steady, steady, threshold=0.03) is None
    assert find_suspicious_drift(steady, drifting, 0.03) == pytest.approx(0.0098, abs=2e-4)
