"""What a set of flight-recorder dumps says: who is missing or behind, and whom everybody else waits for.

In a group, the ranks whose earliest pending collective comes first are behind: the others have it behind them, or
never issued it. A rank that holds nothing pending where the others wait is missing. Both are waited for; who waits for
nobody himself is named. A rank can be named although another one broke it: this is where to look first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from narrows.reducers.readers.flight_recorder import Dump, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFinding:
    """One group that is not together, at its earliest pending collective.

    ``waiting`` issued ``sequence`` and wait; ``missing`` hold nothing pending in the group; ``behind`` hold an earlier
    one pending than the others; ``no_dump`` are members whose dumps were not given.
    """

    group: str
    description: str
    sequence: int
    op: str
    members: tuple[int, ...]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    behind: tuple[int, ...]
    no_dump: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFinding:
    """A send or receive whose other side has nothing pending with this rank."""

    group: str
    sequence: int
    op: str
    rank: int
    waits_for: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPending:
    """The collective that was issued first, by the clocks of the hosts, of those still pending."""

    rank: int
    group: str
    sequence: int
    op: str
    created_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightReading:
    """The whole set. ``named`` are the ranks to look at first; ``blamed`` rank -> in how many findings.

    ``together`` groups wait as a whole: all members issued the same collective, and what holds them is elsewhere.
    """

    ranks: tuple[int, ...]
    no_dump: tuple[int, ...]
    named: tuple[int, ...]
    blamed: dict[int, int]
    groups: tuple[GroupFinding, ...]
    peers: tuple[PeerFinding, ...]
    together: tuple[str, ...]
    pending: dict[int, int]
    most_pending: tuple[int, ...]
    earliest: FirstPending | None
    unplaced: tuple[str, ...]


def read_dumps(dumps: Mapping[str, Dump]) -> FlightReading:
    """File name -> dump, to one reading of all ranks. Dumps whose rank is not known are ``unplaced``.

    Raises:
        ValueError: two dumps are of one rank.
    """
    by_rank: dict[int, Dump] = {}
    for name, dump in dumps.items():
        if dump.rank is None:
            continue
        if dump.rank in by_rank:
            raise ValueError(f"{name}: a second dump of rank {dump.rank}; give one dump a rank")
        by_rank[dump.rank] = dump
    findings, together = _groups(by_rank)
    peers = _peers(by_rank)
    waits = _waits(findings, peers)
    blamed: dict[int, int] = {}
    for _, blame in _all_blame(findings, peers):
        blamed[blame] = blamed.get(blame, 0) + 1
    members = {rank for dump in by_rank.values() for group in dump.groups.values() for rank in group.ranks}
    pending = {rank: len(dump.pending) for rank, dump in sorted(by_rank.items())}
    most = max(pending.values(), default=0)
    return FlightReading(
        ranks=tuple(sorted(by_rank)),
        no_dump=tuple(sorted(members - set(by_rank))),
        named=_named(waits, findings),
        blamed=dict(sorted(blamed.items(), key=lambda item: (-item[1], item[0]))),
        groups=findings,
        peers=peers,
        together=together,
        pending=pending,
        most_pending=tuple(rank for rank, count in pending.items() if count == most and most),
        earliest=_earliest(by_rank),
        unplaced=tuple(name for name, dump in dumps.items() if dump.rank is None),
    )


def _groups(by_rank: Mapping[int, Dump]) -> tuple[tuple[GroupFinding, ...], tuple[str, ...]]:
    pending: dict[tuple[str, tuple[int, ...]], dict[int, Entry]] = {}
    for rank, dump in by_rank.items():
        for entry in dump.pending:
            if entry.p2p:
                continue
            earliest = pending.setdefault((entry.group, _members(entry.group, dump, by_rank)), {})
            if rank not in earliest or entry.sequence < earliest[rank].sequence:
                earliest[rank] = entry
    findings, together = [], []
    for (name, members), earliest in sorted(pending.items()):
        finding = _group(name, members, earliest, by_rank)
        if finding.missing or finding.behind or finding.no_dump:
            findings.append(finding)
        else:
            together.append(name)
    findings.sort(key=lambda one: (-len(one.missing) - len(one.behind), one.group))
    return tuple(findings), tuple(together)


def _members(name: str, dump: Dump, by_rank: Mapping[int, Dump]) -> tuple[int, ...]:
    """The group's ranks; a dump without its groups (gloo writes none) leaves those that used the name."""
    if name in dump.groups:
        return dump.groups[name].ranks
    return tuple(sorted(rank for rank, other in by_rank.items() if any(e.group == name for e in other.entries)))


def _newest(name: str, dump: Dump) -> int:
    """The last collective of the group that the rank is done with, -1 for none on record."""
    return max((e.sequence for e in dump.entries if e.group == name and not e.p2p and not e.pending), default=-1)


def _group(
    name: str, members: tuple[int, ...], earliest: Mapping[int, Entry], by_rank: Mapping[int, Dump]
) -> GroupFinding:
    first, last = min(e.sequence for e in earliest.values()), max(e.sequence for e in earliest.values())
    behind = [rank for rank, entry in earliest.items() if entry.sequence < last] if first < last else []
    here = [rank for rank in members if rank in by_rank and rank not in earliest]
    missing = [rank for rank in here if _newest(name, by_rank[rank]) < last]
    holder = next(rank for rank in earliest if earliest[rank].sequence == first)
    return GroupFinding(
        group=name,
        description=by_rank[holder].groups[name].description if name in by_rank[holder].groups else "",
        sequence=first,
        op=earliest[holder].op,
        members=members,
        waiting=tuple(sorted(set(earliest) - set(behind))),
        missing=tuple(sorted(missing)),
        behind=tuple(sorted(behind)),
        no_dump=tuple(sorted(set(members) - set(by_rank))),
    )


def _peers(by_rank: Mapping[int, Dump]) -> tuple[PeerFinding, ...]:
    """Pairs of which one side waits and the other has nothing pending. Sequence numbers of p2p are not compared:
    they count all of a rank's peers together.
    """
    held = {
        (rank, entry.group, entry.peer, entry.direction): entry
        for rank, dump in by_rank.items()
        for entry in reversed(dump.pending)
        if entry.p2p and entry.peer is not None
    }
    other = {"send": "recv", "recv": "send"}
    found = []
    for (rank, group, peer, direction), entry in held.items():
        answered = (peer, group, rank, other.get(str(direction))) in held
        if peer in by_rank and not answered and peer is not None:
            found.append(PeerFinding(group=group, sequence=entry.sequence, op=entry.op, rank=rank, waits_for=peer))
    return tuple(sorted(found, key=lambda one: (one.rank, one.group, one.waits_for)))


def _all_blame(findings: Iterable[GroupFinding], peers: Iterable[PeerFinding]) -> Iterable[tuple[tuple[int, ...], int]]:
    """(who waits, for whom), one for each finding and rank."""
    for finding in findings:
        for rank in (*finding.missing, *finding.behind):
            yield finding.waiting, rank
    for peer in peers:
        yield (peer.rank,), peer.waits_for


def _waits(findings: Iterable[GroupFinding], peers: Iterable[PeerFinding]) -> dict[int, set[int]]:
    waits: dict[int, set[int]] = {}
    for waiting, blame in _all_blame(findings, peers):
        for rank in waiting:
            waits.setdefault(rank, set()).add(blame)
    return waits


def _named(waits: Mapping[int, set[int]], findings: Iterable[GroupFinding]) -> tuple[int, ...]:
    """The blamed that wait for nobody but each other: the ends of all chains of waiting.

    A rank that a whole collective waits for comes before one that only a neighbour waits for.
    """
    reach = {rank: _reach(rank, waits) for rank in {*waits, *(one for found in waits.values() for one in found)}}
    blamed = {rank for found in waits.values() for rank in found}
    ends = {rank for rank in blamed if all(rank in reach[other] for other in reach[rank])}
    collective = {rank for finding in findings for rank in (*finding.missing, *finding.behind)}
    return tuple(sorted(ends & collective or ends))


def _reach(start: int, waits: Mapping[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    front = [start]
    while front:
        for other in waits.get(front.pop(), ()):
            if other not in seen:
                seen.add(other)
                front.append(other)
    return seen


def _earliest(by_rank: Mapping[int, Dump]) -> FirstPending | None:
    held = [(e.created_ns, rank, e) for rank, dump in by_rank.items() for e in dump.pending if e.created_ns is not None]
    if not held:
        return None
    created, rank, entry = min(held, key=lambda one: one[:2])
    return FirstPending(rank=rank, group=entry.group, sequence=entry.sequence, op=entry.op, created_ns=created)
