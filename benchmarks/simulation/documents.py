"""Packed documents of a global batch: what every share of the batch weighs, for each packing policy.

Shape legend: N shards of the full-scale batch, D documents.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_SHORTEST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Log-normal document lengths with a cap, in tokens; ``mean`` is that before the cap."""

    mean: int
    sigma: float
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One global batch as its shards see it; every array has shape (N,)."""

    documents_N: F64
    tokens_N: F64
    squares_N: F64


def lengths_of(config: Mapping[str, Any]) -> Lengths:
    return Lengths(
        mean=int(config["mean_doc_tokens"]),
        sigma=float(config["doc_sigma"]),
        longest=int(config["max_doc_tokens"]),
    )


@lru_cache(maxsize=4096)
def packed(lengths: Lengths, tokens: int, num_shards: int, policy: str, seed: int, batch: int) -> Packed:
    """The batch with this number, dealt to the shards. The same arguments give the same batch in every arm.

    Over ``num_shards`` batches each shard gets each of the packer's bins once.
    """
    drawn_D = _draw(lengths, tokens * num_shards, np.random.default_rng((seed, batch, 1)))
    bin_D = _POLICIES[policy](drawn_D, num_shards, np.random.default_rng((seed, batch, 2)))
    turn = batch % num_shards
    places = np.random.default_rng((seed, batch // num_shards, 3)).permutation(num_shards)
    order = np.roll(places, -turn)
    sums = [
        np.bincount(bin_D, weights=w, minlength=num_shards)[order].astype(np.float64)
        for w in (drawn_D**0, drawn_D, drawn_D**2)
    ]
    return Packed(documents_N=sums[0], tokens_N=sums[1], squares_N=sums[2])


def _draw(lengths: Lengths, tokens: int, rng: np.random.Generator) -> F64:
    """Lengths, longest first, that add up to ``tokens``."""
    mu = np.log(lengths.mean) - lengths.sigma**2 / 2
    count = 64 + 3 * tokens // max(_SHORTEST, lengths.mean // 2)
    drawn = np.clip(np.rint(rng.lognormal(mu, lengths.sigma, count)), _SHORTEST, lengths.longest)
    total = np.cumsum(drawn)
    last = int(np.searchsorted(total, tokens))
    drawn = drawn[: last + 1].astype(np.float64)
    drawn[-1] -= total[last] - tokens
    found: F64 = np.sort(drawn)[::-1]
    return found


def _snake(drawn_D: F64, shards: int, _rng: np.random.Generator) -> NDArray[np.int64]:
    lap, column = np.divmod(np.arange(len(drawn_D)), shards)
    found: NDArray[np.int64] = np.where(lap % 2 == 0, column, shards - 1 - column)
    return found


def _greedy(drawn_D: F64, shards: int, _rng: np.random.Generator) -> NDArray[np.int64]:
    """One bin after another takes the longest that are left and fit, then the shortest: level in tokens alone."""
    bins = np.full(len(drawn_D), shards - 1)
    lengths, left, right = drawn_D.tolist(), 0, len(drawn_D) - 1
    for at in range(shards - 1):
        room = sum(lengths[left : right + 1]) / (shards - at)
        while left <= right and lengths[left] <= room:
            room, bins[left], left = room - lengths[left], at, left + 1
        while left <= right and lengths[right] <= room:
            room, bins[right], right = room - lengths[right], at, right - 1
    return bins


def _cut(drawn_D: F64, shards: int) -> NDArray[np.int64]:
    """Neighbours stay together."""
    middle = np.cumsum(drawn_D) - drawn_D / 2
    found: NDArray[np.int64] = np.minimum(shards - 1, (middle * shards / drawn_D.sum()).astype(np.int64))
    return found


def _shuffled(drawn_D: F64, shards: int, rng: np.random.Generator) -> NDArray[np.int64]:
    order = rng.permutation(len(drawn_D))
    bins = np.empty(len(drawn_D), dtype=np.int64)
    bins[order] = _cut(drawn_D[order], shards)
    return bins


def _cost_balanced(drawn_D: F64, shards: int, _rng: np.random.Generator) -> NDArray[np.int64]:
    """Each document, longest first, goes where the worse of tokens and squares is lowest."""
    tokens, squares = drawn_D.sum() / shards, (drawn_D**2).sum() / shards
    bins = np.empty(len(drawn_D), dtype=np.int64)
    heap = [(0.0, at, 0.0, 0.0) for at in range(shards)]
    for document, length in enumerate(drawn_D.tolist()):
        _, at, t, s = heapq.heappop(heap)
        bins[document] = at
        t, s = t + length / tokens, s + length**2 / squares
        heapq.heappush(heap, (t + s, at, t, s))
    return bins


_POLICIES = {"snake": _snake, "greedy": _greedy, "shuffled": _shuffled, "cost_balanced": _cost_balanced}
