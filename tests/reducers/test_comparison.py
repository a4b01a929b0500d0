from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from narrows.inquiry.verdict import RegressionStatus, Verdict
from narrows.reducers.comparison import (
    Sublabel,
    check_sensitivity,
    confirm_regression,
    cost_margin_ms,
    judge_scope,
    needs_more,
)
from narrows.reducers.estimates import (
    crossover,
    estimate,
    format_ms,
    hodges_lehmann,
    sign_flip_p,
    signed_rank_interval,
)
from narrows.reducers.planning import (
    holm,
    pairs_for_equivalence,
    pairs_needed,
    pairs_to_detect,
    pilot_sd_upper,
    plan_pairs,
    power,
    scope_alpha,
)

REFERENCE = (6.0, 6.3, 5.8, 6.4, 6.1, 5.9, 6.2, 6.0)
FLIP = {Verdict.SUPPORTED: Verdict.REJECTED, Verdict.REJECTED: Verdict.SUPPORTED}


def _pairs(mean: float, sd: float, n: int, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(x) for x in rng.normal(mean, sd, n)]


# Estimates.


def test_the_bounds_of_an_estimate_are_those_of_the_t_interval() -> None:
    data = _pairs(2.0, 1.0, 9)
    low, high = stats.ttest_1samp(data, 0).confidence_interval(0.9)
    assert estimate(data, 0.05).interval == pytest.approx((low, high))


def test_one_pair_has_a_mean_and_no_bounds() -> None:
    single = estimate([3.0])
    assert (single.mean, single.lower, single.upper) == (3.0, -math.inf, math.inf)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0, 2.0]]])
def test_samples_that_are_empty_nested_or_not_finite_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        estimate(bad)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_the_sign_flip_p_is_that_of_the_exact_permutation_test(alternative: str) -> None:
    data = _pairs(0.4, 1.0, 9, seed=3)
    expected = stats.permutation_test(
        (data,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative=alternative,
    ).pvalue
    assert sign_flip_p(data, alternative) == pytest.approx(expected)


def test_eight_pairs_of_one_sign_have_the_smallest_two_sided_p() -> None:
    assert sign_flip_p([1.0] * 8) == pytest.approx(0.0078125)


def test_the_sampled_sign_flip_agrees_with_the_normal_limit() -> None:
    data = _pairs(0.25, 1.0, 50, seed=2)
    z = np.sum(data) / math.sqrt(np.sum(np.square(data)))
    assert sign_flip_p(data, "greater") == pytest.approx(float(stats.norm.sf(z)), abs=0.01)


def test_the_signed_rank_interval_covers_and_needs_six_pairs() -> None:
    assert signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(800):
        interval = signed_rank_interval(rng.standard_normal(8))
        assert interval is not None
        hits += interval[0] <= 0 <= interval[1]
    assert 0.88 <= hits / 800 <= 0.94


def test_one_wild_pair_moves_the_mean_and_not_the_hodges_lehmann_centre() -> None:
    data = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 100.0]
    assert hodges_lehmann(data) == pytest.approx(1.0, abs=0.1)
    assert np.mean(data) > 10


def test_the_crossover_model_takes_the_order_effect_out() -> None:
    order = [1, -1, 1, -1, 1, 1]
    noise = np.array([0.1, -0.1, 0.05, 0.05, -0.05, -0.05])
    fitted = crossover([2 + 3 * o + e for o, e in zip(order, noise, strict=True)], order)
    assert fitted.effect.mean == pytest.approx(2, abs=0.1)
    assert fitted.gamma == pytest.approx(3, abs=0.1)
    assert fitted.t_gamma > 10


def test_the_crossover_model_refuses_pairs_that_all_ran_in_one_order() -> None:
    with pytest.raises(ValueError, match="one order"):
        crossover([1.0, 2.0, 3.0], [1, 1, 1])


def test_a_pair_t_test_of_identical_arms_rejects_as_often_as_it_says() -> None:
    """2000 experiments of 8 pairs with AR(1) noise, heavy tails and drift between the runs."""
    rng = np.random.default_rng(11)
    runs = rng.standard_t(4, (2000, 16))
    for at in range(1, 16):
        runs[:, at] += 0.5 * runs[:, at - 1]
    runs += np.arange(16) * 0.1
    pair = runs.reshape(2000, 8, 2)
    order = np.tile([1.0, -1.0], 4) * rng.choice([1.0, -1.0], (2000, 4)).repeat(2, axis=1)
    d = (pair[:, :, 1] - pair[:, :, 0]) * order
    rejected = 0
    for row in d:
        found = estimate(row, 0.025)
        rejected += not found.lower <= 0 <= found.upper
    assert 0.03 <= rejected / 2000 <= 0.07


@pytest.mark.parametrize(
    ("values", "expected"),
    [((-0.2, 0.31, 6.1), ("-0.2", "0.3", "6.1")), ((300, 280.4), ("300", "280")), ((-0.0001, 5.0), ("0.0", "5.0"))],
)
def test_numbers_of_a_sentence_share_their_decimals(values: tuple[float, ...], expected: tuple[str, ...]) -> None:
    assert format_ms(*values) == expected


# Full scale.


def test_an_effect_above_the_margin_is_confirmed_and_one_within_it_is_none() -> None:
    assert confirm_regression(REFERENCE, 1.0).verdict is RegressionStatus.CONFIRMED
    assert confirm_regression(_pairs(0.0, 0.2, 8), 1.0).verdict is RegressionStatus.NONE
    assert confirm_regression(_pairs(1.0, 1.0, 8), 1.0).verdict is RegressionStatus.INCONCLUSIVE


def test_an_improvement_is_neither_a_regression_nor_none() -> None:
    assert confirm_regression([-x for x in REFERENCE], 1.0).verdict is RegressionStatus.INCONCLUSIVE


def test_seven_pairs_confirm_nothing_and_the_reason_says_what_is_missing() -> None:
    result = confirm_regression(REFERENCE[:7], 1.0)
    assert result.verdict is RegressionStatus.INCONCLUSIVE
    assert "at least 8" in result.reason


def test_equal_differences_decide_without_an_error() -> None:
    assert confirm_regression([2.0] * 8, 1.0).verdict is RegressionStatus.CONFIRMED
    assert confirm_regression([0.1] * 8, 1.0).verdict is RegressionStatus.NONE


def test_the_margin_is_one_percent_of_the_step_or_the_users_threshold() -> None:
    assert (cost_margin_ms(1800.0), cost_margin_ms(1800.0, 30.0)) == (18.0, 30.0)


# Scopes.


def test_a_scope_that_shows_the_effect_supports_it_at_the_first_look() -> None:
    result = judge_scope(_pairs(6.0, 0.4, 12), REFERENCE)
    assert (result.verdict, result.look, result.pairs_used) == (Verdict.SUPPORTED, 1, 4)
    assert result.sublabel is Sublabel.FULL
    assert "lies above half of the predicted 6.1 ms" in result.reason


def test_a_scope_without_the_effect_rejects_it_with_its_numbers() -> None:
    result = judge_scope([-0.2, 0.3, -0.5, -0.4], REFERENCE)
    assert (result.verdict, result.sublabel) == (Verdict.REJECTED, Sublabel.ABSENT)
    assert result.reason == "-0.2 ms [-0.6, 0.2] lies below half of the predicted 6.1 ms after 4 pairs"


def test_an_effect_at_the_boundary_stays_inconclusive_and_asks_for_more_until_the_last_look() -> None:
    pairs = _pairs(3.05, 1.5, 12, seed=4)
    asked = [needs_more(judge_scope(pairs[:n], REFERENCE)) for n in (3, 4, 5, 6, 8, 12)]
    assert asked == [4, 6, 6, 8, 12, None]


def test_a_decided_scope_asks_for_nothing() -> None:
    assert needs_more(judge_scope(_pairs(6.0, 0.4, 4), REFERENCE)) is None


def test_later_pairs_do_not_change_a_decision() -> None:
    early = judge_scope(_pairs(6.0, 0.4, 4), REFERENCE)
    later = judge_scope([*_pairs(6.0, 0.4, 4), *[-50.0] * 8], REFERENCE)
    assert (later.verdict, later.pairs_used, later.effect_ms) == (early.verdict, 4, early.effect_ms)


def test_part_of_the_effect_is_rejected_and_labelled_partial() -> None:
    result = judge_scope(_pairs(1.9, 0.15, 4), REFERENCE)
    assert (result.verdict, result.sublabel) == (Verdict.REJECTED, Sublabel.PARTIAL)


def test_more_than_the_effect_is_supported_and_labelled_excess() -> None:
    result = judge_scope(_pairs(10.0, 0.3, 4), REFERENCE)
    assert (result.verdict, result.sublabel) == (Verdict.SUPPORTED, Sublabel.EXCESS)


def test_a_scaled_prediction_moves_the_boundary() -> None:
    pairs = _pairs(1.5, 0.2, 4)
    assert judge_scope(pairs, REFERENCE).verdict is Verdict.REJECTED
    scaled = judge_scope(pairs, REFERENCE, kappa=0.25)
    given = judge_scope(pairs, REFERENCE, predicted_ms=0.25 * float(np.mean(REFERENCE)))
    assert scaled.verdict is given.verdict is Verdict.SUPPORTED
    assert given.kappa == pytest.approx(0.25)
    assert given.boundary_ms == pytest.approx(scaled.boundary_ms)


def test_a_control_without_effect_is_supported_and_one_with_it_rejected() -> None:
    quiet, loud = _pairs(0.0, 0.3, 4), _pairs(6.0, 0.3, 4)
    for prediction in ({"kappa": 0.0}, {"predicted_ms": 0.0}):
        assert judge_scope(quiet, REFERENCE, **prediction).verdict is Verdict.SUPPORTED
        assert judge_scope(loud, REFERENCE, **prediction).verdict is Verdict.REJECTED
        assert judge_scope([-x for x in loud], REFERENCE, **prediction).verdict is Verdict.REJECTED
    assert judge_scope(quiet, REFERENCE, kappa=0.0).control


def test_a_control_at_the_boundary_is_inconclusive() -> None:
    assert judge_scope(_pairs(3.0, 1.0, 12, seed=1), REFERENCE, kappa=0.0).verdict is Verdict.INCONCLUSIVE


def test_a_reference_without_replicates_counts_no_error_and_says_so() -> None:
    result = judge_scope(_pairs(6.0, 0.4, 4), [6.1])
    assert result.verdict is Verdict.SUPPORTED
    assert result.reference_described
    assert "no replicates" in result.reason


def test_equal_differences_decide_by_their_side_of_the_boundary() -> None:
    for value, verdict in ((2.0, Verdict.SUPPORTED), (0.1, Verdict.REJECTED), (1.0, Verdict.INCONCLUSIVE)):
        assert judge_scope([value] * 12, [2.0] * 8).verdict is verdict


def test_a_reference_of_exactly_nothing_decides_nothing() -> None:
    result = judge_scope([0.0] * 12, [0.0] * 8)
    assert (result.verdict, result.ratio) == (Verdict.INCONCLUSIVE, None)


def test_a_pair_on_the_other_side_vetoes_the_first_look() -> None:
    looks = (4, 5)
    clean = judge_scope([3.01, 3.3, 3.3, 3.3], [6.0], alpha=0.2, looks=looks)
    vetoed = judge_scope([2.99, 3.3, 3.3, 3.3], [6.0], alpha=0.2, looks=looks)
    assert (clean.verdict, clean.vetoed) == (Verdict.SUPPORTED, None)
    assert (vetoed.verdict, vetoed.vetoed) == (Verdict.INCONCLUSIVE, "1 of 4 pairs lie on the other side")


def test_from_six_pairs_one_exception_is_allowed() -> None:
    assert judge_scope([2.9, *[4.5, 4.6] * 3], [6.0], looks=(7, 12)).verdict is Verdict.SUPPORTED
    assert judge_scope([2.9, 2.9, *[4.5, 4.6] * 3], [6.0], alpha=0.2, looks=(8, 9)).verdict is Verdict.INCONCLUSIVE


def test_the_exact_test_vetoes_the_last_look_where_the_mean_rests_on_three_pairs() -> None:
    """Eight pairs around the boundary of 3: the t test crosses (p = .047), the sign-flip test does not (p = .086)."""
    excess = np.array([3.2, -0.1, 0.0, 0.2, 2.1, 0.1, -0.3, 2.2])
    result = judge_scope(3 + excess, [6.0], looks=(8,))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.vetoed == "the exact sign-flip test disagrees (p = 0.086)"


def test_an_order_effect_is_flagged_and_the_registered_crossover_takes_it_out() -> None:
    order = [1, -1, -1, 1]
    pairs = [4.0 + 4 * o + e for o, e in zip(order, (0.1, -0.1, 0.05, -0.05), strict=True)]
    plain = judge_scope(pairs, [6.0], order=order)
    assert plain.order_effect
    assert plain.order_effect_ms == pytest.approx(4, abs=0.1)
    assert plain.verdict is Verdict.INCONCLUSIVE
    assert not judge_scope(_pairs(6.0, 0.4, 4), REFERENCE, order=order).order_effect


def test_the_crossover_needs_an_order() -> None:
    with pytest.raises(ValueError, match="no orders"):
        judge_scope(_pairs(6.0, 0.4, 4), REFERENCE, use_crossover=True)


def test_a_rejection_by_a_scope_that_cannot_see_an_injected_delay_is_inconclusive() -> None:
    rejected = judge_scope([-0.2, 0.3, -0.5, -0.4], REFERENCE)
    assert check_sensitivity(rejected, [3.1, 2.9], 3.0).verdict is Verdict.REJECTED
    blind = check_sensitivity(rejected, [0.2, 2.9], 3.0)
    assert blind.verdict is Verdict.INCONCLUSIVE
    assert "insensitive" in blind.reason


eighths = st.integers(-160, 160).map(lambda n: n / 8)
effects = st.lists(eighths, min_size=4, max_size=14)
references = st.lists(eighths, min_size=1, max_size=10)


@settings(deadline=None)
@given(effects, references, st.sampled_from([0.0, 0.3, 1.0]))
def test_swapping_the_arms_flips_signs_and_nothing_else(ds: list[float], df: list[float], kappa: float) -> None:
    one = judge_scope(ds, df, kappa)
    other = judge_scope([-x for x in ds], [-x for x in df], kappa)
    assert (one.verdict, one.look, one.sublabel) == (other.verdict, other.look, other.sublabel)
    assert one.vetoed == other.vetoed
    assert one.effect_ms == pytest.approx(-other.effect_ms)
    assert one.ratio == pytest.approx(other.ratio)


@settings(deadline=None)
@given(effects, references, st.sampled_from([2.0**-10, 0.25, 8.0, 2.0**20]))
def test_scaling_time_scales_the_effect_and_not_the_verdict(ds: list[float], df: list[float], k: float) -> None:
    one, other = judge_scope(ds, df), judge_scope([k * x for x in ds], [k * x for x in df])
    assert (one.verdict, one.look, one.sublabel) == (other.verdict, other.look, other.sublabel)
    assert other.effect_ms == pytest.approx(k * one.effect_ms)


@settings(deadline=None)
@given(effects, references)
def test_an_improvement_in_the_scope_never_supports_a_regression(ds: list[float], df: list[float]) -> None:
    down = judge_scope([-abs(x) for x in ds], [abs(x) + 0.1 for x in df])
    assert down.verdict is not Verdict.SUPPORTED


def _noisy(rng: np.random.Generator, experiments: int, pairs: int) -> np.ndarray:
    return rng.standard_t(4, (experiments, pairs)) / math.sqrt(2)


@pytest.mark.parametrize(("theta", "wrong"), [(0.5, Verdict.SUPPORTED), (0.5, Verdict.REJECTED)])
def test_at_the_boundary_each_error_stays_near_alpha(theta: float, wrong: Verdict) -> None:
    rng = np.random.default_rng(21)
    delta = 4.0
    scope, full = _noisy(rng, 1500, 12) + theta * delta, _noisy(rng, 1500, 8) + delta
    errors = sum(judge_scope(s, f).verdict is wrong for s, f in zip(scope, full, strict=True))
    assert errors / 1500 <= 0.065


def test_a_clear_effect_is_told_from_none_in_few_pairs() -> None:
    rng = np.random.default_rng(22)
    delta = 4.1
    full = _noisy(rng, 400, 8) + delta
    present = [judge_scope(s, f) for s, f in zip(_noisy(rng, 400, 12) + delta, full, strict=True)]
    absent = [judge_scope(s, f) for s, f in zip(_noisy(rng, 400, 12), full, strict=True)]
    assert np.mean([r.verdict is Verdict.SUPPORTED for r in present]) >= 0.97
    assert np.mean([r.verdict is Verdict.REJECTED for r in absent]) >= 0.97
    assert not any(r.verdict is Verdict.REJECTED for r in present)
    assert np.mean([r.pairs_used for r in present + absent]) <= 7


def test_identical_arms_rarely_support_and_their_reference_is_flagged_weak() -> None:
    rng = np.random.default_rng(23)
    results = [judge_scope(s, f) for s, f in zip(_noisy(rng, 1000, 12), _noisy(rng, 1000, 8), strict=True)]
    supported = [r for r in results if r.verdict is Verdict.SUPPORTED]
    assert len(supported) / 1000 <= 0.065
    assert np.mean([r.reference_weak for r in results]) >= 0.85


# Planning.

TABLE = {
    1.0: ((None, 32), (None, 44), (None, 56)),
    1.5: ((19, 15), (33, 21), (62, 26)),
    2.0: ((9, 9), (14, 12), (18, 15)),
    2.5: ((6, 7), (8, 8), (11, 10)),
    3.0: ((5, 5), (6, 6), (7, 8)),
    4.0: ((4, 4), (4, 4), (5, 5)),
}


@pytest.mark.parametrize("signal", TABLE)
def test_planned_pairs_equal_the_table(signal: float) -> None:
    planned = tuple((pairs_needed(signal, w), pairs_needed(signal, w, None)) for w in (0.8, 0.9, 0.95))
    assert planned == TABLE[signal]


def test_pairs_for_detection_and_for_equivalence_equal_the_table() -> None:
    assert [pairs_to_detect(x) for x in (0.5, 1, 1.5, 2)] == [36, 11, 6, 4]
    assert [pairs_for_equivalence(x) for x in (0.5, 1, 1.5, 2)] == [45, 13, 7, 5]


def test_power_is_what_a_simulation_finds() -> None:
    rng = np.random.default_rng(7)
    n, signal = 8, 2.5
    verdicts = [
        judge_scope(rng.standard_normal(n) + signal, rng.standard_normal(8) + signal, looks=(n,)).verdict
        for _ in range(1000)
    ]
    assert np.mean([v is Verdict.SUPPORTED for v in verdicts]) == pytest.approx(power(n, 8, signal), abs=0.03)


def test_a_plan_beyond_the_budget_says_that_it_cannot_decide() -> None:
    assert plan_pairs(6.0, 3.0, 14).decidable
    refused = plan_pairs(6.0, 3.0, 12)
    assert not refused.decidable
    assert refused.reason.startswith("cannot be decided with this budget")


def test_a_pilot_of_four_pairs_plans_with_more_than_its_own_sd() -> None:
    expected = math.sqrt(3 / float(stats.chi2.ppf(0.2, 3)))
    assert pilot_sd_upper(1.0, 4) == pytest.approx(expected)
    assert expected > 1.5


def test_five_scopes_share_the_error_of_the_path() -> None:
    assert scope_alpha() == pytest.approx(0.02)


def test_holm_rejects_step_by_step() -> None:
    result = holm([0.01, 0.04, 0.03, 0.005])
    assert result.adjusted_p == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert result.rejected == (True, False, False, True)
