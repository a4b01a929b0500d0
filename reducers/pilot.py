"""What identical runs say of the noise: how far two of them lie apart, and whether longer runs would bring them closer.

Arrays carry suffixes: U units, S steps of a unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.reducers.planning import pilot_sd_upper

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

LEAST_PAIRS = 4
"""A pilot of fewer pairs bounds the spread too loosely to plan with."""
LEAST_STEPS = 50
"""The shortest run worth a start-up: below it, warm-up takes more than it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of one unit's mean, in shares of the step.

    ``step_sd`` is the spread of steps inside a unit, ``tau_int`` how many neighbouring steps say the same (1 for
    independent steps), ``unit_sd`` what is left between units however long they are.
    """

    step_sd: float
    tau_int: float
    unit_sd: float
    steps: int

    def pair_sd(self, steps: int | None = None) -> float:
        """The spread of the difference of two units of ``steps`` steps each, as a share of the step."""
        return math.sqrt(2 * (self.unit_sd**2 + self.step_sd**2 * self.tau_int / (steps or self.steps)))

    def best_steps(self, start_s: float, step_s: float) -> int | None:
        """Steps of a run that buy the most precision for the time, start-up included; None where only longer helps.

        Source: Kalibera & Jones 2013, for two levels of repetition.
        """
        if self.unit_sd <= 0 or step_s <= 0:
            return None
        best = math.sqrt(start_s / step_s * self.step_sd**2 * self.tau_int / self.unit_sd**2)
        return max(LEAST_STEPS, round(best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The spread of pair differences under no change; ``sd_upper_ms`` bounds it with 80 % confidence."""

    pairs: int
    sd_ms: float
    sd_upper_ms: float
    source: str


def pilot_of(differences_ms: Sequence[float], source: str) -> Pilot | None:
    """The spread of ``differences_ms``, one a pair; None below 4 pairs."""
    values = np.asarray(differences_ms, dtype=np.float64)
    if values.size < LEAST_PAIRS:
        return None
    sd = float(values.std(ddof=1))
    return Pilot(pairs=int(values.size), sd_ms=sd, sd_upper_ms=pilot_sd_upper(sd, int(values.size)), source=source)


def differences(means_ms_U: Sequence[float]) -> list[float]:
    """What neighbouring units of one configuration differ by, later less earlier, in order of time, none used twice."""
    return [later - earlier for earlier, later in zip(means_ms_U[::2], means_ms_U[1::2], strict=False)]


def noise_of(steps_US: Sequence[npt.ArrayLike]) -> Noise | None:
    """The two levels of noise in units of one configuration, from each unit's step times; None below 4 units.

    Between-unit spread is what the means of units show beyond what their steps explain, at least 0.
    """
    units = [np.log(np.asarray(steps, dtype=np.float64)) for steps in steps_US if np.size(steps) >= 3]
    if len(units) < LEAST_PAIRS:
        return None
    length = int(np.median([len(unit) for unit in units]))
    step_sd = float(np.sqrt(np.mean([unit.var(ddof=1) for unit in units])))
    phi = float(np.clip(np.mean([_lag_one(unit) for unit in units]), 0.0, 0.95))
    tau = (1 + phi) / (1 - phi)
    # Neighbouring units, so that a drift over the whole session is not taken for the noise of a unit.
    means = np.array([unit.mean() for unit in units])
    between = float(np.mean(np.diff(means) ** 2) / 2)
    unit_sd = math.sqrt(max(0.0, between - step_sd**2 * tau / length))
    return Noise(step_sd=step_sd, tau_int=tau, unit_sd=unit_sd, steps=length)


def _lag_one(values: npt.NDArray[np.float64]) -> float:
    centred = values - values.mean()
    power = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / power if power > 0 else 0.0
