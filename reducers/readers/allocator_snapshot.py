"""Snapshots of PyTorch's CUDA caching allocator (``torch.cuda.memory._dump_snapshot``), read without running anything.

The allocator takes segments from the driver and hands out blocks of them. A free block in a segment that also holds a
used one cannot be given back: that is fragmentation. A segment without a used block can.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from narrows.reducers.readers.common import NotUnderstood, UnreadableError, UnreadList, described, shown, whole
from narrows.reducers.readers.safe_pickle import load_plain

_ALLOCATED = "active_allocated"
_WAITING = ("active_awaiting_free", "active_pending_free")  # freed, but a stream still uses it
_FREE = "inactive"
_LARGEST_SHOWN = 10
_SITES_SHOWN = 10
_OOMS_SHOWN = 20
_LIBRARY = ("/torch/", "/site-packages/", "/dist-packages/", "<frozen", "<string>")
_RELEASES = ("segment_free", "segment_unmap")
_TAKES = ("segment_alloc", "segment_map")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """One segment. ``largest_free_bytes``: the largest allocation that fits into it."""

    device: str
    stream: str
    pool: str  # small or large
    total_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """An allocation that failed for good, with what the driver said was free. ``site``: where it was asked for."""

    size_bytes: int
    free_bytes: int | None = None
    time_ns: int | None = None
    site: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """``allocated + awaiting_free + inactive == reserved``, and ``inactive == fragmented + releasable``, in bytes."""

    segments: int
    reserved_bytes: int  # taken from the driver
    allocated_bytes: int  # in tensors
    awaiting_free_bytes: int  # freed by the program, held for a stream that still uses it
    inactive_bytes: int  # free, in the cache
    fragmented_bytes: int  # free, in segments of which a part is used
    releasable_bytes: int  # free, in segments of which nothing is used
    largest_free_bytes: int  # the largest allocation that needs no new segment
    requested_bytes: int | None = None  # of the allocated, before rounding up
    events: dict[str, int]  # of the recorded history, by action
    retries_at_most: int  # times that cached segments went back right before a new one was taken
    oom: tuple[OutOfMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A line of the program, and what was allocated there and is still held."""

    device: str
    place: str
    num_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSnapshot:
    """The allocator of one process; ``sites`` and ``largest`` begin with the most bytes."""

    devices: dict[str, DeviceSnapshot]
    largest: tuple[SegmentFacts, ...]
    sites: tuple[Site, ...]
    settings: dict[str, str] = field(default_factory=dict)
    not_understood: NotUnderstood = field(default_factory=NotUnderstood)


def looks_like(data: bytes) -> bool:
    """Whether a pickle, not loaded, names what a snapshot holds."""
    named = b"segments" in data and b"device_traces" in data
    return named or (b"total_size" in data and b"allocated_size" in data and b"blocks" in data)


def read_allocator_snapshot(data: bytes, name: str = "input") -> AllocatorSnapshot:
    """The snapshot in ``data``: of ``_dump_snapshot``, or the pickled list of ``torch.cuda.memory_snapshot()``.

    Raises:
        UnsafePickleError: the pickle holds more than plain data. Nothing of it was run.
        UnreadableError: it is damaged, or no snapshot.
    """
    value: object = load_plain(data, name)
    whole_value = {"segments": value} if isinstance(value, (list, tuple)) else value
    if not isinstance(whole_value, Mapping):
        raise UnreadableError(f"{name}: holds {described(whole_value)}: it is no snapshot of torch.cuda.memory")
    raw = whole_value.get("segments")
    if not isinstance(raw, (list, tuple)):
        raise UnreadableError(f"{name}: has no list of 'segments': it is no snapshot of torch.cuda.memory")
    unread = UnreadList()
    segments = [found for at, one in enumerate(raw) if (found := _segment(one, at, unread))]
    history = _history(whole_value.get("device_traces"), unread)
    names = sorted({one.facts.device for one in segments} | set(history), key=lambda text: (len(text), text))
    return AllocatorSnapshot(
        devices={one: _device([s for s in segments if s.facts.device == one], history.get(one, [])) for one in names},
        largest=tuple(sorted((one.facts for one in segments), key=lambda one: -one.total_bytes)[:_LARGEST_SHOWN]),
        sites=_sites(segments),
        settings=_settings(whole_value.get("allocator_settings")),
        not_understood=unread.done(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    facts: SegmentFacts
    waiting_bytes: int
    free_bytes: int
    used: bool
    requested_bytes: int | None
    held: tuple[tuple[str, int], ...]  # place and bytes of each allocated block


def _segment(raw: object, at: int, unread: UnreadList) -> _Segment | None:
    if not isinstance(raw, Mapping) or (total := whole(raw.get("total_size"))) is None:
        unread.add(0, f"segment {at}: {described(raw)}", "a segment with its total_size is expected")
        return None
    sums: Counter[str] = Counter()
    held: list[tuple[str, int]] = []
    requested: list[int | None] = []
    largest = 0
    blocks = raw.get("blocks")
    blocks = blocks if isinstance(blocks, (list, tuple)) else ()
    for block in blocks:
        size = whole(block.get("size")) if isinstance(block, Mapping) else None
        state = described(block.get("state")) if isinstance(block, Mapping) else ""
        if size is None or state not in (_ALLOCATED, *_WAITING, _FREE):
            unread.add(0, f"segment {at}: {described(block)}", "a block with its size and a known state is expected")
            continue
        sums[state] += size
        if state == _FREE:
            largest = max(largest, size)
        elif state == _ALLOCATED:
            held.append((_place(_frames(block)), size))
            requested.append(whole(block.get("requested_size")))
    missing = total - sum(sums.values())
    if missing:
        unread.add(0, f"segment {at}", f"its blocks are {sum(sums.values())} bytes, it is {total}")
    facts = SegmentFacts(
        device=described(raw.get("device", 0)),
        stream=described(raw.get("stream", 0)),
        pool=described(raw.get("segment_type", "?")),
        total_bytes=sum(sums.values()),
        allocated_bytes=sums[_ALLOCATED],
        largest_free_bytes=largest,
        blocks=len(blocks),
    )
    return _Segment(
        facts=facts,
        waiting_bytes=sum(sums[state] for state in _WAITING),
        free_bytes=sums[_FREE],
        used=sums[_FREE] < sum(sums.values()),
        requested_bytes=None if None in requested else sum(size for size in requested if size is not None),
        held=tuple(held),
    )


def _frames(block: Mapping[str, Any]) -> Sequence[object]:
    """Innermost first. Before 2.1 they stood in the block's history."""
    frames = block.get("frames")
    history = block.get("history")
    if not frames and isinstance(history, (list, tuple)) and history and isinstance(history[0], Mapping):
        frames = history[0].get("frames")
    return frames if isinstance(frames, (list, tuple)) else ()


def _place(frames: Sequence[object]) -> str:
    """The innermost line of the program itself, else of a library, else nothing."""
    python = [one for one in frames if isinstance(one, Mapping) and str(one.get("filename", "")).endswith(".py")]
    own = [one for one in python if not any(part in str(one["filename"]) for part in _LIBRARY)]
    for frame in [*own, *python]:
        return shown(f"{frame['filename']}:{frame.get('line', '?')} {frame.get('name', '')}")
    return "no stack recorded"


def _history(raw: object, unread: UnreadList) -> dict[str, list[Mapping[str, Any]]]:
    """The recorded events of each device that has any."""
    if raw is None:
        return {}
    if not isinstance(raw, (list, tuple)):
        unread.add(0, f"device_traces: {described(raw)}", "a list for each device is expected")
        return {}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for device, events in enumerate(raw):
        kept = [one for one in events if isinstance(one, Mapping)] if isinstance(events, (list, tuple)) else []
        if kept:
            found[str(device)] = kept
    return found


def _device(segments: Sequence[_Segment], events: Sequence[Mapping[str, Any]]) -> DeviceSnapshot:
    requested = [one.requested_bytes for one in segments]
    fragmented = sum(one.free_bytes for one in segments if one.used)
    inactive = sum(one.free_bytes for one in segments)
    return DeviceSnapshot(
        segments=len(segments),
        reserved_bytes=sum(one.facts.total_bytes for one in segments),
        allocated_bytes=sum(one.facts.allocated_bytes for one in segments),
        awaiting_free_bytes=sum(one.waiting_bytes for one in segments),
        inactive_bytes=inactive,
        fragmented_bytes=fragmented,
        releasable_bytes=inactive - fragmented,
        largest_free_bytes=max((one.facts.largest_free_bytes for one in segments), default=0),
        requested_bytes=None if None in requested else sum(size for size in requested if size is not None),
        events=dict(Counter(described(one.get("action")) for one in events)),
        retries_at_most=_retries(events),
        oom=tuple(_out_of_memory(events))[-_OOMS_SHOWN:],
    )


def _retries(events: Sequence[Mapping[str, Any]]) -> int:
    """An allocation that fails at first gives cached segments back and tries again; so does ``empty_cache``."""
    actions = [one.get("action") for one in events if one.get("action") in (*_RELEASES, *_TAKES)]
    return sum(before in _RELEASES and after in _TAKES for before, after in itertools.pairwise(actions))


def _out_of_memory(events: Sequence[Mapping[str, Any]]) -> Iterator[OutOfMemory]:
    for one in events:
        if one.get("action") == "oom":
            time_us = whole(one.get("time_us"))
            place = _place(_frames(one))
            yield OutOfMemory(
                size_bytes=whole(one.get("size")) or 0,
                free_bytes=whole(one.get("device_free", one.get("addr"))),
                time_ns=None if time_us is None else 1000 * time_us,
                site=None if place.startswith("no stack") else place,
            )


def _sites(segments: Sequence[_Segment]) -> tuple[Site, ...]:
    sums: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for segment in segments:
        for place, size in segment.held:
            sums[segment.facts.device, place] += size
            counts[segment.facts.device, place] += 1
    return tuple(
        Site(device=key[0], place=key[1], num_bytes=size, blocks=counts[key])
        for key, size in sums.most_common(_SITES_SHOWN)
    )


def _settings(raw: object) -> dict[str, str]:
    return {described(key): described(value) for key, value in raw.items()} if isinstance(raw, Mapping) else {}
