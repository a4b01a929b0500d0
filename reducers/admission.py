"""Are upgraded hosts slower than hosts that were not upgraded, by more than a margin? And by how much was it so before?

A pair difference is upgraded minus control, in ms a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.proposals import account_view
from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import judge_scope, needs_more
from narrows.reducers.estimates import MeanTerm, format_ms, interval_ms, mean_term, samples, t_quantile, welch_df
from narrows.reducers.planning import pairs_to_detect
from narrows.reducers.sequential import LOOKS

if TYPE_CHECKING:
    import numpy.typing as npt

_HALF = 0.5
_SHOWN_ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResult:
    """Supported: slower by more than `margin_ms`; rejected: not slower by that much. Times in ms a step.

    `effect_ms` is the difference between the two sets of hosts, less what it was in the baseline where there is one;
    `interval_ms` is its two-sided 90 % interval. `kind` says how a set that is not slower compares: `equivalent` (both
    ends of the interval lie within the margin), `faster`, or `not slower`; empty otherwise. `wanted_pairs` is the total
    number of pairs at which to judge again, None when decided or after the last look; `more_pairs` how many more
    would decide with a power of 0.9 at this noise, None when decided or when no number to 200 does.
    """

    verdict: Verdict
    kind: str
    effect_ms: float
    interval_ms: tuple[float, float] | None
    margin_ms: float
    pairs_used: int
    baseline_pairs: int
    wanted_pairs: int | None
    more_pairs: int | None
    sign_flip_p: float
    reason: str


def judge_admission(
    d_ms: npt.ArrayLike,
    margin_ms: float,
    baseline_ms: npt.ArrayLike | None = None,
    *,
    alpha: float = 0.05,
    looks: tuple[int, ...] = LOOKS,
) -> AdmissionResult:
    """On which side of the margin the upgraded hosts lie: each error at most `alpha` over all looks.

    With `baseline_ms`, the pair differences of the same sets before the upgrade, it is the difference in differences
    that is judged, and the error of the baseline counts. Raises `ValueError` for samples that are empty or not
    finite, or a margin that is not positive.
    """
    if not margin_ms > 0:
        raise ValueError(f"margin_ms={margin_ms}: the margin is the largest slowdown that is admitted, above 0")
    data = samples(d_ms, "d_ms")
    before = samples([0.0] if baseline_ms is None else baseline_ms, "baseline_ms")
    # The scope's boundary is half of a reference that lies above 0; a shift of both sides moves no verdict.
    shift = abs(float(before.mean()))
    reference = (before + margin_ms + shift) / _HALF
    found = judge_scope(data + shift, reference, rho=_HALF, alpha=alpha, looks=looks)
    used = data[: found.pairs_used]
    effect, interval = _difference(mean_term(used), mean_term(before), known=used.size > 1)
    wanted = needs_more(found, looks)
    undecided = found.verdict is Verdict.INCONCLUSIVE
    return AdmissionResult(
        verdict=found.verdict,
        kind=_kind(interval, margin_ms) if found.verdict is Verdict.REJECTED else "",
        effect_ms=effect,
        interval_ms=interval,
        margin_ms=margin_ms,
        pairs_used=int(used.size),
        baseline_pairs=0 if baseline_ms is None else int(before.size),
        wanted_pairs=wanted,
        more_pairs=_more_pairs(used, before, effect - margin_ms, alpha) if undecided else None,
        sign_flip_p=found.sign_flip_p,
        reason=_reason(found.verdict, effect, interval, margin_ms, int(used.size), found.vetoed, wanted),
    )


def without_baseline(evidence: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """The evidence with the mean pair difference of the baseline taken off: of the step, its accounts, its ranks.

    What is left is the change since the baseline. Raises `ValueError` where the baseline has other ranks.
    """
    now, before = evidence["difference"], baseline["difference"]
    local = np.asarray(now["local_ms"], dtype=np.float64)
    local_before = np.asarray(before["local_ms"], dtype=np.float64)
    if local.shape[1:] != local_before.shape[1:]:
        raise ValueError(f"the baseline has {local_before.shape[1:]} ranks and the evidence {local.shape[1:]}")
    difference = now | {
        "step_ms": _less(now["step_ms"], before["step_ms"]),
        "local_ms": (local - local_before.mean(axis=0)).tolist(),
        "accounts": {
            view: {account: _less(values, before["accounts"][view][account]) for account, values in table.items()}
            for view, table in now["accounts"].items()
        },
    }
    return evidence | {"difference": difference}


def account_changes(evidence: dict[str, Any]) -> dict[str, float]:
    """By account, how much of the step's difference it holds in the view in which it closes, in ms a step."""
    tables = evidence["difference"]["accounts"]
    return {one.value: float(np.mean(tables[account_view(one).value][one.value])) for one in ACCOUNTS}


def _less(values: list[float], before: list[float]) -> list[float]:
    mean = float(np.mean(before))
    return [float(one) - mean for one in values]


def _difference(now: MeanTerm, before: MeanTerm, *, known: bool) -> tuple[float, tuple[float, float] | None]:
    effect = now.mean - before.mean
    if not known:
        return effect, None
    variance = now.variance + before.variance
    half = t_quantile(_SHOWN_ALPHA, welch_df((now, before))) * math.sqrt(variance) if variance > 0 else 0.0
    return effect, (effect - half, effect + half)


def _kind(interval: tuple[float, float] | None, margin_ms: float) -> str:
    assert interval is not None, "one pair decides nothing"
    low, high = interval
    if -margin_ms < low and high < margin_ms:
        return "equivalent"
    return "faster" if high < 0 else "not slower"


def _more_pairs(
    data: npt.NDArray[np.float64], before: npt.NDArray[np.float64], apart_ms: float, alpha: float
) -> int | None:
    """Pairs beyond those there are, such that the error reaches what shows a distance of `apart_ms` from the margin."""
    spread = float(data.std(ddof=1)) if data.size > 1 else 0.0
    if spread <= 0:
        return None
    alone = pairs_to_detect(abs(apart_ms) / spread, alpha=alpha)
    if alone is None:
        return None
    room = spread**2 / alone - mean_term(before).variance
    if room <= 0:  # the baseline alone is too uncertain
        return None
    return max(1, math.ceil(spread**2 / room) - int(data.size))


def _reason(
    verdict: Verdict,
    effect: float,
    interval: tuple[float, float] | None,
    margin_ms: float,
    pairs: int,
    vetoed: str | None,
    wanted: int | None,
) -> str:
    where = {Verdict.SUPPORTED: "lies above", Verdict.REJECTED: "lies below"}
    said = where.get(verdict, "lies neither clearly above nor below")
    shown = interval_ms(effect, *(interval or (math.inf, math.inf)), beside=margin_ms)
    margin = format_ms(margin_ms, beside=max(abs(effect), margin_ms))[0]
    more = f"; {vetoed}" if vetoed else f"; the next look comes after {wanted}" if wanted else ""
    return f"{shown} {said} the margin of {margin} ms after {pairs} pairs{more}"
