"""The planted faults: how each is made at a given size, and what an investigation of it ought to find.

``make`` takes one number, which is fitted so that the noise-free step is slower by the effect that is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.faults import Fault
from simulation.job import JobShape

NODES = int(os.environ.get("PROVING_GROUND_HOSTS", "16"))
"""Hosts of the job, an even number of at least 8; three spare ones come on top."""
HOSTS = tuple(f"n{at}" for at in range(NODES + 3))
FAULTY = HOSTS[NODES + 1]
GOOD, BAD = HOSTS[:NODES], ("n0", FAULTY, *HOSTS[2:NODES])
"""The hosts of the healthy run, and of a regressed run that was given the faulty host in place of ``n1``."""
OLD, NEW = "image-7", "image-8"
RACKS = {host: at // 4 for at, host in enumerate(HOSTS)}
BAD_RANKS = (2, 3)
EVERYWHERE = tuple(range(2 * NODES))

BASE: Mapping[str, Any] = {
    "layers": 2, "tokens_per_rank": 2048, "mean_doc_tokens": 128, "max_doc_tokens": 512,
    "linear_ns_per_token": 1000.0, "quadratic_ns_per_token2": 2.6,
}  # fmt: skip
DECOYS: Mapping[str, tuple[Any, Any]] = {"vocab": (256, 512), "heads": (4, 8), "eval_us": (0, 400)}
"""Settings that differ between the arms of every case and change nothing: evaluation is off, the others are of real
devices. With the image's name, which stands for what no setting shows, they surround the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault of one size: common settings, what the arms set, and what lives in the cluster."""

    base: Mapping[str, Any] = field(default_factory=dict)
    healthy: Mapping[str, Any] = field(default_factory=dict)
    regressed: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault. The sets hold every answer that counts as right; ``ranks`` is the culprit as a set of ranks,
    None where any rank may be slow in turn."""

    name: str
    make: Callable[[float], Planted]
    family: str
    mechanisms: frozenset[str]
    accounts: frozenset[str]
    scopes: frozenset[str]
    ranks: frozenset[int] | None = frozenset(EVERYWHERE)
    placement: bool = False
    pipeline: int = 1
    most: float = 1.0
    """The largest size that is tried."""


def _knob(name: str, before: float, **base: Any) -> Callable[[float], Planted]:
    """A whole-numbered knob that grows by the size."""
    return lambda size: Planted(base=base, healthy={name: round(before)}, regressed={name: round(before + size)})


def _image(**effect: Any) -> Callable[[float], Planted]:
    """A fault of the new image; the field that is given as ... takes the size."""

    def make(size: float) -> Planted:
        fields: dict[str, Any] = {name: size if value is ... else value for name, value in effect.items()}
        return Planted(faults=(Fault(image=NEW, **fields),))

    return make


def _host(**effect: Any) -> Callable[[float], Planted]:
    """A fault of the host that only the regressed run was given."""

    def make(size: float) -> Planted:
        fields: dict[str, Any] = {name: size if value is ... else value for name, value in effect.items()}
        return Planted(faults=(Fault(hosts=(FAULTY,), **fields),))

    return make


def _recompute(size: float) -> Planted:
    """A third more of the layers' kernels, whatever the size: it shrinks the model beside a long copy."""
    base = {
        "h2d_us": 15000, "optimizer_us": round(1500 * size), "linear_ns_per_token": 1000.0 * size,
        "quadratic_ns_per_token2": 2.6 * size,
    }  # fmt: skip
    return Planted(base=base, healthy={"recompute": False}, regressed={"recompute": True})


def _fabric(before: dict[str, Any], after: dict[str, Any]) -> Callable[[float], Planted]:
    """The setting is fixed; the size makes the fabric slower in both arms, so that the setting matters more."""
    return lambda size: Planted(base={"fabric_mbit": 32000.0 / (1 + size)}, healthy=before, regressed=after)


def _packing(size: float) -> Planted:
    base = {"quadratic_ns_per_token2": size}
    return Planted(base=base, healthy={"packing": "snake"}, regressed={"packing": "greedy"})


def _slow_link(size: float) -> Planted:
    return Planted(healthy={"slow_link": None}, regressed={"slow_link": {"mbit": 20000.0 / size, "delay_us": 50.0}})


def _compound(size: float) -> Planted:
    regressed = {"compute_scale": 1 + size, "slow_link": {"mbit": 20000.0 / (60 * size), "delay_us": 50.0}}
    return Planted(healthy={"compute_scale": 1.0, "slow_link": None}, regressed=regressed)


def _kind(name: str, family: str, make: Callable[[float], Planted], most: float, *, mechanism: str = "",
          account: str = "", scope: str = "one_rank", **more: Any) -> Kind:  # fmt: skip
    return Kind(
        name=name, make=make, family=family, most=most,
        mechanisms=frozenset((mechanism or family).split()), accounts=frozenset((account or family).split()),
        scopes=frozenset(scope.split()), **more,
    )  # fmt: skip


_ONE_HOST: dict[str, Any] = {"placement": True, "ranks": frozenset(BAD_RANKS), "mechanism": "slow_host"}
_NUMERATOR: dict[str, Any] = {"mechanism": "numerator", "account": "compute"}
_VARIES: dict[str, Any] = {"mechanism": "imbalance", "account": "skew", "scope": "one_node two_nodes", "ranks": None}

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind("padding", "numerator",
              lambda size: Planted(healthy={"padding": 0.0}, regressed={"padding": size}), 1.0, **_NUMERATOR),
        _kind("squared-lengths", "numerator", _knob("mean_doc_tokens", 128, doc_sigma=0.3), 380, **_NUMERATOR),
        _kind("recompute", "numerator", _recompute, 1.0, **_NUMERATOR),
        _kind("capacity-factor", "numerator", _image(executed=...), 1.0, **_NUMERATOR),
        _kind("evaluation", "checkpoint", _knob("eval_us", 0, eval_every=4), 60000),
        _kind("compute-all", "compute",
              lambda size: Planted(healthy={"compute_scale": 1.0}, regressed={"compute_scale": 1 + size}), 1.0),
        _kind("dtype", "compute",
              lambda size: Planted(healthy={"linear_ns_per_token": 1000.0},
                                   regressed={"linear_ns_per_token": 1000 * (1 + size)}), 2.0),
        _kind("one-gpu", "compute",
              lambda size: Planted(base={"slow_rank": {"rank": 1, "host": FAULTY, "factor": 1 + size}}), 1.0,
              mechanism="slow_rank", placement=True, ranks=frozenset({3})),
        _kind("one-host", "compute",
              lambda size: Planted(base={"slow_host": {"host": FAULTY, "factor": 1 + size}}), 1.0, **_ONE_HOST),
        _kind("thermal-drift", "compute", _host(drift=...), 1.0, **_ONE_HOST),
        _kind("launch-gap", "host", _knob("launch_gap_us", 0), 2000),
        _kind("launch-gap-host", "host", _host(launch_us=...), 20000, **_ONE_HOST),
        _kind("profiler-left-on", "host", _image(launch_us=...), 20000),
        _kind("garbage-collection", "memory", _image(pause_us=..., chance=0.1), 40000,
              scope="one_rank one_node two_nodes", ranks=None),
        _kind("input-all", "input", _knob("slow_input", 0), 80000),
        _kind("input-host", "input", _host(input_us=...), 80000, **_ONE_HOST),
        _kind("input-intermittent", "input", _image(input_us=..., every=8), 400000),
        _kind("input-shard", "input", _image(input_us=..., shards=(6,)), 80000,
              mechanism="shard", ranks=frozenset({6})),
        _kind("copy", "copy", _knob("h2d_us", 800), 20000),
        _kind("allocator-retries", "memory", _knob("alloc_us", 0), 20000),
        _kind("memory-growth", "memory", _image(growth_us=..., hosts=("n3",), local=0), 20000,
              mechanism="slow_rank", ranks=frozenset({6})),
        _kind("checkpoint", "checkpoint", _knob("checkpoint_us", 2000, checkpoint_every=4), 60000),
        _kind("retries", "recovery", _image(retry_us=..., chance=0.3), 40000),
        _kind("latency", "transfer", _knob("fabric_delay_us", 100), 20000, mechanism="link collective",
              scope="two_nodes"),
        _kind("nvlink-host", "transfer", _host(inside=...), 40, placement=True, ranks=frozenset(BAD_RANKS),
              mechanism="collective slow_host", scope="one_node"),
        _kind("topology", "transfer", _image(racks_us=...), 20000, mechanism="link", scope="full two_nodes"),
        _kind("bandwidth", "transfer", _slow_link, 2000, mechanism="link", scope="two_nodes"),
        _kind("one-rail", "transfer", _image(across_us=..., rail=1), 20000, mechanism="link", scope="two_nodes",
              ranks=frozenset(EVERYWHERE[1::2])),
        _kind("congestion", "transfer", _image(episode_us=...), 40000, mechanism="link", scope="two_nodes"),
        _kind("overlap-lost", "transfer", _fabric({"overlap": True}, {"overlap": False}), 60,
              mechanism="collective link", scope="two_nodes"),
        _kind("bucket-size", "transfer", _fabric({"bucket_bytes": 196608}, {"bucket_bytes": 393216}), 60,
              mechanism="collective link", scope="two_nodes"),
        _kind("packing", "skew", _packing, 12.0, **_VARIES),
        _kind("os-jitter", "skew", _image(stall_us=..., chance=0.15), 40000, **_VARIES),
        _kind("expert-routing", "skew", _image(spread=...), 2.0, **_VARIES),
        _kind("unequal-stage", "pipeline", _image(compute=..., shards=EVERYWHERE[NODES:]), 2.0, pipeline=2,
              mechanism="pipeline shard", account="compute pipeline", ranks=frozenset(EVERYWHERE[NODES:]),
              scope="one_rank full"),
        _kind("compound", "compute", _compound, 1.0, mechanism="compute link", account="compute transfer",
              scope="one_rank two_nodes"),
    )
}  # fmt: skip


def shape_of(kind: Kind | None) -> JobShape:
    return JobShape(nodes=NODES, pipeline=kind.pipeline if kind else 1)
