"""The bubble of recorded pipelines: what stages wait for each other by the textbook, and what they wait.

Shape legend: C calls, R ranks, S steps, A accounts. Source: Narayanan et al., SC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.expected import bubble_ms, bubble_share
from narrows.reducers.expected_calls import by_call, num_steady
from narrows.reducers.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import Run

PIPELINE_ROLE = "pp"
MICROBATCHES = ("microbatches", "num_microbatches", "n_microbatches")
CHUNKS = ("stages_per_rank", "virtual_pipeline_model_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """``waiting_ms``: mean over ranks of pipeline and skew, ms a step; ``share`` is the textbook's for equal stages."""

    stages: int
    microbatches: int
    chunks: int
    share: float
    expected_ms: float
    waiting_ms: float


def pipeline(run: Run, ledger: Ledger) -> Pipeline | str:
    """The bubble of the run's pipeline groups, expected and measured; or why nothing can be said."""
    groups = [members for name, members in run.groups.items() if name.partition("[")[0] == PIPELINE_ROLE]
    groups = [members for members in groups if len(members) > 1]
    if not groups:
        return f"no pipeline group ({PIPELINE_ROLE}) is on record"
    settings = {**(run.manifest.get("workload") or {}), **(run.manifest.get("config") or {})}
    microbatches, chunks = _count(settings, MICROBATCHES), _count(settings, CHUNKS) or 1
    if microbatches is None:
        return f"the configuration does not name the microbatches ({', '.join(MICROBATCHES)})"
    stage_of = {rank: stage for members in groups for stage, rank in enumerate(members)}
    stages = len(groups[0])
    between = _stage_distances(ledger.collectives.rows, stage_of)
    if any(len(members) != stages for members in groups) or not between <= {1, stages - 1}:
        return f"not all messages go between neighbours of a {PIPELINE_ROLE} group, so the stages are not known"
    compute_R, waiting_R = _rank_ms(ledger, (Account.COMPUTE,)), _rank_ms(ledger, (Account.PIPELINE, Account.SKEW))
    by_stage: dict[int, list[float]] = {stage: [] for stage in range(stages)}
    for rank, compute_ms in zip(ledger.ranks, compute_R, strict=True):
        if rank in stage_of:
            by_stage[stage_of[rank]].append(compute_ms)
    if not all(by_stage.values()):
        return "a stage of the pipeline has no steps on record"
    return Pipeline(
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        share=bubble_share(stages, microbatches, chunks),
        expected_ms=bubble_ms([fmean(own) for own in by_stage.values()], microbatches, chunks),
        waiting_ms=fmean(one for rank, one in zip(ledger.ranks, waiting_R, strict=True) if rank in stage_of),
    )


def _count(settings: Mapping[str, Any], names: Sequence[str]) -> int | None:
    found = [settings[name] for name in names if name in settings]
    return next((one for one in found if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)


def _rank_ms(ledger: Ledger, accounts: tuple[Account, ...]) -> list[float]:
    """Shape (R,): ms a steady step in these accounts together."""
    steady_S = ~ledger.steps["warmup"].to_numpy(dtype=np.bool_)
    codes = [ACCOUNTS.index(one) for one in accounts]
    spent_R = ledger.account_ns_RSA[:, steady_S][:, :, codes].sum(axis=(1, 2))
    return [float(one) for one in spent_R / NS_PER_MS / num_steady(ledger)]


def _stage_distances(rows: pd.DataFrame, stage_of: dict[int, int]) -> set[int]:
    """How many stages lie between the ends of the point-to-point calls of these ranks."""
    own = rows[rows["p2p"].to_numpy(dtype=np.bool_) & rows["matched"].to_numpy(dtype=np.bool_)]
    own = own[own["rank"].isin(list(stage_of))]
    least_C, most_C = by_call(own, own["rank"].map(stage_of).to_numpy(dtype=np.int64))
    return set((most_C - least_C).tolist())
