"""One row a unit: a statistic of its step time, and the accounts that add up to it.

A unit is one segment of one run directory, the thing that is repeated and paired; steps are never replicates.
Medians of accounts do not add up to the median of steps, so a quantile's accounts are those of the steps near it.

Shape legend: S steps of the ledger, T steady steps of one unit, A accounts.
Source: docs/method.md, means, medians, tails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.findings import not_estimable
from narrows.reducers.records import ABSENT
from narrows.reducers.robust import harrell_davis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64
    from narrows.reducers.views import View

NS_PER_MS = 1e6
LEAST_WINDOW_STEPS = 3
"""A quantile's accounts come from at least so many steps, so that no single step speaks for all."""


class Statistic(StrEnum):
    """What one unit's steps are reduced to. All are in ms a step and have accounts that sum to them."""

    MEAN = "mean"
    MEDIAN = "median"
    P25 = "p25"
    P95 = "p95"
    P99 = "p99"
    LOW50 = "low50"
    ES95 = "es95"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantile:
    """A quantile, and the half-width of the window of quantiles whose steps give its accounts."""

    q: float
    half_width: float


_QUANTILES = {
    Statistic.MEDIAN: _Quantile(q=0.50, half_width=0.05),
    Statistic.P25: _Quantile(q=0.25, half_width=0.05),
    Statistic.P95: _Quantile(q=0.95, half_width=0.02),
    Statistic.P99: _Quantile(q=0.99, half_width=0.005),
}
TAIL_SHARE = 0.05


def units(view: View, ledger: Ledger, statistic: Statistic | str) -> pd.DataFrame:
    """One row a unit with steady steps, in order of time; washout steps are left out.

    Columns: run, launch, arm, segment, pair, started_ns, ended_ns (washout included, on the run's clock), steps
    (steady ones), step_ms, one column an account in ms, boundary, hidden, status. Accounts sum to step_ms. What the
    least-waiting rank's window lacks of the frontier difference is inside ``residual``, and shown by itself in
    ``boundary``; ``hidden`` is compute beside which a transfer ran, in no sum. ``status`` is empty, or says why the
    statistic cannot be estimated from so few steps; the measured columns are NaN then.

    Raises ValueError for a statistic that is not one of ``Statistic``.
    """
    return _table(unit_records(view, unit_places(ledger), statistic))


Place = tuple[dict[str, object], "I64"]
"""A unit's identity, and the places of its steady steps."""


def unit_records(view: View, places: Sequence[Place], statistic: Statistic | str) -> list[dict[str, Any]]:
    """The rows of ``units`` as they are, for callers that want many statistics of the same places."""
    statistic = Statistic(statistic)
    rows = []
    for identity, steady_T in places:
        status = not_estimable(statistic, len(steady_T))
        measured = _nothing() if status else _measure(view, steady_T, statistic)
        rows.append(identity | measured | {"status": status})
    return rows


def work(ledger: Ledger) -> pd.DataFrame:
    """One row a unit: useful work per steady step, deterministic, so that it is compared exactly.

    For every ``useful`` counter the columns ``NAME_sum`` (over ranks) and ``NAME_max`` (the most loaded rank), means
    over steps; and ``payload_bytes_sum`` and ``collectives_sum``, what all ranks handed to collectives. NaN where a
    rank or step did not record the counter.
    """
    return _table(work_records(ledger, unit_places(ledger)))


def work_records(ledger: Ledger, places: Sequence[Place]) -> list[dict[str, Any]]:
    """The rows of ``work`` as they are, for callers that have the places."""
    counters = {name.removeprefix("useful."): name for name in ledger.readings_RS if name.startswith("useful.")}
    payload_S, calls_S = _communication(ledger)
    rows = []
    for identity, steady_T in places:
        row = dict(identity)
        for short, name in sorted(counters.items()):
            values_RT = ledger.readings_RS[name][:, steady_T]
            present_RT = ledger.present_RS[:, steady_T]
            row[f"{short}_sum"] = _mean(np.where(present_RT, values_RT, 0).sum(axis=0))
            row[f"{short}_max"] = _mean(np.where(present_RT, values_RT, -np.inf).max(axis=0))
        row["payload_bytes_sum"] = _mean(payload_S[steady_T])
        row["collectives_sum"] = _mean(calls_S[steady_T])
        rows.append(row)
    return rows


def unit_places(ledger: Ledger) -> list[Place]:
    """Every unit with steady steps, in order of time."""
    found: list[Place] = []
    segment_S = ledger.steps["segment"].to_numpy()
    warmup_S = ledger.steps["warmup"].to_numpy(dtype=np.bool_)
    for segment in pd.unique(segment_S):
        step_T = np.flatnonzero(segment_S == segment)
        steady_T = step_T[~warmup_S[step_T]]
        if not steady_T.size:
            continue
        present_RT = ledger.present_RS[:, step_T]
        pair = int(ledger.steps["pair"].iloc[step_T[0]])
        identity: dict[str, object] = {
            "run": ledger.name,
            "launch": ledger.launch,
            "arm": ledger.arm,
            "segment": int(segment),
            "pair": pd.NA if pair == ABSENT else pair,
            "started_ns": int(ledger.start_ns_RS[:, step_T][present_RT].min()),
            "ended_ns": int(ledger.end_ns_RS[:, step_T][present_RT].max()),
            "steps": len(steady_T),
        }
        found.append((identity, steady_T))
    return found


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if len(table):
        table["pair"] = table["pair"].astype("Int64")
    return table


def _nothing() -> dict[str, float]:
    return dict.fromkeys(["step_ms", *(str(account) for account in ACCOUNTS), "boundary", "hidden"], math.nan)


def _measure(view: View, steady_T: I64, statistic: Statistic) -> dict[str, float]:
    step_T = view.step_ns_S[steady_T]
    chosen = steady_T[chosen_steps(step_T, statistic)]
    scale = 1 / NS_PER_MS
    step_ns = float(view.step_ns_S[chosen].mean())
    if statistic in _QUANTILES:
        quantile_ns = _quantile(step_T, _QUANTILES[statistic].q)
        scale *= quantile_ns / step_ns if step_ns else 0.0
    account_ms_A = view.account_ns_SA[chosen].mean(axis=0) * scale
    boundary_ms = float(view.boundary_ns_S[chosen].mean()) * scale
    account_ms_A[-1] += boundary_ms
    measured = {"step_ms": step_ns * scale}
    measured |= {str(account): float(account_ms_A[code]) for code, account in enumerate(ACCOUNTS)}
    return measured | {"boundary": boundary_ms, "hidden": float(view.hidden_ns_S[chosen].mean()) * scale}


def _quantile(values: F64, q: float) -> float:
    """Harrell-Davis: a weighted mean of all order statistics, steadier than any one of them."""
    return harrell_davis(values, q)


def chosen_steps(step_T: F64, statistic: Statistic) -> I64:
    """Places of the steps whose accounts are taken; ties keep the order of time."""
    order = np.argsort(step_T, kind="stable")
    num = len(order)
    if statistic == Statistic.LOW50:
        return order[: math.ceil(num / 2)]
    if statistic == Statistic.ES95:
        return order[num - math.ceil(TAIL_SHARE * num) :]
    if statistic in _QUANTILES:
        first, until = _quantile_window(num, _QUANTILES[statistic])
        return order[first:until]
    return order


def _quantile_window(num: int, rule: _Quantile) -> tuple[int, int]:
    """Places in sorted order of the steps within the window, widened evenly to ``LEAST_WINDOW_STEPS``."""
    first = max(0, math.floor((rule.q - rule.half_width) * num))
    until = min(num, math.ceil((rule.q + rule.half_width) * num))
    while until - first < min(LEAST_WINDOW_STEPS, num):
        first, until = max(0, first - 1), min(num, until + 1)
    return first, until


def _communication(ledger: Ledger) -> tuple[F64, F64]:
    """Bytes handed over and collectives entered in each step, over all ranks; NaN where a payload is not recorded."""
    rows, num_steps = ledger.collectives.rows, len(ledger.steps)
    inside_N = ledger.row_step_N != ABSENT
    payload_C = ledger.collectives.calls["payload_bytes"].to_numpy(dtype=np.float64)
    payload_N = np.where(payload_C == ABSENT, np.nan, payload_C)[rows["call"].to_numpy()[inside_N]]
    step_N = ledger.row_step_N[inside_N]
    payload_S = np.bincount(step_N, weights=payload_N, minlength=num_steps).astype(np.float64)
    return payload_S, np.bincount(step_N, minlength=num_steps).astype(np.float64)


def _mean(values: F64) -> float:
    return float(values.mean())
