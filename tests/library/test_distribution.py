"""Statistics of a stream, and the formulas over its mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.errors import DataError, UsageError
from trainmark.library.analysis import distribution as module
from trainmark.library.analysis.distribution import RELATIVE_ERROR, Distribution
from trainmark.library.analysis.modes import MODES, check_mode, final_result


def filled(values, skip=0):
    distribution = Distribution(skip)
    for value in values:
        distribution.add(float(value))
    return distribution


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50),
    st.integers(0, 49),
)
def test_figures_are_those_of_the_values_after_the_skipped_ones(values, skip):
    distribution = filled(values, skip)
    left = values[skip:]
    assert (distribution.seen, distribution.count) == (len(values), len(left))
    if left:
        assert distribution.mean == pytest.approx(math.fsum(left) / len(left), rel=1e-12)
        assert (distribution.minimum, distribution.maximum) == (min(left), max(left))
        for share in (0.5, 0.9, 0.99):
            exact = float(np.percentile(left, share * 100))
            assert distribution.percentiles(share)[0] == pytest.approx(exact, rel=1e-9)


def test_percentiles_of_many_values_stay_within_the_stated_error(monkeypatch):
    monkeypatch.setattr(module, "EXACT_LIMIT", 100)
    values = [1000 + 3 * i for i in range(5001)]
    distribution = filled(values)
    assert not distribution.exact
    assert distribution.mean == 8500
    for share in (0.5, 0.9, 0.99):
        exact = values[math.floor(share * 5000)]
        assert abs(distribution.percentiles(share)[0] - exact) <= RELATIVE_ERROR * exact
    assert distribution.percentiles(0)[0] == pytest.approx(1000, rel=RELATIVE_ERROR)


@pytest.mark.parametrize(
    ("mode", "result"),
    [(-2, 8 * 4 / 0.25), (-1, 1.0), (0, 128.0), (1, 0.25), (2, 4.0), (3, 8.0), (4, 0.25)],
)
def test_every_mode_is_its_formula(mode, result):
    assert final_result(mode, 0.25, batch=8, devices=4, time_unit="s") == result


@pytest.mark.parametrize(("mode", "result"), [(-2, 128.0), (0, 128.0), (2, 4.0), (4, 0.25)])
def test_milliseconds_are_divided_by_a_thousand_first(mode, result):
    assert final_result(mode, 250.0, batch=8, devices=4, time_unit="ms") == result


def test_results_have_three_places_or_digits_and_may_be_below_one():
    assert final_result(1, 0.12345, batch=None, devices=1, time_unit="s") == 0.123
    assert final_result(1, 0.00043219, batch=None, devices=1, time_unit="s") == 0.000432


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_mean_of_zero_is_a_result_of_zero(mode):
    assert final_result(mode, 0.0, batch=8, devices=1, time_unit="s") == 0.0


@pytest.mark.parametrize(("mode", "mean"), [(2, -1.0), (1, -0.5), (2, 1e-320)])
def test_a_mean_below_zero_or_beyond_numbers_is_refused(mode, mean):
    with pytest.raises(DataError, match="no result"):
        final_result(mode, mean, batch=8, devices=1, time_unit="s")


def test_an_unknown_mode_is_refused_with_all_that_exist():
    with pytest.raises(UsageError) as caught:
        check_mode(5, 1)
    assert all(f"{number}: " in str(caught.value) for number in range(-2, 5))
