"""A scope against the full-scale effect: does the smaller experiment still show it?

Three outcomes everywhere. "Not significant" is never "absent": rejecting takes an upper bound below what was
predicted, and thin evidence is inconclusive. A pair difference is regressed minus healthy, in ms a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.verdict import Verdict
from narrows.reducers.estimates import (
    MeanTerm,
    crossover,
    format_ms,
    hodges_lehmann,
    interval_ms,
    mean_term,
    samples,
    sign_flip_p,
    t_quantile,
    welch_df,
)
from narrows.reducers.regression import RegressionResult, confirm_regression, cost_margin_ms
from narrows.reducers.sequential import LOOKS, nominal_levels

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = [
    "RegressionResult",
    "ScopeResult",
    "Sublabel",
    "check_sensitivity",
    "confirm_regression",
    "cost_margin_ms",
    "delay_seen",
    "judge_scope",
    "needs_more",
]

# A t of the order effect beyond this flags it: 1 % of clean experiments do at 12 pairs.
ORDER_EFFECT_T = 2.5
# With fewer pairs than this the sign guard allows no exception, from there on one.
_ONE_EXCEPTION_PAIRS = 6
_ROUNDING = 1e-12


class Sublabel(StrEnum):
    """How much of the predicted effect the scope shows, from the 90 % interval of their ratio."""

    FULL = "full"
    PARTIAL = "partial"
    ABSENT = "absent"
    EXCESS = "excess"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeResult:
    """What one scope says of the predicted effect. Times in ms a step; `interval_ms` is the two-sided 90 % interval.

    `look` counts from 1 (0: too few pairs for the first look) and `pairs_used` is the number of pairs at that look;
    `boundary_ms` is rho times the prediction, with its sign; `control` marks a prediction of no effect, for which
    `supported` means equivalence to 0 within rho times the reference effect. `reference_described` marks a reference
    effect without replicates, whose error is unknown and counted as 0; `reference_weak` one whose own 90 % interval
    holds 0. `vetoed` says why a crossing did not count.
    """

    verdict: Verdict
    effect_ms: float
    interval_ms: tuple[float, float] | None
    look: int
    pairs_used: int
    kappa: float
    predicted_ms: float
    boundary_ms: float
    reference_ms: float
    alpha: float
    control: bool
    ratio: float | None
    ratio_interval: tuple[float, float] | None
    sublabel: Sublabel | None
    hodges_lehmann_ms: float
    sign_flip_p: float
    order_effect_ms: float | None
    order_effect: bool
    reference_described: bool
    reference_weak: bool
    vetoed: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What the scope is asked: on which side of `boundary` (not negative, along `sign`) does its effect lie?"""

    sign: float
    boundary: MeanTerm
    predicted: float
    kappa: float
    reference: MeanTerm
    rho: float
    control: bool

    @property
    def directions(self) -> tuple[float, ...]:
        return (1.0, -1.0) if self.control else (self.sign,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The answer at one look: +1 beyond the boundary, -1 inside it, 0 undecided."""

    index: int
    data: Floats
    effect: MeanTerm
    side: int = 0
    vetoed: str | None = None


def judge_scope(
    ds_ms: npt.ArrayLike,
    df_ms: npt.ArrayLike,
    kappa: float = 1.0,
    rho: float = 0.5,
    alpha: float = 0.05,
    looks: tuple[int, ...] = LOOKS,
    *,
    predicted_ms: float | None = None,
    order: npt.ArrayLike | None = None,
    use_crossover: bool = False,
) -> ScopeResult:
    """Does the scope with pair differences `ds_ms` show the effect that the reference `df_ms` predicts for it?

    The prediction is `kappa` times the mean of the reference, or `predicted_ms` where that is given. Supported: the
    effect exceeds `rho` times the prediction; rejected: it stays below it; each error at most `alpha` over all looks.
    A prediction of exactly 0 is a control: supported means that the effect lies within `rho` times the reference on
    both sides of 0, rejected that it lies outside. `order` (+1 healthy ran first, -1 regressed did) reports what the
    order cost; `use_crossover` takes it out of the effect and must have been registered.

    Looks are taken in turn as far as the pairs reach; the first that crosses decides, and later pairs are ignored.
    Raises `ValueError` for samples that are empty or not finite, `rho` outside (0, 1), or an order that does not fit.
    """
    if not 0 < rho < 1:
        raise ValueError(f"rho={rho}: the boundary is a share of the prediction, between 0 and 1")
    scope, reference = samples(ds_ms, "ds_ms"), samples(df_ms, "df_ms")
    signs = None if order is None else samples(order, "order")
    if (signs is None and use_crossover) or (signs is not None and signs.size != scope.size):
        given = "no" if signs is None else str(signs.size)
        raise ValueError(f"{given} orders for {scope.size} pairs: give +1 or -1 for each pair")
    question = _ask(mean_term(reference), kappa, predicted_ms, rho)
    look = _last_look(scope, signs if use_crossover else None, question, looks, alpha)
    return _scope_result(look, question, signs, looks, alpha, described=reference.size < 2)


def needs_more(result: ScopeResult, looks: tuple[int, ...] = LOOKS) -> int | None:
    """The total number of pairs at which to judge again; None when decided or after the last look."""
    if result.verdict is not Verdict.INCONCLUSIVE or result.look >= len(looks):
        return None
    return looks[result.look]


def check_sensitivity(result: ScopeResult, injected_d_ms: npt.ArrayLike, injected_ms: float) -> ScopeResult:
    """A rejection stands only if a delay injected at the same scope was seen; else the scope is inconclusive.

    `injected_d_ms` are the pair differences of the control quadruple, with and without a delay of `injected_ms`
    (rho times the prediction). It was seen if every pair moved by more than half of it.
    """
    if result.verdict is not Verdict.REJECTED or delay_seen(injected_d_ms, injected_ms):
        return result
    moved, injected = format_ms(float(samples(injected_d_ms, "injected_d_ms").mean()), injected_ms)
    why = f"insensitive: an injected delay of {injected} ms moved this scope by {moved} ms"
    return replace(result, verdict=Verdict.INCONCLUSIVE, vetoed=why, reason=why)


def delay_seen(injected_d_ms: npt.ArrayLike, injected_ms: float) -> bool:
    """Whether every pair moved by more than half of what was injected, in its direction."""
    seen = samples(injected_d_ms, "injected_d_ms")
    return bool((seen * math.copysign(1, injected_ms) > abs(injected_ms) / 2).all())


def _ask(reference: MeanTerm, kappa: float, predicted_ms: float | None, rho: float) -> _Question:
    if predicted_ms is not None:
        kappa = predicted_ms / reference.mean if reference.mean else 0.0
    predicted = kappa * reference.mean if predicted_ms is None else predicted_ms
    control = predicted_ms == 0 or (predicted_ms is None and kappa == 0)
    weight = rho if control else rho * abs(kappa)
    size = abs(reference.mean) if control else abs(predicted)
    boundary = MeanTerm(mean=rho * size, variance=weight**2 * reference.variance, df=reference.df)
    sign = -1.0 if predicted < 0 else 1.0
    return _Question(
        sign=sign, boundary=boundary, predicted=predicted, kappa=kappa, reference=reference, rho=rho, control=control
    )


def _last_look(scope: Floats, signs: Floats | None, question: _Question, looks: tuple[int, ...], alpha: float) -> _Look:
    """The first look that decides, else the last that the pairs reach."""
    latest = _Look(index=0, data=scope, effect=_effect(scope, None))
    for index, (pairs, level) in enumerate(zip(looks, nominal_levels(looks, alpha), strict=True), start=1):
        if scope.size < pairs:
            break
        data = scope[:pairs]
        effect = _effect(data, None if signs is None else signs[:pairs])
        guard_alpha = alpha if pairs >= min(looks[-1], LOOKS[-1]) else None
        latest = _take_look(_Look(index=index, data=data, effect=effect), question, level, guard_alpha)
        if latest.side:
            break
    return latest


def _effect(data: Floats, signs: Floats | None) -> MeanTerm:
    return mean_term(data) if signs is None else crossover(data, signs).effect


def _take_look(look: _Look, question: _Question, level: float, guard_alpha: float | None) -> _Look:
    """Where the effect lies at this look; a control must lie inside in both directions, or outside in one."""
    sides = [_side(look.effect, direction, question.boundary, level) for direction in question.directions]
    vetoes = [
        _veto(direction * look.data - question.boundary.mean, side, guard_alpha)
        for direction, side in zip(question.directions, sides, strict=True)
    ]
    veto = next((reason for reason in vetoes if reason), None)
    passed = [0 if reason else side for side, reason in zip(sides, vetoes, strict=True)]
    if 1 in passed:
        return replace(look, side=1)
    if all(side == -1 for side in passed):
        return replace(look, side=-1)
    return replace(look, vetoed=veto)


def _side(effect: MeanTerm, direction: float, boundary: MeanTerm, level: float) -> int:
    excess = direction * effect.mean - boundary.mean
    error = math.sqrt(effect.variance + boundary.variance)
    half = t_quantile(level, welch_df((effect, boundary))) * error if error > 0 else 0.0
    # Without any error the sign decides, but not the sign of a rounding.
    half = max(half, _ROUNDING * max(abs(effect.mean), boundary.mean))
    return int(excess > half) - int(excess < -half)


def _veto(excess: Floats, side: int, guard_alpha: float | None) -> str | None:
    """Why a crossing does not count: the pairs themselves disagree with their mean."""
    if side == 0:
        return None
    toward = side * excess
    if guard_alpha is not None and 2.0**-toward.size <= guard_alpha:
        p = sign_flip_p(toward, "greater")
        return None if p <= guard_alpha else f"the exact sign-flip test disagrees (p = {p:.3f})"
    exceptions = int(np.count_nonzero(toward <= 0))
    allowed = 0 if toward.size < _ONE_EXCEPTION_PAIRS else 1
    return None if exceptions <= allowed else f"{exceptions} of {toward.size} pairs lie on the other side"


def _scope_result(
    look: _Look, question: _Question, signs: Floats | None, looks: tuple[int, ...], alpha: float, *, described: bool
) -> ScopeResult:
    interval = _interval(look.effect) if look.data.size > 1 else None
    ratio, ratio_interval = _ratio(look.effect, question, known=interval is not None)
    order_ms, order_t = _order_effect(look.data, signs)
    reference = question.reference
    low, high = _interval(reference)
    verdict = _verdict(look.side, question)
    return ScopeResult(
        verdict=verdict,
        effect_ms=look.effect.mean,
        interval_ms=interval,
        look=look.index,
        pairs_used=int(look.data.size),
        kappa=question.kappa,
        predicted_ms=question.predicted,
        boundary_ms=question.sign * question.boundary.mean,
        reference_ms=reference.mean,
        alpha=alpha,
        control=question.control,
        ratio=ratio,
        ratio_interval=ratio_interval,
        sublabel=None if ratio is None or ratio_interval is None else _sublabel(ratio, *ratio_interval),
        hodges_lehmann_ms=hodges_lehmann(look.data),
        sign_flip_p=sign_flip_p(look.data),
        order_effect_ms=order_ms,
        order_effect=abs(order_t) > ORDER_EFFECT_T,
        reference_described=described,
        reference_weak=not described and low <= 0 <= high,
        vetoed=look.vetoed,
        reason=_scope_reason(verdict, look, interval, question, looks, described=described),
    )


def _verdict(side: int, question: _Question) -> Verdict:
    if side == 0:
        return Verdict.INCONCLUSIVE
    return Verdict.SUPPORTED if (side > 0) is not question.control else Verdict.REJECTED


def _interval(term: MeanTerm) -> tuple[float, float]:
    half = t_quantile(0.05, term.df) * math.sqrt(term.variance) if term.variance > 0 else 0.0
    return term.mean - half, term.mean + half


def _ratio(effect: MeanTerm, question: _Question, *, known: bool) -> tuple[float | None, tuple[float, float] | None]:
    """Effect over prediction (over the reference, for a control) with its 90 % interval by the delta method."""
    base = question.reference.mean if question.control else question.predicted
    if abs(base) <= _ROUNDING * abs(effect.mean):
        return None, None
    ratio = effect.mean / base
    if not known:
        return ratio, None
    scale = 1.0 if question.control else question.kappa
    spread = MeanTerm(mean=0.0, variance=(ratio * scale) ** 2 * question.reference.variance, df=question.reference.df)
    total = MeanTerm(mean=0.0, variance=effect.variance + spread.variance, df=welch_df((effect, spread)))
    half = _interval(total)[1] / abs(base)
    return ratio, (ratio - half, ratio + half)


def _sublabel(ratio: float, low: float, high: float) -> Sublabel | None:
    if low >= 0.5 and high <= 1.5:
        return Sublabel.FULL
    if low >= -0.25 and high <= 0.25:
        return Sublabel.ABSENT
    if low > 1.25:
        return Sublabel.EXCESS
    return Sublabel.PARTIAL if 0.25 <= ratio <= 0.75 else None


def _order_effect(data: Floats, signs: Floats | None) -> tuple[float | None, float]:
    """What running second costs in ms, with its t; nothing where one order only, or too few pairs, were run."""
    if signs is None or data.size < 3 or np.ptp(signs[: data.size]) == 0:
        return None, 0.0
    fitted = crossover(data, signs[: data.size])
    return fitted.gamma, fitted.t_gamma


def _scope_reason(
    verdict: Verdict,
    look: _Look,
    interval: tuple[float, float] | None,
    question: _Question,
    looks: tuple[int, ...],
    *,
    described: bool,
) -> str:
    pairs = int(look.data.size)
    base = question.reference.mean if question.control else question.predicted
    # All numbers of the sentence carry the same decimals, so that they can be compared by eye.
    shown = interval_ms(look.effect.mean, *(interval or (math.inf, math.inf)), beside=base)
    if look.index == 0:
        return f"{pairs} pairs ({shown}) are too few: the first look comes after {looks[0]}"
    share = "half" if question.rho == 0.5 else f"{question.rho:g}"
    compared = format_ms(base, look.effect.mean, *(interval or ()))[0]
    if question.control:
        words = {Verdict.SUPPORTED: "lies within", Verdict.REJECTED: "lies beyond"}
        where = (
            f"{words.get(verdict, 'lies neither within nor beyond')} {share} of the full-scale {compared} ms around 0"
        )
    else:
        words = {Verdict.SUPPORTED: "lies above", Verdict.REJECTED: "lies below"}
        where = f"{words.get(verdict, 'lies neither above nor below')} {share} of the predicted {compared} ms"
    return "; ".join([f"{shown} {where} after {pairs} pairs", *_notes(verdict, look, looks, described=described)])


def _notes(verdict: Verdict, look: _Look, looks: tuple[int, ...], *, described: bool) -> list[str]:
    notes = [look.vetoed] if look.vetoed else []
    if verdict is Verdict.INCONCLUSIVE and look.index < len(looks):
        notes.append(f"the next look comes after {looks[look.index]}")
    if described:
        notes.append("the reference effect has no replicates, so its error is not counted")
    return notes
