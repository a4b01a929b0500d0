"""Ledgers of the typical and of the slow steps: each account about the median, about p95, and in the slowest 5 %.

In each, the accounts add up to the statistic, which medians of single accounts would not.
Source: docs/method.md, means, medians, tails; for the slowest 5 %, Euler allocation of the expected shortfall (Tasche
1999).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.findings import Finding
from narrows.reducers.units import Statistic, unit_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narrows.reducers.units import Place
    from narrows.reducers.views import View

WINDOWS = (Statistic.MEDIAN, Statistic.P95, Statistic.ES95)
Table = dict[str, dict[str, float]]
"""ms a step, by view and account."""


def window_rows(seen: Mapping[str, View], places: Sequence[Place]) -> list[dict[str, Table]]:
    """Each unit's accounts in every view by statistic, in order of time; one that it is too short for is absent."""
    found: list[dict[str, Table]] = []
    for statistic in WINDOWS:
        tables = {name: unit_records(view, places, statistic) for name, view in seen.items()}
        for at, statuses in enumerate(zip(*tables.values(), strict=True)):
            if at == len(found):
                found.append({})
            if not any(row["status"] for row in statuses):
                found[at][statistic.value] = {
                    view: {account: float(rows[at][account]) for account in map(str, ACCOUNTS)}
                    for view, rows in tables.items()
                }
    return found


def window_means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Table]:
    """An arm's windows, as means over its units; only statistics that every unit has."""
    kept = [statistic.value for statistic in WINDOWS if all(statistic.value in row.get("windows", {}) for row in rows)]
    return {
        statistic: {
            view: {account: _mean(row["windows"][statistic][view][account] for row in rows) for account in accounts}
            for view, accounts in rows[0]["windows"][statistic].items()
        }
        for statistic in kept
    }


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def tail_ledger(evidence: Mapping[str, Any]) -> dict[str, Any] | None:
    """For a loss in the tail, the change of the slowest 5 % of the steps by account, and which grew most, in each view.

    None where the loss is not in the tail, or the units are too short.
    """
    if Finding.TAIL_MECHANISM.value not in [one["name"] for one in evidence["findings"]]:
        return None
    before, after = [arm["windows"].get(Statistic.ES95.value) for arm in evidence["arms"].values()][:2]
    if before is None or after is None:
        return None
    change = {
        view: {account: accounts[account] - before[view][account] for account in accounts}
        for view, accounts in after.items()
    }
    leading = {view: max(table, key=lambda one: abs(table[one])) for view, table in change.items()}
    return {"statistic": Statistic.ES95.value, "change_ms": change, "leading": leading}
