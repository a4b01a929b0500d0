"""Where devices' time went: busy, idle, compute, communication, copies, and why a device was idle."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from narrows.reducers.traces.device_work import Columns
from narrows.reducers.traces.intervals import (
    Ints,
    Union,
    clip_streams,
    covered_within,
    join,
    overlap,
    segments,
    touching,
    union,
)
from narrows.reducers.traces.kinds import Work
from narrows.reducers.traces.linking import Links
from narrows.reducers.traces.reader import Trace
from narrows.reducers.traces.reduced import Accounts, Gaps
from narrows.reducers.traces.times import Flags

QUEUE_NS = 1_000  # shorter gaps lie between back-to-back kernels on any device


class Timeline(Struct, frozen=True, kw_only=True):
    """Device events with ends clipped inside their stream; all arrays of shape (events,)."""

    columns: Columns
    ends: Ints
    clipped_ns: int

    def on(self, device: int) -> Ints:
        """The rows of a device's events."""
        return np.flatnonzero(self.columns.device == device).astype(np.int32)


def timeline(trace: Trace) -> Timeline:
    """The device events of a trace; overlaps inside one stream are cut off and counted."""
    columns = trace.columns
    ends, clipped_ns = clip_streams(columns.start, columns.start + columns.dur, columns.stream)
    return Timeline(columns=columns, ends=ends, clipped_ns=clipped_ns)


def accounts(events: Timeline, rows: Ints) -> Accounts | None:
    """The accounts of some events of one device, given by row in their order; None when there are none."""
    if not len(rows):
        return None
    starts, ends = events.columns.start, events.ends
    sums = np.zeros(5, np.int64)
    last = 0
    for piece in segments(starts, ends, rows):
        sums += _totals(events, piece)
        last = max(last, int(ends[piece].max()))
    compute, communication, exposed_communication, copy, exposed_copy = sums.tolist()
    span, busy = last - int(starts[rows[0]]), compute + exposed_communication + exposed_copy
    return Accounts(
        span_ns=span,
        busy_ns=busy,
        idle_ns=span - busy,
        compute_ns=compute,
        communication_ns=communication,
        exposed_communication_ns=exposed_communication,
        copy_ns=copy,
        exposed_copy_ns=exposed_copy,
    )


def _totals(events: Timeline, rows: Ints) -> tuple[int, int, int, int, int]:
    """Compute, communication, its exposed part, copies and theirs."""
    work = events.columns.work[rows]
    compute, communication, copy = (_union(events, rows[work == kind]) for kind in Work)
    beside = join(touching(compute, copy), touching(communication, copy))  # all that can hide a copy
    return (
        compute.total,
        communication.total,
        communication.total - overlap(compute, communication),
        copy.total,
        copy.total - overlap(beside, copy),
    )


def _union(events: Timeline, rows: Ints) -> Union:
    return union(events.columns.start[rows], events.ends[rows])


_PARTS = ("host_ns", "input_ns", "launch_ns", "dependency_ns", "queue_ns", "unlinked_ns")


class GapSums(Struct, frozen=True, kw_only=True):
    """The idle gaps of one device by cause, in all and for each step (by the work that ended the gap)."""

    total: Gaps
    steps: list[Gaps]


def gaps(events: Timeline, links: Links, device: int, waits_for_data: Union) -> GapSums:
    """A device's idle gaps by cause; their parts add up to its idle time."""
    starts, ends = events.columns.start, events.ends
    sums = np.zeros((len(links.steps) + 1, 1 + len(_PARTS)), np.int64)
    reach: int | None = None
    for piece in segments(starts, ends, events.on(device)):
        busy = _union(events, piece)
        begins, until = busy.ends[:-1], busy.starts[1:]
        if reach is not None and len(busy.starts):
            begins, until = np.append(reach, begins), np.append(busy.starts[0], until)
        reach = int(busy.ends[-1]) if len(busy.ends) else reach
        # An empty event may start inside a gap; only one that starts where the device becomes busy again ended it.
        rows = piece[np.lexsort((~links.linked[piece], starts[piece]))]
        ended_by = rows[np.searchsorted(starts[rows], until, side="left")]
        table = _gap_parts(begins, until, links.launch[ended_by], links.linked[ended_by], waits_for_data)
        sums[-1] += table.sum(axis=0)
        order = np.argsort(links.place[ended_by], kind="stable")
        places, firsts = np.unique(links.place[ended_by][order], return_index=True)
        totals = np.add.reduceat(table[order], firsts, axis=0) if len(table) else table
        sums[places[places >= 0]] += totals[places >= 0]
    each = [Gaps(num=int(row[0]), **dict(zip(_PARTS, row[1:].tolist(), strict=True))) for row in sums]
    return GapSums(total=each[-1], steps=each[:-1])


def _gap_parts(begins: Ints, until: Ints, launch: Ints, linked: Flags, waits_for_data: Union) -> Ints:
    """A row for each gap: 1, then its nanoseconds in the order of _PARTS."""
    length = until - begins
    short = length < QUEUE_NS
    late = ~short & linked & (launch > begins)
    issued = np.where(late, np.minimum(launch, until), begins)
    waited = np.where(late, covered_within(waits_for_data, begins, issued), 0)
    return np.column_stack(
        (
            np.ones(len(length), np.int64),
            issued - begins - waited,
            waited,
            np.where(late, until - issued, 0),
            np.where(~short & linked & ~late, length, 0),
            np.where(short, length, 0),
            np.where(~short & ~linked, length, 0),
        )
    )
