"""The clocks of several hosts in a set of traces, related by the collectives that the hosts made together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from narrows.reducers.traces.kinds import SYMMETRIC_OPS
from narrows.reducers.traces.reduced import Collective, Reduced

if TYPE_CHECKING:
    from narrows.reducers.alignment import ClockDifference

Pair = dict[int, Collective]  # one call on each of its ranks
ENDS_AGREE_NS = 100_000
"""Ends of one collective on one clock. 8 real ranks agree within 7 us; two down-sampled traces of 128 differ by up to
134 ms."""
UNKNOWN_NS = 1 << 62  # longer than anything that a trace holds


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClocks:
    """How to put the times of every rank on one clock: that of the host of the lowest rank.

    ``differences`` holds every other host, each right within its epsilon. ``why_not`` is empty where all could be
    related; where it is not, times of different hosts cannot be compared.
    """

    host_of: Mapping[int, str]
    differences: Mapping[str, ClockDifference]
    middle_ns: int = 0
    why_not: str = ""

    @property
    def epsilon_ns(self) -> int:
        """The most that a time may be wrong against the reference."""
        return math.ceil(max((one.epsilon_ns for one in self.differences.values()), default=0))

    def error_ns(self, rank: int, other: int) -> int:
        """By how much the times of two ranks may be wrong against each other; 0 on one host."""
        hosts = {self.host_of[rank], self.host_of[other]}
        if len(hosts) == 1:
            return 0
        if self.why_not:
            return UNKNOWN_NS
        return math.ceil(sum(self.differences[host].epsilon_ns for host in hosts if host in self.differences))

    def mapped(self, pair: Pair) -> Pair:
        """The call with all its times on the reference's clock."""
        return {rank: self._onto_reference(call, self.host_of[rank]) for rank, call in pair.items()}

    def _onto_reference(self, call: Collective, host: str) -> Collective:
        difference = self.differences.get(host)
        if difference is None:
            return call
        times = np.array([call.start_ns, call.end_ns], np.int64)
        start, end = difference.onto_reference(times, self.middle_ns).tolist()
        return msgspec.structs.replace(call, start_ns=start, end_ns=end)


def clocks_of(ranks: Mapping[int, Reduced], sure: Sequence[Pair], by_order: Sequence[Pair]) -> HostClocks:
    """The clocks of the traces' hosts, related by the calls paired by sequence, else by those paired by order too.

    Traces that name one host or none are on one clock, unless a collective ended on one rank before another came to
    it: then every rank is taken for a host of its own.
    """
    named = {trace.host_name for trace in ranks.values() if trace.host_name}
    if len(named) > 1:
        host_of = {rank: trace.host_name or f"the host of rank {rank}" for rank, trace in ranks.items()}
    elif any(_contradicts(pair) for pair in sure):
        host_of = {rank: f"the host of rank {rank}" for rank in ranks}
    else:
        return HostClocks(host_of=dict.fromkeys(ranks, next(iter(named), "")), differences={})
    from narrows.reducers.traces.relating import relate_hosts  # it needs scipy, which one host does not

    found = relate_hosts(sure, host_of)
    return relate_hosts([*sure, *by_order], host_of) if found.why_not and by_order else found


def symmetric(pair: Pair) -> bool:
    return all(call.op.startswith(SYMMETRIC_OPS) for call in pair.values())


def _contradicts(pair: Pair) -> bool:
    first_end = min(call.end_ns for call in pair.values())
    return symmetric(pair) and max(call.start_ns for call in pair.values()) > first_end + ENDS_AGREE_NS
