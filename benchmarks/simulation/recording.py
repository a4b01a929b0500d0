"""What one segment of one arm did, as arrays, before it is written.

Shape legend: S steps, R ranks that take part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Call:
    """One collective of every group of a role at one step; -1 in ``group_R`` where a rank takes no part."""

    role: str
    op: str
    payload_bytes: int
    group_R: NDArray[np.int64]
    enter_R: F64
    end_R: F64
    p2p: bool = False
    peer_R: NDArray[np.int64] | None = None


@dataclass(slots=True, kw_only=True)
class StepEvents:
    """One step: spans by name with begin and end on every rank, collectives, work, loss. Times in ns."""

    start_R: F64
    end_R: F64
    spans: list[tuple[str, F64, F64]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    useful: dict[str, F64] = field(default_factory=dict)
    loss: float = 0.0
    batch: int = 0


@dataclass(slots=True, kw_only=True)
class Recording:
    """A segment: who took part where, in which groups, and its steps. ``ranks`` are those of the launch."""

    segment: int
    pair: int
    washout: int
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    locals: tuple[int, ...]
    groups: dict[str, list[tuple[int, ...]]]
    steps: list[StepEvents] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return int(np.ceil(self.steps[-1].end_R.max()))
