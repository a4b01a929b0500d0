"""What is kept of a trace: device work, launches, steps, waits for data, collectives of the host and memory peaks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct, field

from narrows.reducers.traces.device_work import DeviceWork, times_of, viewed
from narrows.reducers.traces.events import NO_ARGS, AnyEvent, Args, whole_number
from narrows.reducers.traces.kinds import (
    ANNOTATIONS,
    DEVICE_WORK,
    HOST_COLLECTIVE,
    INPUT_PREFIX,
    INSTANT,
    LAUNCHES,
    MARKS,
    STEP,
)
from narrows.reducers.traces.times import Ints, Nanoseconds


class Span(Struct, frozen=True, kw_only=True):
    """Something on the host: a step, a wait for data, a collective on the CPU."""

    name: str
    start_ns: int
    end_ns: int


class MemoryPeak(Struct, kw_only=True):
    """The most that one device's allocator held inside the trace."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    num_events: int = 0


class Table(Struct):
    """A trace being collected."""

    work: DeviceWork = field(default_factory=DeviceWork)
    steps: dict[int, Span] = field(default_factory=dict)
    inputs: list[Span] = field(default_factory=list)
    host_collectives: list[tuple[Span, Args | None]] = field(default_factory=list)
    memory: dict[str, MemoryPeak] = field(default_factory=dict)
    _impossible: int = 0  # spans with impossible times
    _launches: tuple[array[int], array[int]] = field(default_factory=lambda: (array("q"), array("q")))

    @property
    def dropped(self) -> Counter[str]:
        """Events of use that could not be used, by reason."""
        return +Counter(duration=self.work.num_dropped + self._impossible)

    def add(self, events: Iterable[AnyEvent]) -> None:
        """Keep what is of use of these events, in their order."""
        work: list[AnyEvent] = []
        launches: list[AnyEvent] = []
        for event in events:
            category = event.cat
            if category in DEVICE_WORK:
                work.append(event)
            elif category in LAUNCHES:
                launches.append(event)
            elif category in ANNOTATIONS:
                if event.name.startswith(MARKS):
                    self._add_annotation(event)
            elif category == INSTANT:
                self._add_memory(event)
        self.work.add(work)
        self._add_launch_events(launches)

    def _add_launch_events(self, events: list[AnyEvent]) -> None:
        numbers = [whole_number((event.args or NO_ARGS).correlation) for event in events]
        launches = [event for event, number in zip(events, numbers, strict=True) if number is not None]
        if not launches:
            return
        starts, _, sane = times_of(launches, durations=False)
        correlations = np.array([number for number in numbers if number is not None], np.int64)
        self.add_launches(starts[sane], correlations[sane])

    def add_launches(self, starts_ns: Nanoseconds, correlations: Ints) -> None:
        self._launches[0].frombytes(starts_ns.tobytes())
        self._launches[1].frombytes(correlations.tobytes())

    def _add_annotation(self, event: AnyEvent) -> None:
        name = event.name
        step = STEP.fullmatch(name)
        host_collective = HOST_COLLECTIVE.match(name)
        if not (step or host_collective or name.startswith(INPUT_PREFIX)):
            return
        (start,), (dur,), (sane,) = (row.tolist() for row in times_of([event]))
        if not sane:
            self._impossible += 1
            return
        span = Span(name=name, start_ns=start, end_ns=start + dur)
        if step:
            # A step may be annotated twice; the longest annotation is the step itself.
            number = int(step[1])
            kept = self.steps.get(number)
            if kept is None or dur > kept.end_ns - kept.start_ns:
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

    def launches(self) -> Ints:
        """Start in ns and correlation of each launch, shape (launches, 2), by correlation. It ends the collecting."""
        starts, correlations = map(viewed, self._launches)
        launches = np.empty((len(starts), 2), np.int64)
        order = np.lexsort((starts, correlations))
        launches[:, 0] = starts[order]
        launches[:, 1] = correlations[order]
        self._launches = (array("q"), array("q"))
        return launches
