"""The shapes of a recorded run's collectives, and what one of each took.

Shape legend: N collective rows, C calls, S steps.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.reducers.expected import LOW, Measured, Shape, known_op
from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import I64, Bool, Run

SHAPE = ["group", "op", "ranks", "payload_bytes", "crosses_hosts"]


def steady_calls(run: Run, ledger: Ledger) -> pd.DataFrame:
    """The matched calls of modelled operations whose last member entered them in a steady step.

    Columns: call, place (of the step in ``ledger.steps``), name (of the group), arrival_ns, service_ns,
    own_service_ns, and those of a shape. Point-to-point calls are sends between two ranks.
    """
    calls, rows = ledger.collectives.calls, ledger.collectives.rows
    ops = calls["op"].astype(str)
    known = {one: known_op(one) for one in ops.unique()}
    names = calls["group"].astype(str)
    found = pd.DataFrame(
        {
            "call": np.arange(len(calls)),
            "place": by_call(rows, ledger.row_step_N)[1],
            "name": names,
            "arrival_ns": calls["arrival_ns"],
            "service_ns": calls["service_ns"],
            "own_service_ns": calls["own_service_ns"],
            "group": names.map({one: one.partition("[")[0] for one in names.unique()}),
            "op": np.where(calls["p2p"].to_numpy(dtype=np.bool_), "send", ops.map(known)),
            "ranks": calls["num_ranks"],
            "payload_bytes": calls["payload_bytes"],
            "crosses_hosts": _crosses_hosts(run, rows),
        }
    )
    # The last entry stands for no step at all.
    warm_S = np.append(ledger.steps["warmup"].to_numpy(dtype=np.bool_), True)
    good_C = ~warm_S[found["place"].to_numpy()] & calls["matched"].to_numpy(dtype=np.bool_)
    kept: pd.DataFrame = found[good_C & (found["payload_bytes"] != ABSENT) & found["op"].notna()]
    return kept


def by_call(rows: pd.DataFrame, value_N: I64) -> tuple[I64, I64]:
    """Shape (C,) each: the least and the largest of a call's rows."""
    first_C = np.flatnonzero(np.diff(rows["call"].to_numpy(), prepend=-1))
    if not len(first_C):
        return value_N, value_N
    return np.minimum.reduceat(value_N, first_C), np.maximum.reduceat(value_N, first_C)


def _crosses_hosts(run: Run, rows: pd.DataFrame) -> Bool:
    places = {host: at for at, host in enumerate(sorted({records.host for records in run.ranks.values()}))}
    host_of = np.full(max(run.ranks) + 1, ABSENT)
    for rank, records in run.ranks.items():
        host_of[rank] = places[records.host]
    least_C, most_C = by_call(rows, host_of[rows["rank"].to_numpy()])
    return np.asarray(least_C != most_C, dtype=np.bool_)


def num_steady(ledger: Ledger) -> int:
    """How many steps are not washout."""
    return max(1, int((~ledger.steps["warmup"].to_numpy(dtype=np.bool_)).sum()))


def shape_of(values: tuple[object, ...]) -> Shape:
    """The shape of a row's columns, in the order of ``SHAPE``."""
    group, op, ranks, payload, crosses = values
    return Shape(
        group=str(group),
        op=str(op),
        ranks=int(str(ranks)),
        payload_bytes=int(str(payload)),
        crosses_hosts=bool(crosses),
    )


def measured_shapes(run: Run, ledger: Ledger) -> list[Measured]:
    """Every shape of the steady steps."""
    calls, steady = steady_calls(run, ledger), num_steady(ledger)
    grouped = calls.groupby([*SHAPE, "name"])["own_service_ns"]
    by_name = grouped.agg(["median", "size"]).assign(low=grouped.quantile(LOW)).reset_index()
    found = []
    for values, own in by_name.groupby(SHAPE):
        slowest = own.iloc[int(own["median"].argmax())]
        found.append(
            Measured(
                shape=shape_of(values),
                calls=float(own["size"].mean()) / steady,
                service_us=float(slowest["median"]) / 1e3,
                low_us=float(slowest["low"]) / 1e3,
                num=int(slowest["size"]),
                slowest=str(slowest["name"]),
            )
        )
    return found


def pooled(runs: Sequence[Sequence[Measured]]) -> list[Measured]:
    """The shapes of all runs of an arm: the median over runs of their medians, the mean of their calls."""
    met: dict[Shape, list[Measured]] = {}
    for measured in runs:
        for one in measured:
            met.setdefault(one.shape, []).append(one)
    return [
        Measured(
            shape=shape,
            calls=sum(one.calls for one in some) / len(runs),
            service_us=median(one.service_us for one in some),
            low_us=median(one.low_us for one in some),
            num=sum(one.num for one in some),
            slowest=max(some, key=lambda one: one.service_us).slowest,
        )
        for shape, some in met.items()
    ]
