"""Faults that no configuration names: they live in hosts, links, data, or in the image that an arm starts.

They are the simulator's truth. Nothing of them is written into a run directory but what they do to its times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. It acts where every condition that is given holds: image (the arm's ``label``), host, local rank,
    shard. Times are in us a step (``*_us``) unless said otherwise; ``chance`` and ``every`` make it intermittent.
    """

    image: str | None = None
    hosts: tuple[str, ...] = ()
    local: int | None = None
    shards: tuple[int, ...] = ()
    compute: float = 0.0
    """Added to 1 and multiplied with every kernel's length."""
    drift: float = 0.0
    """As ``compute``, reached over the run with a time constant of a third of it."""
    executed: float = 0.0
    """Work that is executed on top, and counted: a share of the layers' kernels."""
    spread: float = 0.0
    """Layers' kernels are longer by an exponential share with this mean, drawn for each rank and step."""
    launch_us: float = 0.0
    input_us: float = 0.0
    growth_us: float = 0.0
    """Allocator time that grows linearly to twice this at the end of a run."""
    pause_us: float = 0.0
    """Garbage collection, with ``chance`` in each step of each rank on its own."""
    stall_us: float = 0.0
    """The operating system takes a rank's host away, with ``chance`` in each step of each rank on its own."""
    retry_us: float = 0.0
    """A retry of the whole job, with ``chance`` in each step."""
    inside: float = 0.0
    """Added to 1 and multiplied with the service of collectives inside a host."""
    rail: int | None = None
    across_us: float = 0.0
    """Added to each collective that crosses hosts: on one rail where ``rail`` says so."""
    racks_us: float = 0.0
    """Added to each collective that crosses racks (of four hosts)."""
    episode_us: float = 0.0
    """Added to each collective that crosses hosts while an episode lasts."""
    chance: float = 1.0
    every: int = 1

    def reaches(self, config: Mapping[str, Any]) -> bool:
        """Whether an arm with this configuration meets the fault at all."""
        return self.image is None or config.get("label") == self.image

    def ranks(self, hosts: Sequence[str], locals_: Sequence[int], shards: Sequence[int]) -> list[bool]:
        """For each rank, whether it is one that the fault acts on."""
        return [
            (not self.hosts or host in self.hosts)
            and (self.local is None or self.local == local)
            and (not self.shards or shard in self.shards)
            for host, local, shard in zip(hosts, locals_, shards, strict=True)
        ]
