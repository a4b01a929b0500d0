"""Double entry: time moved between two accounts of the same rank and step, with a reason; sums cannot change.

The critical path is traced from the events themselves, so an adjustment shows in the other three views only.

Shape legend: R ranks, S steps, A accounts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import Account
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import CODES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import I64, Bool


class Reason(StrEnum):
    """Why time was moved."""

    ASYNC_CHECKPOINT = "an asynchronous checkpoint slowed compute"
    PROFILER_OVERHEAD = "the profiler's own time"
    CLOCK_CLAMP = "a collective ended before its last arrival: clock error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """``ns_RS`` >= 0 goes from one account to another of the same rank and step."""

    source: Account
    target: Account
    ns_RS: I64
    reason: Reason

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f"adjustment from {self.source} to itself: name two accounts")
        if (self.ns_RS < 0).any():
            raise ValueError(f"adjustment of {self.ns_RS.min()} ns: give an amount >= 0, and swap source and target")


def adjusted(ledger: Ledger, adjustments: Iterable[Adjustment]) -> Ledger:
    """The ledger after all entries; every rank-step sums to its window as before.

    Raises ValueError when an entry would take more than its source account holds.
    """
    account_ns_RSA = ledger.account_ns_RSA.copy()
    for entry in adjustments:
        source, target = CODES[entry.source], CODES[entry.target]
        short_RS = entry.ns_RS > account_ns_RSA[:, :, source]
        if short_RS.any():
            at, step = np.argwhere(short_RS)[0]
            raise ValueError(
                f"rank {ledger.ranks[at]} step index {step}: {entry.ns_RS[at, step]} ns from {entry.source}, which "
                f"holds {account_ns_RSA[at, step, source]}; take no more than that"
            )
        account_ns_RSA[:, :, source] -= entry.ns_RS
        account_ns_RSA[:, :, target] += entry.ns_RS
    return replace(ledger, account_ns_RSA=account_ns_RSA)


def async_checkpoint(ledger: Ledger, active_RS: Bool) -> Adjustment:
    """Compute beyond the median of the rank's steps without a checkpoint, moved to checkpoint.

    The excess summed over a rank's active steps is what is moved, spread evenly over them and never below 0, so that
    noise of single steps does not enter with one sign only. Each rank needs a present step that is not active.
    """
    compute_ns_RS = ledger.account_ns_RSA[:, :, CODES[Account.COMPUTE]]
    ns_RS = np.zeros_like(compute_ns_RS)
    for at in range(len(ledger.ranks)):
        active_S = active_RS[at] & ledger.present_RS[at]
        inactive_S = ~active_RS[at] & ledger.present_RS[at]
        if not active_S.any():
            continue
        if not inactive_S.any():
            raise ValueError(f"rank {ledger.ranks[at]}: every step had a checkpoint active; nothing to compare with")
        excess_ns = (compute_ns_RS[at, active_S] - np.median(compute_ns_RS[at, inactive_S])).mean()
        ns_RS[at, active_S] = np.minimum(max(0, int(excess_ns)), compute_ns_RS[at, active_S])
    return Adjustment(source=Account.COMPUTE, target=Account.CHECKPOINT, ns_RS=ns_RS, reason=Reason.ASYNC_CHECKPOINT)


def profiler_overhead(ledger: Ledger, ns_RS: I64) -> Adjustment:
    """Measured overhead, moved from host time to residual as far as there is host time."""
    held_RS = ledger.account_ns_RSA[:, :, CODES[Account.HOST]]
    moved_RS = np.minimum(ns_RS, held_RS)
    return Adjustment(source=Account.HOST, target=Account.RESIDUAL, ns_RS=moved_RS, reason=Reason.PROFILER_OVERHEAD)


def clock_clamp(ledger: Ledger) -> Adjustment:
    """Skew that clock error made, moved to transfer.

    No member leaves a symmetric collective before the last arrived, so where one seems to, the arrival is taken to be
    the earliest end, and each member's wait shrinks to that.
    """
    rows = ledger.collectives.rows
    call_N, end_N = rows["call"].to_numpy(), rows["end_ns"].to_numpy()
    clamped_C = np.zeros(len(ledger.collectives.calls), dtype=np.bool_)
    clamped_C[call_N[rows["clamped_ns"].to_numpy() > 0]] = True
    first_end_C = np.full(len(clamped_C), np.iinfo(np.int64).max)
    np.minimum.at(first_end_C, call_N, end_N)
    arrival_N = rows["enter_ns"].to_numpy() + rows["wait_ns"].to_numpy()
    excess_N = np.maximum(0, arrival_N - np.maximum(first_end_C[call_N], rows["enter_ns"].to_numpy()))
    row_of_rank = {rank: at for at, rank in enumerate(ledger.ranks)}
    at_N = np.array([row_of_rank.get(rank, ABSENT) for rank in rows["rank"].tolist()], dtype=np.int64)
    used_N = clamped_C[call_N] & (ledger.row_step_N != ABSENT) & (at_N != ABSENT)
    ns_RS = np.zeros(ledger.present_RS.shape, dtype=np.int64)
    np.add.at(ns_RS, (at_N[used_N], ledger.row_step_N[used_N]), excess_N[used_N])
    held_RS = ledger.account_ns_RSA[:, :, CODES[Account.SKEW]]
    return Adjustment(
        source=Account.SKEW, target=Account.TRANSFER, ns_RS=np.minimum(ns_RS, held_RS), reason=Reason.CLOCK_CLAMP
    )
