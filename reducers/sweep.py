"""One pass over a rank's intervals: at each instant exactly one account, the first active in their order.

Shape legend: M intervals, E instants at which anything starts or ends, S step windows, A accounts.
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
        total_EA = np.zeros((len(self.start_ns_E), len(ACCOUNTS)), dtype=np.int64)
        rows = np.arange(1, len(self.start_ns_E))
        total_EA[rows, self.code_E[:-1]] = np.diff(self.start_ns_E)
        np.cumsum(total_EA, axis=0, out=total_EA)
        at_Q = np.searchsorted(self.start_ns_E, until_ns_Q, side="right") - 1
        inside_Q = np.maximum(at_Q, 0)
        spent_QA = total_EA[inside_Q]
        code_Q = np.where(at_Q >= 0, self.code_E[inside_Q], _RESIDUAL)
        spent_QA[np.arange(len(until_ns_Q)), code_Q] += until_ns_Q - self.start_ns_E[inside_Q]
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
    time_E, active_EC = _activity(intervals, start_ns_S, end_ns_S)
    length_E = np.diff(time_E, append=time_E[-1:])
    active_EC[:, _COMPUTE] &= ~active_EC[:, WAIT_CODE]
    code_E = _first_active(active_EC)
    step_E = np.searchsorted(start_ns_S, time_E, side="right") - 1
    within_E = (step_E >= 0) & (length_E > 0)
    within_E[within_E] = time_E[within_E] < end_ns_S[step_E[within_E]]
    # Float sums of whole numbers are exact below 2**53 ns, which is 104 days in one cell.
    cell_E = step_E[within_E] * len(ACCOUNTS) + code_E[within_E]
    weights = length_E[within_E].astype(np.float64)
    account_ns = np.bincount(cell_E, weights=weights, minlength=num_steps * len(ACCOUNTS)).astype(np.int64)
    hidden_E = within_E & (code_E == _COMPUTE) & active_EC[:, _TRANSFER]
    hidden_ns_S = np.bincount(step_E[hidden_E], weights=length_E[hidden_E], minlength=num_steps).astype(np.int64)
    return Swept(
        account_ns_SA=account_ns.reshape(num_steps, len(ACCOUNTS)),
        hidden_ns_S=hidden_ns_S,
        timeline=_timeline(time_E, code_E, active_EC),
    )


def _activity(intervals: Intervals, start_ns_S: I64, end_ns_S: I64) -> tuple[I64, Bool]:
    """The instants, and for each which codes are active from it until the next."""
    num_codes = WAIT_CODE + 1
    num = len(intervals.code_M)
    time = np.concatenate([intervals.start_ns_M, intervals.end_ns_M, start_ns_S, end_ns_S])
    order = np.argsort(time, kind="stable")
    time_sorted = time[order]
    last = np.ones(len(time_sorted), dtype=np.bool_)
    last[:-1] = time_sorted[1:] != time_sorted[:-1]
    at = np.empty(len(time), dtype=np.int64)
    at[order] = np.cumsum(np.concatenate([[0], last[:-1]])) if len(time) else 0
    time_E = time_sorted[last]
    change = np.bincount(at[:num] * num_codes + intervals.code_M, minlength=len(time_E) * num_codes)
    change -= np.bincount(at[num : 2 * num] * num_codes + intervals.code_M, minlength=len(time_E) * num_codes)
    return time_E, np.cumsum(change.reshape(len(time_E), num_codes), axis=0) > 0


def _first_active(active_EC: Bool) -> NDArray[np.int8]:
    considered = active_EC[:, :WAIT_CODE].copy()
    considered[:, _RESIDUAL] = True
    code_E: NDArray[np.int8] = np.argmax(considered, axis=1).astype(np.int8)
    return code_E


def _timeline(time_E: I64, code_E: NDArray[np.int8], active_EC: Bool) -> Timeline:
    local_EC = active_EC.copy()
    local_EC[:, _COLLECTIVE_CODES] = False
    local_E = _first_active(local_EC)
    blocked_E = active_EC[:, WAIT_CODE] & np.isin(code_E, _COLLECTIVE_CODES)
    local_E[blocked_E] = _TRANSFER
    starts = np.ones(len(time_E), dtype=np.bool_)
    starts[1:] = local_E[1:] != local_E[:-1]
    return Timeline(start_ns_E=time_E[starts], code_E=local_E[starts])
