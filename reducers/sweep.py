"""One pass over a rank's intervals: at each instant exactly one account, the first active in their order.

Shape legend: M intervals, E instants at which anything starts or ends, S step windows, A accounts, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, Account

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrows.reducers.records import I64, Bool

CODES: dict[Account, int] = {account: code for code, account in enumerate(ACCOUNTS)}
WAIT_CODE = len(ACCOUNTS)
"""Interval code of a blocked main thread: it pauses compute and is never credited."""

_RESIDUAL, _COMPUTE, _TRANSFER = CODES[Account.RESIDUAL], CODES[Account.COMPUTE], CODES[Account.TRANSFER]
_COLLECTIVE_CODES = (CODES[Account.TRANSFER], CODES[Account.SKEW], CODES[Account.PIPELINE])


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Half-open intervals [start, end) of one rank; ``code_M`` is an account's place in the order, or WAIT_CODE."""

    code_M: I64
    start_ns_M: I64
    end_ns_M: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What one rank itself was doing: from ``start_ns_E[e]`` until the next start, account ``code_E[e]``.

    Communication beside local work is not in it; communication in which the main thread was blocked is transfer.
    Before the first start, after the last, and in no interval at all, it is residual.
    """

    start_ns_E: I64
    code_E: NDArray[np.int8]

    def spent_ns(self, until_ns_Q: I64) -> I64:
        """Shape (Q, A): ns in each account from the first start until each queried time; each row sums to the two
        times' difference, which is negative residual for a time before the first start.
        """
        if not self.start_ns_E.size:
            spent_QA = np.zeros((len(until_ns_Q), len(ACCOUNTS)), dtype=np.int64)
            spent_QA[:, _RESIDUAL] = until_ns_Q
            return spent_QA
        at_Q = np.searchsorted(self.start_ns_E, until_ns_Q, side="right") - 1
        inside_Q = np.maximum(at_Q, 0)
        spent_QA = self._before(inside_Q)
        code_Q = np.where(at_Q >= 0, self.code_E[inside_Q], _RESIDUAL)
        spent_QA[np.arange(len(until_ns_Q)), code_Q] += until_ns_Q - self.start_ns_E[inside_Q]
        return spent_QA

    def _before(self, at_Q: I64) -> I64:
        """Shape (Q, A): ns in each account from the first start until the start of each queried place."""
        order = np.argsort(at_Q, kind="stable")
        # Each length falls to the first query that lies after it, and from there on to all later ones.
        bucket_E = np.repeat(np.arange(len(at_Q)), np.diff(at_Q[order], prepend=0))
        num = len(bucket_E)
        cell_E = bucket_E * len(ACCOUNTS) + self.code_E[:num]
        length_E = np.diff(self.start_ns_E[: num + 1])
        sums = np.bincount(cell_E, weights=length_E, minlength=len(at_Q) * len(ACCOUNTS)).astype(np.int64)
        spent_QA = np.empty((len(at_Q), len(ACCOUNTS)), dtype=np.int64)
        spent_QA[order] = np.cumsum(sums.reshape(len(at_Q), len(ACCOUNTS)), axis=0)
        return spent_QA


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The accounts of one rank's windows: ``account_ns_SA`` rows sum to the windows; ``hidden_ns_S`` is the part of
    compute during which a transfer ran as well."""

    account_ns_SA: I64
    hidden_ns_S: I64
    timeline: Timeline


def sweep(intervals: Intervals, start_ns_S: I64, end_ns_S: I64) -> Swept:
    """Every instant of the windows in exactly one account; windows are disjoint and in order of time.

    What lies outside the windows is in the timeline and in no account. Counts, not flags, track what is active, so
    intervals of one account may nest and overlap.
    """
    num_steps = len(start_ns_S)
    time_E, active_E = _activity(intervals, start_ns_S, end_ns_S)
    length_E = np.diff(time_E, append=time_E[-1:])
    if _COMPUTE in active_E and WAIT_CODE in active_E:
        active_E[_COMPUTE] &= ~active_E[WAIT_CODE]
    code_E = _first_active(active_E, len(time_E))
    step_E = np.searchsorted(start_ns_S, time_E, side="right") - 1
    within_E = (step_E >= 0) & (length_E > 0)
    within_E[within_E] = time_E[within_E] < end_ns_S[step_E[within_E]]
    # Float sums of whole numbers are exact below 2**53 ns, which is 104 days in one cell.
    cell_E = step_E[within_E] * len(ACCOUNTS) + code_E[within_E]
    weights = length_E[within_E].astype(np.float64)
    account_ns = np.bincount(cell_E, weights=weights, minlength=num_steps * len(ACCOUNTS)).astype(np.int64)
    hidden_ns_S = np.zeros(num_steps, dtype=np.int64)
    if _TRANSFER in active_E:
        hidden_E = within_E & (code_E == _COMPUTE) & active_E[_TRANSFER]
        hidden_ns_S = np.bincount(step_E[hidden_E], weights=length_E[hidden_E], minlength=num_steps).astype(np.int64)
    return Swept(
        account_ns_SA=account_ns.reshape(num_steps, len(ACCOUNTS)),
        hidden_ns_S=hidden_ns_S,
        timeline=_timeline(time_E, code_E, active_E),
    )


def _activity(intervals: Intervals, start_ns_S: I64, end_ns_S: I64) -> tuple[I64, dict[int, Bool]]:
    """The instants, and for each code that occurs whether it is active from each instant until the next."""
    code_M, num = intervals.code_M, len(intervals.code_M)
    time = np.concatenate([intervals.start_ns_M, intervals.end_ns_M, start_ns_S, end_ns_S])
    order = np.argsort(time, kind="stable")
    time_sorted = time[order]
    last = np.ones(len(time_sorted), dtype=np.bool_)
    last[:-1] = time_sorted[1:] != time_sorted[:-1]
    time_E = time_sorted[last]
    at = np.empty(len(time), dtype=np.int64)
    if len(time):
        place = np.cumsum(last)
        at[order[0]] = 0
        at[order[1:]] = place[:-1]
    start_M, end_M = at[:num], at[num : 2 * num]
    active_E = {}
    for code in np.flatnonzero(np.bincount(code_M, minlength=WAIT_CODE + 1)).tolist():
        own_M = np.flatnonzero(code_M == code)
        change_E = np.bincount(start_M[own_M], minlength=len(time_E))
        change_E -= np.bincount(end_M[own_M], minlength=len(time_E))
        active_E[code] = np.cumsum(change_E) > 0
    return time_E, active_E


def _first_active(active_E: dict[int, Bool], num: int) -> NDArray[np.int8]:
    code_E = np.full(num, _RESIDUAL, dtype=np.int8)
    for code in sorted(active_E, reverse=True):
        if code < _RESIDUAL:
            code_E[active_E[code]] = code
    return code_E


def _timeline(time_E: I64, code_E: NDArray[np.int8], active_E: dict[int, Bool]) -> Timeline:
    local_E = _first_active({code: on for code, on in active_E.items() if code not in _COLLECTIVE_CODES}, len(time_E))
    if WAIT_CODE in active_E:
        local_E[active_E[WAIT_CODE] & np.isin(code_E, _COLLECTIVE_CODES)] = _TRANSFER
    starts = np.ones(len(time_E), dtype=np.bool_)
    starts[1:] = local_E[1:] != local_E[:-1]
    return Timeline(start_ns_E=time_E[starts], code_E=local_E[starts])
