"""When a series of steps changed: the stretch of a run that lies above its other steps and above the healthy run.

Shape legend: T steps, B blocks of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from narrows.reducers.estimates import t_quantile
from narrows.reducers.records import F64

BLOCK = 10
"""Steps of a block. An even number: in jobs that are bound by their hosts slow and quick steps often take turns."""
LEAST_BLOCKS = 5
WINDOW = BLOCK * LEAST_BLOCKS
"""The shortest stretch that is looked for: 50 steps. In runs of over 2,000 steps it is about 2 % of the run."""
_MOST_BLOCKS = 400  # a longer run is cut into longer blocks
SCORE = 8.0
"""A stretch counts from this many standard errors on. Halves of one healthy run of real jobs reached 3.3, two healthy
runs of different launches 6.2, runs with a fault 11.8 and more (docs/benchmarks.md)."""
FLOOR = 0.002
"""The noise of a mean of 50 steps is at least this share of the step: a quiet run does not prove a quiet job."""
SPIKES = 0.02
EDGE = 3.0
"""Blocks beside a stretch that lie this many standard deviations above the other steps are part of it."""
_MOST_PHI = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps ``start`` to before ``stop``, by their place in the series; ``score`` in standard errors."""

    start: int
    stop: int
    score: float


def without_spikes(values: F64) -> F64:
    """Each series along the last axis with its outermost 2 % of steps drawn in, on both sides.

    A checkpoint or a stall is a few steps; a stretch is longer and keeps its height.
    """
    low, high = np.quantile(values, (SPIKES, 1 - SPIKES), axis=-1, keepdims=True)
    return np.asarray(np.clip(values, low, high), dtype=np.float64)


def noise_of(blocks_B: F64) -> float:
    """The standard deviation that a block contributes to the mean of many, its autocorrelation included.

    That of a first-order autoregression, sd * sqrt((1 + phi) / (1 - phi)), phi from neighbouring blocks.
    """
    centred = blocks_B - blocks_B.mean()
    total = float((centred**2).sum())
    phi = float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else 0.0
    phi = min(max(phi, 0.0), _MOST_PHI)
    return math.sqrt(total / (blocks_B.size - 1) * (1 + phi) / (1 - phi))


def jitter_of(blocks_B: F64) -> float:
    """The standard deviation of a block by what neighbouring blocks differ by, which no single change moves."""
    steps = np.diff(blocks_B)
    return 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)


def risen(healthy_T: F64, series_T: F64, floor_ms: float) -> Stretch | None:
    """The stretch of ``series_T`` that stands out most above both its own other steps and ``healthy_T``.

    The noise is that of the healthy series, at least what neighbouring blocks of ``series_T`` differ by, and at least
    ``floor_ms`` for a mean of 50 steps. None where a run is too short to hold a stretch and enough steps around it.
    """
    size = BLOCK * max(1, math.ceil(len(series_T) / (BLOCK * _MOST_BLOCKS)))
    healthy, own = _blocks(healthy_T, size), _blocks(series_T, size)
    if len(own) < 2 * LEAST_BLOCKS or len(healthy) < LEAST_BLOCKS:
        return None
    noise = max(noise_of(healthy), jitter_of(own), floor_ms * math.sqrt(WINDOW / size))
    running = np.concatenate([[0.0], np.cumsum(own)])
    first, last = np.triu_indices(len(own) + 1, k=LEAST_BLOCKS)
    kept = len(own) - (last - first) >= LEAST_BLOCKS
    first, last = first[kept], last[kept]
    inside = last - first
    outside = len(own) - inside
    mean = (running[last] - running[first]) / inside
    around = (running[-1] - inside * mean) / outside
    above_own = (mean - around) / np.sqrt(1 / inside + 1 / outside)
    above_healthy = (mean - healthy.mean()) / np.sqrt(1 / inside + 1 / len(healthy))
    scores = np.minimum(above_own, above_healthy)
    best = int(scores.argmax())
    limit = max(float(around[best]), float(healthy.mean())) + EDGE * noise
    start, stop = _grown(own, int(first[best]), int(last[best]), limit)
    start, stop = _sharpened(series_T, start * size, stop * size, size)
    return Stretch(start=start, stop=stop, score=float(scores[best]) / noise)


def _blocks(values_T: F64, size: int) -> F64:
    """Means of consecutive blocks of ``size`` steps; what is left over at the end is in none."""
    count = len(values_T) // size
    return np.asarray(values_T[: count * size].reshape(count, size).mean(axis=1), dtype=np.float64)


def _grown(blocks_B: F64, first: int, last: int, limit: float) -> tuple[int, int]:
    """The blocks with their neighbours that lie above ``limit``: a loss that sets in slowly has no sharp beginning."""
    while first > 0 and blocks_B[first - 1] > limit:
        first -= 1
    while last < len(blocks_B) and blocks_B[last] > limit:
        last += 1
    return first, last


def _sharpened(series_T: F64, start: int, stop: int, size: int) -> tuple[int, int]:
    """The ends moved by up to a block to where the steps inside and outside differ most clearly."""
    total = len(series_T)
    running = np.concatenate([[0.0], np.cumsum(series_T)])
    starts = np.arange(max(0, start - size), start + size + 1)[:, None]
    stops = np.arange(stop - size, min(total, stop + size) + 1)[None, :]
    inside = np.clip(stops - starts, 1, total - 1)
    part = running[stops] - running[starts]
    contrast = part / inside - (running[-1] - part) / (total - inside)
    score = np.where(stops - starts == inside, contrast * np.sqrt(inside * (total - inside) / total), -np.inf)
    row, column = divmod(int(score.argmax()), score.shape[1])
    return int(starts[row, 0]), int(stops[0, column])


def shifted(healthy_T: F64, series_T: F64, floor_ms: float) -> float:
    """How far two whole runs lie apart, as t over its 0.5 % point: beyond 1 or -1 is more than runs drift by.

    Two runs differ by what a run drifts, so each counts as one draw with the spread of its own windows of 50 steps;
    how many steps it has makes it no surer. 0 where either is shorter than four windows.
    """
    means = [_blocks(one, WINDOW) for one in (healthy_T, series_T)]
    if min(map(len, means)) < 4:
        return 0.0
    df = sum(len(one) - 1 for one in means)
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in means)
    sd = max(floor_ms, math.sqrt(squares / df))
    return (float(means[1].mean()) - float(means[0].mean())) / (sd * math.sqrt(2)) / t_quantile(0.005, df)
