"""The critical path by forward provenance: what the time up to each step's end was really spent on.

Every timeline carries a vector of nanoseconds per account since the segment began, whose sum is the time elapsed.
Local work adds to it. A collective gives each member the vector of the last arriver, then adds transfer. Where the
main timeline was blocked and communication ended later, it takes over that vector. So no waiting for another rank is
on the path: in its place stands what the awaited rank was doing.

A vector is needed only once per collective, where its last member arrives; it is that of an earlier collective plus
an increment. The increments are computed for all collectives at once, and then added up in order of arrival.

Shape legend: S steps, A accounts, C matched collectives, Q points, J joins of one rank, R ranks.
Source: docs/method.md, four views of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.collectives import rows_by_rank, within
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import CODES

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import I64, Bool

_TRANSFER = CODES[Account.TRANSFER]


def frontiers(ledger: Ledger) -> tuple[I64, I64, I64, I64]:
    """Row of the last rank to start, its time, row of the last to end, its time; each of shape (S,).

    The frontier before a step is the latest start of its window over ranks. Windows tile a segment, so it is the
    frontier after the step before; at a segment's first step it leaves out what ranks did while others had not begun.
    """
    lowest = np.iinfo(np.int64).min
    start_ns_RS = np.where(ledger.present_RS, ledger.start_ns_RS, lowest)
    end_ns_RS = np.where(ledger.present_RS, ledger.end_ns_RS, lowest)
    first_S, last_S = start_ns_RS.argmax(axis=0), end_ns_RS.argmax(axis=0)
    return first_S, start_ns_RS.max(axis=0), last_S, end_ns_RS.max(axis=0)


def critical_path_ns(ledger: Ledger) -> I64:
    """Shape (S, A): each step's part of the critical path; a row sums to the step's frontier difference exactly.

    An entry may be negative: the path to this step's end may have branched off before the previous step's end, and
    then replaces what the path to that end was spent on.
    """
    calls = _arrivals(ledger)
    rows_of = rows_by_rank(ledger.collectives.rows)
    nothing = np.zeros(0, dtype=np.int64)
    joins = [_joins(ledger, calls, at, rows_of.get(rank, nothing)) for at, rank in enumerate(ledger.ranks)]
    from_rank_S, from_ns_S, to_rank_S, to_ns_S = frontiers(ledger)
    path_SA = np.zeros((len(ledger.steps), len(ACCOUNTS)), dtype=np.int64)
    segment_S = ledger.steps["segment"].to_numpy()
    for segment in np.unique(segment_S):
        step_Q = np.flatnonzero(segment_S == segment)
        paths = _SegmentPaths(
            ledger, calls, joins, origin_ns=int(from_ns_S[step_Q[0]]), until_ns=int(to_ns_S[step_Q[-1]])
        )
        ends_QA, starts_QA = np.split(
            paths.vectors(
                np.concatenate([to_rank_S[step_Q], from_rank_S[step_Q]]),
                np.concatenate([to_ns_S[step_Q], from_ns_S[step_Q]]),
            ),
            2,
        )
        path_SA[step_Q] = ends_QA - starts_QA
    return path_SA


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrivals:
    """Matched collectives of the ledger's ranks, in order of their effective arrival (nothing before them in a queue).

    ``row_N`` of a collective row is its collective's place here, ABSENT for rows of others.
    """

    arrival_ns_C: I64
    last_row_C: I64
    of_row_N: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joins:
    """Where one rank's main timeline took over the vector of a collective, in order of time."""

    time_ns_J: I64
    call_J: I64


def _arrivals(ledger: Ledger) -> _Arrivals:
    rows = ledger.collectives.rows
    call_N, ready_N = rows["call"].to_numpy(), rows["ready_ns"].to_numpy()
    known_N = rows["matched"].to_numpy() & within(rows["rank"].to_numpy(), ledger.ranks)
    num_calls = len(ledger.collectives.calls)
    latest_ns = np.full(num_calls, np.iinfo(np.int64).min)
    np.maximum.at(latest_ns, call_N[known_N], ready_N[known_N])
    last_row = np.full(num_calls, ABSENT)
    at_N = np.flatnonzero(known_N & (ready_N == latest_ns[call_N]))[::-1]
    last_row[call_N[at_N]] = at_N
    used = np.flatnonzero(last_row != ABSENT)
    used = used[np.argsort(latest_ns[used], kind="stable")]
    place = np.full(num_calls, ABSENT)
    place[used] = np.arange(len(used))
    of_row_N = np.where(known_N, place[call_N], ABSENT) if len(rows) else np.zeros(0, dtype=np.int64)
    return _Arrivals(arrival_ns_C=latest_ns[used], last_row_C=last_row[used], of_row_N=of_row_N)


def _joins(ledger: Ledger, calls: _Arrivals, at: int, row_N: I64) -> _Joins:
    """The latest collective to end within each blocked interval released it.

    A member that left before the last arrival (the root of a broadcast) depended on nobody and joins nothing.
    """
    rows = ledger.collectives.rows
    end_N, call_N = rows["end_ns"].to_numpy(), calls.of_row_N
    row_J = row_N[call_N[row_N] != ABSENT]
    row_J = row_J[end_N[row_J] > calls.arrival_ns_C[call_N[row_J]]]
    row_J = row_J[np.argsort(end_N[row_J], kind="stable")]
    wait = ledger.waits[at]
    if not row_J.size or not wait.start_ns_M.size:
        empty = np.zeros(0, dtype=np.int64)
        return _Joins(time_ns_J=empty, call_J=empty)
    found_M = np.searchsorted(end_N[row_J], wait.end_ns_M, side="right") - 1
    released_M = (found_M >= 0) & (end_N[row_J[np.maximum(found_M, 0)]] > wait.start_ns_M)
    row_J = row_J[np.unique(found_M[released_M])]
    return _Joins(time_ns_J=end_N[row_J], call_J=call_N[row_J])


class _SegmentPaths:
    """Vectors of one segment, all zero at ``origin_ns``, when its last rank started."""

    def __init__(self, ledger: Ledger, calls: _Arrivals, joins: list[_Joins], *, origin_ns: int, until_ns: int) -> None:
        self._ledger = ledger
        self._joins = joins
        self._origin_ns = origin_ns
        rows = ledger.collectives.rows
        self._arrival_ns_C = np.maximum(calls.arrival_ns_C, origin_ns)
        inside_C = np.flatnonzero((calls.arrival_ns_C > origin_ns) & (calls.arrival_ns_C <= until_ns))
        self._vector_CA = np.zeros((len(calls.arrival_ns_C), len(ACCOUNTS)), dtype=np.int64)
        last_row_Q = calls.last_row_C[inside_C]
        row_of_rank = {rank: at for at, rank in enumerate(ledger.ranks)}
        rank_Q = np.array([row_of_rank[rank] for rank in rows["rank"].to_numpy()[last_row_Q].tolist()], dtype=np.int64)
        parent_Q, gained_QA = self._main(rank_Q, np.maximum(rows["enter_ns"].to_numpy()[last_row_Q], origin_ns))
        self._queue(calls, last_row_Q, parent_Q, gained_QA)
        self._accumulate(inside_C, parent_Q, gained_QA)

    def vectors(self, rank_Q: I64, time_ns_Q: I64) -> I64:
        """Shape (Q, A): the vector of each rank's main timeline; each sums to the time since the origin."""
        parent_Q, gained_QA = self._main(rank_Q, time_ns_Q)
        inherited_Q = parent_Q != ABSENT
        gained_QA[inherited_Q] += self._vector_CA[parent_Q[inherited_Q]]
        return gained_QA

    def _main(self, rank_Q: I64, time_ns_Q: I64) -> tuple[I64, I64]:
        """The collective whose vector a main timeline took last, and what has been added to it since."""
        parent_Q = np.full(len(rank_Q), ABSENT)
        gained_QA = np.zeros((len(rank_Q), len(ACCOUNTS)), dtype=np.int64)
        for at in np.unique(rank_Q):
            here = np.flatnonzero(rank_Q == at)
            joins, timeline = self._joins[at], self._ledger.timelines[at]
            found = np.searchsorted(joins.time_ns_J, time_ns_Q[here], side="right") - 1
            joined = found >= 0
            joined[joined] = joins.time_ns_J[found[joined]] > self._origin_ns
            since_ns = np.full(len(here), self._origin_ns)
            since_ns[joined] = joins.time_ns_J[found[joined]]
            until_QA, since_QA = np.split(timeline.spent_ns(np.concatenate([time_ns_Q[here], since_ns])), 2)
            gained_QA[here] = until_QA - since_QA
            call = joins.call_J[found[joined]]
            parent_Q[here[joined]] = call
            gained_QA[here[joined], _TRANSFER] += since_ns[joined] - self._arrival_ns_C[call]
        return parent_Q, gained_QA

    def _queue(self, calls: _Arrivals, last_row_Q: I64, parent_Q: I64, gained_QA: I64) -> None:
        """A last arriver that queued behind its group's previous collective continues from that one, not from main."""
        rows = self._ledger.collectives.rows
        ready_N, enter_N = rows["ready_ns"].to_numpy(), rows["enter_ns"].to_numpy()
        behind_Q = rows["behind"].to_numpy()[last_row_Q]
        waited_Q = ready_N[last_row_Q] - np.maximum(enter_N[last_row_Q], self._origin_ns)
        gained_QA[:, _TRANSFER] += np.where(behind_Q != ABSENT, waited_Q, 0)
        before_Q = np.where(behind_Q != ABSENT, calls.of_row_N[behind_Q], ABSENT)
        taken_Q = self._later(before_Q, ready_N[last_row_Q])
        parent_Q[taken_Q] = before_Q[taken_Q]
        gained_QA[taken_Q] = 0
        gained_QA[taken_Q, _TRANSFER] = (ready_N[last_row_Q] - self._arrival_ns_C[before_Q])[taken_Q]

    def _later(self, call_Q: I64, time_ns_Q: I64) -> Bool:
        later_Q: Bool = np.not_equal(call_Q, ABSENT)
        later_Q[later_Q] = time_ns_Q[later_Q] > self._arrival_ns_C[call_Q[later_Q]]
        return later_Q

    def _accumulate(self, inside_C: I64, parent_Q: I64, gained_QA: I64) -> None:
        """Parents arrived strictly earlier, so in order of arrival each parent's vector is complete when needed."""
        vector_CA = self._vector_CA
        vector_CA[inside_C] = gained_QA
        for call, parent in zip(inside_C.tolist(), parent_Q.tolist(), strict=True):
            if parent != ABSENT:
                vector_CA[call] += vector_CA[parent]
