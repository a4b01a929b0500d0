"""The traces of several ranks side by side: the same collective on each, who came last, and how long the others waited.

One rank's collective kernel spins from its own start until all have come, so its length alone says nothing of the
network: the rank with the longest one waited, it is not the one that was late.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import msgspec
from msgspec import Struct

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.reduced import SCHEMA, Collective, Reduced

# Where traces name no sequence, collectives may be paired by their order, but only if all ranks are there, made the
# same calls, and saw each end at the same time. 8 real ranks on one clock agree within 7 us; two down-sampled traces
# of 128 differ by up to 134 ms.
ENDS_AGREE_NS = 100_000
LEAST_COVERAGE = 0.95


class Arrival(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective on all its ranks: its last arriver, how far apart they came, and what it took after that."""

    op: str
    group: str | None = None
    seq: int | None = None
    index: int  # in order of the last arrivals
    last_arrival_ns: int
    payload_bytes: int | None = None
    last_rank: int
    skew_ns: int  # from the first arrival to the last
    transfer_ns: int  # median over ranks, after the last arrival
    wait_ns: dict[int, int]  # for each rank, until the last arrival
    end_spread_ns: int


class AcrossRanks(Struct, frozen=True, kw_only=True):
    """What the traces of several ranks say together. ``conclusive`` only with enough of the collectives matched."""

    ranks: list[int]
    matched_by: str  # sequence, order, sequence and order, none
    coverage: float  # share of the collectives' records that could be matched
    conclusive: bool
    collectives: list[Arrival]
    last_arrivals: dict[int, int]  # how often each rank came last
    last_most: int | None
    wait_ns: dict[int, int]  # for each rank, summed
    waits_most: int | None
    skew_ns: int  # waiting, mean over ranks
    transfer_ns: int  # after the last arrival, summed over the matched
    notes: list[str]


Key = tuple[str, ...]
Calls = dict[int, list[Collective]]  # by rank, in order of time


def across_ranks(traces: Sequence[Reduced]) -> AcrossRanks:
    """Collectives matched by group and sequence; by order only where that is checked; never by guess.

    Raises TraceError when two traces are of the same rank or one does not say its rank.
    """
    ranks = _by_rank(traces)
    notes: list[str] = []
    groups = _groups(ranks)
    total = sum(len(calls) for members in groups.values() for calls in members.values())
    if len({trace.clock for trace in traces}) > 1 or any(trace.clock == "trace_ns" for trace in traces):
        notes.append("times are not absolute on every rank (no baseTimeNanoseconds): nothing can be compared")
        groups = {}
    arrivals: list[Arrival] = []
    matched, ways = 0, set()
    for members in groups.values():
        pairs, way = _match(members, ranks, notes)
        ways.update([way] if pairs else [])
        matched += sum(len(pair) for pair in pairs)
        arrivals.extend(_arrival(pair) for pair in pairs)
    hosts = {trace.host_name for trace in traces if trace.host_name}
    if len(hosts) > 1:
        notes.append(f"the ranks are on {len(hosts)} hosts, whose clocks were not aligned: skew and transfer mix")
    return _summary(ranks, arrivals, matched / total if total else 0.0, sorted(ways), notes, one_clock=len(hosts) <= 1)


def _by_rank(traces: Sequence[Reduced]) -> dict[int, Reduced]:
    ranks: dict[int, Reduced] = {}
    for trace in traces:
        if trace.rank is None:
            raise TraceError("a trace does not say its rank (no distributedInfo): it cannot be put beside others")
        if trace.rank in ranks:
            raise TraceError(f"two traces are of rank {trace.rank}; give one trace for each rank")
        ranks[trace.rank] = trace
    return dict(sorted(ranks.items()))


def _groups(ranks: dict[int, Reduced]) -> dict[Key, Calls]:
    """Each group's calls by rank. Point-to-point calls have no arrival of a group and are left out."""
    groups: dict[Key, Calls] = defaultdict(lambda: defaultdict(list))
    for rank, trace in ranks.items():
        for call in trace.collectives:
            if not call.p2p:
                groups[call.group or "", call.group_ranks or ""][rank].append(call)
    return dict(groups)


def _members(calls: Calls, ranks: dict[int, Reduced]) -> int | None:
    """How many ranks the group has: from its metadata, else the whole world."""
    sample = next(call for rank_calls in calls.values() for call in rank_calls)
    listed = re.findall(r"\d+", sample.group_ranks or "") if "..." not in (sample.group_ranks or "") else []
    world = next((trace.world_size for trace in ranks.values() if trace.world_size), None)
    return sample.group_size or len(listed) or world


def _match(calls: Calls, ranks: dict[int, Reduced], notes: list[str]) -> tuple[list[dict[int, Collective]], str]:
    size = _members(calls, ranks)
    name = next(call for rank_calls in calls.values() for call in rank_calls).group
    label = f"group {name}" if name is not None else "collectives without a group"
    if size is None or len(calls) < size:
        of = "an unknown number of" if size is None else str(size)
        notes.append(f"{label}: traces of {len(calls)} of {of} ranks: who came last cannot be known")
        return [], "none"
    if all(call.seq is not None for rank_calls in calls.values() for call in rank_calls):
        return _by_sequence(calls), "sequence"
    pairs, why_not = _by_order(calls)
    if why_not:
        notes.append(f"{label}: no sequence numbers, and pairing by order fails: {why_not}")
    return pairs, "order"


def _by_sequence(calls: Calls) -> list[dict[int, Collective]]:
    """The calls that all ranks made. A coalesced call has several kernels of one sequence number, told by order."""
    found: dict[tuple[int, int], dict[int, Collective]] = defaultdict(dict)
    for rank, rank_calls in calls.items():
        seen: Counter[int] = Counter()
        for call in rank_calls:
            assert call.seq is not None, "checked by the caller"
            found[call.seq, seen[call.seq]][rank] = call
            seen[call.seq] += 1
    return [pair for pair in found.values() if len(pair) == len(calls) and len({c.op for c in pair.values()}) == 1]


def _by_order(calls: Calls) -> tuple[list[dict[int, Collective]], str]:
    """The calls paired by order, or nothing and the reason."""
    counts = {len(rank_calls) for rank_calls in calls.values()}
    if len(counts) > 1:
        return [], f"the ranks made {min(counts)} to {max(counts)} calls"
    pairs = [dict(zip(calls, row, strict=True)) for row in zip(*calls.values(), strict=True)]
    for index, pair in enumerate(pairs):
        if len({(call.op, call.payload_bytes) for call in pair.values()}) > 1:
            return [], f"call {index} is not the same on all ranks"
        if _end_spread(pair.values()) > ENDS_AGREE_NS:
            return [], f"call {index} ends up to {_end_spread(pair.values()) / 1e3:,.0f} us apart"
        if max(call.start_ns for call in pair.values()) > min(call.end_ns for call in pair.values()) + ENDS_AGREE_NS:
            return [], f"call {index} ended on one rank before another came"
    return pairs, ""


def _end_spread(pair: Iterable[Collective]) -> int:
    ends = [call.end_ns for call in pair]
    return max(ends) - min(ends)


def _arrival(pair: dict[int, Collective]) -> Arrival:
    last_rank = max(pair, key=lambda rank: (pair[rank].start_ns, -rank))
    last = pair[last_rank].start_ns
    call = pair[last_rank]
    return Arrival(
        op=call.op,
        group=call.group,
        seq=call.seq,
        index=-1,
        last_arrival_ns=last,
        payload_bytes=call.payload_bytes,
        last_rank=last_rank,
        skew_ns=last - min(entry.start_ns for entry in pair.values()),
        transfer_ns=median_low([max(0, entry.end_ns - last) for entry in pair.values()]),
        wait_ns={rank: min(entry.end_ns, last) - entry.start_ns for rank, entry in pair.items()},
        end_spread_ns=_end_spread(pair.values()),
    )


def _summary(
    ranks: dict[int, Reduced],
    arrivals: list[Arrival],
    coverage: float,
    ways: list[str],
    notes: list[str],
    *,
    one_clock: bool,
) -> AcrossRanks:
    ordered = sorted(arrivals, key=lambda entry: entry.last_arrival_ns)
    numbered = [msgspec.structs.replace(entry, index=index) for index, entry in enumerate(ordered)]
    waits = {rank: sum(entry.wait_ns.get(rank, 0) for entry in numbered) for rank in ranks}
    last = Counter(entry.last_rank for entry in numbered)
    if coverage < LEAST_COVERAGE:
        notes.append(f"only {coverage:.0%} of the collectives could be matched; under {LEAST_COVERAGE:.0%} is no basis")
    return AcrossRanks(
        ranks=list(ranks),
        matched_by=" and ".join(reversed(ways)) or "none",
        coverage=coverage,
        conclusive=coverage >= LEAST_COVERAGE and one_clock,
        collectives=numbered,
        last_arrivals={rank: last[rank] for rank in ranks if last[rank]},
        last_most=max(last, key=lambda rank: (last[rank], -rank)) if last else None,
        wait_ns=waits if numbered else {},
        waits_most=max(waits, key=lambda rank: (waits[rank], -rank)) if numbered else None,
        skew_ns=sum(waits.values()) // len(ranks),
        transfer_ns=sum(entry.transfer_ns for entry in numbered),
        notes=notes,
    )


def encode_all(traces: Mapping[str, Reduced], across: AcrossRanks | None, failed: Mapping[str, str]) -> bytes:
    """Several reduced traces by path, what they say together, and which could not be read, as one line of JSON."""
    whole = {
        "schema": SCHEMA,
        "kind": "reduced_traces",
        "traces": traces,
        "across_ranks": across,
        "failed": failed,
    }
    return msgspec.json.encode(whole)


def with_sublabel(trace: Reduced, across: AcrossRanks) -> Reduced:
    """The trace with its communication label split into skew or transfer, where the ranks' traces tell them apart."""
    label = trace.label
    if label is None or label.label != "communication" or not across.conclusive or trace.rank is None:
        return trace
    sublabel = "skew" if across.wait_ns.get(trace.rank, 0) > across.transfer_ns else "transfer"
    return msgspec.structs.replace(trace, label=msgspec.structs.replace(label, sublabel=sublabel))
