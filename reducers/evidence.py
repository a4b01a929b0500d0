"""From run directories of two arms to one evidence record: units, pairs, ledgers, intervals; plain JSON values.

The record is what verdicts are computed from, so anyone who holds it can compute them again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.codec import SCHEMA, plain
from narrows.inquiry.errors import RunDirectoryError, in_words
from narrows.reducers.estimates import estimate
from narrows.reducers.expected_records import expected_beside
from narrows.reducers.ledger import build_ledger
from narrows.reducers.manifests import Difference, diff_manifests, undeclared
from narrows.reducers.named_findings import named_findings
from narrows.reducers.pairs import Pairs, form_pairs, ran_together
from narrows.reducers.rundir import read_run
from narrows.reducers.scaling import Link
from narrows.reducers.stalls import leave_out_stalls
from narrows.reducers.tail_windows import tail_ledger, window_means
from narrows.reducers.third_opinion import third_opinion
from narrows.reducers.unit_rows import VIEWS, numbered, unit_rows
from narrows.reducers.units import NS_PER_MS
from narrows.reducers.warmup import mark_warmup, merged_warmup

__all__ = ["NS_PER_MS", "VIEWS", "ArmRuns", "build_evidence", "confounded", "merge_evidence", "relative", "summarise"]

BY_RANK = {"local": "local_ms", "last": "last_share", "skew": "skew_ms"}
"""What is kept of each rank, by the name under which its pair differences stand in the record."""
SHAPE = ("median_ms", "drift_ms", "tail_ms")
QUANTILES = (5, 25, 50, 75, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRuns:
    """The run directories of one arm."""

    name: str
    paths: tuple[Path, ...]


def build_evidence(
    name: str,
    arms: Sequence[ArmRuns],
    *,
    statistic: str,
    mode: str,
    root: Path | None = None,
    declared: Sequence[str] | None = None,
    first_pair: int | None = None,
    washout: int | None = None,
    replay: bool = False,
    link: Link | None = None,
) -> dict[str, Any]:
    """The evidence of two arms, the first minus nothing and the second minus the first in every difference.

    Further arms, the rotations of a Latin square, are kept with their units; no difference is formed of them.
    ``declared`` names the manifest fields in which the arms may differ; what else differs is listed as
    ``confounded``. ``first_pair`` numbers the units of restart runs, whose own records carry no pair. ``replay`` adds
    the what-if replay of the first run of both arms. Given runs also say what was expected of their communication;
    ``link`` is what is stated of the links between hosts.
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
    ledgers = [[build_ledger(run) for run in read] for read in by_arm]
    every = [ledger for own in ledgers for ledger in own]
    warmup = mark_warmup(every, washout)
    found["warmup"] = {"rule": warmup.rule, "cut_steps": warmup.cut_steps, "steady": warmup.steady}
    whole = dict(zip(map(id, every), warmup.whole, strict=True))
    found["excluded_steps"] = leave_out_stalls(every) if found["emulated"] else 0
    if replay:
        found["what_if"] = plain(third_opinion(ledgers[0][0], ledgers[1][0]))
    for arm, read, own in zip(arms, by_arm, ledgers, strict=True):
        rows = [
            row
            for run, ledger in zip(read, own, strict=True)
            for row in unit_rows(run, ledger, statistic, whole=whole[id(ledger)])
        ]
        if first_pair is not None:
            rows = numbered(rows, first_pair)
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
    found["confounded"] = [] if declared is None else _all_confounded(manifests, declared)
    found["digest"] = hashlib.sha256("".join(sorted(run.digest for run in runs)).encode()).hexdigest()
    if mode == "given":
        both = zip(arms, by_arm, ledgers, strict=True)
        found["expected"] = expected_beside({arm.name: list(zip(*own, strict=True)) for arm, *own in both}, link)
    return summarise(found)


def _all_confounded(manifests: Sequence[dict[str, Any]], declared: Sequence[str]) -> list[str]:
    """Every arm is held against the first one."""
    fields = [one for other in manifests[1:] for one in confounded(manifests[0], other, declared)]
    return list(dict.fromkeys(fields))


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
    if all("warmup" in part for part in read):
        merged["warmup"] = merged_warmup([part["warmup"] for part in read])
    merged["excluded_steps"] = sum(part["excluded_steps"] for part in read)
    merged["digest"] = hashlib.sha256("".join(part["digest"] for part in read).encode()).hexdigest()
    return summarise(merged)


def _read_part(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{path}: this evidence cannot be read ({in_words(error)}); restore it") from error


def relative(path: Path, root: Path | None) -> str:
    """``path`` as seen from ``root`` where it lies below it."""
    return str(path.relative_to(root)) if root is not None and path.is_relative_to(root) else str(path)


def _plain_difference(one: Difference) -> dict[str, Any]:
    return {
        "field": one.field, "healthy": one.healthy, "regressed": one.regressed, "kind": str(one.kind),
        "accounts": [str(account) for account in one.accounts], "scope": str(one.scope), "why": one.why,
    }  # fmt: skip


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
    difference, order = _differences(evidence, names)
    step, accounts = difference["step_ms"], difference["accounts"]
    evidence["pairs"] = len(step)
    evidence["order"] = order
    evidence["difference"] = difference
    evidence["intervals"] = {
        "step_ms": _interval(step),
        **{view: {account: _interval(values) for account, values in table.items()} for view, table in accounts.items()},
    }
    coverages = [
        unit["coverage"] for name in names for unit in evidence["arms"][name]["units"] if unit["coverage"] is not None
    ]
    evidence["coverage"] = min(coverages) if coverages else None
    evidence["findings"] = named_findings(evidence)
    evidence["tail"] = tail_ledger(evidence)
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
        "windows": window_means(rows),
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


def _differences(evidence: dict[str, Any], names: list[str]) -> tuple[dict[str, Any], list[int]]:
    """Pair differences, second arm minus first, and the order of each pair.

    Of the step, of every account in every view, of each rank's local time, share of last arrivals and waits; and of
    what the units say of their shape, where all do.
    """
    first, second = (evidence["arms"][name]["units"] for name in names[:2])
    ranks = min(len(first[0]["local_ms"]), len(second[0]["local_ms"]))
    tables = [pd.DataFrame([_flat(row, ranks) for row in rows]) for rows in (first, second)]
    if evidence.get("mode") == "given" and (clash := ran_together(tables[0], tables[1])) is not None:
        # What was recorded cannot be run again in turns: it is described by one difference of means.
        evidence["together"] = clash
        tables = [_one_unit(table, at) for at, table in enumerate(tables)]
    pairs: Pairs = form_pairs(tables[0], tables[1])
    table = pairs.differences
    columns: dict[str, list[float]] = dict(zip(map(str, table.columns), table.to_numpy().T.tolist(), strict=True))

    def by_rank(kind: str) -> list[list[float]]:
        if not ranks or not len(table):
            return []
        return [list(pair) for pair in zip(*(columns[f"{kind}:{at}"] for at in range(ranks)), strict=True)]

    found: dict[str, Any] = {
        "step_ms": columns["step_ms"],
        "accounts": {view: {str(one): columns[f"{view}:{one}"] for one in ACCOUNTS} for view in VIEWS},
        **{name: by_rank(kind) for kind, name in BY_RANK.items()},
        **{name: columns[name] for name in SHAPE if name in columns and not np.isnan(columns[name]).any()},
    }
    return found, [int(one) for one in pairs.order]


def _one_unit(table: pd.DataFrame, at: int) -> pd.DataFrame:
    """All units of an arm as one, at a place of its own in time."""
    measured = table.drop(columns=["launch", "segment", "pair", "started_ns", "ended_ns"])
    return measured.mean().to_frame().T.assign(started_ns=2 * at, ended_ns=2 * at + 1)


def _flat(row: dict[str, Any], ranks: int) -> dict[str, Any]:
    kept = {name: row[name] for name in ("launch", "segment", "pair", "started_ns", "ended_ns", "steps", "step_ms")}
    for view in VIEWS:
        kept |= {f"{view}:{account}": row["accounts"][view][account] for account in map(str, ACCOUNTS)}
    kept |= {name: row[name] for name in SHAPE if name in row}
    for at, rank in enumerate(row["ranks"][:ranks]):
        kept[f"local:{at}"] = row["local_ms"][at]
        kept[f"last:{at}"] = row["last"].get(str(rank), 0.0)
        kept[f"skew:{at}"] = row.get("skew_ms", {}).get(str(rank), 0.0)
    return kept


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _interval(values: list[float]) -> list[float] | None:
    """The two-sided 90 % interval of the mean over pairs; None below two pairs."""
    if len(values) < 2:
        return None
    found = estimate(values)
    return [found.lower, found.upper]
