"""How slow steps lie in time: in a tail, in episodes, or ever slower. From the steady steps of each unit, in ms."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from narrows.reducers.robust import theil_sen

TAIL = 0.05
LEAST_TAIL_STEPS = 40
LEAST_EPISODE_STEPS = 50
LEAST_GROWTH_STEPS = 30

Units = Sequence[Sequence[float]]


def tail_share(healthy: Units, regressed: Units, *, delta_ms: float) -> float | None:
    """The part of the loss that the slowest 5 % of the steps carry; None for units under 40 steps, or no loss."""
    if delta_ms <= 0 or _shortest(healthy, regressed) < LEAST_TAIL_STEPS:
        return None
    return TAIL * (fmean(map(_tail, regressed)) - fmean(map(_tail, healthy))) / delta_ms


def _tail(steps: Sequence[float]) -> float:
    """How far the mean of the slowest 5 % lies above the median."""
    ordered = np.sort(np.asarray(steps, dtype=np.float64))
    count = max(1, round(TAIL * len(ordered)))
    return float(ordered[-count:].mean() - np.median(ordered))


def growth_share(healthy: Units, regressed: Units, *, delta_ms: float) -> float | None:
    """How much more the last third of a unit differs from its first in the regressed arm, relative to the loss.

    None for units under 30 steps, or no loss. A step that grows steadily from the healthy level has a share above 1.
    """
    if delta_ms <= 0 or _shortest(healthy, regressed) < LEAST_GROWTH_STEPS:
        return None
    return (fmean(map(_growth, regressed)) - fmean(map(_growth, healthy))) / delta_ms


def drift_ms(steps: Sequence[float]) -> float | None:
    """By how much the step grows from the start of a unit to its end: Theil-Sen slope times steps; None under 30.

    Source: Sen 1968; half of the pairs of steps may be off.
    """
    if len(steps) < LEAST_GROWTH_STEPS:
        return None
    return theil_sen(steps).slope * (len(steps) - 1)


def _growth(steps: Sequence[float]) -> float:
    third = len(steps) // 3
    return float(np.median(steps[-third:]) - np.median(steps[:third]))


def autocorrelation_rise(healthy: Units, regressed: Units) -> float | None:
    """By how much the correlation of a step with the one before it rose; None for units under 50 steps."""
    if _shortest(healthy, regressed) < LEAST_EPISODE_STEPS:
        return None
    return fmean(map(_autocorrelation, regressed)) - fmean(map(_autocorrelation, healthy))


def _autocorrelation(steps: Sequence[float]) -> float:
    values = np.asarray(steps, dtype=np.float64) - fmean(steps)
    power = float(values @ values)
    return float(values[1:] @ values[:-1]) / power if power > 0 else 0.0


def _shortest(healthy: Units, regressed: Units) -> int:
    return min((len(unit) for unit in (*healthy, *regressed)), default=0)
