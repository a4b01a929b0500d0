"""The job and who plays it: its shape, the ranks that take part, their groups, and the state of one segment.

Shape legend: R ranks that take part, G groups, M members of a group. Times in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulation.faults import Fault
from simulation.noise import Noise
from simulation.recording import StepEvents

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """The job at full scale: ``tensor`` ranks of one host share a layer, ``pipeline`` stages are whole hosts."""

    nodes: int = 8
    ranks_per_node: int = 2
    tensor: int = 2
    pipeline: int = 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def stage(self, shard: int) -> int:
        return shard // self.ranks_per_node * self.pipeline // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """The ranks that play a segment: number in the launch, host, place in the host, part of the full-scale job."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    locals: tuple[int, ...]
    shards: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Team:
    """The groups of one role among the seats; groups of one rank do not communicate."""

    role: str
    members: list[I64]
    group_R: I64
    crossing: list[bool]
    racks: list[bool]
    free: F64

    def enter(self, at_R: F64, service_G: F64, *, queue: bool = False) -> F64:
        """When each rank leaves a collective that it entered at ``at_R``. Queued calls of a group follow each other."""
        end_R = at_R.copy()
        for g, members in enumerate(self.members):
            begin = at_R[members].max()
            if queue:
                begin = max(begin, self.free[g])
            self.free[g] = begin + service_G[g]
            end_R[members] = self.free[g]
        return end_R


def team(role: str, keys: Sequence[object], hosts: Sequence[str], racks: Mapping[str, int]) -> Team:
    """Seats with the same key form a group."""
    by_key: dict[object, list[int]] = {}
    for at, key in enumerate(keys):
        by_key.setdefault(key, []).append(at)
    members = [np.array(one) for one in by_key.values() if len(one) > 1]
    group_R = np.full(len(keys), -1)
    for g, one in enumerate(members):
        group_R[one] = g
    names = [{hosts[at] for at in one} for one in members]
    return Team(
        role=role, members=members, group_R=group_R, free=np.zeros(len(members)),
        crossing=[len(one) > 1 for one in names],
        racks=[len({racks.get(host, 0) for host in one}) > 1 for one in names],
    )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Segment:
    """Everything that one segment needs, and its state as it is played."""

    config: Mapping[str, Any]
    shape: JobShape
    seats: Seats
    faults: Sequence[Fault]
    noise: Noise
    rng: np.random.Generator
    seed: int
    factor: float
    device_R: F64
    racks: Mapping[str, int]
    tensor: Team = field(init=False)
    data: Team = field(init=False)
    events: StepEvents = field(init=False)
    now_R: F64 = field(init=False)
    job: float = field(init=False)
    episode: bool = field(init=False, default=False)
    totals: dict[str, F64] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shards, width = self.seats.shards, self.shape.tensor
        self.tensor = team("tp", [shard // width for shard in shards], self.seats.hosts, self.racks)
        keys = [(self.shape.stage(shard), shard % width) for shard in shards]
        self.data = team("dp", keys, self.seats.hosts, self.racks)
        self.faults = [fault for fault in self.faults if fault.reaches(self.config)]

    def on(self, fault: Fault) -> NDArray[np.bool_]:
        seats = self.seats
        return np.array(fault.ranks(seats.hosts, seats.locals, seats.shards))

    def total(self, name: str) -> F64:
        """The sum of a fault field over the faults that act on each rank."""
        if name not in self.totals:
            found = np.zeros(len(self.seats.ranks))
            for fault in self.faults:
                found += self.on(fault) * getattr(fault, name)
            self.totals[name] = found
        return self.totals[name]

    def span(self, name: str, length_R: F64 | float) -> None:
        length = np.broadcast_to(np.asarray(length_R, dtype=np.float64), self.now_R.shape)
        if length.any():
            self.events.spans.append((name, self.now_R, self.now_R + length))
            self.now_R = self.now_R + length

    def kernel(self, name: str, length_R: F64 | float) -> None:
        jitter = 1 + self.config["jitter"] * self.rng.exponential(size=len(self.now_R))
        self.span(name, np.asarray(length_R) * self.slow_R * jitter)

    # What a rank's kernels are stretched by at this step; set by ``play``.
    slow_R: F64 = field(init=False)


def placed_factor(config: Mapping[str, Any], seats: Seats) -> F64:
    """What the knobs that name a place do to the kernels of each rank."""
    found = np.full(len(seats.ranks), float(config["compute_scale"]))
    rank, host = config.get("slow_rank"), config.get("slow_host")
    for at, (number, name, local) in enumerate(zip(seats.ranks, seats.hosts, seats.locals, strict=True)):
        if rank is not None:
            wanted = rank.get("rank", 0)
            where = rank.get("host", "")
            if (name == where and local == wanted) if where else number == wanted:
                found[at] *= rank.get("factor", 1.12)
        if host is not None and host["host"] == name:
            found[at] *= host.get("factor", 1.12)
    return found
