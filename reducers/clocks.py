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

    Ranks of one host share one clock, so a host has one offset: the median over the clock pairs of all its ranks.

    Raises RunDirectoryError when hosts do not share a boot and one of them has no clock pair.
    """
    hosts = sorted({records.host for records in ranks.values()})
    boots = {boot_ids.get(host) for host in hosts}
    if len(hosts) == 1 or (len(boots) == 1 and None not in boots):
        return Clock(aligned=Alignment.SAME_BOOT, epsilon_ns=SAME_CLOCK_EPSILON_NS), {}
    offsets_ns = {host: _pair_offsets(ranks, host) for host in hosts}
    for host, offset_ns_K in offsets_ns.items():
        if not offset_ns_K.size:
            raise RunDirectoryError(
                f"host {host!r} has no pair of clock readings and its boot differs from the others'; times of "
                "different hosts cannot be compared: record clock.jsonl, or read the hosts' ranks as separate runs"
            )
    # Whole nanoseconds: shifting every stamp of a host by an integer leaves each of its durations as it was.
    medians = {host: int(np.sort(offset_ns_K)[(offset_ns_K.size - 1) // 2]) for host, offset_ns_K in offsets_ns.items()}
    spread = max(int(np.abs(offset_ns_K - medians[host]).max()) for host, offset_ns_K in offsets_ns.items())
    return Clock(aligned=Alignment.UNIX, epsilon_ns=max(spread, SAME_CLOCK_EPSILON_NS)), medians


def _pair_offsets(ranks: Mapping[int, RankRecords], host: str) -> I64:
    pairs = [records.clock for records in ranks.values() if records.host == host]
    return np.concatenate([pair.unix_ns_K - pair.monotonic_ns_K for pair in pairs])
