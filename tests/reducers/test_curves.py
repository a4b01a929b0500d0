from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.reducers.curves import CurvePattern, CurveResult, compare_curves, fit_curve

SIZES = 2.0 ** np.arange(10, 25, 2)
ALPHA_US, BETA = 20.0, 1e-4


def _times(alpha: float, beta: float, seed: int, pairs: int = 6, noise: float = 0.02) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (alpha + beta * SIZES) * np.exp(rng.normal(0, noise, (pairs, len(SIZES))))


def _compare(alpha: float, beta: float, seed: int = 0) -> CurveResult:
    return compare_curves(SIZES, _times(ALPHA_US, BETA, seed), _times(alpha, beta, seed + 1000))


@settings(deadline=None, max_examples=30)
@given(st.floats(1, 100), st.floats(1e-5, 1e-3))
def test_a_clean_curve_gives_back_its_latency_and_bandwidth(alpha: float, beta: float) -> None:
    assert fit_curve(SIZES, alpha + beta * SIZES) == pytest.approx((alpha, beta), rel=1e-3)


def test_one_wild_size_does_not_bend_the_fit() -> None:
    times = ALPHA_US + BETA * SIZES
    times[3] *= 3
    assert fit_curve(SIZES, times) == pytest.approx((ALPHA_US, BETA), rel=0.05)


@pytest.mark.parametrize(
    ("alpha", "beta", "pattern"),
    [
        (2 * ALPHA_US, BETA, CurvePattern.LATENCY),
        (ALPHA_US, 2 * BETA, CurvePattern.BANDWIDTH),
        (2 * ALPHA_US, 2 * BETA, CurvePattern.BOTH),
        (ALPHA_US, BETA, CurvePattern.NONE),
    ],
)
def test_the_changed_part_of_the_curve_is_named(alpha: float, beta: float, pattern: CurvePattern) -> None:
    assert [_compare(alpha, beta, seed).pattern for seed in range(5)] == [pattern] * 5


def test_identical_curves_are_rarely_told_apart() -> None:
    assert sum(_compare(ALPHA_US, BETA, seed).pattern is not CurvePattern.NONE for seed in range(60)) <= 3


def test_the_effect_at_each_size_is_a_ratio_with_its_p() -> None:
    result = _compare(ALPHA_US, 2 * BETA)
    assert result.sizes[-1].ratio == pytest.approx(2, abs=0.1)
    assert result.sizes[-1].p <= 0.05
    assert result.sizes[0].ratio == pytest.approx(1, abs=0.05)
    assert "only bandwidth changed" in result.sentence


def test_one_slower_size_is_a_window() -> None:
    healthy, regressed = _times(ALPHA_US, BETA, 1), _times(ALPHA_US, BETA, 2)
    regressed[:, 4] *= 2
    result = compare_curves(SIZES, healthy, regressed)
    assert result.pattern is CurvePattern.WINDOW
    assert str(int(SIZES[4])) in result.sentence


def test_a_protocol_switch_shows_as_a_break_at_its_size() -> None:
    healthy, regressed = _times(ALPHA_US, BETA, 1), _times(ALPHA_US, BETA, 2)
    regressed[:, 5:] *= 1.6
    assert compare_curves(SIZES, healthy, regressed).break_bytes == int(SIZES[5])


@settings(deadline=None, max_examples=10)
@given(st.sampled_from([2.0**-4, 64.0]))
def test_the_unit_of_time_does_not_matter(k: float) -> None:
    healthy, regressed = _times(ALPHA_US, BETA, 1), _times(2 * ALPHA_US, BETA, 2)
    one, other = compare_curves(SIZES, healthy, regressed), compare_curves(SIZES, k * healthy, k * regressed)
    assert one.pattern is other.pattern
    assert other.latency.regressed == pytest.approx(k * one.latency.regressed, rel=1e-3)


def test_swapping_the_arms_inverts_the_ratios_and_keeps_the_pattern() -> None:
    healthy, regressed = _times(ALPHA_US, BETA, 1), _times(2 * ALPHA_US, BETA, 2)
    one, other = compare_curves(SIZES, healthy, regressed), compare_curves(SIZES, regressed, healthy)
    assert one.pattern is other.pattern
    assert [e.p for e in one.sizes] == [e.p for e in other.sizes]
    assert other.latency.ratio == pytest.approx(1 / one.latency.ratio)


def test_times_that_do_not_fit_the_sizes_or_are_not_positive_are_refused() -> None:
    good = _times(ALPHA_US, BETA, 1)
    with pytest.raises(ValueError, match="one column for each size"):
        compare_curves(SIZES, good, good[:, 1:])
    with pytest.raises(ValueError, match="times are positive"):
        compare_curves(SIZES, good, 0 * good)
    with pytest.raises(ValueError, match="at least 3"):
        fit_curve([1.0, 2.0], [1.0, 2.0])
