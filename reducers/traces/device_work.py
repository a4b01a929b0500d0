"""The device's work of a trace, kept in columns: about 50 bytes an event."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from msgspec import Struct, field

from narrows.reducers.traces.events import LARGEST, NO_ARGS, AnyEvent, Args, DigitEvent, Loose, whole_number
from narrows.reducers.traces.kinds import Work, work_of
from narrows.reducers.traces.times import Flags, Ints, Nanoseconds, ns_from_digits, ns_from_us

LONGEST_NS = 7 * 86_400 * 10**9  # CUPTI has reported durations of 236 years
NO_CORRELATION = -1
_MOST_US = 9e15  # later than the year 2250


class Columns(Struct):
    """Device work, one row an event, shape (events,). Names, devices and streams are indices into lists."""

    start: Ints
    dur: Ints
    device: Ints
    stream: Ints
    name: Ints
    work: Ints
    correlation: Ints


# Type codes, the same for array and numpy: 64 bits for times and correlations, fewer for indices.
_CODES = {"start": "q", "dur": "q", "device": "h", "stream": "i", "name": "i", "work": "b", "correlation": "q"}
_Key = tuple[str | None, str, bool, Loose, Loose]  # category, name, whether a collective is named, device, stream


class Interned(dict[str, int]):
    """A number for each text, in order of appearance."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


class DeviceWork(Struct):
    """Device work being collected. ``columns`` ends it; nothing may be added afterwards."""

    names: list[str] = field(default_factory=list)
    devices: Interned = field(default_factory=Interned)
    streams: Interned = field(default_factory=Interned)
    collectives: dict[int, Args] = field(default_factory=dict)  # of communication, by row
    num_events: int = 0
    num_dropped: int = 0  # with impossible times
    # Work of one category, name, device and stream is one kind: a number an event, looked up once. Of a kind are kept,
    # flat, its device, stream, name and work.
    _kind_ids: dict[_Key, int] = field(default_factory=dict)
    _kinds: array[int] = field(default_factory=lambda: array("q"))
    _communicating: set[int] = field(default_factory=set)
    _name_ids: dict[tuple[str, str, bool], tuple[int, int]] = field(default_factory=dict)
    _columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array(code) for name, code in _CODES.items()}
    )

    def add(self, events: list[AnyEvent]) -> None:
        """Keep events whose category is work on a device, in their order."""
        if not events:
            return
        kinds: list[int] = []
        correlations: list[int] = []
        calls: list[tuple[int, Args]] = []
        known, communicating = self._kind_ids, self._communicating
        for event in events:
            args = event.args or NO_ARGS
            device = event.pid if args.device is None else args.device
            stream = event.tid if args.stream is None else args.stream
            key = (event.cat, event.name, args.collective is not None, device, stream)
            kind = known.get(key)
            if kind is None:
                kind = self._add_kind(key, args.collective)
            correlation = args.correlation
            if type(correlation) is not int or not 0 <= correlation < LARGEST:
                number = whole_number(correlation)
                correlation = NO_CORRELATION if number is None else number
            if kind in communicating:
                calls.append((len(kinds), args))
            kinds.append(kind)
            correlations.append(correlation)
        start, dur, sane = times_of(events)
        places = self.num_events + np.cumsum(sane) - 1
        self.collectives |= {int(places[at]): args for at, args in calls if sane[at]}
        parts = np.frombuffer(self._kinds, np.int64).reshape(-1, 4)[kinds].T
        rows = np.vstack((start, dur, parts, np.array(correlations, np.int64)))
        self._store(rows if sane.all() else rows[:, sane])
        self.num_dropped += len(sane) - int(sane.sum())

    def _add_kind(self, key: _Key, collective: str | None) -> int:
        """The number of a kind of work that was not seen before."""
        category, name, named, device, stream = key
        assert category is not None, "only device work comes here"
        known = self._name_ids.get((category, name, named))
        if known is None:
            work = work_of(category, name, collective)
            assert work is not None, "only device work comes here"
            known = self._name_ids[category, name, named] = (len(self.names), int(work))
            self.names.append(name)
        self._kind_ids[key] = number = len(self._kind_ids)
        self._kinds.extend((self.devices[str(device)], self.streams[f"{device}/{stream}"], *known))
        if known[1] == Work.COMMUNICATION:
            self._communicating.add(number)
        return number

    def _store(self, rows: Nanoseconds) -> None:
        """Keep events, shape (7, events). Columns grow in place: no second copy of the whole is ever made."""
        for (name, code), row in zip(_CODES.items(), rows, strict=True):
            self._columns[name].frombytes(row.astype(code).tobytes())
        self.num_events += rows.shape[1]

    def columns(self) -> Columns:
        """The work by start and end; ``collectives`` follow it."""
        start, dur = viewed(self._columns["start"]), viewed(self._columns["dur"])
        order = np.lexsort((dur, start)).astype(np.int32)
        del start, dur
        columns = {}
        for name in _CODES:  # a column at a time, and each old one goes before the next comes
            columns[name] = viewed(self._columns.pop(name))[order]
        rows = np.array(sorted(self.collectives), np.int32)
        places = np.flatnonzero(np.isin(order, rows))
        self.collectives = {int(place): self.collectives[int(order[place])] for place in places}
        return Columns(**columns)


def viewed(column: array[int]) -> Ints:
    """The same memory as a numpy array."""
    return np.frombuffer(column, column.typecode) if len(column) else np.empty(0, column.typecode)


def times_of(events: list[AnyEvent], *, durations: bool = True) -> tuple[Nanoseconds, Nanoseconds, Flags]:
    """Start, duration (ns) and whether both are possible: there, not negative, not absurd. All of shape (events,).

    Without ``durations`` these are not looked at, and 0.
    """
    if isinstance(events[0], DigitEvent):
        exact = [_exact_times(event, b"0" if not durations else event.dur) for event in events]
        start, dur = np.array([times or (0, 0) for times in exact], np.int64).T
        return start, dur, np.array([times is not None for times in exact], np.bool_)
    dur_us = [event.dur for event in events] if durations else [0] * len(events)
    times = np.array(([event.ts for event in events], dur_us), np.float64)  # one that is missing becomes nan
    with np.errstate(invalid="ignore"):
        sane = (np.abs(times) < _MOST_US).all(axis=0) & (times[1] >= 0) & (times[1] <= LONGEST_NS / 1000)
    times[:, ~sane] = 0
    return ns_from_us(times[0]), ns_from_us(times[1]), sane


def _exact_times(event: Any, digits: Any) -> tuple[int, int] | None:
    start, dur = ns_from_digits(bytes(event.ts)), ns_from_digits(bytes(digits))
    if start is None or dur is None or abs(start) > LARGEST or not 0 <= dur <= LONGEST_NS:
        return None
    return start, dur
