"""Estimates that half or a few of the values cannot spoil.

These stand here, checked against scipy.stats in the tests, because importing that package costs more than most commands
take otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import betainc

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


class Line(NamedTuple):
    """y = ``intercept`` + ``slope`` x."""

    slope: float
    intercept: float


def theil_sen(y_N: npt.ArrayLike, x_N: npt.ArrayLike | None = None) -> Line:
    """The median slope over all pairs of points with different x; x counts from 0 where it is not given.

    Raises ``ValueError`` where no two points differ in x. Source: Sen 1968.
    """
    y = np.asarray(y_N, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64) if x_N is None else np.asarray(x_N, dtype=np.float64)
    first, second = np.triu_indices(len(y), 1)
    run = x[second] - x[first]
    apart = run != 0
    if not apart.any():
        raise ValueError(f"{len(y)} points at one x: a line needs two")
    slope = float(np.median((y[second] - y[first])[apart] / run[apart]))
    return Line(slope, float(np.median(y) - slope * np.median(x)))


def harrell_davis(values_N: npt.ArrayLike, q: float) -> float:
    """The ``q`` quantile as a weighted mean of all order statistics, steadier than any one of them; 0 < q < 1.

    Raises ``ValueError`` without values. Source: Harrell & Davis 1982.
    """
    ordered = np.sort(np.asarray(values_N, dtype=np.float64))
    if not len(ordered):
        raise ValueError("no values: nothing has a quantile")
    num = len(ordered)
    weights = np.diff(betainc((num + 1) * q, (num + 1) * (1 - q), np.arange(num + 1) / num))
    return float(weights @ ordered)
