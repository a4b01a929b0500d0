"""Estimates from pair differences: means, medians and exact tests that hold with 4 to 12 pairs.

No percentile bootstrap here: with 4 to 8 pairs it rejects a true null 2 to 4 times too often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import stdtrit

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

Alternative = Literal["two-sided", "greater", "less"]

# Differences of equal counters leave rounding of about 1e-16 of their size; anything below this share is "all equal".
_EQUAL_SHARE = 1e-12
# The signed-rank interval of fewer pairs is the whole range of the data at the usual levels.
_SIGNED_RANK_PAIRS = 6
# Two halves of 2^20 sums each are the most that one exact test may hold in memory.
_EXACT_FLIPS = 40
_SAMPLED_FLIPS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over pairs; `lower` and `upper` are one-sided bounds, each at confidence 1 - alpha (a 90 % interval
    for the usual alpha of .05), in the unit of the data. With one pair `sd` is nan and the bounds are infinite."""

    mean: float
    sd: float
    n: int
    lower: float
    upper: float
    alpha: float = 0.05

    @property
    def interval(self) -> tuple[float, float]:
        return self.lower, self.upper


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTerm:
    """A mean with the variance of that mean and its degrees of freedom (infinite for a known constant)."""

    mean: float
    variance: float
    df: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Pair differences split into the effect and what running second costs: d = effect + gamma * order."""

    effect: MeanTerm
    gamma: float
    t_gamma: float


def samples(values: npt.ArrayLike, name: str = "values") -> Floats:
    """`values` as a flat array of floats; `ValueError` when empty, nested, or not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: give one number for each pair, at least one")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)][0]}: drop a pair that was not measured")
    return array


def spread(values: Floats) -> float:
    """Sample standard deviation; exactly 0 when all values are equal but for rounding, nan for a single value."""
    if values.size < 2:
        return math.nan
    sd = float(values.std(ddof=1))
    return 0.0 if sd <= _EQUAL_SHARE * float(np.abs(values).max()) else sd


def t_quantile(level: float, df: float) -> float:
    """The value that a t variable of `df` degrees of freedom exceeds with probability `level`."""
    return -float(stdtrit(min(df, 1e9), level))


def estimate(values: npt.ArrayLike, alpha: float = 0.05) -> Estimate:
    """Mean of the pairs with one-sided t bounds at level `alpha`."""
    data = samples(values)
    mean, sd, n = float(data.mean()), spread(data), int(data.size)
    half = math.inf if n < 2 else t_quantile(alpha, n - 1) * sd / math.sqrt(n)
    return Estimate(mean=mean, sd=sd, n=n, lower=mean - half, upper=mean + half, alpha=alpha)


def mean_term(data: Floats) -> MeanTerm:
    """The mean as a term of a sum; a single value counts as a constant (variance 0)."""
    if data.size < 2:
        return MeanTerm(mean=float(data[0]), variance=0.0, df=math.inf)
    return MeanTerm(mean=float(data.mean()), variance=spread(data) ** 2 / data.size, df=float(data.size - 1))


def welch_df(terms: Iterable[MeanTerm]) -> float:
    """Welch-Satterthwaite degrees of freedom of a sum of independent terms; infinite if none of them varies."""
    listed = list(terms)
    total = parts = 0.0
    largest = max((term.variance for term in listed), default=0.0)
    if largest == 0:
        return math.inf
    # Divided by the largest first: squares of very small variances would underflow.
    for term in listed:
        share = term.variance / largest
        total += share
        parts += share**2 / term.df
    return total**2 / parts if parts > 0 else math.inf


def crossover(values: npt.ArrayLike, order: npt.ArrayLike) -> Crossover:
    """Effect and order effect by least squares with n - 2 degrees of freedom; `order` holds +1 or -1 for each pair.

    Raises `ValueError` for other orders, fewer than 3 pairs, or pairs that all ran in one order.
    """
    data, signs = samples(values), samples(order, "order")
    if data.size != signs.size or data.size < 3 or not np.isin(signs, (-1.0, 1.0)).all():
        raise ValueError(f"{data.size} pairs with order {signs.tolist()}: give +1 or -1 for each of at least 3 pairs")
    centred = signs - signs.mean()
    weight = float(centred @ centred)
    if weight == 0:
        raise ValueError(f"all {data.size} pairs ran in one order: an order effect cannot be told from the effect")
    gamma = float(centred @ data) / weight
    effect = float(data.mean() - gamma * signs.mean())
    residual = data - effect - gamma * signs
    scale = float(np.abs(data).max())
    variance = float(residual @ residual) / (data.size - 2)
    variance = 0.0 if math.sqrt(variance) <= _EQUAL_SHARE * scale else variance
    return Crossover(
        effect=MeanTerm(
            mean=effect,
            variance=variance * (1 / data.size + float(signs.mean()) ** 2 / weight),
            df=float(data.size - 2),
        ),
        gamma=gamma,
        t_gamma=_ratio(gamma, math.sqrt(variance / weight), scale),
    )


def _ratio(value: float, error: float, scale: float) -> float:
    if error > 0:
        return value / error
    return 0.0 if abs(value) <= _EQUAL_SHARE * scale else math.copysign(math.inf, value)


def hodges_lehmann(values: npt.ArrayLike) -> float:
    """Median of the Walsh averages: the centre of the pairs that one wild pair cannot move."""
    return float(np.median(_walsh_averages(samples(values))))


def signed_rank_interval(values: npt.ArrayLike, alpha: float = 0.05) -> tuple[float, float] | None:
    """One-sided signed-rank bounds, each at level `alpha`, for the centre; None with fewer than 6 pairs."""
    data = samples(values)
    if data.size < _SIGNED_RANK_PAIRS:
        return None
    below = np.cumsum(_signed_rank_probabilities(data.size))
    drop = int(np.searchsorted(below, alpha, side="right"))
    if drop == 0:
        return None
    walsh = np.sort(_walsh_averages(data))
    return float(walsh[drop - 1]), float(walsh[-drop])


def _walsh_averages(data: Floats) -> Floats:
    first, second = np.triu_indices(data.size)
    return (data[first] + data[second]) / 2


def _signed_rank_probabilities(n: int) -> Floats:
    """P(W = w) for w = 0, 1, ...: the rank sum of the positive signs when signs are fair coins."""
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    return chance


def sign_flip_p(values: npt.ArrayLike, alternative: Alternative = "two-sided", seed: int = 0) -> float:
    """Chance of a mean at least this far out when the sign of every pair is a fair coin.

    Exact to 40 pairs; from there a seeded sample of sign patterns. The smallest p of n pairs is 2^-n one-sided.
    """
    data = samples(values)
    observed = float(data.sum())
    if alternative == "less":
        data, observed = -data, -observed
    elif alternative == "two-sided":
        observed = abs(observed)
    slack = _EQUAL_SHARE * float(np.abs(data).sum())
    upper = _share_reaching(data, observed - slack, seed)
    # The distribution of the flipped sum is symmetric, so the far side holds as much as the near one.
    return min(1.0, 2 * upper) if alternative == "two-sided" else upper


def _share_reaching(data: Floats, threshold: float, seed: int) -> float:
    if data.size > _EXACT_FLIPS:
        rng = np.random.Generator(np.random.PCG64(seed))
        hits = sum(
            int(np.count_nonzero(rng.choice((-1.0, 1.0), size=(1 << 10, data.size)) @ data >= threshold))
            for _ in range(_SAMPLED_FLIPS >> 10)
        )
        return (hits + 1) / (_SAMPLED_FLIPS + 1)
    half = data.size // 2
    near, far = _flipped_sums(data[:half]), np.sort(_flipped_sums(data[half:]))
    reached = far.size - np.searchsorted(far, threshold - near, side="left")
    return float(reached.sum()) / (near.size * far.size)


def _flipped_sums(data: Floats) -> Floats:
    sums = np.zeros(1)
    for value in data:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def format_ms(*values: float, beside: float = 0.0) -> tuple[str, ...]:
    """The numbers as text with the decimals that the largest of them, or of those `beside` them, deserves."""
    largest = max((abs(value) for value in (*values, beside) if math.isfinite(value)), default=0.0)
    decimals = 1
    if largest > 0:
        decimals = min(6, max(0 if largest >= 100 else 1, 1 - math.floor(math.log10(largest))))
    smallest = 0.5 * 10**-decimals
    # A number that would round to 0 is written without its sign.
    return tuple(f"{0.0 if abs(value) < smallest else value:.{decimals}f}" for value in values)


def interval_ms(mean: float, lower: float, upper: float, beside: float = 0.0) -> str:
    """A mean and its interval as words of a sentence: "5.9 ms [5.2, 6.6]"."""
    middle, low, high = format_ms(mean, lower, upper, beside=beside)
    return f"{middle} ms [{low}, {high}]" if math.isfinite(lower) and math.isfinite(upper) else f"{middle} ms"
