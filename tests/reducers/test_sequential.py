from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.reducers.sequential import Spending, anytime_half_width, group_sequential_bounds, nominal_levels

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize(
    ("spending", "expected"),
    [
        (Spending.OBRIEN_FLEMING, (4.877, 3.357, 2.680, 2.290, 2.031)),
        (Spending.POCOCK, (2.438, 2.427, 2.410, 2.397, 2.386)),
    ],
)
def test_bounds_equal_those_of_gsdesign(spending: Spending, expected: tuple[float, ...]) -> None:
    assert group_sequential_bounds(FIFTHS, 0.025, spending) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(0.05, (0.00261, 0.00450, 0.00964, 0.04622)), (0.02, (0.00104, 0.00174, 0.00369, 0.0180))],
)
def test_nominal_levels_of_the_default_looks(alpha: float, expected: tuple[float, ...]) -> None:
    assert nominal_levels((4, 6, 8, 12), alpha) == pytest.approx(expected, abs=6e-6, rel=1e-3)


def test_a_single_look_spends_everything() -> None:
    assert nominal_levels((8,), 0.05) == pytest.approx((0.05,), abs=1e-9)


@settings(deadline=None, max_examples=12)
@given(
    alpha=st.floats(0.001, 0.2),
    steps=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    spending=st.sampled_from(Spending),
)
def test_levels_spend_no_more_than_alpha_and_no_less_than_one_of_them(
    alpha: float, steps: list[int], spending: Spending
) -> None:
    looks = tuple(int(n) for n in np.cumsum([2, *steps]))
    levels = nominal_levels(looks, alpha, spending)
    assert max(levels) <= alpha * (1 + 1e-6)
    assert sum(levels) >= alpha * (1 - 1e-3)


def test_the_chance_of_ever_crossing_is_alpha() -> None:
    rng = np.random.default_rng(5)
    looks = (4, 6, 8, 12)
    z = np.cumsum(rng.standard_normal((60_000, 12)), axis=1)[:, [n - 1 for n in looks]] / np.sqrt(looks)
    bounds = group_sequential_bounds(tuple(n / 12 for n in looks), 0.05)
    assert (z > np.array(bounds)).any(axis=1).mean() == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("looks", [(), (1, 4), (4, 4), (6, 4)])
def test_looks_that_do_not_rise_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising"):
        nominal_levels(looks)


@pytest.mark.parametrize("alpha", [0.0, 0.5, -1.0])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="one-sided error"):
        group_sequential_bounds(FIFTHS, alpha)


def test_the_anytime_interval_starts_infinite_and_shrinks_with_pairs_but_stays_wider_than_t() -> None:
    widths = [anytime_half_width(1.0, n) for n in range(2, 200)]
    finite = [width for width in widths if math.isfinite(width)]
    assert widths[0] == math.inf
    assert finite == sorted(finite, reverse=True)
    assert finite[-1] > 1.97 / math.sqrt(199)
    assert anytime_half_width(3.0, 50) == pytest.approx(3 * anytime_half_width(1.0, 50))


def test_the_anytime_interval_holds_at_every_n_at_once() -> None:
    data = np.random.default_rng(3).standard_normal((1000, 120))
    ns = np.arange(2, 121)
    means = np.cumsum(data, axis=1)[:, 1:] / ns
    squares = np.cumsum(data**2, axis=1)[:, 1:]
    sds = np.sqrt((squares - ns * means**2) / (ns - 1))
    units = np.array([anytime_half_width(1.0, int(n)) for n in ns])
    assert (np.abs(means) > sds * units).any(axis=1).mean() <= 0.05
