"""Unions and intersections of half-open intervals [start, end) in integer nanoseconds, on numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from narrows.reducers.traces.times import Nanoseconds

Ints = Nanoseconds


class Union(NamedTuple):
    """Disjoint intervals in order of time; no two touch, none is empty. Both arrays have shape (number,)."""

    starts: Ints
    ends: Ints

    @property
    def total(self) -> int:
        """The nanoseconds covered."""
        return int((self.ends - self.starts).sum())


_NEVER = np.iinfo(np.int64).max
EMPTY = Union(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Ints, ends: Ints) -> Union:
    """What the intervals cover together. Empty intervals cover nothing."""
    kept = ends > starts
    if not kept.all():
        starts, ends = starts[kept], ends[kept]
    if not len(starts):
        return EMPTY
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts = starts[order]  # one after the other: traces have hundreds of thousands
        ends = ends[order]
        del order
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.append(first[1:] - 1, len(starts) - 1)
    return Union(starts[first], reach[last])


def join(one: Union, other: Union) -> Union:
    """What either covers."""
    return union(np.concatenate((one.starts, other.starts)), np.concatenate((one.ends, other.ends)))


def covered_before(cover: Union, times: Ints) -> Ints:
    """Nanoseconds of ``cover`` before each time, shape of ``times``. A difference of two is what lies between them."""
    if not len(cover.starts):
        return np.zeros(len(times), np.int64)
    sums = np.concatenate(([0], np.cumsum(cover.ends - cover.starts)))
    begun = np.searchsorted(cover.starts, times, side="right")
    to_come = np.maximum(cover.ends[begun - 1] - times, 0)  # of the interval that began last
    return np.where(begun > 0, sums[begun] - to_come, 0)


def covered_within(cover: Union, starts: Ints, ends: Ints) -> Ints:
    """Nanoseconds of ``cover`` inside each interval."""
    if not len(cover.starts) or not len(starts):
        return np.zeros(len(starts), np.int64)
    before = covered_before(cover, np.concatenate((starts, ends)))
    return before[len(starts) :] - before[: len(starts)]


def touching(cover: Union, other: Union) -> Union:
    """The pieces of ``cover`` that overlap ``other`` anywhere, whole."""
    if not len(cover.starts) or not len(other.starts):
        return EMPTY
    next_one = np.searchsorted(other.ends, cover.starts, side="right")  # the first of the other that ends later
    kept = np.append(other.starts, _NEVER)[next_one] < cover.ends
    return Union(cover.starts[kept], cover.ends[kept])


def overlap(one: Union, other: Union) -> int:
    """The nanoseconds that both cover."""
    return int(covered_within(one, other.starts, other.ends).sum())


_BLOCK = 1 << 14  # intervals taken at once where nothing needs them all, so that memory follows the result


def segments(starts: Ints, ends: Ints, rows: Ints) -> Iterator[Ints]:
    """``rows`` in pieces, none reaching into the time of the next: sums over them add up to sums over the whole.

    ``starts[rows]`` must be in order.
    """
    if len(rows) <= _BLOCK:
        yield rows
        return
    first, reach = 0, -_NEVER
    for low in range(0, len(rows), _BLOCK):
        block = rows[low : low + _BLOCK]
        until = np.maximum.accumulate(np.concatenate(([reach], ends[block])))
        free = np.flatnonzero(starts[block] > until[:-1])
        reach = int(until[-1])
        if len(free) and (cut := low + int(free[-1])) > first:
            yield rows[first:cut]
            first = cut
    if first < len(rows):
        yield rows[first:]


def clip_streams(starts: Ints, ends: Ints, stream_keys: Ints) -> tuple[Ints, int]:
    """Ends cut where the next interval of the same stream starts; and the nanoseconds cut off.

    A stream runs one thing at a time, so an overlap inside one is an artefact of the profiler (seen on ROCm). The
    intervals must be in order of start and end.
    """
    order = np.argsort(stream_keys, kind="stable").astype(np.int32)
    result, clipped = ends, 0
    for low in range(0, len(order) - 1, _BLOCK):
        rows = order[low : low + _BLOCK + 1]  # the last is looked at, and cut in the next block
        same = stream_keys[rows[1:]] == stream_keys[rows[:-1]]
        excess = np.where(same, np.maximum(ends[rows[:-1]] - starts[rows[1:]], 0), 0)
        if excess.any():
            result = ends.copy() if result is ends else result
            result[rows[:-1]] -= excess
            clipped += int(excess.sum())
    return result, clipped
