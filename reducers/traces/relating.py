"""The clocks of hosts related by causality, from the collectives that they made together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

import numpy as np
import numpy.typing as npt

from narrows.reducers.alignment import ClockDifference, HostStamps, clock_difference
from narrows.reducers.traces.hosts import HostClocks, Pair, symmetric


def relate_hosts(pairs: Sequence[Pair], host_of: Mapping[int, str]) -> HostClocks:
    """The hosts' clocks related by causality: nobody leaves a symmetric collective before the last one came.

    A host that shares none with the reference is related through one that does, and the epsilons add up.
    Source: docs/method.md, clock alignment.
    """
    reference = host_of[min(host_of)]
    stamps = _stamps(pairs, host_of)
    middle_ns = median_low(stamps[reference].enter_ns_C.tolist()) if reference in stamps else 0
    known = {reference: stamps[reference]} if reference in stamps else {}
    differences: dict[str, ClockDifference] = {}
    clocks = HostClocks(host_of=host_of, differences=differences, middle_ns=middle_ns)
    missing = sorted(set(host_of.values()) - {reference})
    while missing:
        link = next(((host, over) for over in known for host in missing if _shared(stamps, host, known[over])), None)
        if link is None:
            why_not = f"{missing[0]} and {reference} share no collective that all members leave together"
            return replace(clocks, why_not=why_not)
        host, over = link
        found = clock_difference(known[over], stamps[host], middle_ns)
        if found is None:
            why_not = f"no steady difference of the clocks of {host} and {over} obeys all collectives"
            return replace(clocks, why_not=why_not)
        so_far_ns = differences[over].epsilon_ns if over in differences else 0.0
        differences[host] = replace(found, epsilon_ns=found.epsilon_ns + so_far_ns)
        known[host] = _on_reference(stamps[host], differences[host], middle_ns)
        missing.remove(host)
    return clocks


def _shared(stamps: Mapping[str, HostStamps], host: str, other: HostStamps) -> bool:
    return host in stamps and bool(np.isin(stamps[host].call_C, other.call_C).any())


def _on_reference(stamps: HostStamps, difference: ClockDifference, middle_ns: int) -> HostStamps:
    enter_ns_C, exit_ns_C = (
        difference.onto_reference(times, middle_ns) for times in (stamps.enter_ns_C, stamps.exit_ns_C)
    )
    return replace(stamps, enter_ns_C=enter_ns_C, exit_ns_C=exit_ns_C)


def _stamps(pairs: Sequence[Pair], host_of: Mapping[int, str]) -> dict[str, HostStamps]:
    """For each host the last enter and the first exit of every symmetric collective that it was in."""
    rows: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for index, pair in enumerate(pairs):
        if not symmetric(pair):
            continue
        for host in {host_of[rank] for rank in pair}:
            here = [call for rank, call in pair.items() if host_of[rank] == host]
            rows[host].append((index, max(call.start_ns for call in here), min(call.end_ns for call in here)))
    return {host: _host_stamps(np.array(found, np.int64)) for host, found in rows.items()}


def _host_stamps(rows: npt.NDArray[np.int64]) -> HostStamps:
    return HostStamps(call_C=rows[:, 0], enter_ns_C=rows[:, 1], exit_ns_C=rows[:, 2])
