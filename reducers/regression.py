"""Two arms compared by pairs at full scale: is there a regression, none, or not enough evidence?

A pair difference is regressed minus healthy, in ms a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrows.inquiry.verdict import RegressionStatus
from narrows.reducers.estimates import (
    estimate,
    format_ms,
    hodges_lehmann,
    interval_ms,
    samples,
    sign_flip_p,
    signed_rank_interval,
)

if TYPE_CHECKING:
    import numpy.typing as npt

REGRESSION_PAIRS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionResult:
    """Whether the step got slower by more than `margin_ms`; the interval is two-sided at 1 - 2 alpha (90 %)."""

    verdict: RegressionStatus
    effect_ms: float
    interval_ms: tuple[float, float] | None
    margin_ms: float
    pairs_used: int
    alpha: float
    hodges_lehmann_ms: float
    signed_rank_interval_ms: tuple[float, float] | None
    sign_flip_p: float
    reason: str


def cost_margin_ms(healthy_step_ms: float, threshold_ms: float = 0.0) -> float:
    """The smallest slowdown that counts: 1 % of the healthy step, or the user's own threshold if that is more."""
    return max(0.01 * healthy_step_ms, threshold_ms)


def confirm_regression(
    d_ms: npt.ArrayLike, margin_ms: float, alpha: float = 0.05, *, min_pairs: int = REGRESSION_PAIRS
) -> RegressionResult:
    """Confirmed: the lower bound exceeds the margin. None: both bounds lie within the margin (two one-sided tests).

    Fewer than `min_pairs` pairs are inconclusive whatever they say. Raises `ValueError` for a negative margin.
    """
    if margin_ms < 0:
        raise ValueError(f"margin_ms={margin_ms}: the margin is the smallest slowdown that counts, at least 0")
    data = samples(d_ms, "d_ms")
    effect = estimate(data, alpha)
    verdict = RegressionStatus.INCONCLUSIVE
    if effect.n >= max(2, min_pairs):
        if effect.lower > margin_ms:
            verdict = RegressionStatus.CONFIRMED
        elif -margin_ms < effect.lower and effect.upper < margin_ms:
            verdict = RegressionStatus.NONE
    return RegressionResult(
        verdict=verdict,
        effect_ms=effect.mean,
        interval_ms=effect.interval if effect.n > 1 else None,
        margin_ms=margin_ms,
        pairs_used=effect.n,
        alpha=alpha,
        hodges_lehmann_ms=hodges_lehmann(data),
        signed_rank_interval_ms=signed_rank_interval(data, alpha),
        sign_flip_p=sign_flip_p(data),
        reason=_regression_reason(verdict, interval_ms(effect.mean, *effect.interval), margin_ms, effect.n, min_pairs),
    )


def _regression_reason(verdict: RegressionStatus, effect: str, margin_ms: float, n: int, min_pairs: int) -> str:
    margin = f"{format_ms(margin_ms)[0]} ms"
    if n < max(2, min_pairs):
        return f"{n} pairs ({effect}) are too few: a regression is judged on at least {max(2, min_pairs)}"
    if verdict is RegressionStatus.CONFIRMED:
        return f"{effect} over {n} pairs lies above the margin of {margin}"
    if verdict is RegressionStatus.NONE:
        return f"{effect} over {n} pairs lies within the margin of {margin} on both sides"
    return f"{effect} over {n} pairs lies neither above the margin of {margin} nor within it"
