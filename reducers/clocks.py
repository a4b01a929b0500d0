"""Which clock the ranks of one run share, and by how much each host's monotonic clock is moved to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.records import Alignment, Clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrows.reducers.records import I64, RankRecords

SAME_CLOCK_EPSILON_NS = 1_000
"""Two stamps of one clock order two events no better than this: taking a stamp and the call that follows it are
separate Python operations, about a microsecond apart."""


def host_clocks(ranks: Mapping[int, RankRecords], boot_ids: Mapping[str, str]) -> tuple[Clock, dict[str, int]]:
    """The common clock, and ns to add to each host's monotonic times; none where one boot is shared by all.

    Ranks of one host share one clock, so a host has one offset: the median over the clock pairs of all its ranks. A
    host that wrote nothing but headers has no time to move; where no rank finished a step, or one host alone has times,
    nothing will be compared, and a host without a pair keeps its own clock.

    Raises RunDirectoryError when hosts do not share a boot and one of them has times and no clock pair.
    """
    hosts = sorted({records.host for records in ranks.values()})
    boots = {boot_ids.get(host) for host in hosts}
    timed = {records.host for records in ranks.values() if len(records.steps) or len(records.collectives)}
    if len(hosts) == 1 or (len(boots) == 1 and None not in boots):
        return Clock(aligned=Alignment.SAME_BOOT, epsilon_ns=SAME_CLOCK_EPSILON_NS), {}
    offsets_ns = {host: _pair_offsets(ranks, host) for host in hosts}
    compared = len(timed) > 1 and any(len(records.steps) for records in ranks.values())
    for host in sorted(timed):
        if compared and not offsets_ns[host].size:
            raise RunDirectoryError(
                f"host {host!r} has no pair of clock readings and its boot differs from the others' or is unknown, so "
                "times of different hosts cannot be compared (a run stopped while it started leaves this): start the "
                "run again, record clock.jsonl, or read the hosts' ranks as separate runs"
            )
    # Whole nanoseconds: shifting every stamp of a host by an integer leaves each of its durations as it was.
    known = {host: offset_ns_K for host, offset_ns_K in offsets_ns.items() if offset_ns_K.size}
    medians = {host: int(np.sort(offset_ns_K)[(offset_ns_K.size - 1) // 2]) for host, offset_ns_K in known.items()}
    spread = max((int(np.abs(offset_ns_K - medians[host]).max()) for host, offset_ns_K in known.items()), default=0)
    return (
        Clock(aligned=Alignment.UNIX, epsilon_ns=max(spread, SAME_CLOCK_EPSILON_NS)),
        {host: medians.get(host, 0) for host in hosts},
    )


def _pair_offsets(ranks: Mapping[int, RankRecords], host: str) -> I64:
    pairs = [records.clock for records in ranks.values() if records.host == host]
    return np.concatenate([pair.unix_ns_K - pair.monotonic_ns_K for pair in pairs])
