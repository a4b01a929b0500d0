"""How many pairs a verdict will take, and how much error a path of verdicts may spend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtri, nctdtr, ndtr

from narrows.inquiry.case import PATH_ALPHA, PATH_TESTS
from narrows.reducers.estimates import MeanTerm, format_ms, mean_term, t_quantile, welch_df

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_PAIRS = 200
PLANNED_POWER = 0.9
"""What a number of pairs is planned for."""
LEAST_POWER = 0.5
"""Below it, more pairs would be spent on a question that they likely leave open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """How many pairs a scope will take; `pairs` is None if no number decides. `reason` is for the reader."""

    pairs: int | None
    decidable: bool
    delta_over_sd: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolmResult:
    """Which of several parallel hypotheses hold together at the registered error, with their adjusted p."""

    rejected: tuple[bool, ...]
    adjusted_p: tuple[float, ...]


def power(
    n: int, n_f: int | None, delta_over_sd: float, rho: float = 0.5, alpha: float = 0.05, kappa: float = 1.0
) -> float:
    """Probability that `n` pairs reach the right verdict against a reference of `n_f` pairs (None: also `n`).

    `delta_over_sd` is the reference's effect over the sd of a pair difference, `kappa` the share of it that is
    predicted where the pairs are taken. Raises `ValueError` below 2 pairs.
    """
    reference = n if n_f is None else n_f
    if n < 2 or reference < 2:
        raise ValueError(f"n={n}, n_f={reference}: a verdict needs at least 2 pairs in each")
    scope = MeanTerm(mean=0.0, variance=1 / n, df=n - 1)
    boundary = MeanTerm(mean=0.0, variance=(rho * kappa) ** 2 / reference, df=reference - 1)
    df = welch_df((scope, boundary))
    return _t_power(rho * kappa * delta_over_sd / math.sqrt(scope.variance + boundary.variance), df, alpha)


def pairs_needed(
    delta_over_sd: float, wanted: float = PLANNED_POWER, n_f: int | None = 8, rho: float = 0.5, alpha: float = 0.05
) -> int | None:
    """The fewest pairs with `wanted` power; None when no number to 200 reaches it.

    With a reference of 8 pairs, an effect of 1 sd stays out of reach: the reference itself is too uncertain.
    """
    return _fewest(lambda n: power(n, n_f, delta_over_sd, rho, alpha), wanted)


def pairs_to_detect(delta_over_sd: float, wanted: float = PLANNED_POWER, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show an effect of this size to be above 0."""
    return _fewest(lambda n: _t_power(delta_over_sd * math.sqrt(n), n - 1, alpha), wanted)


def pairs_for_equivalence(margin_over_sd: float, wanted: float = PLANNED_POWER, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show a true 0 to lie within the margin on both sides."""

    def both_sides(n: int) -> float:
        # Two one-sided tests that miss together only when the mean strays to either side: 2 P(one side) - 1.
        return 2 * _t_power(margin_over_sd * math.sqrt(n), n - 1, alpha) - 1

    return _fewest(both_sides, wanted)


def pilot_sd_upper(sd: float, n: int, confidence: float = 0.8) -> float:
    """Upper bound of the pair sd from a pilot of `n` identical pairs: plan with this, not with the estimate."""
    if n < 2:
        raise ValueError(f"n={n}: a pilot needs at least 2 pairs")
    return sd * math.sqrt((n - 1) / float(chdtri(n - 1, confidence)))


def plan_pairs(
    delta_ms: float, sd_ms: float, budget_pairs: int, *, n_f: int | None = 8, rho: float = 0.5, alpha: float = 0.05
) -> PairPlan:
    """The pairs that decide whether a scope shows `delta_ms` with power .9, or that the budget cannot."""
    signal = abs(delta_ms) / sd_ms if sd_ms > 0 else math.inf
    pairs = 2 if math.isinf(signal) else pairs_needed(signal, PLANNED_POWER, n_f, rho, alpha)
    delta, sd = format_ms(abs(delta_ms), sd_ms)
    what = f"{delta} ms against {sd} ms between pairs"
    if pairs is None or pairs > budget_pairs:
        needs = f"more than {MAX_PAIRS}" if pairs is None else str(pairs)
        reason = f"cannot be decided with this budget: {what} needs {needs} pairs, {budget_pairs} are allowed"
        return PairPlan(pairs=pairs, decidable=False, delta_over_sd=signal, reason=reason)
    return PairPlan(pairs=pairs, decidable=True, delta_over_sd=signal, reason=f"{what} needs {pairs} pairs")


def planned_looks(
    looks: tuple[int, ...], df_ms: Sequence[float], kappa: float, times: int, alpha: float = 0.05
) -> tuple[int, ...]:
    """The looks at which a scope that shows `kappa` of the reference `df_ms` is judged.

    The usual `looks` where their last one decides with power .9; else these and further ones, up to as many `times`
    as many pairs as it takes, or as are allowed if those decide more likely than not. The reference's pairs are the
    pilot, whose sd is taken at its upper bound.
    """
    sd = pilot_sd_upper(float(np.std(df_ms, ddof=1)), len(df_ms))
    if sd == 0:
        return looks
    signal = abs(float(np.mean(df_ms))) / sd
    reached = [power(n * looks[-1], len(df_ms), signal, alpha=alpha, kappa=kappa) for n in range(1, times + 1)]
    wanted = next((n for n, one in enumerate(reached, start=1) if one >= PLANNED_POWER), None)
    many = wanted or (times if reached[-1] >= LEAST_POWER else 1)
    return tuple(sorted({*looks, *(many * look for look in looks)}))


def chance_to_decide(
    ds_ms: Sequence[float],
    df_ms: Sequence[float],
    predicted_ms: float,
    pairs: int,
    level: float,
    rho: float = 0.5,
) -> float:
    """The conditional power: how likely `pairs` pairs in all lie clear of `rho` times the prediction, on either side.

    The further pairs are taken to vary around the mean of those that are there, `ds_ms`; `df_ms` is the reference.
    Source: stochastic curtailment under the current trend, Lan, Simon & Halperin 1982.
    """
    scope, boundary = _against(ds_ms, df_ms, predicted_ms, rho)
    sd = float(np.std(ds_ms, ddof=1))
    left = pairs - len(ds_ms)
    excess = math.copysign(1, predicted_ms) * scope.mean - boundary.mean
    final = MeanTerm(mean=0.0, variance=sd**2 / pairs, df=pairs - 1)
    clear = t_quantile(level, welch_df((final, boundary))) * math.sqrt(final.variance + boundary.variance)
    if left <= 0 or sd == 0:
        return float(abs(excess) > clear)
    strays = sd * math.sqrt(left) / pairs
    return float(ndtr((excess - clear) / strays) + ndtr((-excess - clear) / strays))


def pairs_on_trend(
    ds_ms: Sequence[float], df_ms: Sequence[float], predicted_ms: float, alpha: float, rho: float = 0.5
) -> int | None:
    """The fewest pairs that decide with power .9 if the effect and its spread are what `ds_ms` show; None above 200."""
    scope, boundary = _against(ds_ms, df_ms, predicted_ms, rho)
    sd = float(np.std(ds_ms, ddof=1))
    excess = abs(math.copysign(1, predicted_ms) * scope.mean - boundary.mean)

    def decides(n: int) -> float:
        final = MeanTerm(mean=0.0, variance=sd**2 / n, df=n - 1)
        error = math.sqrt(final.variance + boundary.variance)
        return _t_power(excess / error, welch_df((final, boundary)), alpha) if error > 0 else 1.0

    return _fewest(decides, PLANNED_POWER)


def _against(
    ds_ms: Sequence[float], df_ms: Sequence[float], predicted_ms: float, rho: float
) -> tuple[MeanTerm, MeanTerm]:
    """The mean of the pairs, and the boundary with the error that the prediction has from its reference."""
    scope, reference = mean_term(np.asarray(ds_ms)), mean_term(np.asarray(df_ms))
    share = rho * abs(predicted_ms / reference.mean) if reference.mean else 0.0
    variance = share**2 * reference.variance
    return scope, MeanTerm(mean=rho * abs(predicted_ms), variance=variance, df=reference.df)


def scope_alpha(num_tests: int = PATH_TESTS, budget: float = PATH_ALPHA) -> float:
    """The error of each scope when the chance of taking a wrong turn anywhere on the path is at most `budget`."""
    if num_tests < 1:
        raise ValueError(f"num_tests={num_tests}: a path holds at least one test")
    return budget / num_tests


def holm(p_values: Sequence[float], alpha: float = 0.05) -> HolmResult:
    """Holm's step-down over hypotheses tested side by side. Source: Holm 1979."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values={list(p_values)}: probabilities lie between 0 and 1")
    ranks = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.maximum.accumulate(p[ranks] * np.arange(p.size, 0, -1)))
    adjusted = np.empty_like(p)
    adjusted[ranks] = steps
    return HolmResult(rejected=tuple(bool(x <= alpha) for x in adjusted), adjusted_p=tuple(float(x) for x in adjusted))


def _t_power(noncentrality: float, df: float, alpha: float) -> float:
    critical = t_quantile(alpha, df)
    below = float(nctdtr(df, noncentrality, critical))
    if math.isnan(below):  # it overflows far beyond the critical value; scipy.stats does not, but is slow to import
        from scipy.stats import nct

        return float(nct.sf(critical, df, noncentrality))
    return 1.0 - below


def _fewest(power_of: Callable[[int], float], wanted: float) -> int | None:
    return next((n for n in range(2, MAX_PAIRS + 1) if power_of(n) >= wanted), None)
