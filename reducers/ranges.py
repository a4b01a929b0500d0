"""Does an effect lie inside a range that was accepted before? Three outcomes, with the looks of the scope test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import judge_scope, needs_more
from narrows.reducers.estimates import interval_ms, samples
from narrows.reducers.sequential import LOOKS

if TYPE_CHECKING:
    import numpy.typing as npt

_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """Supported: the effect lies inside the range; rejected: outside. Times in ms a step, the interval at 90 %.

    ``wanted_pairs`` is the total number of pairs at which to judge again, None when decided or after the last look.
    """

    verdict: Verdict
    effect_ms: float
    interval_ms: tuple[float, float] | None
    pairs_used: int
    wanted_pairs: int | None
    reason: str


def judge_range(
    ds_ms: npt.ArrayLike, low_ms: float, high_ms: float, *, alpha: float = 0.05, looks: tuple[int, ...] = LOOKS
) -> RangeResult:
    """Whether the mean of the pair differences lies between ``low_ms`` and ``high_ms``.

    Around the middle of the range it is the equivalence test of a control: each error at most ``alpha`` over all looks.
    Raises ``ValueError`` for an empty range, or samples that are empty or not finite.
    """
    if not low_ms < high_ms:
        raise ValueError(f"the range {low_ms:g} to {high_ms:g} ms is empty; give a lower end below the upper one")
    middle, half_width = (low_ms + high_ms) / 2, (high_ms - low_ms) / 2
    found = judge_scope(
        samples(ds_ms, "ds_ms") - middle, [half_width / _HALF], rho=_HALF, alpha=alpha, looks=looks, predicted_ms=0.0
    )
    effect = found.effect_ms + middle
    bounds = None if found.interval_ms is None else (found.interval_ms[0] + middle, found.interval_ms[1] + middle)
    wanted = needs_more(found, looks)
    where = {Verdict.SUPPORTED: "lies inside", Verdict.REJECTED: "lies outside"}
    said = where.get(found.verdict, "is neither shown to lie inside nor outside")
    shown = interval_ms(effect, *(bounds or (float("inf"), float("inf"))))
    more = f"; {found.vetoed}" if found.vetoed else f"; the next look comes after {wanted}" if wanted else ""
    return RangeResult(
        verdict=found.verdict,
        effect_ms=effect,
        interval_ms=bounds,
        pairs_used=found.pairs_used,
        wanted_pairs=wanted,
        reason=f"{shown} {said} the accepted {low_ms:.3g} to {high_ms:.3g} ms after {found.pairs_used} pairs{more}",
    )
