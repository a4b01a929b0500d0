"""Does one account hold at least a given share of the loss? Account and step come from the same pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.verdict import Verdict
from narrows.reducers.estimates import estimate, interval_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

SCREENING_PAIRS = 4
"""Runs with fewer pairs than this describe; they rule nothing in or out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    """The account's change in ms a step with its 90 % interval, and its share of the step's change."""

    verdict: Verdict
    change_ms: float
    interval_ms: tuple[float, float] | None
    share: float
    pairs_used: int
    reason: str


def judge_share(
    account_ms: Sequence[float], step_ms: Sequence[float], name: str, *, rho: float = 0.5, alpha: float = 0.05
) -> ShareResult:
    """Supported: the account's change exceeds ``rho`` times the step's, pair by pair; rejected: it stays below.

    Raises ``ValueError`` for samples of different lengths, or empty ones.
    """
    c, d = np.asarray(account_ms, dtype=np.float64), np.asarray(step_ms, dtype=np.float64)
    if c.shape != d.shape or not c.size:
        raise ValueError(f"{c.size} changes of {name} and {d.size} of the step: give one of each per pair")
    share = float(c.mean() / d.mean()) if d.mean() else 0.0
    verdict, shown, bounds = Verdict.INCONCLUSIVE, f"{c.mean():+.3g} ms", None
    if c.size > 1:
        own, excess = estimate(c, alpha), estimate(c - rho * d, alpha)
        shown, bounds = interval_ms(own.mean, own.lower, own.upper), (own.lower, own.upper)
        if c.size >= SCREENING_PAIRS:
            verdict = Verdict.SUPPORTED if excess.lower > 0 else Verdict.REJECTED if excess.upper < 0 else verdict
    open_end = "" if verdict is not Verdict.INCONCLUSIVE else "; these runs do not settle it"
    return ShareResult(
        verdict=verdict,
        change_ms=float(c.mean()),
        interval_ms=bounds,
        share=share,
        pairs_used=int(c.size),
        reason=f"{name} changed by {shown}, {round(100 * share) + 0}% of the loss{open_end}",
    )
