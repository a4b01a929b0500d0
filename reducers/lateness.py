"""Who arrives last, how late each rank arrives, and for whom each rank waits.

Differences between ranks within one step cancel what is common to all of them, so lateness moves where step time
does not yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.reducers.collectives import dense, within
from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64, Bool

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Matched collectives entered inside the ledger's steps, washout left out, point-to-point calls left out.

    ``by_rank``: one row a (segment, rank): segment, pair, rank, host, calls, last_share (share of the calls in which
    the rank arrived last; ties split), lateness_ms, wait_ms and service_ms (means a call; without queueing).
    """

    ledger: Ledger
    by_rank: pd.DataFrame

    @property
    def rows(self) -> pd.DataFrame:
        """One row an arrival: call, step (index into ``ledger.steps``), segment, rank, lateness_ns (enter after the
        first enter), last_weight."""
        good_N, step_N = _eligible(self.ledger)
        rows = self.ledger.collectives.rows
        chosen: pd.DataFrame = rows.loc[good_N, ["call", "rank", "lateness_ns", "last_weight"]].reset_index(drop=True)
        chosen.insert(1, "step", step_N)
        chosen.insert(2, "segment", self.ledger.steps["segment"].to_numpy()[step_N])
        return chosen

    @property
    def wait_ms_RR(self) -> F64:  # noqa: N802  # the suffix is the shape
        """``[r, l]``: total ms that the rank in row r waited for the rank in row l (ties split)."""
        from scipy import sparse  # slow to import, and few ask who waited for whom

        good_N, _ = _eligible(self.ledger)
        rows = self.ledger.collectives.rows
        shape = (len(self.ledger.collectives.calls), len(self.ledger.ranks))
        where = rows["call"].to_numpy()[good_N], _places(self.ledger)[rows["rank"].to_numpy()[good_N]]
        waits = sparse.csr_array((rows["wait_ns"].to_numpy()[good_N].astype(np.float64), where), shape=shape)
        lasts = sparse.csr_array((rows["last_weight"].to_numpy()[good_N], where), shape=shape)
        lasts.eliminate_zeros()
        return np.asarray((waits.T @ lasts).toarray() / NS_PER_MS, dtype=np.float64)


def lateness(ledger: Ledger) -> Lateness:
    """Arrivals of all ranks at all matched collectives; empty where the run has none."""
    good_N, step_N = _eligible(ledger)
    rows, num_ranks = ledger.collectives.rows, len(ledger.ranks)
    segment_S, pair_S = ledger.steps["segment"].to_numpy(), ledger.steps["pair"].to_numpy()
    unit_S = dense(segment_S, pair_S)
    _, first_U = np.unique(unit_S, return_index=True)
    cell_N = unit_S[step_N] * num_ranks + _places(ledger)[rows["rank"].to_numpy()[good_N]]
    num = np.bincount(cell_N, minlength=len(first_U) * num_ranks)
    cells = np.flatnonzero(num)
    place, unit = cells % num_ranks, first_U[cells // num_ranks]

    def mean_ms(name: str) -> F64:
        """Exact: sums of whole ns below 2**53."""
        sums = np.bincount(cell_N, weights=rows[name].to_numpy()[good_N], minlength=len(num))
        return np.asarray(sums[cells] / num[cells] / NS_PER_MS, dtype=np.float64)

    by_rank = pd.DataFrame(
        {
            "segment": segment_S[unit],
            "pair": pair_S[unit],
            "rank": np.array(ledger.ranks, dtype=np.int64)[place],
            "host": [ledger.hosts[at] for at in place.tolist()],
            "calls": num[cells],
            "last_share": rows["last_weight"][good_N].groupby(cell_N).mean().to_numpy(dtype=np.float64),
            "lateness_ms": mean_ms("lateness_ns"),
            "wait_ms": mean_ms("wait_ns"),
            "service_ms": mean_ms("service_ns") - mean_ms("queued_ns"),
        }
    )
    return Lateness(ledger=ledger, by_rank=by_rank)


def _eligible(ledger: Ledger) -> tuple[Bool, I64]:
    """Which rows count, and the step of each of these.

    A call belongs to the step in which its last arriver entered it, so its rows stay together.
    """
    rows = ledger.collectives.rows
    call_N, rank_N = rows["call"].to_numpy(), rows["rank"].to_numpy()
    last_C = ledger.collectives.calls["last_rank"].to_numpy()
    step_C = np.full(len(last_C), ABSENT)
    is_last_N = rank_N == last_C[call_N]
    step_C[call_N[is_last_N]] = ledger.row_step_N[is_last_N]
    # The last entry stands for no step at all, where a call without one points to.
    warmup_S = np.append(ledger.steps["warmup"].to_numpy(dtype=np.bool_), True)
    good_N: Bool = ~warmup_S[step_C][call_N]
    good_N &= rows["matched"].to_numpy(dtype=np.bool_) & ~rows["p2p"].to_numpy(dtype=np.bool_)
    good_N &= within(rank_N, ledger.ranks)
    return good_N, step_C[call_N[good_N]]


def _places(ledger: Ledger) -> I64:
    """The row of each rank in the ledger, by rank; ABSENT for a rank without steps."""
    places = np.full(max(ledger.ranks) + 1, ABSENT)
    places[list(ledger.ranks)] = np.arange(len(ledger.ranks))
    return places
