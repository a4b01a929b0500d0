"""What the change follows: a rank, a host, a rail, a group, a message size, or nothing.

A scan chooses the next experiment; it never supports a claim. Arrays carry suffixes: B pairs, R ranks (or the
collectives of one group and size), L levels, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Flags = npt.NDArray[np.bool_]

# 2^(n-1) sign patterns are listed to 13 pairs; beyond, a seeded sample of as many.
_EXACT_PAIRS = 13
_HOST_SHARE = 0.75
_TIE = 1e-9

FOLLOWS_NOTHING = "nothing (varies)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEffect:
    """One level of a factor: how much more its columns changed than the others (`effect`, in the unit of the input),
    its family-wise `p`, and its share of the explained sum of squares. `ranks` are its columns."""

    factor: str
    level: str
    ranks: tuple[int, ...]
    effect: float
    t: float
    p: float
    explained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxMovement:
    """Which rank was the slowest of each step. `varies` when no rank is it in most steps: fewer than halfway between
    what chance gives (one in R) and always."""

    top_rank: int
    top_share: float
    num_distinct: int
    varies: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureResult:
    """What the change follows.

    `follows` names the level ("host n1"), or is "nothing (varies)" where the slowest rank moves from step to step,
    or "nothing" where no level stands out. `aliases` are levels with the same ranks: the scan cannot tell them
    apart. `levels` lists every level, the most explaining first. `resolvable` is false below 6 pairs.
    """

    follows: str
    culprit: LevelEffect | None
    aliases: tuple[str, ...]
    movement: MaxMovement | None
    levels: tuple[LevelEffect, ...]
    resolvable: bool
    alpha: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a column is called, the labels of the columns (else their numbers), and whether the changes are
    logarithms of ratios, which are told in percent, or ms."""

    each: str = "rank"
    labels: Sequence[str] = ()
    relative: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    factor: str
    label: str
    ranks: tuple[int, ...]


def max_t(values_BL: npt.ArrayLike, seed: int = 0) -> tuple[Floats, Floats]:
    """For each column, the moderated |t| of its mean over pairs and its family-wise p.

    The reference is the largest |t| over all columns under sign flips of whole pairs: valid whatever the dependence
    between columns. The smallest p of n pairs is 2^-(n-1). Raises `ValueError` below 2 pairs.
    Source: Westfall & Young 1993 (maxT); Tusher, Tibshirani & Chu 2001 (the constant in the denominator).
    """
    values = np.asarray(values_BL, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1 or not np.isfinite(values).all():
        raise ValueError(f"values of shape {values.shape}: give finite numbers, one row for each of at least 2 pairs")
    # Scaled, so that a column of rounding errors is not taken for one without spread.
    scale = float(np.abs(values).max())
    if scale == 0:
        return np.zeros(values.shape[1]), np.ones(values.shape[1])
    values = values / scale
    pairs = len(values)
    means = _sign_patterns(pairs, seed) @ values / pairs
    variance = np.maximum((values**2).mean(axis=0) - means**2, 0.0) / (pairs - 1)
    variance[variance < 1e-24] = 0.0
    error = np.sqrt(variance)
    error += np.median(error, axis=1, keepdims=True)
    t = np.zeros_like(means)
    np.divide(np.abs(means), error, out=t, where=error > 0)
    t[(error == 0) & (np.abs(means) > 1e-12)] = np.inf
    observed, largest = t[0], t.max(axis=1)
    p = (largest[:, None] >= observed * (1 - _TIE)).mean(axis=0)
    return observed * 1.0, np.asarray(p, dtype=np.float64)


def scan_structure(
    change_BR: npt.ArrayLike,
    factors: Mapping[str, Sequence[Hashable | None]],
    *,
    ranks: Sequence[int] | None = None,
    words: Words | None = None,
    local_SR: npt.ArrayLike | None = None,
    alpha: float = 0.05,
    least: float = 0.0,
    seed: int = 0,
) -> StructureResult:
    """Which level of which factor the change of local time follows (or of service, or of lateness).

    `change_BR` holds paired differences; `factors` maps a factor to the label of each column, None for a column that
    is in none of its levels (the columns themselves are added, as "rank" or as `words` says); `ranks` is the rank of
    each column. `local_SR` are the regressed run's local times, for telling a moving
    maximum. Named is the significant level that explains most, unless it moved by less than `least`; a level of
    several ranks only if three quarters of them moved by more than half of its effect, else the rank inside it.

    Raises `ValueError` for labels or ranks that do not fit the columns.
    """
    change = np.asarray(change_BR, dtype=np.float64)
    columns = change.shape[1] if change.ndim == 2 else 0
    members = tuple(range(columns)) if ranks is None else tuple(ranks)
    words = words or Words()
    own: dict[str, Sequence[Hashable | None]] = {words.each: words.labels or members}
    # Of levels with the same columns the first is named: a rank rather than its host, a group rather than its one size.
    levels = _levels({**factors, **own} if words.labels else {**own, **factors}, members, columns)
    movement = None if local_SR is None else max_movement(local_SR, members)
    effects = _effects(change, levels, members, seed) if levels else ()
    culprit = _culprit(effects, change, members, words.each, alpha, least)
    aliases: tuple[str, ...] = ()
    if culprit is not None:
        aliases = tuple(
            f"{other.factor} {other.level}"
            for other in effects
            if other is not culprit and other.ranks == culprit.ranks
        )
        follows = f"{culprit.factor} {culprit.level}"
    else:
        follows = FOLLOWS_NOTHING if movement is not None and movement.varies else "nothing"
    return StructureResult(
        follows=follows,
        culprit=culprit,
        aliases=aliases,
        movement=movement,
        levels=effects,
        resolvable=2.0 ** -(len(change) - 1) <= alpha,
        alpha=alpha,
        sentence=_sentence(follows, culprit, aliases, movement, len(change), alpha, words),
    )


def max_movement(local_SR: npt.ArrayLike, ranks: Sequence[int] | None = None) -> MaxMovement:
    """How steadily one rank is the slowest; a tie counts for none but the first. Raises `ValueError` if empty."""
    local = np.asarray(local_SR, dtype=np.float64)
    if local.ndim != 2 or 0 in local.shape:
        raise ValueError(f"local times of shape {local.shape}: give one row a step and one column a rank")
    members = tuple(range(local.shape[1])) if ranks is None else tuple(ranks)
    counts = np.bincount(local.argmax(axis=1), minlength=local.shape[1])
    top = int(counts.argmax())
    share = float(counts[top]) / len(local)
    return MaxMovement(
        top_rank=members[top],
        top_share=share,
        num_distinct=int(np.count_nonzero(counts)),
        varies=local.shape[1] > 1 and share < (1 + 1 / local.shape[1]) / 2,
    )


def _levels(
    factors: Mapping[str, Sequence[Hashable | None]], members: tuple[int, ...], columns: int
) -> tuple[_Level, ...]:
    levels = []
    for factor, labels in factors.items():
        if len(labels) != columns:
            raise ValueError(f"factor {factor} labels {len(labels)} ranks; the table has {columns} columns")
        for label in dict.fromkeys(labels):
            inside = tuple(rank for rank, own in zip(members, labels, strict=True) if own == label)
            # A level that all columns share has nothing to be compared with.
            if label is not None and len(inside) < columns:
                levels.append(_Level(factor=factor, label=str(label), ranks=inside))
    return tuple(levels)


def _effects(
    change: Floats, levels: tuple[_Level, ...], members: tuple[int, ...], seed: int
) -> tuple[LevelEffect, ...]:
    contrasts = _contrasts(change, levels, members)
    t, p = max_t(contrasts, seed)
    means = contrasts.mean(axis=0)
    inside = np.array([len(level.ranks) for level in levels])
    squares = means**2 * inside * (len(members) - inside) / len(members)
    around = change.mean(axis=0)
    total = float(((around - around.mean()) ** 2).sum())
    found = [
        LevelEffect(
            factor=level.factor,
            level=level.label,
            ranks=level.ranks,
            effect=float(means[at]),
            t=float(t[at]),
            p=float(p[at]),
            explained=float(squares[at]) / total if total > 0 else 0.0,
        )
        for at, level in enumerate(levels)
    ]
    # Both halves of a two-level factor explain alike: first comes the half that itself moved.
    moved = {rank: abs(value) for rank, value in zip(members, around.tolist(), strict=True)}
    found.sort(key=lambda e: (-round(e.explained, 9), -np.mean([moved[rank] for rank in e.ranks])))
    return tuple(found)


def _contrasts(change: Floats, levels: tuple[_Level, ...], members: tuple[int, ...]) -> Floats:
    """Pairs by levels: mean inside minus mean outside."""
    at = {rank: column for column, rank in enumerate(members)}
    mask = np.zeros((len(levels), len(members)))
    for row, level in enumerate(levels):
        mask[row, [at[rank] for rank in level.ranks]] = 1.0
    inside = mask.sum(axis=1, keepdims=True)
    weights = mask / inside - (1 - mask) / (len(members) - inside)
    return np.asarray(change @ weights.T, dtype=np.float64)


def _culprit(
    effects: tuple[LevelEffect, ...],
    change: Floats,
    members: tuple[int, ...],
    each: str,
    alpha: float,
    least: float,
) -> LevelEffect | None:
    found = [effect for effect in effects if effect.p <= alpha and abs(effect.effect) >= least]
    if not found:
        return None
    own = {effect.ranks[0]: effect for effect in effects if effect.factor == each}
    for level in found:
        if len(level.ranks) == 1 or _shared_by_most(level, change, members):
            return level
        inner = [own[rank] for rank in level.ranks if own[rank] in found]
        if inner:
            return max(inner, key=lambda effect: effect.explained)
    return None


def _shared_by_most(level: LevelEffect, change: Floats, members: tuple[int, ...]) -> bool:
    """Three quarters of the level's ranks each exceed half of its effect, against the ranks outside of it."""
    around = dict(zip(members, change.mean(axis=0).tolist(), strict=True))
    outside = float(np.mean([value for rank, value in around.items() if rank not in level.ranks]))
    half = abs(level.effect) / 2
    over = [(around[rank] - outside) * np.sign(level.effect) > half for rank in level.ranks]
    return float(np.mean(over)) >= _HOST_SHARE


def _sign_patterns(pairs: int, seed: int) -> Floats:
    """Rows of signs, the first all +1; the first pair keeps its sign, since |t| is the same for the mirror image."""
    if pairs <= _EXACT_PAIRS:
        bits = np.arange(1 << (pairs - 1))[:, None] >> np.arange(pairs - 1)
        signs = 1.0 - 2.0 * (bits & 1)
    else:
        rng = np.random.Generator(np.random.PCG64(seed))
        signs = rng.choice((-1.0, 1.0), size=(1 << (_EXACT_PAIRS - 1), pairs - 1))
        signs[0] = 1.0
    return np.hstack([np.ones((len(signs), 1)), signs])


def _sentence(
    follows: str,
    culprit: LevelEffect | None,
    aliases: tuple[str, ...],
    movement: MaxMovement | None,
    pairs: int,
    alpha: float,
    words: Words,
) -> str:
    if culprit is not None:
        also = f" (the same {words.each}s as {', '.join(aliases)})" if aliases else ""
        size = f"{100 * np.expm1(culprit.effect):+.0f} %" if words.relative else f"{culprit.effect:+.3g} ms"
        return f"the change follows {follows}{also}: {size} against the other {words.each}s, p = {culprit.p:.3g}"
    if follows == FOLLOWS_NOTHING and movement is not None:
        return (
            f"the change follows no rank or host: {movement.num_distinct} ranks take turns as the slowest, "
            f"none in more than {movement.top_share:.0%} of the steps"
        )
    if 2.0 ** -(pairs - 1) > alpha:
        return f"{pairs} pairs cannot single out a level: the smallest possible p is {2.0 ** -(pairs - 1):.3g}"
    return f"no {words.each} or group of them stands out"
