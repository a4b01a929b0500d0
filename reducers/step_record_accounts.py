"""The accounts of step records, as far as records tell them: a rank's parts, with waiting told from what is shared.

The slowest rank of a step waits for nobody, so what it spends in the parts that hold waiting is the shared service.
What another rank spends there beyond that is waiting for it. Shape legend: R ranks, T steps.
"""

from __future__ import annotations

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.records import F64, Bool
from narrows.reducers.slow_ranks import OwnTime
from narrows.reducers.step_record_sides import StepTable

VIEWS = ("rank_mean", "critical_path", "least_waiting_rank")


def accounts_of(table: StepTable, own: OwnTime, kept: Bool) -> dict[str, dict[str, float]]:
    """Each view's accounts in ms, means over the ``kept`` steps; every view adds up to the mean step.

    data is input; comm and wait of the slowest rank are transfer; compute that holds waiting is taken from the slowest
    rank, and the rest of it is skew; what is in no part is residual.
    """
    slowest_T = own.excess_RT[:, kept].argmax(axis=0)
    parts = {name: values[:, kept] for name, values in table.parts_ms.items()}
    compute_RT, calls_RT = _compute(parts, slowest_T.size, table), _calls(parts, slowest_T.size, table)
    at_T = np.arange(slowest_T.size)
    service_T = calls_RT[slowest_T, at_T]
    shared_T = compute_RT[slowest_T, at_T] if own.compute_waits else None
    step_ms = float(table.job_ms_T[kept].mean())
    least = [int(own.own_RT[:, kept].mean(axis=1).argmax())]
    everyone = list(range(len(table.ranks)))

    def view(rows: list[int]) -> dict[str, float]:
        compute = compute_RT[rows] if shared_T is None else np.broadcast_to(shared_T, (len(rows), shared_T.size))
        skew = calls_RT[rows] - service_T + (compute_RT[rows] - compute)
        data = float(parts["data_ms"][rows].mean()) if "data_ms" in parts else 0.0
        return _padded(step_ms, float(compute.mean()), float(service_T.mean()), float(skew.mean()), data)

    path_data = float(parts["data_ms"][slowest_T, at_T].mean()) if "data_ms" in parts else 0.0
    path = _padded(step_ms, float(compute_RT[slowest_T, at_T].mean()), float(service_T.mean()), 0.0, path_data)
    return {"rank_mean": view(everyone), "critical_path": path, "least_waiting_rank": view(least)}


def _compute(parts: dict[str, F64], steps: int, table: StepTable) -> F64:
    return parts.get("compute_ms", np.zeros((len(table.ranks), steps)))


def _calls(parts: dict[str, F64], steps: int, table: StepTable) -> F64:
    found = np.zeros((len(table.ranks), steps))
    for name in ("comm_ms", "wait_ms"):
        found = found + parts.get(name, 0.0)
    return found


def _padded(step_ms: float, compute: float, transfer: float, skew: float, data: float) -> dict[str, float]:
    known = {Account.COMPUTE: compute, Account.TRANSFER: transfer, Account.SKEW: skew, Account.INPUT: data}
    found = {str(one): known.get(one, 0.0) for one in ACCOUNTS}
    found[str(Account.RESIDUAL)] = step_ms - sum(known.values())
    return found
