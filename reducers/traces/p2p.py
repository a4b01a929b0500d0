"""Sends and receives of several ranks' traces, paired, and how long each side waited for the other to start.

Such a wait is pipeline time: a stage that has nothing to do until its neighbour is ready.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median_low

from msgspec import Struct

from narrows.reducers.traces.hosts import ENDS_AGREE_NS, HostClocks, Pair
from narrows.reducers.traces.reduced import Collective, Reduced

Way = tuple[str, int, int]  # group, source, destination
Ways = dict[Way, list[Collective]]


class PointToPoint(Struct, frozen=True, kw_only=True):
    """What the sends and receives say together. A side waits from its own start until the other starts."""

    matched: int  # pairs of a send and its receive
    coverage: float  # share of the sends and receives in the traces that are in a pair
    wait_ns: dict[int, int]  # for each rank, summed: pipeline time
    service_ns: dict[int, int]  # for each rank, summed, from the later start on
    late_starts: dict[int, int]  # how often each rank was the one that started later
    undecided: int  # pairs whose starts are closer than the clocks are known
    transfer_ns: int  # after the later start, median of both sides, summed over the pairs
    notes: list[str]


def point_to_point(ranks: Mapping[int, Reduced], clocks: HostClocks) -> PointToPoint | None:
    """Sends and receives matched by group, source and destination, in their order; None when there are none.

    Where the two sides of a way made different calls, none of its calls is matched and a note says why: a trace that
    lacks one call would shift all the others.
    """
    calls = [call for trace in ranks.values() for call in trace.collectives if call.p2p]
    if not calls:
        return None
    sends, receives = _ways(ranks)
    notes = _notes_of_nameless(calls)
    pairs: list[tuple[Pair, Way]] = []
    for way in sorted(set(sends) | set(receives)):
        found, why_not = _paired(sends.get(way, []), receives.get(way, []), way, clocks)
        pairs += [(pair, way) for pair in found]
        if why_not:
            notes.append(f"sends of rank {way[1]} to rank {way[2]} are not matched: {why_not}")
    return _summed([pair for pair, _ in pairs], 2 * len(pairs) / len(calls), notes, clocks)


def _notes_of_nameless(calls: list[Collective]) -> list[str]:
    nameless = sum(call.peer is None for call in calls)
    return [f"{nameless} sends or receives name no peer and are not matched"] if nameless else []


def _ways(ranks: Mapping[int, Reduced]) -> tuple[Ways, Ways]:
    """The sends and the receives, by where from and where to, in order of time. One that names no peer is left out."""
    sends: Ways = defaultdict(list)
    receives: Ways = defaultdict(list)
    for rank, trace in ranks.items():
        for call in trace.collectives:
            if not call.p2p or call.peer is None:
                continue
            group = f"{call.group or ''} {call.group_ranks or ''}"
            if call.op == "send":
                sends[group, rank, call.peer].append(call)
            else:
                receives[group, call.peer, rank].append(call)
    return sends, receives


def _paired(
    sends: list[Collective], receives: list[Collective], way: Way, clocks: HostClocks
) -> tuple[list[Pair], str]:
    """The pairs on the reference's clock, or none and the reason."""
    _, source, target = way
    if source == target:
        return [], "a rank waits for no other there"
    lacking = [rank for rank in (source, target) if rank not in clocks.host_of]
    if lacking:
        return [], f"no trace of rank {lacking[0]}"
    if len(sends) != len(receives):
        return [], f"{len(sends)} sends and {len(receives)} receives are in the traces"
    slack_ns = ENDS_AGREE_NS + clocks.error_ns(source, target)
    pairs = [clocks.mapped({source: one, target: other}) for one, other in zip(sends, receives, strict=True)]
    for index, pair in enumerate(pairs):
        send, receive = pair[source], pair[target]
        if send.payload_bytes != receive.payload_bytes:
            return [], f"number {index} is not of one size on both sides"
        if receive.end_ns + slack_ns < send.start_ns:
            return [], f"number {index} was received before it was sent"
    return pairs, ""


def _summed(pairs: list[Pair], coverage: float, notes: list[str], clocks: HostClocks) -> PointToPoint:
    waits: Counter[int] = Counter()
    services: Counter[int] = Counter()
    late: Counter[int] = Counter()
    undecided = transfer_ns = 0
    for pair in pairs:
        later = max(call.start_ns for call in pair.values())
        after = {rank: max(0, call.end_ns - later) for rank, call in pair.items()}
        for rank, call in pair.items():
            services[rank] += after[rank]
            waits[rank] += call.end_ns - call.start_ns - after[rank]
        apart_ns = later - min(call.start_ns for call in pair.values())
        if apart_ns <= clocks.error_ns(*pair):
            undecided += 1
        else:
            late[max(pair, key=lambda rank: pair[rank].start_ns)] += 1
        transfer_ns += median_low(after.values())
    return PointToPoint(
        matched=len(pairs),
        coverage=coverage,
        wait_ns=dict(sorted(waits.items())),
        service_ns=dict(sorted(services.items())),
        late_starts=dict(sorted(late.items())),
        undecided=undecided,
        transfer_ns=transfer_ns,
        notes=notes,
    )
