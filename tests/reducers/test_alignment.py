"""What the bounds of collectives leave of the difference of two clocks, against a linear program over all bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from narrows.reducers.alignment import LARGEST_DRIFT, _allowed, _Bounds

DRIFT_NS_S = LARGEST_DRIFT * 1e9


def _bounds(seed: int, count: int, noise_ns: float, *, gap_ns: float = 20_000.0) -> tuple[_Bounds, float, float]:
    draw = np.random.default_rng(seed)
    t_s = np.sort(draw.uniform(-30, 30, count))
    offset_ns, drift_ns_s = draw.uniform(-5e5, 5e5), draw.uniform(-DRIFT_NS_S, DRIFT_NS_S) * 0.9
    line = 1.7e9 + offset_ns + drift_ns_s * t_s
    return (
        _Bounds(
            t_s=t_s,
            lower_ns=line - gap_ns - draw.exponential(noise_ns, count),
            upper_ns=line + gap_ns + draw.exponential(noise_ns, count),
            exits_ns=line,
        ),
        1.7e9 + offset_ns,
        drift_ns_s,
    )


def _by_linear_program(bounds: _Bounds, at_s: float, sign: float) -> float:
    """The least (sign 1) or greatest (sign -1) difference at a time, in ns from 1.7e9."""
    one, t = np.ones_like(bounds.t_s), bounds.t_s
    solved = linprog(
        (sign, sign * at_s),
        A_ub=np.vstack([np.column_stack([one, t]), -np.column_stack([one, t])]),
        b_ub=np.concatenate([bounds.upper_ns - 1.7e9, 1.7e9 - bounds.lower_ns]),
        bounds=[(None, None), (-DRIFT_NS_S, DRIFT_NS_S)],
        method="highs",
    )
    assert solved.success
    return float(solved.x @ (1.0, at_s))


@pytest.mark.parametrize("seed", range(25))
def test_the_allowed_range_is_that_of_a_linear_program_over_all_bounds(seed: int) -> None:
    bounds, offset_ns, drift_ns_s = _bounds(seed, count=(1, 2, 5, 60)[seed % 4], noise_ns=10.0 ** (2 + seed % 5))
    allowed = _allowed(bounds)
    assert allowed is not None
    times_s = np.array([bounds.t_s.min(), 0.0, 11.0, bounds.t_s.max()])
    low_ns, high_ns = allowed.at(times_s)
    truth_ns = offset_ns + drift_ns_s * times_s
    assert (low_ns <= truth_ns + 1e-3).all()
    assert (truth_ns <= high_ns + 1e-3).all()
    for at_s, low, high in zip(times_s, low_ns, high_ns, strict=True):
        assert low - 1.7e9 == pytest.approx(_by_linear_program(bounds, at_s, 1.0), abs=1.0, rel=1e-6)
        assert high - 1.7e9 == pytest.approx(_by_linear_program(bounds, at_s, -1.0), abs=1.0, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_middle_line_obeys_every_bound_and_keeps_from_them_at_least_what_the_truth_keeps(seed: int) -> None:
    bounds, *_ = _bounds(seed, count=40, noise_ns=50_000.0)
    allowed = _allowed(bounds)
    assert allowed is not None
    offset_ns, drift_ns_s = allowed.middle()
    line_ns = offset_ns + drift_ns_s * bounds.t_s
    margin_ns = min((bounds.upper_ns - line_ns).min(), (line_ns - bounds.lower_ns).min())
    assert margin_ns >= 20_000 - 1


def test_bounds_of_a_clock_that_stepped_leave_nothing() -> None:
    bounds, *_ = _bounds(3, count=40, noise_ns=1_000.0)
    late_ns = np.where(bounds.t_s > 0, 500_000.0, 0.0)
    stepped = _Bounds(
        t_s=bounds.t_s,
        lower_ns=bounds.lower_ns + late_ns,
        upper_ns=bounds.upper_ns + late_ns,
        exits_ns=bounds.exits_ns + late_ns,
    )
    assert _allowed(stepped) is None
