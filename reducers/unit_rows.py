"""One plain row a unit: its accounts in every view, its ranks' times, its work, its steps, and what its tail holds.

Shape legend: R ranks, S steps of the ledger, T steps of one unit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.errors import RunDirectoryError
from narrows.inquiry.findings import LEAST_STEPS
from narrows.reducers import views
from narrows.reducers.collectives import dense
from narrows.reducers.lateness import lateness
from narrows.reducers.tail_windows import window_rows
from narrows.reducers.units import NS_PER_MS, Statistic, chosen_steps, unit_places, unit_records, work_records
from narrows.reducers.warmup import drift

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, Run
    from narrows.reducers.views import View

VIEWS = ("rank_mean", "critical_path", "least_waiting_rank")


def unit_rows(run: Run, ledger: Ledger, statistic: str, *, whole: bool) -> list[dict[str, Any]]:
    """One plain row a unit, with its accounts in every view, its ranks' local times, its work and its steps.

    ``whole``: the units are whole runs, whose drift is read with their start. Raises ``RunDirectoryError`` where a
    unit has too few steps for the statistic.
    """
    seen, places = _views(ledger), unit_places(ledger)
    tables = {name: unit_records(view, places, statistic) for name, view in seen.items()}
    windows = window_rows(seen, places)
    frontier = tables["critical_path"]
    offset = _to_unix(run)
    works, arrivals = work_records(ledger, places), _by_segment(lateness(ledger).by_rank)
    services, local_RS = _group_services(ledger), views.local_time_RS(ledger)
    rows = []
    for index, base in enumerate(frontier):
        if base["status"]:
            raise RunDirectoryError(
                f"{run.path}, segment {base['segment']}: {base['status']}; choose another statistic"
            )
        segment = base["segment"]
        last = arrivals.get(segment, _NO_ARRIVALS)
        rows.append(
            {
                "launch": str(base["launch"] or run.path.parent.name),
                "run": base["run"],
                "segment": int(segment),
                "pair": None if pd.isna(base["pair"]) else int(base["pair"]),
                "started_ns": int(base["started_ns"]) + offset,
                "ended_ns": int(base["ended_ns"]) + offset,
                "steps": int(base["steps"]),
                "step_ms": float(base["step_ms"]),
                "accounts": {name: _account_row(table[index]) for name, table in tables.items()},
                "last": {str(rank): share for rank, share in _pairs(last, "last_share") if share > 0},
                "service_ms": {str(rank): round(service, 6) for rank, service in _pairs(last, "service_ms")},
                "group_service_ms": _by_shape(run, services.get(segment, {}), int(base["steps"])),
                "work": _work_row(works[index]),
                **_per_step(ledger, seen["critical_path"].step_ns_S, local_RS, segment, statistic, whole=whole),
                "windows": windows[index],
                "skew_ms": _skew(last, int(base["steps"])),
                "coverage": None if math.isnan(ledger.coverage) else ledger.coverage,
            }
        )
    return rows


def _by_segment(by_rank: pd.DataFrame) -> dict[int, dict[str, list[Any]]]:
    """The columns of ``by_rank``, whose rows are in order of the segment, for each segment by itself.

    By rank: ``last_share``, of the unit's calls in which it arrived last; ``service_ms``, what a collective takes after
    its last arrival; ``wait_ms`` of a call; ``calls``. Ranks without collectives are left out.
    """
    segments, first = np.unique(by_rank["segment"].to_numpy(), return_index=True)
    columns = {name: np.split(by_rank[name].to_numpy(), first[1:]) for name in _NO_ARRIVALS}
    return {
        segment: {name: parts[at].tolist() for name, parts in columns.items()}
        for at, segment in enumerate(segments.tolist())
    }


_NO_ARRIVALS: dict[str, list[Any]] = {"rank": [], "last_share": [], "service_ms": [], "wait_ms": [], "calls": []}


def _pairs(last: Mapping[str, list[Any]], name: str) -> Iterable[tuple[int, float]]:
    return zip(last["rank"], last[name], strict=True)


def _group_services(ledger: Ledger) -> dict[int, dict[str, float]]:
    """By unit and group, what its matched collectives took after their last arrival, in ns over the steady steps."""
    steps, calls = ledger.steps, ledger.collectives.calls
    columns = {
        name: calls[name].to_numpy() for name in ("segment", "step", "group", "own_service_ns", "matched", "p2p")
    }
    num_steps, segment_S = len(steps), steps["segment"].to_numpy()
    key_of = dense(
        np.concatenate([segment_S, columns["segment"]]), np.concatenate([steps["step"].to_numpy(), columns["step"]])
    )
    steady = np.zeros(int(key_of.max(initial=-1)) + 1, dtype=np.bool_)
    steady[key_of[:num_steps][~steps["warmup"].to_numpy(dtype=np.bool_)]] = True
    chosen_C = steady[key_of[num_steps:]] & columns["matched"] & ~columns["p2p"]
    code_C, groups = pd.factorize(columns["group"][chosen_C], sort=True)
    segments, place_C = np.unique(columns["segment"][chosen_C], return_inverse=True)
    cell_C = place_C * len(groups) + code_C
    # Medians of whole ns are multiples of a half, so their sums are exact.
    sums = np.bincount(cell_C, weights=columns["own_service_ns"][chosen_C])
    found: dict[int, dict[str, float]] = {}
    for cell in np.unique(cell_C).tolist():
        segment, group = divmod(cell, len(groups))
        found.setdefault(int(segments[segment]), {})[str(groups[group])] = float(sums[cell])
    return found


def _by_shape(run: Run, service_ns: Mapping[str, float], num_steps: int) -> dict[str, float]:
    """What the collectives of a group take after their last arrival, in ms a step, by the groups' shape.

    ``16/8`` is a group of 16 ranks on 8 hosts. Groups of one shape are alike, so theirs is the mean over them.
    """
    host_of = {rank: records.host for rank, records in run.ranks.items()}
    by_shape: dict[str, list[float]] = {}
    for group, whole_ns in service_ns.items():
        members = run.groups.get(group, ())
        if members:
            shape = f"{len(members)}/{len({host_of.get(rank) for rank in members})}"
            by_shape.setdefault(shape, []).append(whole_ns / NS_PER_MS / num_steps)
    return {shape: round(sum(values) / len(values), 6) for shape, values in sorted(by_shape.items())}


def _skew(last: Mapping[str, list[Any]], num_steps: int) -> dict[str, float]:
    """By rank, ms a step that it waited in collectives for the last one to arrive."""
    waits = zip(last["rank"], last["wait_ms"], last["calls"], strict=True)
    return {str(rank): round(wait_ms * calls / num_steps, 6) for rank, wait_ms, calls in waits}


def _views(ledger: Ledger) -> dict[str, View]:
    return {
        "rank_mean": views.rank_mean(ledger),
        "critical_path": views.critical_path(ledger),
        "least_waiting_rank": views.least_waiting_rank(ledger),
    }


def _account_row(row: Mapping[str, float]) -> dict[str, float]:
    return {name: float(row[name]) for name in (*map(str, ACCOUNTS), "hidden")}


def _work_row(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name.endswith(("_sum", "_max")) and isinstance(value, float) and not math.isnan(value)
    }


def _to_unix(run: Run) -> int:
    """What to add to the run's times so that different runs can be put in order; 0 where nothing relates them."""
    if str(run.clock.aligned) != "same-boot":
        return 0
    clock = next((records.clock for records in run.ranks.values() if len(records.clock.unix_ns_K)), None)
    return int(np.median(clock.unix_ns_K - clock.monotonic_ns_K)) if clock is not None else 0


def _per_step(
    ledger: Ledger, step_ns_S: F64, local_RS: F64, segment: int, statistic: str, *, whole: bool
) -> dict[str, Any]:
    """What is kept of single steps: every steady step's time, and local times by rank over the statistic's steps."""
    segment_S = ledger.steps["segment"].to_numpy()
    steady_T = np.flatnonzero((segment_S == segment) & ~ledger.steps["warmup"].to_numpy(dtype=np.bool_))
    step_ns_T = step_ns_S[steady_T]
    chosen = steady_T[chosen_steps(step_ns_T, Statistic(statistic))]
    present_R = np.asarray(ledger.present_RS[:, steady_T].all(axis=1), dtype=np.bool_)
    local_RT = local_RS[present_R][:, chosen] / NS_PER_MS
    ranks = [rank for rank, here in zip(ledger.ranks, present_R, strict=True) if here]
    hosts = [host for host, here in zip(ledger.hosts, present_R, strict=True) if here]
    losses = ledger.readings_RS.get("loss")
    loss = (
        float(np.nanmean(losses[:, steady_T]))
        if losses is not None and np.isfinite(losses[:, steady_T]).any()
        else None
    )
    return {
        "steps_ms": [round(float(one) / NS_PER_MS, 4) for one in step_ns_T],
        "ranks": ranks,
        "rank_hosts": hosts,
        "local_ms": [round(float(one), 5) for one in local_RT.mean(axis=1)],
        "local_steps_ms": [[round(float(one), 3) for one in row] for row in local_RT.T],
        "loss": loss,
        **_shape(step_ns_T, step_ns_S[segment_S == segment] if whole else step_ns_T),
    }


def _shape(step_ns_T: F64, uncut_ns_T: F64) -> dict[str, float]:
    """Median, what the slowest 5 % of the steps add to the mean (absent below 20 steps), and drift, in ms a step."""
    found = {"median_ms": float(np.median(step_ns_T)) / NS_PER_MS, "drift_ms": drift(uncut_ns_T) / NS_PER_MS}
    if len(step_ns_T) >= LEAST_STEPS["es95"]:
        slowest = step_ns_T[chosen_steps(step_ns_T, Statistic.ES95)]
        found["tail_ms"] = float(slowest.sum()) / len(step_ns_T) / NS_PER_MS
    return found


def numbered(rows: list[dict[str, Any]], first_pair: int) -> list[dict[str, Any]]:
    """Pair numbers for units that carry none, in order of time."""
    ordered = sorted(rows, key=lambda row: row["started_ns"])
    return [
        row | {"pair": row["pair"] if row["pair"] is not None else first_pair + at} for at, row in enumerate(ordered)
    ]
