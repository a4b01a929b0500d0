"""Does one account hold at least a given share of the loss? Account and step come from the same pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

from narrows.inquiry.verdict import Verdict
from narrows.reducers.estimates import estimate, interval_ms
from narrows.reducers.planning import holm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_OPEN = "; these runs do not settle it"
SCREENING_PAIRS = 4
"""Runs with fewer pairs than this describe; they rule nothing in or out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareResult:
    """The account's change in ms a step with its 90 % interval, and its share of the step's change.

    ``p_more`` and ``p_less`` are one-sided: of so large an excess over rho times the step's change if it were not more
    than that, and of so small a one if it were not less.
    """

    verdict: Verdict
    change_ms: float
    interval_ms: tuple[float, float] | None
    share: float
    pairs_used: int
    reason: str
    p_more: float = 1.0
    p_less: float = 1.0


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
    p_more, p_less = _p_values(c - rho * d)
    verdict, shown, bounds = Verdict.INCONCLUSIVE, f"{c.mean():+.3g} ms", None
    if c.size > 1:
        own, excess = estimate(c, alpha), estimate(c - rho * d, alpha)
        shown, bounds = interval_ms(own.mean, own.lower, own.upper), (own.lower, own.upper)
        if c.size >= SCREENING_PAIRS:
            verdict = Verdict.SUPPORTED if excess.lower > 0 else Verdict.REJECTED if excess.upper < 0 else verdict
    open_end = "" if verdict is not Verdict.INCONCLUSIVE else _OPEN
    return ShareResult(
        verdict=verdict,
        change_ms=float(c.mean()),
        interval_ms=bounds,
        share=share,
        pairs_used=int(c.size),
        reason=f"{name} changed by {shown}, {round(100 * share) + 0}% of the loss{open_end}",
        p_more=p_more,
        p_less=p_less,
    )


def judge_shares(
    accounts_ms: Mapping[str, Sequence[float]], step_ms: Sequence[float], *, rho: float = 0.5, alpha: float = 0.05
) -> dict[str, ShareResult]:
    """Several accounts of the same runs side by side: the error of all of them together is ``alpha`` in each direction.

    Holm's step-down over the accounts takes a verdict back that would stand for one account alone.
    """
    alone = {name: judge_share(values, step_ms, name, rho=rho, alpha=alpha) for name, values in accounts_ms.items()}
    more = holm([one.p_more for one in alone.values()], alpha).rejected
    less = holm([one.p_less for one in alone.values()], alpha).rejected
    found = {}
    for at, (name, one) in enumerate(alone.items()):
        kept = {Verdict.SUPPORTED: more[at], Verdict.REJECTED: less[at]}.get(one.verdict, True)
        open_end = f"{_OPEN} among {len(alone)} accounts"
        found[name] = one if kept else replace(one, verdict=Verdict.INCONCLUSIVE, reason=one.reason + open_end)
    return found


def _p_values(excess: Floats) -> tuple[float, float]:
    if excess.size < SCREENING_PAIRS:
        return 1.0, 1.0
    if np.ptp(excess) == 0:  # without any spread the sign decides
        return float(excess[0] <= 0), float(excess[0] >= 0)
    t = float(excess.mean() / (excess.std(ddof=1) / math.sqrt(excess.size)))
    return float(stdtr(excess.size - 1, -t)), float(stdtr(excess.size - 1, t))
