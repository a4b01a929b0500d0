"""PyTorch flight-recorder dumps, pickled or JSON, format versions 2.0 to 2.10: the collectives of one rank.

A dump does not say whose it is: the rank comes from the file's name, else from the groups that the rank is in.
Names of process groups join dumps of several ranks; ``pg_id`` counts per rank and joins nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, as_text, described, whole
from narrows.reducers.readers.safe_pickle import load_plain

_PEER = re.compile(r"\b(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")
_DONE = ("completed",)
_SIZES_KEPT = 64
_HEAD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as this rank knows it: global ranks, in group-rank order."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recorded collective, or send or receive. ``sequence`` counts within its group (p2p apart).

    ``pending``: issued and neither completed nor waited for. ``peer`` is a global rank. Times are unix nanoseconds.
    """

    group: str
    op: str
    sequence: int
    pending: bool
    p2p: bool
    state: str
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    duration_ms: float | None = None
    timeout_ms: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    peer: int | None = None
    direction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's dump. ``rank`` is absent where neither the name nor the groups tell it.

    ``status``: local group number -> last sequence numbers, as recorded; -1 stands for never.
    """

    version: str
    entries: tuple[Entry, ...]
    groups: dict[str, Group]
    rank: int | None = None
    backend_version: str | None = None
    status: dict[str, dict[str, int]] = field(default_factory=dict)
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)

    @property
    def pending(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.pending)


def rank_from_name(name: str) -> int | None:
    """The rank at the end of a dump's file name (``nccl_trace_rank_12``, ``_dump_3``, ``fr_7.json``)."""
    match = re.search(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin|gz))*$", name)
    return int(match[1]) if match else None


def read_flight_recorder(data: bytes, name: str = "input", rank: int | None = None) -> Dump:
    """The dump in ``data``; ``rank`` as the file's name says it, which its groups must agree with.

    Raises:
        UnsafePickleError: the pickle holds more than plain data. Nothing of it was run.
        UnreadableError: it is damaged, or no flight-recorder dump.
    """
    is_json = as_text(data[:_HEAD]).lstrip()[:1] == "{"
    value = _json(data, name) if is_json else load_plain(data, name)
    if not isinstance(value, Mapping) or "entries" not in value or "version" not in value:
        raise UnreadableError(f"{name}: has no 'version' and 'entries': it is no flight-recorder dump")
    version = described(value["version"])
    if not re.fullmatch(r"2\.\d+", version):
        raise UnreadableError(f"{name}: flight-recorder format {version!r}; this reader knows 2.0 to 2.10")
    unread = UnreadList()
    if int(version.partition(".")[2][:6]) > 10:
        unread.add(0, f"version {version}", "newer than 2.10; read as 2.10")
    groups = _groups(value.get("pg_config"), unread)
    known = _whose(groups, rank, unread)
    entries = value["entries"]
    if not isinstance(entries, (list, tuple)):
        raise UnreadableError(f"{name}: 'entries' is {type(entries).__name__}, expected a list")
    return Dump(
        version=version,
        rank=known,
        entries=tuple(entry for at, raw in enumerate(entries) if (entry := _entry(raw, at, groups, unread))),
        groups=groups,
        backend_version=_text(value.get("nccl_version") or value.get("comm_lib_version")),
        status=_status(value.get("pg_status"), unread),
        not_understood=unread.done(),
    )


def _json(data: bytes, name: str) -> Any:
    try:
        return json.loads(as_text(data))
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{name}: is not whole JSON ({error}); copy it again") from None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _groups(raw: object, unread: UnreadList) -> dict[str, Group]:
    found = {}
    for key, value in (raw if isinstance(raw, Mapping) else {}).items():
        ranks = _ranks(value.get("ranks")) if isinstance(value, Mapping) else None
        if ranks is None:
            unread.add(0, f"pg_config {described(key)}: {described(value)}", "a group's ranks are not a list of ranks")
            continue
        name = described(value.get("name", key))
        found[name] = Group(name=name, description=described(value.get("desc", "")), ranks=ranks)
    return found


def _ranks(value: object) -> tuple[int, ...] | None:
    """``"[0, 1]"`` and ``[0, 1]`` alike."""
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\[[\d\s,]*\]\s*", value):
            return None
        return tuple(int(word) for word in re.findall(r"\d{1,9}", value))
    if isinstance(value, (list, tuple)):
        ranks = [whole(item) for item in value]
        return None if None in ranks else tuple(rank for rank in ranks if rank is not None)
    return None


def _whose(groups: Mapping[str, Group], named: int | None, unread: UnreadList) -> int | None:
    """The rank of the name, where it is in every group of the dump; else the one rank that is, where there is one."""
    common: set[int] | None = None
    for group in groups.values():
        common = set(group.ranks) if common is None else common & set(group.ranks)
    if named is not None and (not common or named in common):
        return named
    if named is not None:
        unread.add(0, f"rank {named} by the file's name", "that rank is not in every group of the dump")
    return next(iter(common)) if common and len(common) == 1 else None


def _status(raw: object, unread: UnreadList) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for key, value in (raw if isinstance(raw, Mapping) else {}).items():
        if not isinstance(value, Mapping):
            unread.add(0, f"pg_status {described(key)}: {described(value)}", "a group's status is not a mapping")
            continue
        numbers = {described(name): whole(item) for name, item in value.items()}
        found[described(key)] = {name: item for name, item in numbers.items() if item is not None}
    return found


def _entry(raw: object, at: int, groups: Mapping[str, Group], unread: UnreadList) -> Entry | None:
    if not isinstance(raw, Mapping):
        unread.add(at, described(raw), "an entry is not a mapping")
        return None
    op = raw.get("profiling_name")
    p2p = bool(raw.get("is_p2p", False))
    sequence = _sequence(raw, p2p=p2p)
    if not isinstance(op, str) or sequence is None:
        unread.add(at, described(dict(list(raw.items())[:6])), "an entry without a name or a sequence number")
        return None
    state = raw.get("state") if isinstance(raw.get("state"), str) else "unknown"
    group = _group_name(raw)
    direction, peer = _peer(op, groups.get(group))
    return Entry(
        group=group,
        op=op,
        sequence=sequence,
        pending=state not in _DONE and not raw.get("retired", False),
        p2p=p2p or direction is not None,
        state=str(state),
        created_ns=_time(raw.get("time_created_ns")),
        started_ns=_time(raw.get("time_discovered_started_ns")),
        completed_ns=_time(raw.get("time_discovered_completed_ns")),
        duration_ms=_float(raw.get("duration_ms")),
        timeout_ms=whole(raw.get("timeout_ms")),
        input_sizes=_sizes(raw.get("input_sizes")),
        peer=peer,
        direction=direction,
    )


def _sequence(raw: Mapping[Any, Any], *, p2p: bool) -> int | None:
    """2.0 had one ``seq_id``; since 2.1 collectives and p2p count apart."""
    first = "p2p_seq_id" if p2p else "collective_seq_id"
    for key in (first, "collective_seq_id", "seq_id"):
        if (value := whole(raw.get(key))) is not None:
            return value
    return None


def _group_name(raw: Mapping[Any, Any]) -> str:
    value = raw.get("process_group")
    if isinstance(value, (list, tuple)) and value:
        return described(value[0])
    if isinstance(value, str):
        return value
    return described(raw.get("pg_name", raw.get("pg_id", "")))


def _peer(op: str, group: Group | None) -> tuple[str | None, int | None]:
    """``nccl:send 0->1`` counts in group ranks, the sender first or the receiver first, this rank always first."""
    match = _PEER.search(op)
    if match is None:
        return None, None
    place = int(match[4][:9])
    if group is None or place >= len(group.ranks):
        return match[1], None
    return match[1], group.ranks[place]


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    rows = [row for row in value[:_SIZES_KEPT] if isinstance(row, (list, tuple))]
    return tuple(tuple(item for part in row[:_SIZES_KEPT] if (item := whole(part)) is not None) for row in rows)


def _time(value: object) -> int | None:
    """JSON dumps write 0 for what has not happened, pickles None."""
    return whole(value) or None


def _float(value: object) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if good and isinstance(value, (int, float)) else None
