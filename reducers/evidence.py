"""From run directories of two arms to one evidence record: units, pairs, ledgers, intervals; plain JSON values.

The record is what verdicts are computed from, so anyone who holds it can compute them again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.codec import SCHEMA
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers import views
from narrows.reducers.estimates import estimate
from narrows.reducers.lateness import lateness
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.manifests import Difference, diff_manifests, undeclared
from narrows.reducers.pairs import Pairs, form_pairs
from narrows.reducers.rundir import read_run
from narrows.reducers.stalls import leave_out_stalls
from narrows.reducers.units import Statistic, chosen_steps, units, work

if TYPE_CHECKING:
    from narrows.reducers.records import Run
    from narrows.reducers.views import View

VIEWS = ("rank_mean", "critical_path", "least_waiting_rank")
NS_PER_MS = 1e6
WARMUP_STEPS = 10
"""Steps left out at the start of a run whose own steps carry no washout mark, or a quarter of it when it is short."""
QUANTILES = (5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRuns:
    """The run directories of one arm."""

    name: str
    paths: tuple[Path, ...]


def build_evidence(
    name: str,
    arms: tuple[ArmRuns, ArmRuns],
    *,
    statistic: str,
    mode: str,
    root: Path | None = None,
    declared: Sequence[str] | None = None,
    first_pair: int | None = None,
    washout: int | None = None,
) -> dict[str, Any]:
    """The evidence of two arms, the first minus nothing and the second minus the first in every difference.

    ``declared`` names the manifest fields in which the arms may differ; what else differs is listed as
    ``confounded``. ``first_pair`` numbers the units of restart runs, whose own records carry no pair.
    Raises ``RunDirectoryError`` for runs that cannot be read, or arms of which one has no steady step.
    """
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "evidence",
        "experiment": name,
        "statistic": statistic,
        "mode": mode,
        "views": list(VIEWS),
        "arms": {},
    }
    by_arm = [[read_run(path) for path in arm.paths] for arm in arms]
    runs = [run for read in by_arm for run in read]
    manifests = [read[0].manifest for read in by_arm]
    found["emulated"] = any(bool(run.manifest.get("emulated")) for run in runs)
    ledgers = [[_steady_ledger(run, washout) for run in read] for read in by_arm]
    every = [ledger for own in ledgers for ledger in own]
    found["excluded_steps"] = leave_out_stalls(every) if found["emulated"] else 0
    for arm, read, own in zip(arms, by_arm, ledgers, strict=True):
        rows = [row for run, ledger in zip(read, own, strict=True) for row in _unit_rows(run, ledger, statistic)]
        if first_pair is not None:
            rows = _numbered(rows, first_pair)
        found["arms"][arm.name] = {
            "runs": [{"path": relative(run.path, root), "digest": run.digest} for run in read],
            "hosts": sorted({records.host for run in read for records in run.ranks.values()}),
            "units": rows,
        }
    differences = diff_manifests(manifests[0], manifests[1])
    found["device"] = runs[0].manifest.get("device")
    found["losses"] = [
        f"{loss.place}: {loss.kind} ({loss.count}) {loss.detail}".strip() for ledger in every for loss in ledger.losses
    ]
    found["manifest_differences"] = [_plain_difference(one) for one in differences]
    found["confounded"] = [] if declared is None else confounded(manifests[0], manifests[1], declared)
    found["digest"] = hashlib.sha256("".join(sorted(run.digest for run in runs)).encode()).hexdigest()
    return summarise(found)


def confounded(first: dict[str, Any], second: dict[str, Any], declared: Sequence[str]) -> list[str]:
    """The manifest fields in which two arms differ without having declared it, harmless ones left out."""
    return [one.field for one in undeclared(diff_manifests(first, second), declared)]


def merge_evidence(name: str, parts: Sequence[Path]) -> dict[str, Any]:
    """The evidence of all launches of one experiment together. Raises ``RunDirectoryError`` for a part that is gone."""
    read = [_read_part(path) for path in parts]
    merged = dict(read[0])
    for arm in read[0]["arms"]:
        merged["arms"] = merged["arms"] | {
            arm: {
                "runs": [run for part in read for run in part["arms"][arm]["runs"]],
                "hosts": sorted({host for part in read for host in part["arms"][arm]["hosts"]}),
                "units": [unit for part in read for unit in part["arms"][arm]["units"]],
            }
        }
    merged["experiment"] = name
    for key in ("losses", "confounded"):
        merged[key] = list(dict.fromkeys(one for part in read for one in part[key]))
    merged["excluded_steps"] = sum(part["excluded_steps"] for part in read)
    merged["digest"] = hashlib.sha256("".join(part["digest"] for part in read).encode()).hexdigest()
    return summarise(merged)


def _read_part(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path}: this evidence cannot be read ({error}); restore it") from error


def relative(path: Path, root: Path | None) -> str:
    """``path`` as seen from ``root`` where it lies below it."""
    return str(path.relative_to(root)) if root is not None and path.is_relative_to(root) else str(path)


def _plain_difference(one: Difference) -> dict[str, Any]:
    return {
        "field": one.field, "healthy": one.healthy, "regressed": one.regressed, "kind": str(one.kind),
        "accounts": [str(account) for account in one.accounts], "scope": str(one.scope), "why": one.why,
    }  # fmt: skip


def _steady_ledger(run: Run, washout: int | None) -> Ledger:
    ledger = build_ledger(run)
    _mark_warmup(ledger, washout)
    return ledger


def _unit_rows(run: Run, ledger: Ledger, statistic: str) -> list[dict[str, Any]]:
    """One plain row a unit, with its accounts in every view, its ranks' local times, its work and its steps."""
    tables = {name: units(view, ledger, statistic) for name, view in _views(ledger).items()}
    frontier = tables["critical_path"]
    offset = _to_unix(run)
    work_table, last = work(ledger), lateness(ledger).by_rank
    rows = []
    for index, base in enumerate(frontier.to_dict("records")):
        if base["status"]:
            raise RunDirectoryError(
                f"{run.path}, segment {base['segment']}: {base['status']}; choose another statistic"
            )
        segment = base["segment"]
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
                "accounts": {name: _account_row(table, index) for name, table in tables.items()},
                "last": _last_arrivals(last, segment),
                "work": _work_row(work_table, index),
                **_per_step(ledger, segment, statistic),
                "coverage": None if math.isnan(ledger.coverage) else ledger.coverage,
            }
        )
    return rows


def _last_arrivals(by_rank: pd.DataFrame, segment: int) -> dict[str, float]:
    """The share of the unit's calls in which each rank arrived last; ranks that never did are left out."""
    rows = by_rank[by_rank["segment"] == segment]
    pairs = zip(rows["rank"].tolist(), rows["last_share"].tolist(), strict=True)
    return {str(rank): float(share) for rank, share in pairs if share > 0}


def _views(ledger: Ledger) -> dict[str, View]:
    return {
        "rank_mean": views.rank_mean(ledger),
        "critical_path": views.critical_path(ledger),
        "least_waiting_rank": views.least_waiting_rank(ledger),
    }


def _account_row(table: pd.DataFrame, index: int) -> dict[str, float]:
    row = table.iloc[index]
    return {name: float(row[name]) for name in (*map(str, ACCOUNTS), "hidden")}


def _work_row(table: pd.DataFrame, index: int) -> dict[str, float]:
    row = {str(name): value for name, value in table.iloc[index].to_dict().items()}
    return {
        name: float(value)
        for name, value in row.items()
        if name.endswith(("_sum", "_max")) and isinstance(value, float) and not math.isnan(value)
    }


def _mark_warmup(ledger: Ledger, washout: int | None) -> None:
    """Marks the first steps of a run that marks none itself. A segment of a plan always does."""
    flags = ledger.steps["warmup"].to_numpy(dtype=np.bool_, copy=True)  # the frame's own is read-only
    if flags.any() or washout == 0:
        return
    segments = ledger.steps["segment"].to_numpy()
    for segment in np.unique(segments):
        place = np.flatnonzero(segments == segment)
        flags[place[: min(WARMUP_STEPS, len(place) // 4)]] = True
    ledger.steps["warmup"] = flags


def _to_unix(run: Run) -> int:
    """What to add to the run's times so that different runs can be put in order; 0 where nothing relates them."""
    if str(run.clock.aligned) != "same-boot":
        return 0
    clock = next((records.clock for records in run.ranks.values() if len(records.clock.unix_ns_K)), None)
    return int(np.median(clock.unix_ns_K - clock.monotonic_ns_K)) if clock is not None else 0


def _per_step(ledger: Ledger, segment: int, statistic: str) -> dict[str, Any]:
    """What is kept of single steps: every steady step's time, and local times by rank over the statistic's steps."""
    segment_S = ledger.steps["segment"].to_numpy()
    steady_T = np.flatnonzero((segment_S == segment) & ~ledger.steps["warmup"].to_numpy(dtype=np.bool_))
    step_ns_T = views.critical_path(ledger).step_ns_S[steady_T]
    chosen = steady_T[chosen_steps(step_ns_T, Statistic(statistic))]
    present_R = np.asarray(ledger.present_RS[:, steady_T].all(axis=1), dtype=np.bool_)
    local_RT = views.local_time_RS(ledger)[present_R][:, chosen] / NS_PER_MS
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
    }


def _numbered(rows: list[dict[str, Any]], first_pair: int) -> list[dict[str, Any]]:
    """Pair numbers for units that carry none, in order of time."""
    ordered = sorted(rows, key=lambda row: row["started_ns"])
    return [
        row | {"pair": row["pair"] if row["pair"] is not None else first_pair + at} for at, row in enumerate(ordered)
    ]


def summarise(evidence: dict[str, Any]) -> dict[str, Any]:
    """``evidence`` with everything that follows from its units: means, pairs, differences, intervals.

    Raises ``RunDirectoryError`` when an arm has no unit.
    """
    names = list(evidence["arms"])
    for name in names:
        arm = evidence["arms"][name]
        if not arm["units"]:
            raise RunDirectoryError(f"{evidence['experiment']}: arm {name} has no steady step; run it for longer")
        arm.update(_arm_summary(arm["units"]))
    step, accounts, local, order = _differences(evidence, names)
    evidence["pairs"] = len(step)
    evidence["order"] = order
    evidence["difference"] = {"step_ms": step, "accounts": accounts, "local_ms": local}
    evidence["intervals"] = {
        "step_ms": _interval(step),
        **{view: {account: _interval(values) for account, values in table.items()} for view, table in accounts.items()},
    }
    coverages = [
        unit["coverage"] for name in names for unit in evidence["arms"][name]["units"] if unit["coverage"] is not None
    ]
    evidence["coverage"] = min(coverages) if coverages else None
    return evidence


def _arm_summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    steps = np.array([one for row in rows for one in row["steps_ms"]])
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    return {
        "step_ms": _mean(row["step_ms"] for row in rows),
        "accounts": {
            view: {account: _mean(row["accounts"][view][account] for row in rows) for account in map(str, ACCOUNTS)}
            for view in VIEWS
        },
        "hidden_ms": _mean(row["accounts"]["rank_mean"]["hidden"] for row in rows),
        "steps_ms": steps.tolist(),
        "quantiles_ms": {f"p{q:02d}": float(np.percentile(steps, q)) for q in QUANTILES},
        "mean_ms": float(steps.mean()),
        "work": _work_summary(rows),
        "loss": _mean(losses) if losses else None,
        "ranks": rows[0]["ranks"],
        "rank_hosts": rows[0]["rank_hosts"],
        "local_ms": np.mean([row["local_ms"] for row in rows], axis=0).tolist(),
        "last_arrivals": {
            str(rank): _mean(row["last"].get(str(rank), 0.0) for row in rows) for rank in rows[0]["ranks"]
        },
    }


def _work_summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    shared = set.intersection(*(set(row["work"]) for row in rows))
    for name in sorted(shared):
        counter, _, aggregate = name.rpartition("_")
        found.setdefault(counter, {})["total" if aggregate == "sum" else "max"] = _mean(
            row["work"][name] for row in rows
        )
    return found


def _differences(
    evidence: dict[str, Any], names: list[str]
) -> tuple[list[float], dict[str, dict[str, list[float]]], list[list[float]], list[int]]:
    """Pair differences, second arm minus first: of the step, of every account in every view, of ranks' local time."""
    first, second = (evidence["arms"][name]["units"] for name in names)
    ranks = min(len(first[0]["local_ms"]), len(second[0]["local_ms"]))
    tables = [pd.DataFrame([_flat(row, ranks) for row in rows]) for rows in (first, second)]
    pairs: Pairs = form_pairs(tables[0], tables[1])
    table = pairs.differences

    def column(name: str) -> list[float]:
        return [float(one) for one in table[name]]

    accounts = {view: {str(one): column(f"{view}:{one}") for one in ACCOUNTS} for view in VIEWS}
    local = np.column_stack([column(f"local:{at}") for at in range(ranks)]).tolist() if ranks and len(table) else []
    return column("step_ms"), accounts, local, [int(one) for one in pairs.order]


def _flat(row: dict[str, Any], ranks: int) -> dict[str, Any]:
    kept = {name: row[name] for name in ("launch", "segment", "pair", "started_ns", "ended_ns", "steps", "step_ms")}
    for view in VIEWS:
        kept |= {f"{view}:{account}": row["accounts"][view][account] for account in map(str, ACCOUNTS)}
    return kept | {f"local:{at}": row["local_ms"][at] for at in range(ranks)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _interval(values: list[float]) -> list[float] | None:
    """The two-sided 90 % interval of the mean over pairs; None below two pairs."""
    if len(values) < 2:
        return None
    found = estimate(values)
    return [found.lower, found.upper]
