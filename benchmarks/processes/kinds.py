"""The kinds of faults that real processes play, each of a size that slows the step of four ranks by about the effect.

What counts as right is taken from the simulated proving ground; sizes are for the default step of 37 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simulation.kinds import KINDS as SIMULATED
from simulation.kinds import NEW, Kind, Planted

from processes.faults import RankFault

GOOD, BAD, HOSTS = ("n0", "n1"), ("n0", "n2"), ("n0", "n1", "n2", "n3")
RANKS_PER_NODE = 2
BAD_RANKS = frozenset({2, 3})
EVERYWHERE = frozenset(range(4))
STEP_US = 37_000.0
LAYERS = 4

Make = Callable[[float], Planted]
"""From an effect, as a share of the step, to the fault."""


def _kind(like: str, make: Make, **changed: Any) -> Kind:
    one = SIMULATED[like]
    places = one.ranks if one.ranks is None else BAD_RANKS if one.placement else EVERYWHERE
    return replace(one, **{"make": make, "most": 1.0, "ranks": places} | changed)


def _knob(name: str, before: float, us: Callable[[float], float], **base: Any) -> Make:
    return lambda effect: Planted(
        base=base, healthy={name: round(before)}, regressed={name: round(before + us(effect))}
    )


def _fault(size: Callable[[float], float], field: str, base: Mapping[str, Any] | None = None, **where: Any) -> Make:
    return lambda effect: Planted(base=base or {}, faults=(RankFault(**{field: size(effect)}, **where),))


def _both(healthy: Callable[[float], dict[str, Any]], regressed: Callable[[float], dict[str, Any]],
          base: Callable[[float], dict[str, Any]] = lambda _effect: {}) -> Make:  # fmt: skip
    return lambda effect: Planted(base=base(effect), healthy=healthy(effect), regressed=regressed(effect))


def _each_step(effect: float) -> float:
    return STEP_US * effect


def _longer_than_a_step(effect: float) -> float:
    """What a loader that is free for 32 ms of each step needs on top of its 5 ms."""
    return STEP_US * (1 + effect) - 5000


def _link_mbit(share: float) -> float:
    """The rate at which the last bucket, of 196608 bytes over four ranks, takes this share of the step longer."""
    return 2 * 0.75 * 196608 * 8 / (share * STEP_US)


_HOST = {"hosts": ("n2",)}
_IMAGE = {"image": NEW}

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind("padding", _both(lambda _e: {"padding": 0.0}, lambda e: {"padding": 0.9 * e})),
        _kind("recompute", _both(lambda _e: {"recompute": False}, lambda _e: {"recompute": True},
                                 lambda e: {"h2d_us": round(11000 / e - 37000)})),
        _kind("evaluation", _knob("eval_us", 0, lambda e: 4 * _each_step(e), eval_every=4)),
        _kind("compute-all", _both(lambda _e: {"compute_scale": 1.0}, lambda e: {"compute_scale": 1 + 1.07 * e})),
        _kind("one-gpu", lambda e: Planted(base={"slow_rank": {"rank": 1, "host": "n2", "factor": 1 + 1.07 * e}}),
              ranks=frozenset({3})),
        _kind("one-host", lambda e: Planted(base={"slow_host": {"host": "n2", "factor": 1 + 1.07 * e}})),
        _kind("thermal-drift", _fault(lambda e: 1.7 * e, "drift", **_HOST)),
        _kind("launch-gap", _knob("launch_gap_us", 0, lambda e: _each_step(e) / (2 * LAYERS))),
        _kind("launch-gap-host", _fault(_each_step, "launch_us", **_HOST)),
        _kind("garbage-collection", _fault(lambda e: 3 * _each_step(e), "pause_us", chance=0.1, **_IMAGE)),
        _kind("input-all", _knob("slow_input", 0, _longer_than_a_step)),
        _kind("input-host", _fault(_longer_than_a_step, "input_us", **_HOST)),
        _kind("input-shard", _fault(_longer_than_a_step, "input_us", shards=(3,), **_IMAGE), ranks=frozenset({3})),
        _kind("copy", _knob("h2d_us", 800, _each_step)),
        _kind("allocator-retries", _knob("alloc_us", 0, _each_step)),
        _kind("allocator-retries", _fault(_each_step, "churn_us", **_IMAGE), name="memory-churn"),
        _kind("memory-growth", _fault(_each_step, "growth_us", hosts=("n1",), local=0, **_IMAGE),
              ranks=frozenset({2})),
        _kind("checkpoint", _knob("checkpoint_us", 2000, lambda e: 4 * _each_step(e), checkpoint_every=4)),
        _kind("input-host", _fault(lambda e: 4 * _each_step(e), "fsync_us", {"checkpoint_every": 4}, **_HOST),
              name="slow-disk", family="checkpoint", accounts=frozenset({"checkpoint"})),
        _kind("retries", _fault(lambda e: _each_step(e) / 0.3, "retry_us", chance=0.3, **_IMAGE)),
        # One fabric joins all ranks here, those of a host as well.
        _kind("latency", _knob("fabric_delay_us", 100, lambda e: _each_step(e) / 2), scopes=frozenset({"one_node"})),
        _kind("bandwidth", _both(lambda _e: {"slow_link": None},
                                 lambda e: {"slow_link": {"mbit": _link_mbit(e), "delay_us": 50.0}})),
        _kind("packing", _both(lambda _e: {"packing": "snake"}, lambda _e: {"packing": "greedy"},
                               lambda e: {"quadratic_ns_per_token2": 3 * e})),
        _kind("os-jitter", _fault(lambda e: 2.1 * _each_step(e), "stall_us", chance=0.15, **_IMAGE)),
        _kind("expert-routing", _fault(lambda e: 0.54 * e, "spread", **_IMAGE)),
    )
}  # fmt: skip
