"""Group-sequential bounds: how small p must be at each look so that looking often costs no error.

The bounds are one-sided and are exact for a Brownian motion; with few pairs, turn each bound into its nominal p
and use the t quantile of that p (`nominal_levels`), as `comparison.judge_scope` does.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

LOOKS = (4, 6, 8, 12)
"""Pairs after which a scope is judged: 2, 3, 4 and 6 ABBA quadruples."""

# The grid covers scores to 9 standard deviations: probability beyond it is 1e-19. At 1001 points the nominal levels
# of LOOKS agree with those at 4001 points to 1e-8.
_Z_MAX = 9.0
_GRID = 1001
_HSD_GAMMA = -4.0
_BOUND_TOLERANCE = 1e-13


class Spending(StrEnum):
    """How the error is spread over the looks."""

    HWANG_SHIH_DECANI = "hwang-shih-decani"
    OBRIEN_FLEMING = "obrien-fleming"
    POCOCK = "pocock"


def spent_alpha(fraction: float, alpha: float, spending: Spending = Spending.HWANG_SHIH_DECANI) -> float:
    """One-sided error spent once `fraction` of the final information has been seen; `alpha` at 1.

    Source: Hwang, Shih & DeCani 1990 with gamma = -4; Lan & DeMets 1983 for the O'Brien-Fleming and Pocock types.
    """
    if spending is Spending.OBRIEN_FLEMING:
        return 2 * _upper_tail(-float(ndtri(alpha / 2)) / math.sqrt(fraction))
    if spending is Spending.POCOCK:
        return alpha * math.log1p((math.e - 1) * fraction)
    return alpha * math.expm1(-_HSD_GAMMA * fraction) / math.expm1(-_HSD_GAMMA)


@lru_cache(maxsize=256)
def group_sequential_bounds(
    fractions: tuple[float, ...], alpha: float, spending: Spending = Spending.HWANG_SHIH_DECANI
) -> tuple[float, ...]:
    """One-sided z bounds, one for each information fraction; crossing any of them has probability `alpha` under 0.

    Raises `ValueError` for fractions that do not rise inside (0, 1] or for `alpha` outside (0, 0.5).
    Source: recursive numerical integration, Armitage, McPherson & Rowe 1969.
    """
    _check_design(fractions, alpha)
    bounds: list[float] = []
    spent = 0.0
    grid = density = np.empty(0)
    for index, fraction in enumerate(fractions):
        step = spent_alpha(fraction, alpha, spending) - spent
        spent += step
        if index == 0:
            bound = -float(ndtri(step))
            grid = _scores(bound, fraction)
            density = _normal_density(grid, fraction)
        else:
            gain = fraction - fractions[index - 1]
            bound = _next_bound(step, fraction, gain, grid, density)
            if index < len(fractions) - 1:  # nobody looks at the paths that go on from the last bound
                scores = _scores(bound, fraction)
                density = _integral(density * _normal_density(scores[:, None] - grid, gain), grid)
                grid = scores
        bounds.append(bound)
    return tuple(bounds)


@lru_cache(maxsize=256)
def nominal_levels(
    looks: tuple[int, ...] = LOOKS, alpha: float = 0.05, spending: Spending = Spending.HWANG_SHIH_DECANI
) -> tuple[float, ...]:
    """The one-sided p that decides at each look, when the looks come after `looks` pairs.

    Raises `ValueError` for looks that do not rise or for `alpha` outside (0, 0.5).
    """
    if not looks or looks[0] < 2 or any(later <= earlier for earlier, later in pairwise(looks)):
        raise ValueError(f"looks={looks}: looks are rising numbers of pairs, the first at least 2")
    fractions = tuple(look / looks[-1] for look in looks)
    return tuple(_upper_tail(bound) for bound in group_sequential_bounds(fractions, alpha, spending))


def anytime_half_width(sd: float, n: int, alpha: float = 0.05, phi: float = 1.0) -> float:
    """Half width of a two-sided interval for a mean that holds at every n at once, in the unit of `sd`.

    Infinite while n is too small to say anything. Use it only when no last look can be fixed: it costs power.
    Raises `ValueError` for n below 2. Source: anytime-valid t of Lindon, Ham, Tingley & Bojinov, arXiv 2210.08589.
    """
    if n < 2:
        raise ValueError(f"n={n}: an interval needs at least 2 pairs")
    shrink = phi / (phi + n)
    growth = (alpha**2 * shrink) ** (1 / n)
    if growth <= shrink:
        return math.inf
    return sd / math.sqrt(n) * math.sqrt((n - 1) * (1 - growth) / (growth - shrink))


def _check_design(fractions: tuple[float, ...], alpha: float) -> None:
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha={alpha}: a one-sided error lies between 0 and 0.5")
    steps = np.diff((0.0, *fractions))
    if not fractions or steps.min() <= 0 or fractions[-1] > 1:
        raise ValueError(f"fractions={fractions}: information fractions rise from above 0 to at most 1")


def _next_bound(step: float, fraction: float, gain: float, grid: Floats, density: Floats) -> float:
    """The z bound at `fraction` whose crossing, from the paths that have not crossed yet, has probability `step`."""

    def excess(bound: float) -> float:
        tails = ndtr((grid - bound * math.sqrt(fraction)) / math.sqrt(gain))
        return float(_integral(density * tails, grid)) - step

    low, high = -2.0, _Z_MAX - 0.01  # bisection: the excess falls with the bound, and scipy.optimize is slow to import
    while high - low > _BOUND_TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return (low + high) / 2


def _integral(values: Floats, at: Floats) -> Floats:
    """Over the last axis, by the trapezoidal rule."""
    return np.asarray((values[..., 1:] + values[..., :-1]) @ np.diff(at) / 2, dtype=np.float64)


def _scores(bound: float, fraction: float) -> Floats:
    return np.linspace(-_Z_MAX, bound, _GRID) * math.sqrt(fraction)


def _normal_density(values: Floats, variance: float) -> Floats:
    density = values**2
    density /= -2 * variance  # in place: a new array of a million places costs more than the arithmetic
    np.exp(density, out=density)
    density /= math.sqrt(2 * math.pi * variance)
    return density


def _upper_tail(z: float) -> float:
    return float(ndtr(-z))
