"""What is kept of a trace: columns of device work, launches, steps, collectives and memory peaks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from narrows.reducers.traces.events import NO_ARGS, AnyEvent, Args, DigitEvent, Loose
from narrows.reducers.traces.kinds import (
    ANNOTATIONS,
    DEVICE_WORK,
    HOST_COLLECTIVE,
    INPUT_PREFIX,
    INSTANT,
    LAUNCHES,
    STEP,
    Work,
    work_of,
)
from narrows.reducers.traces.times import ns_from_digits, ns_from_us

Ints = npt.NDArray[Any]  # integers: times and correlations of 64 bits, indices of fewer
LONGEST_NS = 7 * 86_400 * 10**9  # CUPTI has reported durations of 236 years
NO_CORRELATION = -1
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something on the host: a step, a wait for data, a collective on the CPU."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(slots=True, kw_only=True)
class MemoryPeak:
    """The most that one device's allocator held inside the trace."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    num_events: int = 0


@dataclass(slots=True)
class Columns:
    """Device work, one row an event, shape (events,). Names, devices and streams are indices into lists."""

    start: Ints
    dur: Ints
    device: Ints
    stream: Ints
    name: Ints
    work: Ints
    correlation: Ints


# Type codes, the same for array and numpy: 64 bits for times and correlations, fewer for indices.
_KINDS = {"start": "q", "dur": "q", "device": "h", "stream": "i", "name": "i", "work": "b", "correlation": "q"}


class Interned(dict[str, int]):
    """A number for each text, in order of appearance."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


@dataclass(slots=True)
class Table:
    """A trace being collected. ``finish`` gives the columns; nothing may be added afterwards."""

    names: list[str] = field(default_factory=list)
    devices: Interned = field(default_factory=Interned)
    streams: Interned = field(default_factory=Interned)
    steps: dict[int, Span] = field(default_factory=dict)
    inputs: list[Span] = field(default_factory=list)
    host_collectives: list[tuple[Span, Args | None]] = field(default_factory=list)
    memory: dict[str, MemoryPeak] = field(default_factory=dict)
    collectives: dict[int, Args] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    num_device_events: int = 0
    # Work of one category, name, device and stream is one kind: a number an event, looked up once. Of a kind are kept,
    # flat, its device, stream, name and work.
    _kind_ids: dict[tuple[str, str, bool, Loose, Loose], int] = field(default_factory=dict)
    _kinds: array[int] = field(default_factory=lambda: array("q"))
    _name_ids: dict[tuple[str, str, bool], tuple[int, int]] = field(default_factory=dict)
    # Work that waits for its times to become nanoseconds, a list each.
    _kind: list[int] = field(default_factory=list)
    _correlation: list[int] = field(default_factory=list)
    _ts_us: list[float] = field(default_factory=list)
    _dur_us: list[float] = field(default_factory=list)
    _columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array(kind) for name, kind in _KINDS.items()}
    )
    _launches: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Keep what is of use of these events, in their order."""
        launches: list[tuple[AnyEvent, int]] = []
        for event in events:
            category = event.cat
            if category in DEVICE_WORK:
                self._add_device_work(event)
            elif category in LAUNCHES:
                correlation = whole_number(event.args.correlation) if event.args else None
                if correlation is not None:
                    launches.append((event, correlation))
            elif category in ANNOTATIONS:
                self._add_annotation(event)
            elif category == INSTANT:
                self._add_memory(event)
        for event, correlation in launches:
            times = times_ns(event, needs_duration=False)
            if times:
                self.add_launches(np.array([times[0]], np.int64), np.array([correlation], np.int64))
        self._flush()

    def add_launches(self, starts_ns: Ints, correlations: Ints) -> None:
        self._launches[0].frombytes(starts_ns.tobytes())
        self._launches[1].frombytes(correlations.tobytes())

    def _add_device_work(self, event: AnyEvent) -> None:
        args = event.args or NO_ARGS
        device = event.pid if args.device is None else args.device
        stream = event.tid if args.stream is None else args.stream
        key = (event.cat or "", event.name, args.collective is not None, device, stream)
        kind = self._kind_ids.get(key)
        if kind is None:
            kind = self._add_kind(key, args.collective)
        correlation = args.correlation
        if type(correlation) is not int or not 0 <= correlation < _LARGEST:
            number = whole_number(correlation)
            correlation = NO_CORRELATION if number is None else number
        if isinstance(event, DigitEvent) or event.ts is None or event.dur is None:
            self._add_exact(event, args, kind, correlation)
            return
        if self._kinds[4 * kind + 3] == Work.COMMUNICATION:
            self.collectives[self.num_device_events + len(self._kind)] = args
        self._kind.append(kind)
        self._correlation.append(correlation)
        self._ts_us.append(event.ts)
        self._dur_us.append(event.dur)

    def _add_kind(self, key: tuple[str, str, bool, Loose, Loose], collective: str | None) -> int:
        """The number of a kind of work that was not seen before."""
        category, name, named, device, stream = key
        known = self._name_ids.get((category, name, named))
        if known is None:
            work = work_of(category, name, collective)
            assert work is not None, "only device work comes here"
            known = self._name_ids[category, name, named] = (len(self.names), int(work))
            self.names.append(name)
        self._kind_ids[key] = number = len(self._kind_ids)
        self._kinds.extend((self.devices[str(device)], self.streams[f"{device}/{stream}"], *known))
        return number

    def _add_exact(self, event: AnyEvent, args: Args, kind: int, correlation: int) -> None:
        """Keep work whose times cannot wait: they are digits, or one is missing."""
        times = times_ns(event)
        if times is None:
            self.dropped["duration"] += 1
            return
        self._flush()
        row = self._kinds[4 * kind : 4 * kind + 4]
        if row[3] == Work.COMMUNICATION:
            self.collectives[self.num_device_events] = args
        self._store(np.array([[times[0], times[1] - times[0], *row, correlation]], np.int64))

    def _flush(self) -> None:
        """Turn the waiting rows' times into nanoseconds, all at once; leave out impossible durations."""
        if not self._kind:
            return
        times = np.array((self._ts_us, self._dur_us), np.float64)
        sane = np.isfinite(times).all(axis=0) & (np.abs(times) < 9e15).all(axis=0)
        sane &= (times[1] >= 0) & (times[1] <= LONGEST_NS / 1000)
        times[:, ~sane] = 0
        start, dur = ns_from_us(times[0]), ns_from_us(times[1])
        block = np.column_stack((start, dur, _viewed(self._kinds).reshape(-1, 4)[self._kind], self._correlation))
        if not sane.all():
            self.dropped["duration"] += int((~sane).sum())
            block = block[sane]
            self._renumber(sane)
        self._store(block)
        for waiting in (self._kind, self._correlation, self._ts_us, self._dur_us):
            waiting.clear()

    def _renumber(self, sane: npt.NDArray[np.bool_]) -> None:
        """Collectives are known by their row; rows before them went."""
        base = self.num_device_events
        places = base + np.cumsum(sane) - 1
        for row in range(base, base + len(sane)):
            args = self.collectives.pop(row, None)
            if args is not None and sane[row - base]:
                self.collectives[int(places[row - base])] = args

    def _store(self, block: Ints) -> None:
        """Keep rows, shape (rows, 7). Columns grow in place: no second copy of the whole is ever made."""
        for (name, kind), column in zip(_KINDS.items(), block.T, strict=True):
            self._columns[name].frombytes(column.astype(kind).tobytes())
        self.num_device_events += len(block)

    def _add_annotation(self, event: AnyEvent) -> None:
        name = event.name
        step = STEP.fullmatch(name)
        host_collective = HOST_COLLECTIVE.match(name)
        if not (step or host_collective or name.startswith(INPUT_PREFIX)):
            return
        times = times_ns(event)
        if times is None:
            self.dropped["duration"] += 1
            return
        span = Span(name=name, start_ns=times[0], end_ns=times[1])
        if step:
            # A step may be annotated twice; the longest annotation is the step itself.
            number = int(step[1])
            kept = self.steps.get(number)
            if kept is None or span.end_ns - span.start_ns > kept.end_ns - kept.start_ns:
                self.steps[number] = span
        elif host_collective:
            self.host_collectives.append((span, event.args))
        else:
            self.inputs.append(span)

    def _add_memory(self, event: AnyEvent) -> None:
        args = event.args
        if event.name != "[memory]" or args is None:
            return
        on_host = whole_number(args.device_type) == 0
        peak = self.memory.setdefault("host" if on_host else str(args.device_id), MemoryPeak())
        peak.num_events += 1
        peak.allocated_bytes = max(peak.allocated_bytes, whole_number(args.allocated) or 0)
        peak.reserved_bytes = max(peak.reserved_bytes, whole_number(args.reserved) or 0)

    def finish(self) -> tuple[Columns, Ints]:
        """The device work by start and end, and the launches as (start in ns, correlation), shape (launches, 2), by
        correlation."""
        self._flush()
        launches = self._sorted_launches()
        start, dur = _viewed(self._columns["start"]), _viewed(self._columns["dur"])
        order = np.lexsort((dur, start)).astype(np.int32)
        del start, dur
        columns = {}
        for name in _KINDS:  # a column at a time, and each old one goes before the next comes
            columns[name] = _viewed(self._columns.pop(name))[order]
        self._follow(order)
        return Columns(**columns), launches

    def _sorted_launches(self) -> Ints:
        starts, correlations = self._launches
        launches = np.empty((len(starts), 2), np.int64)
        order = np.lexsort((_viewed(starts), _viewed(correlations)))
        launches[:, 0] = _viewed(starts)[order]
        launches[:, 1] = _viewed(correlations)[order]
        self._launches = (array("q"), array("q"))
        return launches

    def _follow(self, order: Ints) -> None:
        """Collectives are known by their row, and the rows were put in order."""
        rows = np.array(sorted(self.collectives), np.int32)
        places = np.flatnonzero(np.isin(order, rows))
        self.collectives = {int(place): self.collectives[int(order[place])] for place in places}


def _viewed(column: array[int]) -> Ints:
    """The same memory as a numpy array."""
    return np.frombuffer(column, column.typecode) if len(column) else np.empty(0, column.typecode)


def whole_number(value: Loose) -> int | None:
    """The whole number that a value holds, written as a number or as text; None for anything else."""
    try:
        number = int(value) if value is not None else None
    except (ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < _LARGEST else None


def times_ns(event: AnyEvent, *, needs_duration: bool = True) -> tuple[int, int] | None:
    """Start and end in ns; None when one is missing, negative or absurd."""
    if isinstance(event, DigitEvent):
        start, dur = ns_from_digits(bytes(event.ts)), ns_from_digits(bytes(event.dur))
    else:
        start, dur = _ns(event.ts), _ns(event.dur)
    if not needs_duration and dur is None:
        dur = 0
    if start is None or dur is None or not 0 <= dur <= LONGEST_NS or abs(start) > _LARGEST:
        return None
    return start, start + dur


def _ns(time_us: float | None) -> int | None:
    if time_us is None or abs(time_us) > 9e15 or time_us != time_us:
        return None
    return int(ns_from_us([time_us])[0])
