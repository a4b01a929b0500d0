"""Who arrives last, how late each rank arrives, and for whom each rank waits.

Differences between ranks within one step cancel what is common to all of them, so lateness moves where step time
does not yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Matched collectives entered inside the ledger's steps, washout left out, point-to-point calls left out.

    ``rows``: call, step (index into ``ledger.steps``), segment, rank, lateness_ns (enter after the first enter),
    last_weight. ``by_rank``: one row a (segment, rank): segment, pair, rank, host, calls, last_share (share of the
    calls in which the rank arrived last; ties split), lateness_ms and wait_ms (means a call). ``wait_ms_RR[r, l]``:
    total ms that the rank in row r waited for the rank in row l (ties split).
    """

    rows: pd.DataFrame
    by_rank: pd.DataFrame
    wait_ms_RR: F64


def lateness(ledger: Ledger) -> Lateness:
    """Arrivals of all ranks at all matched collectives; empty where the run has none."""
    rows = _eligible(ledger)
    by_rank = rows.groupby(["segment", "pair", "rank"], as_index=False).agg(
        calls=("call", "size"),
        last_share=("last_weight", "mean"),
        lateness_ms=("lateness_ns", "mean"),
        wait_ms=("wait_ns", "mean"),
    )
    by_rank["lateness_ms"] /= NS_PER_MS
    by_rank["wait_ms"] /= NS_PER_MS
    host_of = dict(zip(ledger.ranks, ledger.hosts, strict=True))
    by_rank.insert(3, "host", [host_of[rank] for rank in by_rank["rank"].tolist()])
    return Lateness(
        rows=rows[["call", "step", "segment", "rank", "lateness_ns", "last_weight"]],
        by_rank=by_rank,
        wait_ms_RR=_wait_matrix(rows, ledger.ranks),
    )


def _eligible(ledger: Ledger) -> pd.DataFrame:
    """A call belongs to the step in which its last arriver entered it, so its rows stay together."""
    rows = ledger.collectives.rows
    call_N, rank_N = rows["call"].to_numpy(), rows["rank"].to_numpy()
    last_C = ledger.collectives.calls["last_rank"].to_numpy()
    step_C = np.full(len(last_C), ABSENT)
    is_last_N = rank_N == last_C[call_N]
    step_C[call_N[is_last_N]] = ledger.row_step_N[is_last_N]
    step_N = step_C[call_N]
    warmup_S = ledger.steps["warmup"].to_numpy(dtype=np.bool_)
    good_N = rows["matched"].to_numpy() & ~rows["p2p"].to_numpy(dtype=np.bool_) & (step_N != ABSENT)
    good_N &= rows["rank"].isin(ledger.ranks).to_numpy()
    good_N[good_N] &= ~warmup_S[step_N[good_N]]
    chosen: pd.DataFrame = rows.loc[good_N, ["call", "rank", "lateness_ns", "last_weight", "wait_ns"]].copy()
    chosen["step"] = step_N[good_N]
    places = ledger.steps.iloc[step_N[good_N]]
    chosen["segment"] = places["segment"].to_numpy()
    chosen["pair"] = places["pair"].to_numpy()
    return chosen.reset_index(drop=True)


def _wait_matrix(rows: pd.DataFrame, ranks: tuple[int, ...]) -> F64:
    wait_ms_RR = np.zeros((len(ranks), len(ranks)))
    place = {rank: at for at, rank in enumerate(ranks)}
    at_N: I64 = np.array([place[rank] for rank in rows["rank"].tolist()], dtype=np.int64)
    lasts = pd.DataFrame({"call": rows["call"], "last": at_N, "weight": rows["last_weight"]})
    waits = pd.DataFrame({"call": rows["call"], "waiting": at_N, "wait_ns": rows["wait_ns"]})
    crossed = waits.merge(lasts[lasts["weight"] > 0], on="call")
    shares_ms = crossed["wait_ns"].to_numpy() * crossed["weight"].to_numpy() / NS_PER_MS
    np.add.at(wait_ms_RR, (crossed["waiting"].to_numpy(), crossed["last"].to_numpy()), shares_ms)
    return wait_ms_RR
