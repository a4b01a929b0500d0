"""Robust estimates: those of scipy.stats, which is slower to import than most commands take."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats.mstats import hdquantiles

from narrows.reducers import planning
from narrows.reducers.planning import pilot_sd_upper
from narrows.reducers.robust import harrell_davis, theil_sen
from narrows.reducers.shares import judge_share

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@given(VALUES, st.floats(0.01, 0.99))
def test_the_quantile_is_the_one_of_scipy(values, q):
    assert harrell_davis(values, q) == pytest.approx(float(hdquantiles(values, [q])[0]), rel=1e-9, abs=1e-6)


@given(VALUES)
def test_the_line_is_the_one_of_scipy(values):
    expected, found = stats.theilslopes(values), theil_sen(values)
    assert found == pytest.approx((expected.slope, expected.intercept), rel=1e-9, abs=1e-6)


def test_a_line_over_given_places_skips_pairs_at_one_place():
    y, x = np.array([1.0, 3.0, 5.0, 90.0]), np.array([0.0, 1.0, 2.0, 2.0])
    expected = stats.theilslopes(y, x)
    assert theil_sen(y, x) == pytest.approx((expected.slope, expected.intercept))


def test_points_at_one_place_and_no_values_are_refused():
    with pytest.raises(ValueError, match="2 points at one x"):
        theil_sen([1.0, 2.0], [3.0, 3.0])
    with pytest.raises(ValueError, match="no values"):
        harrell_davis([], 0.5)


@given(st.floats(0.1, 10), st.integers(2, 40), st.floats(0.55, 0.99))
def test_the_upper_bound_of_a_spread_is_that_of_the_chi_squared_distribution(sd, n, confidence):
    expected = sd * np.sqrt((n - 1) / stats.chi2.ppf(1 - confidence, n - 1))
    assert pilot_sd_upper(sd, n, confidence) == pytest.approx(expected, rel=1e-6)


@given(st.lists(st.floats(-50, 50), min_size=4, max_size=12).filter(lambda v: np.ptp(v) > 1e-3))
def test_one_sided_probabilities_of_a_share_are_those_of_the_t_test(changes):
    found = judge_share(changes, [0.0] * len(changes), "compute")
    for p, side in ((found.p_more, "greater"), (found.p_less, "less")):
        assert p == pytest.approx(stats.ttest_1samp(changes, 0.0, alternative=side).pvalue, rel=1e-6, abs=1e-12)


def test_judging_imports_no_slow_part_of_scipy():
    code = "import sys, narrows.flows.judging, narrows.flows.session; print([m for m in sys.modules if m in %r])"
    slow = ("scipy.stats", "scipy.optimize", "scipy.integrate", "matplotlib.pyplot", "torch")
    done = subprocess.run([sys.executable, "-c", code % (slow,)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.floats(0, 60), st.integers(1, 200), st.sampled_from([0.05, 0.01]))
def test_the_power_of_a_t_test_is_that_of_the_noncentral_t_distribution(noncentrality, df, alpha):
    expected = stats.nct.sf(stats.t.ppf(1 - alpha, df), df, noncentrality)
    assert planning._t_power(noncentrality, df, alpha) == pytest.approx(expected, abs=1e-9)
