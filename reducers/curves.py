"""Message-size curves of two arms: did latency change, bandwidth, both, or neither?

Arrays carry suffixes: B pairs, K message sizes; times in us, taken after a barrier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

from narrows.reducers.estimates import estimate, spread
from narrows.reducers.planning import holm
from narrows.reducers.structure import max_t

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# A change below 5 % is not worth a network engineer's day, however significant.
LEAST_RATIO = 1.05
# Log residuals beyond 5 % count less and less: one regime step of the library must not bend the whole fit.
_SOFT = 0.05
_BIC_GAIN = 6.0


class CurvePattern(StrEnum):
    """Which part of t = alpha + beta * bytes changed."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    BOTH = "both"
    WINDOW = "window"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEffect:
    """Regressed over healthy time at one size (`ratio`, geometric mean over pairs) with its family-wise p."""

    size_bytes: int
    healthy_us: float
    regressed_us: float
    ratio: float
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterChange:
    """A parameter of the curve in both arms (geometric means), their ratio with its 90 % interval, and the p of its
    pair test."""

    healthy: float
    regressed: float
    ratio: float
    lower: float
    upper: float
    p: float
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveResult:
    """`latency` is alpha in us, `bandwidth` beta in us a byte (more is slower).

    `window` means that some sizes changed though neither parameter did: look at tuning and protocol switches.
    `break_bytes` is the first size on the far side of a jump in the ratio, where the data ask for one.
    """

    pattern: CurvePattern
    sizes: tuple[SizeEffect, ...]
    latency: ParameterChange
    bandwidth: ParameterChange
    break_bytes: int | None
    pairs_used: int
    sentence: str


def fit_curve(sizes_bytes: npt.ArrayLike, times_us: npt.ArrayLike) -> tuple[float, float]:
    """alpha (us) and beta (us a byte), both positive, of t = alpha + beta * bytes by a robust fit of log times.

    Raises `ValueError` for fewer than 3 sizes or times that are not positive.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    times = np.asarray(times_us, dtype=np.float64)
    if sizes.ndim != 1 or sizes.size < 3 or sizes.shape != times.shape or min(sizes.min(), times.min()) <= 0:
        raise ValueError(f"{sizes.size} sizes and {times.size} times: give at least 3 of each, all positive")
    logs = np.log(times)
    low = np.array([logs.min() - 7.0, math.log(times.min() / sizes.max()) - 7.0])
    high = np.array([logs.max() + 1e-6, math.log(times.max() / sizes.min()) + 1e-6])
    start = np.array([logs[sizes.argmin()] - 0.1, logs[sizes.argmax()] - math.log(sizes.max()) - 0.1])

    from scipy.optimize import least_squares  # slow to import, and most commands fit no curve

    def residuals(parameters: Floats) -> Floats:
        return np.asarray(np.logaddexp(parameters[0], parameters[1] + np.log(sizes)) - logs, dtype=np.float64)

    fitted = least_squares(residuals, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=_SOFT)
    return math.exp(float(fitted.x[0])), math.exp(float(fitted.x[1]))


def compare_curves(
    sizes_bytes: npt.ArrayLike,
    healthy_us_BK: npt.ArrayLike,
    regressed_us_BK: npt.ArrayLike,
    *,
    alpha: float = 0.05,
    least_ratio: float = LEAST_RATIO,
) -> CurveResult:
    """Which part of the curve changed, from one median time for each pair and size in both arms.

    A parameter changed if its pair differences of logs differ from 0 (t, Holm over both parameters) and the ratio
    is at least `least_ratio` either way. Raises `ValueError` for tables that do not fit the sizes or each other.
    """
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    healthy, regressed = np.asarray(healthy_us_BK, dtype=np.float64), np.asarray(regressed_us_BK, dtype=np.float64)
    if healthy.shape != regressed.shape or healthy.ndim != 2 or healthy.shape[1] != sizes.size or len(healthy) < 2:
        raise ValueError(
            f"times of shape {healthy.shape} and {regressed.shape} for {sizes.size} sizes: give both arms one row for "
            "each of at least 2 pairs and one column for each size"
        )
    if min(healthy.min(), regressed.min()) <= 0:
        raise ValueError(f"a time of {min(healthy.min(), regressed.min())} us: times are positive")
    effects = _size_effects(sizes, healthy, regressed)
    latency, bandwidth = _parameters(sizes, healthy, regressed, alpha, least_ratio)
    moved = [e for e in effects if e.p <= alpha and abs(math.log(e.ratio)) >= math.log(least_ratio)]
    pattern = _pattern(latency, bandwidth, any_size=bool(moved))
    return CurveResult(
        pattern=pattern,
        sizes=effects,
        latency=latency,
        bandwidth=bandwidth,
        break_bytes=_break(sizes, np.log(regressed / healthy)) if pattern is not CurvePattern.NONE else None,
        pairs_used=len(healthy),
        sentence=_sentence(pattern, latency, bandwidth, moved, len(healthy)),
    )


def _size_effects(sizes: Floats, healthy: Floats, regressed: Floats) -> tuple[SizeEffect, ...]:
    logs = np.log(regressed / healthy)
    _, p = max_t(logs)
    rows = zip(sizes.tolist(), _geometric(healthy), _geometric(regressed), logs.mean(axis=0).tolist(), p.tolist(),
               strict=True)  # fmt: skip
    return tuple(
        SizeEffect(size_bytes=int(size), healthy_us=h, regressed_us=r, ratio=math.exp(log), p=chance)
        for size, h, r, log, chance in rows
    )


def _geometric(times: Floats) -> list[float]:
    return [float(value) for value in np.exp(np.log(times).mean(axis=0))]


def _parameters(
    sizes: Floats, healthy: Floats, regressed: Floats, alpha: float, least_ratio: float
) -> tuple[ParameterChange, ParameterChange]:
    before = np.log(np.array([fit_curve(sizes, row) for row in healthy]))
    after = np.log(np.array([fit_curve(sizes, row) for row in regressed]))
    p = [_t_test_p(after[:, at] - before[:, at]) for at in (0, 1)]
    shown = holm(p, alpha).rejected
    return (
        _parameter(before[:, 0], after[:, 0], p[0], significant=shown[0], least_ratio=least_ratio),
        _parameter(before[:, 1], after[:, 1], p[1], significant=shown[1], least_ratio=least_ratio),
    )


def _parameter(before: Floats, after: Floats, p: float, *, significant: bool, least_ratio: float) -> ParameterChange:
    change = estimate(after - before)
    ratio = math.exp(change.mean)
    return ParameterChange(
        healthy=math.exp(float(before.mean())),
        regressed=math.exp(float(after.mean())),
        ratio=ratio,
        lower=math.exp(change.lower),
        upper=math.exp(change.upper),
        p=p,
        changed=significant and abs(change.mean) >= math.log(least_ratio),
    )


def _t_test_p(values: Floats) -> float:
    """Two-sided p of the mean being 0; equal values decide without an error."""
    mean, sd = float(values.mean()), spread(values)
    if sd == 0:
        return 1.0 if mean == 0 else 0.0
    df = values.size - 1
    return 2 * float(stdtr(df, -abs(mean) * math.sqrt(values.size) / sd))


def _pattern(latency: ParameterChange, bandwidth: ParameterChange, *, any_size: bool) -> CurvePattern:
    if latency.changed and bandwidth.changed:
        return CurvePattern.BOTH
    if latency.changed:
        return CurvePattern.LATENCY
    if bandwidth.changed:
        return CurvePattern.BANDWIDTH
    return CurvePattern.WINDOW if any_size else CurvePattern.NONE


def _break(sizes: Floats, logs_BK: Floats) -> int | None:
    """The first size beyond one jump of the log ratio; None unless BIC falls by more than 6."""
    order = np.argsort(sizes)
    curve = logs_BK.mean(axis=0)[order]
    if curve.size < 4:
        return None
    costs = [_squares(curve[:cut]) + _squares(curve[cut:]) for cut in range(1, curve.size)]
    best = int(np.argmin(costs))
    floor = 1e-12 * curve.size
    # One more level and its place: two parameters.
    gain = curve.size * math.log((_squares(curve) + floor) / (costs[best] + floor)) - 2 * math.log(curve.size)
    return int(sizes[order][best + 1]) if gain > _BIC_GAIN else None


def _squares(values: Floats) -> float:
    return float(((values - values.mean()) ** 2).sum())


def _sentence(
    pattern: CurvePattern,
    latency: ParameterChange,
    bandwidth: ParameterChange,
    moved: list[SizeEffect],
    pairs: int,
) -> str:
    alpha = f"latency {latency.healthy:.3g} -> {latency.regressed:.3g} us ({latency.ratio:.2f}x)"
    rates = (1e-3 / bandwidth.healthy, 1e-3 / bandwidth.regressed)
    beta = f"bandwidth {rates[0]:.3g} -> {rates[1]:.3g} GB/s ({1 / bandwidth.ratio:.2f}x)"
    told = f"{alpha}, {beta} over {pairs} pairs"
    if pattern is CurvePattern.NONE:
        return f"the curve is the same in both arms: {told}"
    if pattern is CurvePattern.WINDOW:
        sizes = ", ".join(str(effect.size_bytes) for effect in moved)
        return f"only some sizes changed ({sizes} bytes), neither latency nor bandwidth: {told}"
    changed = {CurvePattern.BOTH: "latency and bandwidth changed"}.get(pattern, f"only {pattern.value} changed")
    return f"{changed}: {told}"
