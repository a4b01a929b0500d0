"""The traces of several ranks side by side: the same collective on each, who came last, and how long the others waited.

One rank's collective kernel spins from its own start until all have come, so its length alone says nothing of the
network: the rank with the longest one waited, it is not the one that was late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, median_low

import msgspec
from msgspec import Struct

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.hosts import HostClocks, Pair, clocks_of
from narrows.reducers.traces.matching import checked, end_spread, groups_of, match_group
from narrows.reducers.traces.p2p import PointToPoint, point_to_point
from narrows.reducers.traces.reduced import SCHEMA, Reduced

LEAST_COVERAGE = 0.95
TOLERATED_ERROR = 0.25
"""Of the time in the collectives of several hosts: the share that the clocks' error may move between skew and
transfer. It is the share by which an account may miss a loss and still close (docs/method.md)."""


class Arrival(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective on all its ranks: its last arriver, how far apart they came, and what it took after that.

    Times of several hosts are on the clock of the lowest rank's host. ``last_rank`` came last by these times;
    ``maybe_last`` are the ranks of other hosts that may have been later, because the clocks are not known better.
    """

    op: str
    group: str | None = None
    seq: int | None = None
    index: int  # in order of the last arrivals
    last_arrival_ns: int
    payload_bytes: int | None = None
    last_rank: int
    maybe_last: list[int] = []
    skew_ns: int  # from the first arrival to the last
    transfer_ns: int  # median over ranks, after the last arrival
    wait_ns: dict[int, int]  # for each rank, until the last arrival
    end_spread_ns: int


class AcrossRanks(Struct, frozen=True, kw_only=True):
    """What the traces of several ranks say together.

    ``conclusive`` only with enough of the calls matched, and with clocks that are known well enough for what is split.
    """

    ranks: list[int]
    matched_by: str  # sequence, order, sequence and order, none
    coverage: float  # share of the collectives' records that could be matched
    clocks: str  # one; collectives: of several hosts, related by what they made together; unknown
    epsilon_ns: int  # the most by which a host's clock may be wrong against the lowest rank's; an error of the split
    conclusive: bool
    collectives: list[Arrival]
    last_arrivals: dict[int, int]  # how often each rank came last, where that is decided
    undecided: int  # collectives whose last arrivals are closer than the clocks are known
    last_most: int | None
    wait_ns: dict[int, int]  # for each rank, summed
    waits_most: int | None
    service_ns: dict[int, int]  # for each rank, summed, from the last arrivals on
    skew_ns: int  # waiting, mean over ranks
    transfer_ns: int  # after the last arrival, summed over the matched
    p2p: PointToPoint | None  # sends and receives; null where there are none
    notes: list[str]


def across_ranks(traces: Sequence[Reduced]) -> AcrossRanks:
    """Collectives matched by group and sequence; by order only where that is checked; never by guess.

    Raises TraceError when two traces are of the same rank or one does not say its rank.
    """
    ranks = _by_rank(traces)
    notes: list[str] = []
    groups = groups_of(ranks)
    total = sum(len(calls) for members in groups.values() for calls in members.values())
    absolute = all(trace.clock == "unix_ns" for trace in traces)
    p2p_only = absolute and not total and any(trace.collectives for trace in traces)
    if not absolute:
        notes.append("times are not absolute on every rank (no baseTimeNanoseconds): nothing can be compared")
    found = [match_group(members, ranks, notes) for members in groups.values()] if absolute else []
    sure, ordered = ([pair for one in found if one.way == way for pair in one.pairs] for way in ("sequence", "order"))
    clocks = clocks_of(ranks, sure, ordered)
    found = [checked(one, clocks, notes) for one in found]
    pairs = [pair for one in found for pair in one.pairs]
    matched = sum(len(pair) for pair in pairs)
    return _summary(
        ranks,
        pairs,
        coverage=matched / total if total else float(p2p_only),
        ways=sorted({one.way for one in found if one.pairs}),
        notes=notes,
        clocks=clocks,
        p2p=point_to_point(ranks, clocks) if absolute else None,
    )


def _by_rank(traces: Sequence[Reduced]) -> dict[int, Reduced]:
    ranks: dict[int, Reduced] = {}
    for trace in traces:
        if trace.rank is None:
            raise TraceError("a trace does not say its rank (no distributedInfo): it cannot be put beside others")
        if trace.rank in ranks:
            raise TraceError(f"two traces are of rank {trace.rank}; give one trace for each rank")
        ranks[trace.rank] = trace
    return dict(sorted(ranks.items()))


def _arrival(pair: Pair, clocks: HostClocks) -> Arrival:
    last_rank = max(pair, key=lambda rank: (pair[rank].start_ns, -rank))
    last = pair[last_rank].start_ns
    call = pair[last_rank]
    doubt = [rank for rank, entry in pair.items() if 0 < clocks.error_ns(rank, last_rank) >= last - entry.start_ns]
    return Arrival(
        op=call.op,
        group=call.group,
        seq=call.seq,
        index=-1,
        last_arrival_ns=last,
        payload_bytes=call.payload_bytes,
        last_rank=last_rank,
        maybe_last=doubt,
        skew_ns=last - min(entry.start_ns for entry in pair.values()),
        transfer_ns=median_low([max(0, entry.end_ns - last) for entry in pair.values()]),
        wait_ns={rank: min(entry.end_ns, last) - entry.start_ns for rank, entry in pair.items()},
        end_spread_ns=end_spread(pair.values()),
    )


def _moved_share(pairs: Sequence[Pair], clocks: HostClocks) -> float:
    """The share of the time in collectives of several hosts that the clocks' error may move in the split."""
    errors = [max(clocks.error_ns(rank, other) for rank in pair for other in pair) for pair in pairs]
    lengths = [fmean(call.end_ns - call.start_ns for call in pair.values()) for pair in pairs]
    whole = sum(length for error, length in zip(errors, lengths, strict=True) if error)
    return sum(errors) / whole if whole else 0.0


def _summary(
    ranks: dict[int, Reduced],
    pairs: list[Pair],
    *,
    coverage: float,
    ways: list[str],
    notes: list[str],
    clocks: HostClocks,
    p2p: PointToPoint | None,
) -> AcrossRanks:
    ordered = sorted((_arrival(pair, clocks) for pair in pairs), key=lambda entry: entry.last_arrival_ns)
    numbered = [msgspec.structs.replace(entry, index=index) for index, entry in enumerate(ordered)]
    waits = {rank: sum(entry.wait_ns.get(rank, 0) for entry in numbered) for rank in ranks}
    inside = {rank: sum(pair[rank].end_ns - pair[rank].start_ns for pair in pairs if rank in pair) for rank in ranks}
    last = Counter(entry.last_rank for entry in numbered if not entry.maybe_last)
    serious = [*_of_coverage(coverage, p2p), *_of_clocks(pairs, clocks)]
    return AcrossRanks(
        ranks=list(ranks),
        matched_by=" and ".join(reversed(ways)) or "none",
        coverage=coverage,
        clocks="unknown" if clocks.why_not else "collectives" if clocks.differences else "one",
        epsilon_ns=clocks.epsilon_ns,
        conclusive=not serious,
        collectives=numbered,
        last_arrivals={rank: last[rank] for rank in ranks if last[rank]},
        undecided=sum(bool(entry.maybe_last) for entry in numbered),
        last_most=max(last, key=lambda rank: (last[rank], -rank)) if last else None,
        wait_ns=waits if numbered else {},
        waits_most=max(waits, key=lambda rank: (waits[rank], -rank)) if numbered else None,
        service_ns={rank: inside[rank] - waits[rank] for rank in ranks} if numbered else {},
        skew_ns=sum(waits.values()) // len(ranks),
        transfer_ns=sum(entry.transfer_ns for entry in numbered),
        p2p=p2p,
        notes=[*notes, *serious],
    )


def _of_coverage(coverage: float, p2p: PointToPoint | None) -> list[str]:
    found = []
    if coverage < LEAST_COVERAGE:
        found.append(f"only {coverage:.0%} of the collectives could be matched; under {LEAST_COVERAGE:.0%} is no basis")
    if p2p is not None and p2p.coverage < LEAST_COVERAGE:
        found.append(
            f"only {p2p.coverage:.0%} of the sends and receives could be matched; "
            f"under {LEAST_COVERAGE:.0%} is no basis"
        )
    return found


def _of_clocks(pairs: Sequence[Pair], clocks: HostClocks) -> list[str]:
    """Why the hosts' clocks do not allow a split; empty where they do."""
    if clocks.why_not:
        hosts = len(set(clocks.host_of.values()))
        return [
            f"the ranks are on {hosts} hosts, whose clocks cannot be related: {clocks.why_not}; skew and transfer mix"
        ]
    moved = _moved_share(pairs, clocks)
    if moved <= TOLERATED_ERROR:
        return []
    known = (
        f"the hosts' clocks are known within {clocks.epsilon_ns / 1e3:,.1f} us, which may move {moved:.0%} of the time"
    )
    return [f"{known} in their collectives between skew and transfer; over {TOLERATED_ERROR:.0%} is no basis"]


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
    """The trace with its communication label split into skew, transfer or pipeline, whichever is largest on its rank.

    Left ``unsplit`` where the ranks' traces do not tell them apart.
    """
    label = trace.label
    if label is None or label.label != "communication" or not across.conclusive or trace.rank is None:
        return trace
    sublabel = max(parts := communication_parts(across, trace.rank), key=lambda name: parts[name])
    return msgspec.structs.replace(trace, label=msgspec.structs.replace(label, sublabel=sublabel))


def communication_parts(across: AcrossRanks, rank: int) -> dict[str, int]:
    """A rank's time in matched calls, in ns: waiting in collectives, waiting for a neighbour, and all the rest."""
    p2p = across.p2p
    return {
        "transfer": across.service_ns.get(rank, 0) + (p2p.service_ns.get(rank, 0) if p2p else 0),
        "skew": across.wait_ns.get(rank, 0),
        "pipeline": p2p.wait_ns.get(rank, 0) if p2p else 0,
    }
