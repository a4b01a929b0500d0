"""Replay of a graph of measured operations: what a run would have taken, had some of them taken another time.

Shape legend: N operations, E edges, C columns (steps, or scenarios, or both side by side).
Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrows.reducers.records import F64, I64

AGREEMENT = 0.15
"""Within this difference, removal and addition say the same. Source: docs/method.md, What-if replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operation n starts when all of its predecessors are done: those in ``before_E[first_N1[n]:first_N1[n + 1]]``.

    ``levels``: every operation once, each after all of its predecessors.
    """

    first_N1: I64
    before_E: I64
    levels: tuple[I64, ...]

    def __len__(self) -> int:
        return len(self.first_N1) - 1


def graph(before: Sequence[Sequence[int]]) -> Graph:
    """The graph in which operation n waits for ``before[n]``.

    Raises:
        ValueError: operations wait for each other in a circle, so that none of them can start.
    """
    counts = [len(one) for one in before]
    before_E = np.array([place for one in before for place in one], dtype=np.int64)
    return from_edges(len(before), before_E, np.repeat(np.arange(len(before)), counts))


def from_edges(num: int, before_E: I64, after_E: I64) -> Graph:
    """The graph of ``num`` operations in which ``after_E[e]`` waits for ``before_E[e]``.

    Raises:
        ValueError: as ``graph`` does.
    """
    order_E = np.argsort(after_E, kind="stable")
    before_E, after_E = before_E[order_E], after_E[order_E]
    first_N1 = np.searchsorted(after_E, np.arange(num + 1))
    order_E = np.argsort(before_E, kind="stable")
    next_E = after_E[order_E]
    next_first_N1 = np.searchsorted(before_E[order_E], np.arange(num + 1))
    missing_N = np.diff(first_N1)
    ready = np.flatnonzero(missing_N == 0)
    levels = []
    while len(ready):
        levels.append(ready)
        freed = next_E[_ranges(next_first_N1[ready], next_first_N1[ready + 1])]
        np.subtract.at(missing_N, freed, 1)
        freed = np.sort(freed[missing_N[freed] == 0])
        ready = freed[np.diff(freed, prepend=-1) > 0]
    if sum(len(level) for level in levels) < num:
        raise ValueError("operations wait for each other in a circle; the order or the pairing of the record is broken")
    return Graph(first_N1=first_N1, before_E=before_E, levels=tuple(levels))


def replay(ops: Graph, duration_NC: F64) -> F64:
    """Shape (N, C): when each operation is done, from 0; each column is one replay."""
    done_NC = np.zeros_like(duration_NC)
    for level in ops.levels:
        first, last = ops.first_N1[level], ops.first_N1[level + 1]
        if (last > first).all():
            edges = ops.before_E[_ranges(first, last)]
            starts = np.concatenate([[0], np.cumsum(last - first)[:-1]])
            done_NC[level] = np.maximum.reduceat(done_NC[edges], starts, axis=0) + duration_NC[level]
        else:  # only the first level waits for nothing
            done_NC[level] = duration_NC[level]
    return done_NC


def _ranges(first: I64, last: I64) -> I64:
    """first[0], ..., last[0] - 1, first[1], ..., in one array."""
    counts = last - first
    if not counts.sum():
        return np.zeros(0, dtype=np.int64)
    return np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The part of a loss that one cause carries: 1 is all of it. ``removal``: what of the loss goes when the cause is
    taken away; ``addition``: what of it comes when the cause is put alone into a run without loss.
    """

    removal: float
    addition: float

    @property
    def agreed(self) -> float | None:
        """The mean of both where they agree; None where the cause interacts with another."""
        return (self.removal + self.addition) / 2 if abs(self.removal - self.addition) <= AGREEMENT else None


def shares(*, slow: float, fast: float, removed: float, added: float) -> Shares | None:
    """Shares of ``slow - fast``; None where there is no loss to share."""
    loss = slow - fast
    if loss <= 0:
        return None
    return Shares(removal=(slow - removed) / loss, addition=(added - fast) / loss)
