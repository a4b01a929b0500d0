"""Faults that real ranks play, beside those that a knob of the workload stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from simulation.faults import Fault

VARIABLE = "PLANTED_FAULTS"
"""Carries the faults to the ranks. It is none of the variables that a manifest keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault(Fault):
    """A fault of real ranks: the simulator's fields, and two that take real memory and real waits."""

    churn_us: float = 0.0
    """Fresh memory is mapped, touched and given back in every step, over and over, for at least this long."""
    fsync_us: float = 0.0
    """A checkpoint reaches the disk this much later."""


def packed(faults: Iterable[RankFault]) -> str:
    """The faults as the text that ``unpacked`` reads."""
    return json.dumps([asdict(fault) for fault in faults])


def unpacked(text: str) -> tuple[RankFault, ...]:
    """The faults that ``packed`` wrote."""
    found = []
    for one in json.loads(text):
        one["hosts"], one["shards"] = tuple(one["hosts"]), tuple(one["shards"])
        found.append(RankFault(**one))
    return tuple(found)
