"""Which step a device event belongs to: the one that launched it, not the one that it ran in.

A device lags its host. Placing events in the step in which they start puts half of them into the wrong step in some
real traces; the launch, found by correlation id, does not err.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from narrows.reducers.traces.reader import Trace
from narrows.reducers.traces.table import Span
from narrows.reducers.traces.times import Flags, Ints

BEFORE, AFTER, UNLINKED, NO_STEPS = -1, -2, -3, -4
_BLOCK = 1 << 14
OUTSIDE = {BEFORE: "before", AFTER: "after", UNLINKED: "unlinked"}


class Links(Struct, frozen=True, kw_only=True):
    """For each device event, shape (events,): its launch (ns), whether it has one, and the index of its step."""

    launch: Ints
    linked: Flags
    place: Ints  # an index into ``steps``, or BEFORE, AFTER, UNLINKED, NO_STEPS
    steps: list[tuple[int, Span]]  # by start; each window ends where the next begins
    by_place: Ints  # the events' rows in order of place
    bounds: Ints  # where each place begins in it, from NO_STEPS on

    def rows(self, place: int) -> Ints:
        """The rows of the events of one step, or of one of the places outside."""
        at = place - NO_STEPS
        return self.by_place[self.bounds[at] : self.bounds[at + 1]]


def link(trace: Trace) -> Links:
    """Each device event's launch and step."""
    launch, linked = _launches(trace)
    steps = _windows(trace)
    place = _places(launch, steps)
    place[~linked] = UNLINKED
    place[~linked & _launched_before(trace)] = BEFORE
    place = place.astype(np.int32)
    by_place = np.argsort(place, kind="stable").astype(np.int32)
    bounds = np.searchsorted(place[by_place], np.arange(NO_STEPS, len(steps) + 1))
    return Links(launch=launch, linked=linked, place=place, steps=steps, by_place=by_place, bounds=bounds)


def _launches(trace: Trace) -> tuple[Ints, Flags]:
    correlation, known = trace.columns.correlation, trace.launches[:, 1]
    launch, linked = np.zeros(len(correlation), np.int64), np.zeros(len(correlation), np.bool_)
    for low in range(0, len(correlation) if len(known) else 0, _BLOCK):
        wanted = correlation[low : low + _BLOCK]
        index = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        found = (known[index] == wanted) & (wanted > 0)
        linked[low : low + _BLOCK] = found
        launch[low : low + _BLOCK][found] = trace.launches[index[found], 0]
    return launch, linked


def _launched_before(trace: Trace) -> Flags:
    """Events without a launch whose id is lower than every launch's: the launch happened before the trace began."""
    columns = trace.columns
    positive = trace.launches[trace.launches[:, 1] > 0] if len(trace.launches) else trace.launches
    if not len(positive):
        return np.zeros(len(columns.start), np.bool_)
    by_id = (columns.correlation > 0) & (columns.correlation < int(positive[:, 1].min()))
    return by_id | ((columns.correlation <= 0) & (columns.start < int(positive[:, 0].min())))


def _windows(trace: Trace) -> list[tuple[int, Span]]:
    ordered = sorted(trace.table.steps.items(), key=lambda item: item[1].start_ns)
    ends = [span.start_ns for _, span in ordered[1:]] + [span.end_ns for _, span in ordered[-1:]]
    return [
        (number, Span(name=span.name, start_ns=span.start_ns, end_ns=end))
        for (number, span), end in zip(ordered, ends, strict=True)
    ]


def _places(times: Ints, steps: list[tuple[int, Span]]) -> Ints:
    if not steps:
        return np.full(len(times), NO_STEPS, np.int64)
    starts = np.array([span.start_ns for _, span in steps], np.int64)
    place = (np.searchsorted(starts, times, side="right") - 1).astype(np.int64)
    place[times >= steps[-1][1].end_ns] = AFTER
    return place


def step_at(time_ns: int, steps: list[tuple[int, Span]]) -> int | None:
    """The number of the step whose window holds a time of the host."""
    return next((number for number, span in steps if span.start_ns <= time_ns < span.end_ns), None)
