"""What a run directory holds once read: compact arrays per rank, on one clock for the whole run.

Shape legend: N records of one rank, M spans of one rank, K clock pairs of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

ABSENT = -1
"""Stands in integer columns for what the record did not say (pair, batch, peer, step of a collective)."""


class LossKind(StrEnum):
    """What was dropped or changed while reading, always counted."""

    TORN_LINE = "torn line"
    MISSING_RANK = "missing rank"
    UNPLACED_RANK = "rank without placement"
    MISSING_FILE = "missing file"
    CLIPPED_SPAN = "clipped span"
    UNKNOWN_SPAN = "span of an unknown name"
    GAP = "time between two steps of one segment"
    UNFINISHED_CALL = "collective that never ended"
    INCOMPLETE_STEP = "step missing on some rank"
    CLOCK_STEP = "clock that stepped during the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Something a reader did without: ``count`` things at ``place``, a path inside the run directory."""

    kind: LossKind
    place: str
    count: int
    detail: str = ""


class Alignment(StrEnum):
    """How times of different ranks became comparable."""

    SAME_BOOT = "same-boot"
    UNIX = "unix"
    COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The run's common clock. ``epsilon_ns`` bounds what is known of the error between two ranks.

    On ``unix`` it is the spread of each host's own clock pairs: how far the wall clocks of two hosts disagree is
    not in them. On ``collectives`` it is the widest half-width that causality leaves.
    """

    aligned: Alignment
    epsilon_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecords:
    """The steps of one rank in the order written; ``readings`` holds every numeric column under its dotted name.

    A reading is NaN where the record did not hold it: ``useful.valid_tokens``, ``parts_us.input``, ``loss``,
    ``grad_norm``, ``memory.peak_bytes``.
    """

    step_N: I64
    segment_N: I64
    pair_N: I64
    batch_N: I64
    warmup_N: Bool
    start_ns_N: I64
    end_ns_N: I64
    readings: dict[str, F64]
    span_names: tuple[str, ...]
    span_name_M: I64
    span_start_ns_M: I64
    span_end_ns_M: I64

    def __len__(self) -> int:
        return len(self.step_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecords:
    """The collectives of one rank in the order written; ``group_N`` and ``op_N`` index the two name tuples."""

    groups: tuple[str, ...]
    ops: tuple[str, ...]
    group_N: I64
    op_N: I64
    seq_N: I64
    payload_bytes_N: I64
    enter_ns_N: I64
    end_ns_N: I64
    step_N: I64
    segment_N: I64
    p2p_N: Bool
    peer_N: I64
    device_us_N: F64

    def __len__(self) -> int:
        return len(self.seq_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPairs:
    """Readings of both clocks of a rank's host, as written: never mapped."""

    monotonic_ns_K: I64
    unix_ns_K: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """Everything one rank wrote; step and collective times are on the run's common clock."""

    rank: int
    host: str
    steps: StepRecords
    collectives: CollectiveRecords
    clock: ClockPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory, read whole, with what was lost listed.

    ``groups`` maps a group's name to its member ranks. Where several groups share a role name (``dp`` of two
    tensor-parallel ranks), the name holds the members: ``dp[0,2]``. ``digest`` is a SHA-256 over the names and the
    digests of the files read, so that it changes when any byte of the evidence does.
    """

    path: Path
    name: str
    arm: str | None
    launch: str | None
    manifest: dict[str, Any]
    ranks: dict[int, RankRecords]
    groups: dict[str, tuple[int, ...]]
    losses: tuple[Loss, ...]
    clock: Clock
    digest: str
