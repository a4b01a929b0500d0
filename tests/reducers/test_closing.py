from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from narrows.inquiry.accounts import Account
from narrows.inquiry.verdict import Verdict
from narrows.reducers.closing import ClosingVerdict, Role, close_accounts, closing_test, unchanged


def _packing_case(seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Step time fell by 300 ms, waiting by 280 ms, transfer not at all; six pairs."""
    rng = np.random.default_rng(seed)
    step = 300 + rng.normal(0, 5, 6)
    skew = 280 + rng.normal(0, 5, 6)
    transfer = rng.normal(0, 2, 6)
    return step, {Account.SKEW: skew, Account.TRANSFER: transfer, Account.COMPUTE: step - skew - transfer}


def test_the_packing_hypothesis_closes_and_the_fabric_hypothesis_is_unsupported() -> None:
    step, accounts = _packing_case()
    packing = close_accounts(step, accounts, [Account.SKEW])
    fabric = close_accounts(step, accounts, [Account.TRANSFER])
    assert packing.verdict is ClosingVerdict.CLOSED
    assert packing.share == pytest.approx(280 / 300, abs=0.02)
    assert fabric.verdict is ClosingVerdict.UNSUPPORTED
    assert "the step changed, the predicted account did not; skew holds" in fabric.reason


def test_exact_numbers_close_too() -> None:
    result = closing_test([300.0] * 4, [280.0] * 4)
    assert (result.verdict, result.gap_ms) == (ClosingVerdict.CLOSED, 20.0)
    assert closing_test([300.0] * 4, [0.0] * 4).verdict is ClosingVerdict.UNSUPPORTED


def test_the_gap_table_adds_up_to_the_gain_and_names_the_parts_played() -> None:
    step, accounts = _packing_case()
    result = close_accounts(step, accounts, [Account.SKEW], [Account.COMPUTE])
    assert sum(row.change_ms for row in result.table) == pytest.approx(result.improvement_ms)
    assert {row.account: row.role for row in result.table} == {
        "skew": Role.PREDICTED,
        "compute": Role.EXPOSED,
        "transfer": Role.OTHER,
    }


def test_a_step_that_did_not_improve_has_no_effect_whatever_the_account_did() -> None:
    assert closing_test([-5.0, 5.0, 1.0, -2.0], [50.0] * 4).verdict is ClosingVerdict.NO_EFFECT
    assert closing_test([5.0], [5.0]).verdict is ClosingVerdict.NO_EFFECT


def test_two_thirds_of_the_gain_leave_the_account_open() -> None:
    assert closing_test([10.0, 10.1, 9.9, 10.0], [6.5, 6.6, 6.4, 6.6]).verdict is ClosingVerdict.PARTIAL


def test_noise_in_the_account_leaves_it_open() -> None:
    assert closing_test([10.0, 10.1, 9.9, 10.0], [2.0, 18.0, 1.0, 19.0]).verdict is ClosingVerdict.PARTIAL


def test_an_account_that_gave_back_more_closes_only_with_declared_exposure() -> None:
    gains, account = [10.0, 10.1, 9.9, 10.0], [14.0, 14.1, 13.9, 14.0]
    alone = closing_test(gains, account)
    assert alone.verdict is ClosingVerdict.PARTIAL
    assert alone.unexplained_offset_ms == pytest.approx(4.0)
    covered = closing_test(gains, account, [-4.0, -4.1, -3.9, -4.0])
    assert covered.verdict is ClosingVerdict.CLOSED
    assert covered.covered_by_exposed
    half = closing_test(gains, account, [-0.5] * 4)
    assert half.verdict is ClosingVerdict.PARTIAL
    assert half.unexplained_offset_ms == pytest.approx(3.5)


def test_work_that_vanished_elsewhere_covers_nothing() -> None:
    assert closing_test([10.0] * 4, [14.0] * 4, [4.0] * 4).exposed_ms == 0.0


def test_a_floor_for_clocks_closes_a_small_gap_and_never_an_account_that_did_not_move() -> None:
    gains = [1.0, 1.02, 0.98, 1.0]
    assert closing_test(gains, [0.7, 0.69, 0.71, 0.7]).verdict is ClosingVerdict.PARTIAL
    assert closing_test(gains, [0.7, 0.69, 0.71, 0.7], floor_ms=0.2).verdict is ClosingVerdict.CLOSED
    assert closing_test(gains, [0.0] * 4, floor_ms=5.0).verdict is ClosingVerdict.UNSUPPORTED


def test_the_true_account_closes_and_a_wrong_one_never_does() -> None:
    rng = np.random.default_rng(4)
    true = wrong = 0
    for _ in range(300):
        gain = 12 + rng.normal(0, 1.0, 6)
        part = gain - rng.normal(0.3, 0.6, 6)
        true += closing_test(gain, part).verdict is ClosingVerdict.CLOSED
        wrong += closing_test(gain, rng.normal(0, 0.6, 6)).verdict is ClosingVerdict.UNSUPPORTED
    assert true >= 0.97 * 300
    assert wrong == 300


def test_accounts_that_are_missing_or_play_both_parts_are_refused() -> None:
    step, accounts = _packing_case()
    for predicted, exposed in (([], []), (["nowhere"], []), (["skew"], ["skew"])):
        with pytest.raises(ValueError, match="accounts of the ledger"):
            close_accounts(step, accounts, predicted, exposed)


def test_samples_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one of each per pair"):
        closing_test([1.0, 2.0], [1.0])


eighths = st.integers(-80, 400).map(lambda n: n / 8)
gains = st.lists(st.tuples(eighths, eighths), min_size=2, max_size=10)


@settings(deadline=None)
@given(gains, st.sampled_from([2.0**-8, 4.0, 1024.0]))
def test_scaling_time_scales_the_gap_and_not_the_verdict(pairs: list[tuple[float, float]], k: float) -> None:
    d, c = np.array(pairs).T
    one, other = closing_test(d, c), closing_test(k * d, k * c)
    assert one.verdict is other.verdict
    assert other.gap_ms == pytest.approx(k * one.gap_ms)


@settings(deadline=None)
@given(gains)
def test_the_order_of_pairs_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    d, c = np.array(pairs).T
    one, other = closing_test(d, c), closing_test(d[::-1], c[::-1])
    assert one.improvement_ms == other.improvement_ms
    assert one.gap_ms == other.gap_ms
    assert one.share_interval == pytest.approx(other.share_interval)
    # The sum of squares depends on the order in the last digit: a bound at exactly 0 may fall either way.
    assume(min(abs(bound) for bound in one.improvement_interval_ms or (1.0,)) > 1e-9)
    assert one.verdict is other.verdict


@settings(deadline=None)
@given(gains)
def test_swapping_the_arms_of_an_improvement_has_no_effect(pairs: list[tuple[float, float]]) -> None:
    d, c = np.array(pairs).T
    if closing_test(d, c).verdict is not ClosingVerdict.NO_EFFECT:
        assert closing_test(-d, -c).verdict is ClosingVerdict.NO_EFFECT


def test_unchanged_has_three_outcomes() -> None:
    assert unchanged([0.1, -0.1, 0.0, 0.1], 1.0).verdict is Verdict.SUPPORTED
    assert unchanged([5.1, 4.9, 5.0, 5.1], 1.0).verdict is Verdict.REJECTED
    assert unchanged([1.0, -1.5, 2.0, 0.5], 1.0).verdict is Verdict.INCONCLUSIVE
    assert unchanged([0.0], 1.0).verdict is Verdict.INCONCLUSIVE
    with pytest.raises(ValueError, match="margin"):
        unchanged([0.0, 0.0], 0.0)
