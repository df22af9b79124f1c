"""Statistics over step times and launches, on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trainmark.record.stats import measure_drift, summarize_step_times


def test_step_times_have_percentiles_deviation_and_variation() -> None:
    # Five steps, in nanoseconds; in order they take 1, 2, 3, 4 and 10 seconds. A percentile lies at
    # the share of the way from the first to the fifth: p90 at 0.9 * 4 = 3.6 steps behind the first.
    times = summarize_step_times(np.array([4, 1, 3, 2, 10], np.int64) * 10**9)
    assert times is not None
    assert times["p50"] == 3.0
    assert times["p90"] == pytest.approx(4 + 0.6 * 6)  # linear between the 4th and the 5th
    assert times["p99"] == pytest.approx(4 + 0.96 * 6)
    assert times["mad"] == 1.0  # the median of the deviations from 3: 1, 2, 0, 1, 7
    # mean 4, sample variance (0 + 9 + 1 + 4 + 36) / 4 = 12.5
    assert times["cv"] == pytest.approx(12.5**0.5 / 4)


def test_no_step_has_no_spread_and_a_single_step_has_zero_spread() -> None:
    # Step times are given in nanoseconds and summarized in seconds: a single step of 2 s. ``mad``
    # (median absolute deviation) and ``cv`` (coefficient of variation) are measures of the spread;
    # the latter needs two steps.
    assert summarize_step_times(np.empty(0, np.int64)) is None
    single = summarize_step_times(np.array([2 * 10**9]))
    assert single is not None
    assert (single["p50"], single["p99"], single["mad"], single["cv"]) == (2.0, 2.0, 0.0, None)
    # Steps without time have no mean to divide by.
    zero = summarize_step_times(np.zeros(3, np.int64))
    assert zero is not None
    assert zero["cv"] is None


def test_drift_compares_the_last_third_with_the_first() -> None:
    # Twelve steps, the fewest that are compared: the medians of the first and the last four count.
    # 106 is 6% more than 100; in the reverse order, steps become faster.
    steps = np.array([100] * 4 + [150] * 4 + [106] * 4)
    assert measure_drift(steps) == pytest.approx(0.06)
    assert measure_drift(steps[::-1]) == pytest.approx(100 / 106 - 1)
    assert measure_drift(steps[:11]) is None  # too few to tell
    assert measure_drift(np.zeros(12, np.int64)) is None  # no ratio to a median of 0
    # One slow step does not move the median of its third.
    outlier = np.array([100, 100, 100, 9_000] + [100] * 8)
    assert measure_drift(outlier) == 0.0
