"""The simple way: at full scale, put every changed setting back on its own and look whether the steps got faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from narrows.inquiry.ladder import REFERENCE_PAIRS
from narrows.inquiry.workloads import defaults
from simulation.cases import STEPS, WASHOUT, SimulatedCase
from simulation.fitting import arms_of
from simulation.job import F64, Seats, Segment
from simulation.kinds import BAD, BASE, GOOD
from simulation.noise import device_factor
from simulation.step import play

LEVEL = 0.05


def settings_of_cause(case: SimulatedCase) -> frozenset[str]:
    """The settings of which at least one must be named."""
    if case.kind is None:
        return frozenset()
    if case.kind.placement:
        return frozenset({"hosts"})
    return frozenset(case.planted.healthy) or frozenset({"label"})


def sweep_cost(case: SimulatedCase) -> float:
    """Two runs for each changed setting, as a share of eight pairs at full scale."""
    healthy, regressed = arms_of(case.kind, case.planted)
    flags = sum(healthy[name] != regressed[name] for name in healthy) + case.moved
    return 2 * flags / (2 * REFERENCE_PAIRS)


def flag_sweep(case: SimulatedCase) -> str | None:
    """The setting whose return gave most, among those that a Mann-Whitney test of the steps calls faster."""
    healthy, regressed = arms_of(case.kind, case.planted)
    flags: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [
        (name, {**regressed, name: healthy[name]}, GOOD) for name in healthy if healthy[name] != regressed[name]
    ]
    where = BAD if case.moved else GOOD
    flags = [(name, config, where) for name, config, _ in flags] + ([("hosts", regressed, GOOD)] if case.moved else [])
    gains: dict[str, float] = {}
    for at, (name, config, hosts) in enumerate(flags):
        with_it = _steps_ms(case, regressed, where, 2 * at)
        without = _steps_ms(case, config, hosts, 2 * at + 1)
        if mannwhitneyu(without, with_it, alternative="less").pvalue < LEVEL:
            gains[name] = float(with_it.mean() - without.mean())
    return max(gains, key=lambda name: gains[name]) if gains else None


def _steps_ms(case: SimulatedCase, own: Mapping[str, Any], names: tuple[str, ...], run: int) -> F64:
    """The steady steps of one run at full scale."""
    cluster = case.cluster
    shape, noise = cluster.shape, cluster.noise
    rng = np.random.default_rng((cluster.seed, 77, run))
    ranks, width = tuple(range(shape.world_size)), shape.ranks_per_node
    hosts, locals_ = tuple(names[rank // width] for rank in ranks), tuple(rank % width for rank in ranks)
    segment = Segment(
        config={**defaults("step"), **BASE, **case.planted.base, **own}, shape=shape, faults=cluster.faults,
        seats=Seats(ranks=ranks, hosts=hosts, locals=locals_, shards=ranks), noise=noise, rng=rng, seed=cluster.seed,
        factor=float(np.exp(rng.standard_normal() * np.hypot(noise.launch, noise.session))), racks=cluster.racks,
        device_R=np.array([device_factor(noise, cluster.seed, *place) for place in zip(hosts, locals_, strict=True)]),
    )  # fmt: skip
    played = play(segment, number=0, pair=0, steps=STEPS, washout=WASHOUT, first_batch=0, now_ns=0.0)
    ends = np.array([step.end_R.max() for step in played.steps]) / 1e6
    return np.diff(ends[WASHOUT - 1 :])
