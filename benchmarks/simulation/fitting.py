"""The size of a fault at which the noise-free step is slower by a given share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from narrows.inquiry.workloads import defaults
from simulation.job import Seats, Segment
from simulation.kinds import BAD, BASE, DECOYS, GOOD, KINDS, NEW, OLD, RACKS, Kind, Planted, shape_of
from simulation.noise import QUIET
from simulation.step import play

_STEPS, _WASHOUT = 40, 8
_TRIES = 24


def arms_of(kind: Kind | None, planted: Planted) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the two arms of a case set, decoys and the image's name included."""
    if kind is not None and kind.placement:
        return {}, {}
    taken = set(planted.healthy) | set(planted.base)
    found = []
    for at, (own, label) in enumerate(((planted.healthy, OLD), (planted.regressed, NEW))):
        decoys = {name: values[at] for name, values in DECOYS.items() if name not in taken}
        found.append({"label": label, **decoys, **own})
    return found[0], found[1]


def step_ms(kind: Kind, planted: Planted, *, regressed: bool) -> float:
    """The mean steady step of one arm at full scale, without noise of the cluster."""
    shape = shape_of(kind)
    own = arms_of(kind, planted)[regressed]
    names = BAD if regressed and kind.placement else GOOD
    ranks, width = tuple(range(shape.world_size)), shape.ranks_per_node
    seats = Seats(
        ranks=ranks, hosts=tuple(names[rank // width] for rank in ranks),
        locals=tuple(rank % width for rank in ranks), shards=ranks,
    )  # fmt: skip
    config: Mapping[str, Any] = {**defaults("step"), **BASE, **planted.base, **own}
    segment = Segment(
        config=config, shape=shape, seats=seats, faults=planted.faults, noise=QUIET, rng=np.random.default_rng(5),
        seed=5, factor=1.0, device_R=np.ones(len(ranks)), racks=RACKS,
    )  # fmt: skip
    played = play(segment, number=0, pair=0, steps=_STEPS, washout=_WASHOUT, first_batch=0, now_ns=0.0)
    begin, end = played.steps[_WASHOUT - 1].end_R.max(), played.steps[-1].end_R.max()
    return float(end - begin) / (_STEPS - _WASHOUT) / 1e6


@lru_cache(maxsize=1024)
def fitted(name: str, effect: float) -> Planted:
    """The fault of this kind that makes the step slower by ``effect``, as a share.

    Raises ``ValueError`` where even its largest size does not.
    """
    kind = KINDS[name]

    def excess(size: float) -> float:
        planted = kind.make(size)
        return step_ms(kind, planted, regressed=True) / step_ms(kind, planted, regressed=False) - 1 - effect

    low, high = 1e-6 * kind.most, kind.most
    below, above = -effect, excess(high)
    if above < 0:
        raise ValueError(f"{name}: an effect of {effect:.0%} is out of reach; raise the largest size")
    middle = high
    for at in range(_TRIES):
        # Regula falsi where the ends are close, halving of the logarithm where they are not.
        middle = low + (high - low) * -below / (above - below) if high < 8 * low else (low * high) ** 0.5
        miss = excess(middle)
        if abs(miss) < 0.01 * effect:
            break
        if miss < 0:
            low, below, above = middle, miss, above / (2 if at % 2 else 1)
        else:
            high, above, below = middle, miss, below / (2 if at % 2 else 1)
    return kind.make(middle)
