"""The four exact views of one ledger: rank mean, critical path, least-waiting rank, named ranks.

Local causes close on the critical path, transfer causes on the least-waiting rank. The rank mean shows a slow rank as
everyone else's skew.

Shape legend: R ranks, S steps, A accounts. Source: docs/method.md, four views of the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import Account
from narrows.reducers.critical_path import critical_path_ns, frontiers
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import CODES

if TYPE_CHECKING:
    from collections.abc import Collection

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64, Bool

WAITING_ACCOUNTS = (Account.TRANSFER, Account.SKEW, Account.PIPELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One reading of every step: ``account_ns_SA.sum(1) + boundary_ns_S == step_ns_S``.

    Exact for the critical path and the least-waiting rank, whose entries are whole; to float rounding for means over
    ranks. ``rank_S`` is the rank read at each step, -1 where a step is not read on one rank. ``boundary_ns_S`` is 0
    but for the least-waiting rank. ``hidden_ns_S`` is a memo in no sum: compute beside which a transfer ran.
    """

    name: str
    step_ns_S: F64
    account_ns_SA: F64
    boundary_ns_S: F64
    hidden_ns_S: F64
    rank_S: I64


def rank_mean(ledger: Ledger) -> View:
    """Means over the ranks present at each step; a step is the mean window."""
    return _mean_over(ledger, "rank_mean", np.ones(len(ledger.ranks), dtype=np.bool_))


def named_ranks(ledger: Ledger, ranks: Collection[int]) -> View:
    """Means over these ranks alone. Raises ValueError for a rank without steps, or absent from some step."""
    unknown = sorted(set(ranks) - set(ledger.ranks))
    if unknown or not ranks:
        raise ValueError(
            f"ranks {unknown or list(ranks)}: the ledger has {list(ledger.ranks)}; name one or more of these"
        )
    chosen_R = np.isin(ledger.ranks, sorted(ranks))
    if not ledger.present_RS[chosen_R].any(axis=0).all():
        raise ValueError(f"ranks {sorted(ranks)}: none of them took part in some segment; name one that did")
    return _mean_over(ledger, "named_ranks", chosen_R)


def critical_path(ledger: Ledger) -> View:
    """What the time between successive frontiers was spent on; there is no skew in it. Entries may be negative."""
    path_SA = critical_path_ns(ledger)
    _, _, last_S, _ = frontiers(ledger)
    return View(
        name="critical_path",
        step_ns_S=_frontier_step_ns(ledger).astype(np.float64),
        account_ns_SA=path_SA.astype(np.float64),
        boundary_ns_S=np.zeros(len(path_SA)),
        hidden_ns_S=_mean_hidden(ledger, ledger.present_RS),
        rank_S=np.asarray(ledger.ranks)[last_S],
    )


def least_waiting_rank(ledger: Ledger) -> View:
    """At each step the ledger of the rank with the least skew (the lowest such rank); the boundary account is what its
    window lacks of the frontier difference, near 0 on average.
    """
    skew_ns_RS = ledger.account_ns_RSA[:, :, CODES[Account.SKEW]]
    least_S = np.where(ledger.present_RS, skew_ns_RS, np.iinfo(np.int64).max).argmin(axis=0)
    at_S = np.arange(len(ledger.steps))
    account_ns_SA = ledger.account_ns_RSA[least_S, at_S]
    step_ns_S = _frontier_step_ns(ledger)
    return View(
        name="least_waiting_rank",
        step_ns_S=step_ns_S.astype(np.float64),
        account_ns_SA=account_ns_SA.astype(np.float64),
        boundary_ns_S=(step_ns_S - account_ns_SA.sum(axis=1)).astype(np.float64),
        hidden_ns_S=ledger.hidden_ns_RS[least_S, at_S].astype(np.float64),
        rank_S=np.asarray(ledger.ranks)[least_S],
    )


def local_time_RS(ledger: Ledger) -> F64:  # noqa: N802  # the suffix is the shape
    """Shape (R, S): ns of each window in neither transfer, skew nor pipeline; NaN where a rank was not present."""
    codes = [CODES[account] for account in WAITING_ACCOUNTS]
    window_ns_RS = ledger.end_ns_RS - ledger.start_ns_RS
    local_ns_RS = window_ns_RS - ledger.account_ns_RSA[:, :, codes].sum(axis=2)
    return np.where(ledger.present_RS, local_ns_RS.astype(np.float64), np.nan)


def _mean_over(ledger: Ledger, name: str, chosen_R: Bool) -> View:
    present_RS = ledger.present_RS & chosen_R[:, np.newaxis]
    num_S = present_RS.sum(axis=0)
    account_ns_SA = np.where(present_RS[:, :, np.newaxis], ledger.account_ns_RSA, 0).sum(axis=0)
    return View(
        name=name,
        step_ns_S=account_ns_SA.sum(axis=1) / num_S,
        account_ns_SA=account_ns_SA / num_S[:, np.newaxis],
        boundary_ns_S=np.zeros(len(num_S)),
        hidden_ns_S=_mean_hidden(ledger, present_RS),
        rank_S=np.full(len(num_S), ABSENT),
    )


def _mean_hidden(ledger: Ledger, present_RS: Bool) -> F64:
    return np.asarray(np.where(present_RS, ledger.hidden_ns_RS, 0).sum(axis=0) / present_RS.sum(axis=0), np.float64)


def _frontier_step_ns(ledger: Ledger) -> I64:
    _, from_ns_S, _, to_ns_S = frontiers(ledger)
    return to_ns_S - from_ns_S
