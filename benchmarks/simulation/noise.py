"""Noise of a cluster: of a session, a launch, a device, a step. All factors are of log time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of log time, and rates. ``quiet`` has none of it."""

    launch: float = 0.008
    """Placement, address layout, clocks: drawn once a launch for the whole job."""
    session: float = 0.006
    session_memory: float = 0.8
    """Neighbours and drift: AR(1) from one segment to the next."""
    device: float = 0.004
    """Between devices, for good; and once more for each launch."""
    step: float = 0.01
    step_memory: float = 0.6
    """AR(1) within a segment, for the whole job."""
    stall: float = 0.006
    """Chance, for each rank and step, that the operating system takes the device's host away."""
    stall_ms: float = 1.0
    warmup: float = 0.3
    """Excess of a segment's first step; it halves with every step."""


QUIET = Noise(launch=0, session=0, device=0, step=0, stall=0, warmup=0)


def device_factor(noise: Noise, seed: int, host: str, local: int) -> float:
    """What distinguishes one device from all others, for good."""
    rng = np.random.default_rng((seed, zlib.crc32(host.encode()), local))
    return float(np.exp(noise.device * rng.standard_normal()))


def step_factors(noise: Noise, steps: int, rng: np.random.Generator) -> F64:
    """Shape (steps,): the job's factor at each step of one segment, warm-up included."""
    shocks = rng.standard_normal(steps) * noise.step * np.sqrt(1 - noise.step_memory**2)
    level = noise.step * rng.standard_normal()
    found = np.empty(steps)
    for at, shock in enumerate(shocks):
        level = noise.step_memory * level + shock
        found[at] = level
    return np.asarray(np.exp(found) * (1 + noise.warmup * 0.5 ** np.arange(steps)), dtype=np.float64)
