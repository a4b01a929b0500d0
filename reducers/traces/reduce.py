"""A rank's trace, reduced to what a comparison needs: accounts, steps, gaps, collectives, kernels, memory, a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from narrows.reducers.traces.accounts import GapSums, Timeline, accounts, gaps, timeline
from narrows.reducers.traces.calls import device_collectives, host_collectives
from narrows.reducers.traces.intervals import EMPTY, Union, union
from narrows.reducers.traces.kinds import Work
from narrows.reducers.traces.labels import BT_1, Thresholds, label_steps
from narrows.reducers.traces.linking import OUTSIDE, Links, link
from narrows.reducers.traces.reader import CHUNK_BYTES, Trace, read_trace
from narrows.reducers.traces.reduced import (
    KIND,
    SCHEMA,
    Accounts,
    Collective,
    Damage,
    Host,
    Kernel,
    Label,
    Memory,
    Reduced,
    Step,
)
from narrows.reducers.traces.sums import busiest_device, step_sums
from narrows.reducers.traces.table import Span
from narrows.reducers.traces.times import Ints

_TOP = 10
_NAME_LENGTH = 160


def reduce_file(path: Path | str, *, limits: Thresholds = BT_1, chunk_bytes: int = CHUNK_BYTES) -> Reduced:
    """The reduced trace of a .json or .json.gz file.

    Raises TraceError for a file that is no profiler trace.
    """
    return reduce_trace(read_trace(path, chunk_bytes=chunk_bytes), limits=limits)


def reduce_trace(trace: Trace, *, limits: Thresholds = BT_1) -> Reduced:
    """The reduced trace. Accounts are exact unions in integer nanoseconds."""
    events, links = timeline(trace), link(trace)
    waits = _union_of(trace.table.inputs)
    whole = {name: accounts(events, events.on(number)) for name, number in trace.table.work.devices.items()}
    devices = {name: entry for name, entry in whole.items() if entry is not None}
    parts = {name: gaps(events, links, trace.table.work.devices[name], waits) for name in devices}
    steps = _steps(trace, events, links)
    calls = device_collectives(trace, events, links) + host_collectives(trace, links)
    info = trace.metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    return Reduced(
        schema=SCHEMA,
        kind=KIND,
        rank=_whole(info.get("rank")),
        world_size=_whole(info.get("world_size")),
        host_name=_text(trace.metadata.get("host_name")),
        backend=_text(info.get("backend")),
        clock="trace_ns" if trace.base_ns is None else "unix_ns",
        devices=devices,
        steps=steps,
        outside=_outside(trace, events, links),
        gaps={name: part.total for name, part in parts.items()},
        collectives=calls,
        top_kernels=_top_kernels(trace, events),
        memory={
            name: Memory(
                peak_allocated_bytes=peak.allocated_bytes,
                peak_reserved_bytes=peak.reserved_bytes,
                num_events=peak.num_events,
            )
            for name, peak in sorted(trace.table.memory.items())
        },
        host=_host(trace, links, calls) if not devices else None,
        label=_label(trace, events, links, parts, devices, steps, limits),
        quality=_damage(trace, events, links),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _union_of(spans: list[Span]) -> Union:
    if not spans:
        return EMPTY
    return union(np.array([s.start_ns for s in spans], np.int64), np.array([s.end_ns for s in spans], np.int64))


def _by_device(events: Timeline, trace: Trace, rows: Ints) -> dict[str, Accounts]:
    devices = events.columns.device[rows]
    found = {name: accounts(events, rows[devices == number]) for name, number in trace.table.work.devices.items()}
    return {name: entry for name, entry in found.items() if entry is not None}


def _steps(trace: Trace, events: Timeline, links: Links) -> list[Step]:
    return [
        Step(
            step=number,
            start_ns=span.start_ns + (trace.base_ns or 0),
            host_ns=span.end_ns - span.start_ns,
            devices=_by_device(events, trace, links.rows(index)),
        )
        for index, (number, span) in enumerate(links.steps)
    ]


def _outside(trace: Trace, events: Timeline, links: Links) -> dict[str, dict[str, Accounts]]:
    found = {name: _by_device(events, trace, links.rows(place)) for place, name in OUTSIDE.items()}
    return {name: devices for name, devices in found.items() if devices}


def _top_kernels(trace: Trace, events: Timeline) -> list[Kernel]:
    num_names = len(trace.table.work.names)
    if not num_names or not len(events.ends):
        return []
    columns = events.columns
    counts = np.bincount(columns.name, minlength=num_names)
    totals = np.zeros(num_names, np.int64)
    np.add.at(totals, columns.name, events.ends - columns.start)
    work = np.zeros(num_names, np.int64)
    work[columns.name] = columns.work
    order = np.argsort(-totals, kind="stable")[:_TOP]
    return [
        Kernel(
            name=_short(trace.table.work.names[index]),
            work=Work(int(work[index])).name.lower(),
            num=int(counts[index]),
            total_ns=int(totals[index]),
        )
        for index in order
        if counts[index]
    ]


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 3] + "..."


def _host(trace: Trace, links: Links, calls: list[Collective]) -> Host | None:
    """The host's own account, for a rank that has no device."""
    spans = [span for _, span in links.steps] or [span for span, _ in trace.table.host_collectives]
    if not spans:
        return None
    covered = _union_of([span for span, _ in trace.table.host_collectives]).total if calls else 0
    first, last = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    return Host(span_ns=last - first, communication_ns=covered, num_collectives=len(calls))


def _label(
    trace: Trace,
    events: Timeline,
    links: Links,
    parts: dict[str, GapSums],
    devices: dict[str, Accounts],
    steps: list[Step],
    limits: Thresholds,
) -> Label | None:
    device = busiest_device(trace, events)
    if device is None:
        return None
    sums = step_sums(trace, events, links, device, parts[device], devices[device], steps)
    return label_steps(sums, has_input_spans=bool(trace.table.inputs), limits=limits) if sums else None


def _damage(trace: Trace, events: Timeline, links: Links) -> Damage:
    quality = trace.quality
    return Damage(
        layout=quality.layout,
        bytes=quality.bytes,
        truncated=quality.truncated,
        repaired=quality.repaired,
        dropped=quality.dropped,
        dropped_for=quality.dropped_for,
        unlinked=int((~links.linked).sum()),
        clipped_ns=events.clipped_ns,
    )
