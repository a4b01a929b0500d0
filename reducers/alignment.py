"""Clocks of different hosts related by causality: nobody leaves a symmetric collective before the last one arrived.

Wall clocks kept by NTP disagree by up to milliseconds, too much to tell skew from transfer in a collective of one
millisecond. Each collective bounds the difference of two hosts' clocks from both sides.

Source: docs/method.md, clock alignment. A host's clock is read as ``true + offset + drift * t``, against that of the
host of the lowest rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.reducers.collectives import stable_order, symmetric_stamps
from narrows.reducers.records import Alignment, Clock, Loss, LossKind
from narrows.reducers.robust import theil_sen

if TYPE_CHECKING:
    from narrows.reducers.records import F64, I64, RankRecords, Run

LARGEST_DRIFT = 500e-6
"""Quartz runs within 100 ppm, and NTP slews by at most 500 ppm."""
_BINS = 200
_EXITS = 400
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """Per collective seen by both hosts: its time in s from the middle, bounds of the clocks' difference in ns, and
    the difference of the two hosts' first exits."""

    t_s: F64
    lower_ns: F64
    upper_ns: F64
    exits_ns: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDifference:
    """One host's clock minus the reference's: ``offset_ns + drift_ns_s * t_s``, within ``epsilon_ns`` of the truth."""

    offset_ns: float
    drift_ns_s: float
    epsilon_ns: float

    def onto_reference(self, time_ns: I64, middle_ns: int) -> I64:
        """Times of the host on the reference's clock; equal stamps stay equal and none overtakes another."""
        t_s = (time_ns - middle_ns - self.offset_ns) / (_NS_PER_S + self.drift_ns_s)
        away_ns = np.rint(self.drift_ns_s * t_s + (self.offset_ns % 1)).astype(np.int64)
        onto_ns: I64 = time_ns - away_ns - math.floor(self.offset_ns)
        return onto_ns


def align(run: Run) -> Run:
    """The run with its hosts' clocks related by its symmetric collectives, where they were related by wall time only.

    The clock's epsilon is then what causality leaves open; it is an error of skew against transfer, and of no sum. A
    run whose hosts share no symmetric collective stays on the wall clock, as does one in which a clock stepped, which
    is listed as a loss. Durations of one rank change by its clock's drift, and by nothing else.
    """
    if run.clock.aligned is not Alignment.UNIX:
        return run
    stamps = _host_stamps(run)
    reference = run.ranks[min(run.ranks)].host
    hosts = sorted({records.host for records in run.ranks.values()} - {reference})
    enters_ns = np.concatenate([own.enter_ns_C for own in stamps.values()]).astype(np.float64)
    middle_ns = int(np.median(enters_ns)) if enters_ns.size else 0
    differences: dict[str, ClockDifference] = {}
    for host in hosts:
        bounds = _bounds(stamps[reference], stamps[host], middle_ns)
        if not len(bounds.t_s):
            return run
        found = _difference(bounds)
        if found is None:
            step = Loss(kind=LossKind.CLOCK_STEP, place="ranks", count=1, detail=f"{host} against {reference}")
            return replace(run, losses=(*run.losses, step))
        differences[host] = found
    ranks = {rank: _mapped(records, differences.get(records.host), middle_ns) for rank, records in run.ranks.items()}
    epsilon_ns = math.ceil(max(found.epsilon_ns for found in differences.values()))
    return replace(run, ranks=ranks, clock=Clock(aligned=Alignment.COLLECTIVES, epsilon_ns=epsilon_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStamps:
    """Of one host, in order of call: the last enter and the first exit of every symmetric collective it was in."""

    call_C: I64
    enter_ns_C: I64
    exit_ns_C: I64


def _host_stamps(run: Run) -> dict[str, HostStamps]:
    """The stamps of every host."""
    rows = symmetric_stamps(run)
    hosts = sorted({records.host for records in run.ranks.values()})
    host_of = np.zeros(max(run.ranks) + 1, dtype=np.int64)
    host_of[list(run.ranks)] = [hosts.index(records.host) for records in run.ranks.values()]
    host_N = host_of[rows.rank_N]
    order = stable_order(host_N)
    host_N, call_N = host_N[order], rows.call_N[order]
    first = np.flatnonzero((np.diff(call_N, prepend=-1) != 0) | (np.diff(host_N, prepend=-1) != 0))
    enter_ns, exit_ns = rows.enter_ns_N[order], rows.end_ns_N[order]
    if first.size:
        enter_ns, exit_ns = np.maximum.reduceat(enter_ns, first), np.minimum.reduceat(exit_ns, first)
    call_C = call_N[first]
    bounds = np.searchsorted(host_N[first], np.arange(len(hosts) + 1)).tolist()
    return {
        host: HostStamps(
            call_C=call_C[bounds[at] : bounds[at + 1]],
            enter_ns_C=enter_ns[bounds[at] : bounds[at + 1]],
            exit_ns_C=exit_ns[bounds[at] : bounds[at + 1]],
        )
        for at, host in enumerate(hosts)
    }


def clock_difference(ours: HostStamps, theirs: HostStamps, middle_ns: int) -> ClockDifference | None:
    """The other host's clock minus ours, about ``middle_ns``; None where no steady difference obeys every collective.

    Raises ``ValueError`` where the two share no collective.
    """
    bounds = _bounds(ours, theirs, middle_ns)
    if not len(bounds.t_s):
        raise ValueError("hosts that share no collective: their clocks cannot be related")
    return _difference(bounds)


def _bounds(ours: HostStamps, theirs: HostStamps, middle_ns: int) -> _Bounds:
    _, at_0, at_h = np.intersect1d(ours.call_C, theirs.call_C, assume_unique=True, return_indices=True)
    enter_0, exit_0 = ours.enter_ns_C[at_0], ours.exit_ns_C[at_0]
    enter_h, exit_h = theirs.enter_ns_C[at_h], theirs.exit_ns_C[at_h]
    return _Bounds(
        t_s=((enter_0 - middle_ns) / _NS_PER_S).astype(np.float64),
        lower_ns=(enter_h - exit_0).astype(np.float64),
        upper_ns=(exit_h - enter_0).astype(np.float64),
        exits_ns=(exit_h - exit_0).astype(np.float64),
    )


def _difference(bounds: _Bounds) -> ClockDifference | None:
    """The exits' Theil-Sen line where it obeys all bounds, else the middle of what obeys them; None if nothing does."""
    allowed = _allowed(_tightest(bounds))
    if allowed is None:
        return None
    ends_s = np.array([bounds.t_s.min(), 0.0, bounds.t_s.max()])
    low_ns, high_ns = allowed.at(ends_s)
    offset_ns, drift_ns_s = _exit_line(bounds)
    line_ns = offset_ns + drift_ns_s * ends_s
    if not ((low_ns <= line_ns) & (line_ns <= high_ns)).all():
        offset_ns, drift_ns_s = allowed.middle()
    epsilon_ns = float((high_ns - low_ns).max()) / 2
    return ClockDifference(offset_ns=offset_ns, drift_ns_s=drift_ns_s, epsilon_ns=epsilon_ns)


def _tightest(bounds: _Bounds) -> _Bounds:
    """The tightest two bounds of each stretch of time. Leaving the others out can only widen what is allowed."""
    edges = np.linspace(bounds.t_s.min(), bounds.t_s.max(), _BINS + 1)
    bins = pd.Series(np.clip(np.searchsorted(edges, bounds.t_s, side="right") - 1, 0, _BINS - 1))
    lowest = pd.Series(bounds.upper_ns).groupby(bins).idxmin()
    highest = pd.Series(bounds.lower_ns).groupby(bins).idxmax()
    kept: I64 = np.union1d(lowest.to_numpy(np.int64), highest.to_numpy(np.int64))
    return _Bounds(
        t_s=bounds.t_s[kept],
        lower_ns=bounds.lower_ns[kept],
        upper_ns=bounds.upper_ns[kept],
        exits_ns=bounds.exits_ns[kept],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """Every line of differences that obeys all bounds: by drift, its least and greatest offset at the middle.

    Both are linear between neighbours of ``drift_D``, whose ends are the least and the greatest drift that is allowed.
    """

    drift_D: F64
    low_ns_D: F64
    high_ns_D: F64

    def at(self, t_s: F64) -> tuple[F64, F64]:
        """The least and the greatest difference at each of the times. An end of a linear piece is where either is."""
        away = np.multiply.outer(t_s, self.drift_D)
        return (self.low_ns_D + away).min(axis=1), (self.high_ns_D + away).max(axis=1)

    def middle(self) -> tuple[float, float]:
        """Offset and drift of the line that keeps the furthest from all bounds."""
        best = int(np.argmax(self.high_ns_D - self.low_ns_D))
        return float(self.low_ns_D[best] + self.high_ns_D[best]) / 2, float(self.drift_D[best])


def _allowed(bounds: _Bounds) -> _Allowed | None:
    """What the bounds leave, None if nothing.

    For one drift, the tightest bound is a corner of the hull, and which corner it is changes at the drifts of the
    hulls' edges alone. So the room between both sides is concave and linear between those drifts. Times are taken about
    the bounds' middle, so that nanoseconds since 1970 do not cost precision.
    """
    middle_ns = float(np.median((bounds.lower_ns + bounds.upper_ns) / 2))
    upper_ns, lower_ns = bounds.upper_ns - middle_ns, bounds.lower_ns - middle_ns
    above, below = _lower_hull(bounds.t_s, upper_ns), _lower_hull(bounds.t_s, -lower_ns)
    largest = LARGEST_DRIFT * _NS_PER_S
    edges = [np.diff(y_ns[at]) / np.diff(bounds.t_s[at]) for at, y_ns in ((above, upper_ns), (below, lower_ns))]
    drift_D = np.unique(np.clip(np.concatenate([*edges, (-largest, largest)]), -largest, largest))
    high_ns_D = (upper_ns[above] - np.multiply.outer(drift_D, bounds.t_s[above])).min(axis=1)
    low_ns_D = (lower_ns[below] - np.multiply.outer(drift_D, bounds.t_s[below])).max(axis=1)
    room_ns_D = high_ns_D - low_ns_D
    if room_ns_D.max() < 0:
        return None
    drift_D, low_ns_D, high_ns_D = _cut(room_ns_D, np.stack([drift_D, low_ns_D, high_ns_D]))
    return _Allowed(drift_D=drift_D, low_ns_D=low_ns_D + middle_ns, high_ns_D=high_ns_D + middle_ns)


def _cut(room_ns_D: F64, values_VD: F64) -> F64:  # the suffix is the shape
    """The values where there is room, and on both sides those at the point where it ends."""
    inside = np.flatnonzero(room_ns_D >= 0)
    first, last = int(inside[0]), int(inside[-1])
    parts = [values_VD[:, first : last + 1]]
    for within, beyond, at in ((first, first - 1, 0), (last, last + 1, 2)):
        if 0 <= beyond < room_ns_D.size:
            share = room_ns_D[within] / (room_ns_D[within] - room_ns_D[beyond])
            edge = values_VD[:, [within]] + share * (values_VD[:, [beyond]] - values_VD[:, [within]])
            parts.insert(at, edge)
    return np.concatenate(parts, axis=1)


def _lower_hull(x: F64, y: F64) -> I64:
    """Places of the corners of the points' lower convex hull: a line below these is below all points.

    Each time is there once. Source: Andrew 1979, the monotone chain.
    """
    hull: list[tuple[float, float, int]] = []
    order = np.lexsort((y, x))
    for x_c, y_c, place in zip(x[order].tolist(), y[order].tolist(), order.tolist(), strict=True):
        if hull and hull[-1][0] == x_c:
            continue
        while len(hull) > 1:
            (x_a, y_a, _), (x_b, y_b, _) = hull[-2:]
            if (x_b - x_a) * (y_c - y_a) >= (y_b - y_a) * (x_c - x_a):
                break
            hull.pop()
        hull.append((x_c, y_c, place))
    return np.array([place for *_, place in hull], dtype=np.int64)


def _exit_line(bounds: _Bounds) -> tuple[float, float]:
    """Offset at the middle and drift of the exits' difference, by Theil-Sen over evenly spaced collectives."""
    chosen = np.unique(np.linspace(0, len(bounds.t_s) - 1, min(_EXITS, len(bounds.t_s))).astype(np.int64))
    t_s, exits_ns = bounds.t_s[chosen], bounds.exits_ns[chosen]
    middle_ns = float(np.median(exits_ns))
    if np.ptp(t_s) == 0:
        return middle_ns, 0.0
    line = theil_sen(exits_ns - middle_ns, t_s)
    return middle_ns + line.intercept, line.slope


def _mapped(records: RankRecords, difference: ClockDifference | None, middle_ns: int) -> RankRecords:
    """Equal stamps stay equal and none overtakes another, because the drift is far below 1."""
    if difference is None:
        return records

    def onto_reference(time_ns: I64) -> I64:
        return difference.onto_reference(time_ns, middle_ns)

    steps, calls = records.steps, records.collectives
    return replace(
        records,
        steps=replace(
            steps,
            start_ns_N=onto_reference(steps.start_ns_N),
            end_ns_N=onto_reference(steps.end_ns_N),
            span_start_ns_M=onto_reference(steps.span_start_ns_M),
            span_end_ns_M=onto_reference(steps.span_end_ns_M),
        ),
        collectives=replace(
            calls, enter_ns_N=onto_reference(calls.enter_ns_N), end_ns_N=onto_reference(calls.end_ns_N)
        ),
    )
