"""How many pairs a verdict will take, and how much error a path of verdicts may spend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from narrows.inquiry.case import PATH_ALPHA, PATH_TESTS
from narrows.reducers.estimates import MeanTerm, format_ms, t_quantile, welch_df

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_PAIRS = 200


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


def power(n: int, n_f: int | None, delta_over_sd: float, rho: float = 0.5, alpha: float = 0.05) -> float:
    """Probability that `n` pairs reach the right verdict against a reference of `n_f` pairs (None: also `n`).

    `delta_over_sd` is the effect over the sd of a pair difference. Raises `ValueError` below 2 pairs.
    """
    reference = n if n_f is None else n_f
    if n < 2 or reference < 2:
        raise ValueError(f"n={n}, n_f={reference}: a verdict needs at least 2 pairs in each")
    scope = MeanTerm(mean=0.0, variance=1 / n, df=n - 1)
    boundary = MeanTerm(mean=0.0, variance=rho**2 / reference, df=reference - 1)
    df = welch_df((scope, boundary))
    return _t_power(rho * delta_over_sd / math.sqrt(scope.variance + boundary.variance), df, alpha)


def pairs_needed(
    delta_over_sd: float, wanted: float = 0.9, n_f: int | None = 8, rho: float = 0.5, alpha: float = 0.05
) -> int | None:
    """The fewest pairs with `wanted` power; None when no number to 200 reaches it.

    With a reference of 8 pairs, an effect of 1 sd stays out of reach: the reference itself is too uncertain.
    """
    return _fewest(lambda n: power(n, n_f, delta_over_sd, rho, alpha), wanted)


def pairs_to_detect(delta_over_sd: float, wanted: float = 0.9, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show an effect of this size to be above 0."""
    return _fewest(lambda n: _t_power(delta_over_sd * math.sqrt(n), n - 1, alpha), wanted)


def pairs_for_equivalence(margin_over_sd: float, wanted: float = 0.9, alpha: float = 0.05) -> int | None:
    """The fewest pairs that show a true 0 to lie within the margin on both sides."""

    def both_sides(n: int) -> float:
        # Two one-sided tests that miss together only when the mean strays to either side: 2 P(one side) - 1.
        return 2 * _t_power(margin_over_sd * math.sqrt(n), n - 1, alpha) - 1

    return _fewest(both_sides, wanted)


def pilot_sd_upper(sd: float, n: int, confidence: float = 0.8) -> float:
    """Upper bound of the pair sd from a pilot of `n` identical pairs: plan with this, not with the estimate."""
    if n < 2:
        raise ValueError(f"n={n}: a pilot needs at least 2 pairs")
    return sd * math.sqrt((n - 1) / float(stats.chi2.ppf(1 - confidence, n - 1)))


def plan_pairs(
    delta_ms: float, sd_ms: float, budget_pairs: int, *, n_f: int | None = 8, rho: float = 0.5, alpha: float = 0.05
) -> PairPlan:
    """The pairs that decide whether a scope shows `delta_ms` with power .9, or that the budget cannot."""
    signal = abs(delta_ms) / sd_ms if sd_ms > 0 else math.inf
    pairs = 2 if math.isinf(signal) else pairs_needed(signal, 0.9, n_f, rho, alpha)
    delta, sd = format_ms(abs(delta_ms), sd_ms)
    what = f"{delta} ms against {sd} ms between pairs"
    if pairs is None or pairs > budget_pairs:
        needs = f"more than {MAX_PAIRS}" if pairs is None else str(pairs)
        reason = f"cannot be decided with this budget: {what} needs {needs} pairs, {budget_pairs} are allowed"
        return PairPlan(pairs=pairs, decidable=False, delta_over_sd=signal, reason=reason)
    return PairPlan(pairs=pairs, decidable=True, delta_over_sd=signal, reason=f"{what} needs {pairs} pairs")


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
    return float(stats.nct.sf(t_quantile(alpha, df), df, noncentrality))


def _fewest(power_of: Callable[[int], float], wanted: float) -> int | None:
    return next((n for n in range(2, MAX_PAIRS + 1) if power_of(n) >= wanted), None)
