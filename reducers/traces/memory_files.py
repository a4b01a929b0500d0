"""Memory timelines and allocator snapshots that lie beside a trace, summarised into its reduced form."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from narrows.reducers.traces.reduced import AllocatorState, Memory, MemoryByCategory, Reduced

if TYPE_CHECKING:
    from narrows.reducers.readers.allocator_snapshot import DeviceSnapshot

# Most traces have no such file beside them: what reads one is imported where one is seen.

_HEAD_BYTES = 4096
_GZIP = b"\x1f\x8b"
_PICKLE = b"\x80"
_RANK = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_TRACES = (".json", ".json.gz")
_NAMES = (*_TRACES, ".gz", ".pickle", ".pkl")
_REDUCED = ".reduced.json"
TIMELINE, SNAPSHOT = "memory timeline", "allocator snapshot"
UNKNOWN_DEVICE = "unknown"


def memory_kind(path: Path) -> str | None:
    """What a file is: a memory timeline, a pickled snapshot of the allocator, or neither. Nothing is unpickled."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head.startswith(_PICKLE):
                from narrows.reducers.readers import allocator_snapshot

                return SNAPSHOT if allocator_snapshot.looks_like(head + file.read()) else None
    except OSError:
        return None
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return None
    if not head.lstrip().startswith(b"["):
        return None
    from narrows.reducers.readers import memory_timeline

    return TIMELINE if memory_timeline.looks_like(head) else None


def with_memory_files(reduced: Reduced, trace: Path) -> Reduced:
    """The reduced trace with what the memory files beside the trace say.

    A file is the trace's if its name tells the trace's rank (``rank3``, ``worker3``), or tells none and no other trace
    lies in the folder. One that cannot be read is listed with the reason, and costs nothing else.
    """
    kinds = _files_of(trace, reduced.rank)
    if not kinds:
        return reduced
    from narrows.reducers.readers.common import UnreadableError, unpacked

    memory, files = dict(reduced.memory), {}
    for path, kind in kinds.items():
        files[path.name] = kind
        try:
            data, _ = unpacked(path.read_bytes(), str(path))
            found = _timeline(data, path, reduced) if kind == TIMELINE else _snapshots(data, path)
        except (UnreadableError, OSError) as error:
            files[path.name] = f"not read: {error}"
            continue
        for device, fields in found.items():
            memory[device] = msgspec.structs.replace(memory.get(device, Memory()), **fields)
    return msgspec.structs.replace(reduced, memory=dict(sorted(memory.items())), memory_files=files)


def _files_of(trace: Path, rank: int | None) -> dict[Path, str]:
    beside = sorted(path for path in trace.resolve().parent.iterdir() if path.name.endswith(_NAMES))
    beside = [path for path in beside if path.is_file() and not path.name.endswith(_REDUCED)]
    kinds = {path: memory_kind(path) for path in beside}
    num_traces = sum(kind is None and path.name.endswith(_TRACES) for path, kind in kinds.items())
    ranks = {path: _RANK.search(path.name) for path in kinds}
    mine = {path: rank == int(of[1]) if of else num_traces == 1 for path, of in ranks.items()}
    return {path: kind for path, kind in kinds.items() if kind is not None and mine[path]}


Fields = dict[str, MemoryByCategory | AllocatorState]


def _timeline(data: bytes, path: Path, reduced: Reduced) -> dict[str, Fields]:
    """A timeline does not say its device: it is the trace's where that has one, else not known."""
    from narrows.reducers.readers.memory_timeline import read_memory_timeline

    found = read_memory_timeline(data, str(path))
    device = next(iter(reduced.devices)) if len(reduced.devices) == 1 else UNKNOWN_DEVICE
    summary = MemoryByCategory(
        peak_bytes=found.peak_bytes,
        peak_ns=found.peak_ns,
        at_peak_bytes=found.at_peak_bytes,
        growth_bytes=found.growth_bytes,
        growth_by_category=found.growth_by_category,
    )
    return {device: {"by_category": summary}}


def _snapshots(data: bytes, path: Path) -> dict[str, Fields]:
    from narrows.reducers.readers.allocator_snapshot import read_allocator_snapshot

    found = read_allocator_snapshot(data, str(path)).devices
    return {device: {"snapshot": _state(one)} for device, one in found.items()}


def _state(found: DeviceSnapshot) -> AllocatorState:
    return AllocatorState(
        reserved_bytes=found.reserved_bytes,
        allocated_bytes=found.allocated_bytes,
        inactive_bytes=found.inactive_bytes,
        fragmented_bytes=found.fragmented_bytes,
        largest_free_bytes=found.largest_free_bytes,
        retries_at_most=found.retries_at_most,
        num_out_of_memory=len(found.oom),
    )
