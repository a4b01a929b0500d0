"""Does the loss follow the place or the data? Crossovers of places and shards, two of each or k by Latin square.

Suspected and good places play their own shards and each other's in turns. What a place keeps whatever it plays is the
hardware's, what a shard takes along wherever it is played is the data's, and what needs both is their interaction.

Shape legend: Q squares (of two places: pairs), A rotations, P places, S shards; A, P and S have the same length. In
rotation r the place in column j plays the shard of column (j + r) modulo the length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import ORDER_EFFECT_T, ScopeResult, judge_scope
from narrows.reducers.estimates import Estimate, crossover, estimate
from narrows.reducers.sequential import LOOKS
from narrows.reducers.structure import max_t

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Key = TypeVar("Key", bound=Hashable)
PARTIAL_SHARE = 0.25
"""Hardware and data together are named where each holds more than this share of the loss: the least share that counts
as partial."""


class Source(StrEnum):
    """What a loss can stay with when shards are exchanged."""

    HARDWARE = "hardware"
    DATA = "data"
    INTERACTION = "interaction"


class Decision(StrEnum):
    """What a crossover says of one suspect."""

    HARDWARE = "follows the hardware"
    DATA = "follows the data"
    BOTH = "hardware and data each carry a part"
    INTERACTION = "needs both together"
    NEITHER = "is not there"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One contrast: its verdict at the error ``alpha`` that the step-down left for it, its estimate in ms, and the
    family-wise p of its being 0 at all (None below 2 squares)."""

    verdict: ScopeResult
    estimate: Estimate
    alpha: float
    max_t_p: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEffect:
    """What the rotation that was played last cost against the first one played, in ms a step, mean over places."""

    ms: float
    t: float

    @property
    def flagged(self) -> bool:
        return abs(self.t) > ORDER_EFFECT_T


def cells(local_QAP: npt.ArrayLike) -> Floats:
    """Local times by square, place and shard (Q x P x S) of those by square, rotation and place.

    Raises ``ValueError`` for a table that is no square of at least two places.
    """
    local = np.asarray(local_QAP, dtype=np.float64)
    if local.ndim != 3 or local.shape[1] != local.shape[2] or local.shape[1] < 2 or not np.isfinite(local).all():
        raise ValueError(f"local times of shape {local.shape}: give as many rotations as places, at least two of each")
    size = local.shape[1]
    place, shard = np.indices((size, size))
    return np.asarray(local[:, (shard - place) % size, place], dtype=np.float64)


def contrast(cells_QPS: Floats, source: Source | str, suspect: int, controls: Sequence[int]) -> list[float]:
    """One value a square: what ``source`` adds in the suspected column against the mean of the ``controls``, in ms.

    Hardware is the place's mean over all shards, data the shard's mean over all places; both are free of what a
    rotation costs all places alike. Interaction is what the suspected place takes for its own shard beyond what that
    place takes for the controls' shards, and the controls for that shard. With two places and y(place, shard):
    hardware = (y(s,s) + y(s,k) - y(k,k) - y(k,s)) / 2, data = (y(s,s) + y(k,s) - y(s,k) - y(k,k)) / 2, and
    interaction = y(s,s) - y(s,k) - y(k,s) + y(k,k).
    Raises ``ValueError`` where no control is given, or the suspect is one.
    Source: Jones & Kenward, Design and Analysis of Cross-Over Trials, 2014; Williams 1949 for the squares.
    """
    good = list(controls)
    if not good or suspect in good:
        raise ValueError(f"suspect {suspect} against controls {good}: give other columns than the suspect's")
    if source == Source.HARDWARE:
        found = cells_QPS[:, suspect].mean(axis=1) - cells_QPS[:, good].mean(axis=(1, 2))
    elif source == Source.DATA:
        found = cells_QPS[:, :, suspect].mean(axis=1) - cells_QPS[:, :, good].mean(axis=(1, 2))
    else:
        beside = cells_QPS[:, suspect, good].mean(axis=1) + cells_QPS[:, good, suspect].mean(axis=1)
        found = cells_QPS[:, suspect, suspect] - beside + cells_QPS[:, good][:, :, good].mean(axis=(1, 2))
    return [float(one) for one in found]


def order_effect(local_QAP: npt.ArrayLike, order: Sequence[int] | None) -> OrderEffect | None:
    """The cost of playing later; ``order`` is +1 for a square that was played from its first arm on, -1 from its last.

    None where that is unknown, all squares ran in one order, or there are fewer than 3.
    """
    local = np.asarray(local_QAP, dtype=np.float64)
    if order is None or len(order) < 3 or len(set(order)) < 2:
        return None
    rows = local.mean(axis=2)
    fitted = crossover(rows[:, williams(local.shape[1])[-1]] - rows[:, 0], order)
    return OrderEffect(ms=fitted.gamma, t=fitted.t_gamma)


def williams(size: int) -> tuple[int, ...]:
    """The order of ``size`` rotations in which every shard follows every other one equally often on every place.

    For an odd size this needs the order and its reverse. Source: Williams 1949.
    """
    return tuple((at + 1) // 2 if at % 2 else (size - at // 2) % size for at in range(size))


def judge_family(
    contrasts: Mapping[Key, Sequence[float]],
    reference_ms: Sequence[float],
    predicted_ms: float,
    *,
    rho: float = 0.5,
    alpha: float = 0.05,
    looks: tuple[int, ...] = LOOKS,
) -> dict[Key, Judged]:
    """Every contrast of a family against ``rho`` times the prediction, by Holm's step-down.

    Each is judged at an equal part of ``alpha``; those still open share all of it once others are decided.
    Source: Holm 1979; Westfall & Young 1993 for ``max_t_p``.
    """

    def judge(values: Sequence[float], level: float) -> ScopeResult:
        return judge_scope(values, reference_ms, rho=rho, alpha=level, looks=looks, predicted_ms=predicted_ms)

    found: dict[Key, tuple[ScopeResult, float]] = {}
    pending = list(contrasts)
    while pending:
        level = alpha / len(pending)
        tried = {key: (judge(contrasts[key], level), level) for key in pending}
        decided = [key for key in pending if tried[key][0].verdict is not Verdict.INCONCLUSIVE]
        found |= {key: tried[key] for key in decided or pending}
        pending = [key for key in pending if key not in found]
    p = _family_p(contrasts)
    return {
        key: Judged(verdict=found[key][0], estimate=estimate(values), alpha=found[key][1], max_t_p=p.get(key))
        for key, values in contrasts.items()
    }


def _family_p(contrasts: Mapping[Key, Sequence[float]]) -> dict[Key, float]:
    table = np.column_stack(list(contrasts.values()))
    if len(table) < 2:
        return {}
    return {key: float(p) for key, p in zip(contrasts, max_t(table)[1], strict=True)}


def decide(
    hardware: ScopeResult, data: ScopeResult, interaction: ScopeResult | None, *, partly: Callable[[], bool]
) -> Decision:
    """What the verdicts on one suspect's contrasts amount to. ``partly``: each of hardware and data exceeds a quarter.

    Every answer needs each of its parts at its own level, so that none is wrong more often than the family may be.
    """
    together = None if interaction is None else interaction.verdict
    sides = hardware.verdict, data.verdict
    known = {
        (Verdict.SUPPORTED, Verdict.REJECTED): Decision.HARDWARE,
        (Verdict.REJECTED, Verdict.SUPPORTED): Decision.DATA,
    }
    if sides in known:
        return known[sides]
    if together is Verdict.SUPPORTED:
        return Decision.INTERACTION
    if sides == (Verdict.SUPPORTED, Verdict.SUPPORTED):
        return Decision.BOTH
    if together is Verdict.REJECTED and partly():
        return Decision.BOTH
    return Decision.NEITHER if set(sides) == {Verdict.REJECTED} else Decision.INCONCLUSIVE


def both_in_part(
    hardware_ms: Sequence[float],
    data_ms: Sequence[float],
    reference_ms: Sequence[float],
    predicted_ms: float,
    *,
    alpha: float,
    looks: tuple[int, ...] = LOOKS,
) -> bool:
    """Whether hardware and data each exceed a quarter of the prediction, each at ``alpha``."""
    return all(
        judge_scope(one, reference_ms, rho=PARTIAL_SHARE, alpha=alpha, looks=looks, predicted_ms=predicted_ms).verdict
        is Verdict.SUPPORTED
        for one in (hardware_ms, data_ms)
    )
