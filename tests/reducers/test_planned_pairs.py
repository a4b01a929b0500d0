"""How many pairs a scope is planned with, and when further ones are not worth their price."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import judge_scope
from narrows.reducers.planning import chance_to_decide, pairs_on_trend, planned_looks, power
from narrows.reducers.sequential import LOOKS

DOUBLED = (4, 6, 8, 12, 16, 24)
ALPHA = 0.02


def reference(delta: float, sd: float = 1.0) -> list[float]:
    """Eight pairs of this mean and this spread."""
    values = np.array([-1.5, -1.0, -0.5, -0.1, 0.1, 0.5, 1.0, 1.5])
    return [delta + sd * float(one) / float(values.std(ddof=1)) for one in values]


@pytest.mark.parametrize(
    ("delta", "kappa", "looks"),
    [
        (20.0, 0.5, LOOKS),  # the usual ones decide
        (4.0, 1.0, LOOKS),
        (4.0, 0.5, DOUBLED),
        (4.0, 0.1, LOOKS),  # twice as many would not decide either
    ],
)
def test_a_scope_that_shows_a_small_share_takes_more_pairs_unless_those_would_not_decide_either(
    delta: float, kappa: float, looks: tuple[int, ...]
) -> None:
    assert planned_looks(LOOKS, reference(delta), kappa, 2, ALPHA) == looks


def test_no_more_pairs_are_planned_than_are_allowed_or_without_any_spread() -> None:
    assert planned_looks(LOOKS, reference(4.0), 0.5, 1, ALPHA) == LOOKS
    assert planned_looks(LOOKS, [4.0] * 8, 0.5, 2, ALPHA) == LOOKS


@given(st.floats(0.3, 8.0), st.floats(0.05, 1.0), st.integers(4, 24))
def test_a_smaller_share_is_never_decided_more_easily(signal: float, kappa: float, pairs: int) -> None:
    assert power(pairs, 8, signal, kappa=kappa) <= power(pairs, 8, signal) + 1e-9


@pytest.mark.parametrize("truth", [0.5, 1.0])
def test_further_looks_keep_the_error_at_the_boundary_and_decide_more_of_what_is_there(truth: float) -> None:
    rng = np.random.default_rng(3)
    supported = {LOOKS: 0, DOUBLED: 0}
    repetitions = 300
    for _ in range(repetitions):
        before, pairs = 4 + rng.standard_normal(8), 4 * 0.5 * truth + rng.standard_normal(24)
        for looks in supported:
            found = judge_scope(pairs[: looks[-1]], before, 0.5, 0.5, ALPHA, looks)
            supported[looks] += found.verdict is Verdict.SUPPORTED
    if truth == 0.5:  # on the boundary itself, where the error is largest
        assert supported[DOUBLED] / repetitions <= 0.06
    else:
        assert supported[DOUBLED] > supported[LOOKS]
        assert supported[DOUBLED] / repetitions > 0.9


def test_what_lies_on_the_boundary_is_not_likely_to_be_decided_and_what_lies_clear_of_it_is() -> None:
    level = 0.018
    on_it, clear = [4.0, 6.0, 5.5, 4.5], [9.0, 11.0, 10.5, 9.5]
    given_ms = reference(10.0)
    assert chance_to_decide(on_it, given_ms, 10.0, 12, level) < 0.2
    assert chance_to_decide(clear, given_ms, 10.0, 12, level) > 0.99
    mirrored = [-one for one in clear]
    assert chance_to_decide(mirrored, [-one for one in given_ms], -10.0, 12, level) == pytest.approx(
        chance_to_decide(clear, given_ms, 10.0, 12, level)
    )
    assert pairs_on_trend(on_it, given_ms, 10.0, ALPHA) is None
    assert pairs_on_trend(clear, given_ms, 10.0, ALPHA) in range(2, 8)


@pytest.mark.parametrize("excess", [0.3, 0.6, 1.0])
def test_the_chance_to_decide_is_how_often_the_pairs_that_follow_do(excess: float) -> None:
    rng = np.random.default_rng(8)
    have = [5 + excess + one for one in (-1.2, -0.3, 0.4, 1.1)]
    sd, level = float(np.std(have, ddof=1)), 0.02
    given_ms = [10.0 + one for one in (-0.1, 0.1, -0.05, 0.05, 0.02, -0.02, 0.0, 0.0)]
    decided = 0
    for _ in range(2000):
        pairs = [*have, *rng.normal(5 + excess, sd, 8)]
        half = 2.33 * sd / np.sqrt(12)  # close to the t bound, whose sd is that of the pairs so far
        decided += abs(float(np.mean(pairs)) - 5.0) > half
    assert chance_to_decide(have, given_ms, 10.0, 12, level) == pytest.approx(decided / 2000, abs=0.1)
