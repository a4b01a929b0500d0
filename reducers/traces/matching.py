"""The same collective on several ranks, found by group and sequence number, or by an order that is checked."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from narrows.reducers.traces.hosts import ENDS_AGREE_NS, HostClocks, Pair
from narrows.reducers.traces.reduced import Collective, Reduced

Key = tuple[str, ...]
Calls = dict[int, list[Collective]]  # by rank, in order of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The calls of one group, paired; of none it is why."""

    label: str
    pairs: list[Pair]
    way: str  # sequence, order, none


def groups_of(ranks: dict[int, Reduced]) -> dict[Key, Calls]:
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


def match_group(calls: Calls, ranks: dict[int, Reduced], notes: list[str]) -> Matched:
    """One group's calls paired, times as they stand. What keeps them from being paired is added to the notes."""
    size = _members(calls, ranks)
    name = next(call for rank_calls in calls.values() for call in rank_calls).group
    label = f"group {name}" if name is not None else "collectives without a group"
    if size is None or len(calls) < size:
        of = "an unknown number of" if size is None else str(size)
        notes.append(f"{label}: traces of {len(calls)} of {of} ranks: who came last cannot be known")
        return Matched(label=label, pairs=[], way="none")
    if all(call.seq is not None for rank_calls in calls.values() for call in rank_calls):
        return Matched(label=label, pairs=_by_sequence(calls), way="sequence")
    pairs, why_not = _by_order(calls)
    if why_not:
        notes.append(_not_by_order(label, why_not))
    return Matched(label=label, pairs=pairs, way="order")


def _not_by_order(label: str, why_not: str) -> str:
    return f"{label}: no sequence numbers, and pairing by order fails: {why_not}"


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
    return pairs, ""


def checked(one: Matched, clocks: HostClocks, notes: list[str]) -> Matched:
    """The pairs on one clock. Those that were paired by order stay only if their ends and starts agree with that.

    Where the hosts' clocks could not be related, pairs by sequence stay, and what was paired by order goes.
    """
    pairs = [clocks.mapped(pair) for pair in one.pairs]
    if one.way == "order" and pairs:
        why_not = clocks.why_not or _disagreement(pairs, ENDS_AGREE_NS + 2 * clocks.epsilon_ns)
        if why_not:
            notes.append(_not_by_order(one.label, why_not))
            pairs = []
    return replace(one, pairs=pairs)


def _disagreement(pairs: list[Pair], slack_ns: int) -> str:
    """Why calls paired by order cannot be the same ones; empty where they can."""
    for index, pair in enumerate(pairs):
        if end_spread(pair.values()) > slack_ns:
            return f"call {index} ends up to {end_spread(pair.values()) / 1e3:,.0f} us apart"
        if max(call.start_ns for call in pair.values()) > min(call.end_ns for call in pair.values()) + slack_ns:
            return f"call {index} ended on one rank before another came"
    return ""


def end_spread(pair: Iterable[Collective]) -> int:
    ends = [call.end_ns for call in pair]
    return max(ends) - min(ends)
