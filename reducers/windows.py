"""The step windows that all ranks of a segment have, as rectangles of ranks by steps.

Shape legend: R ranks that have steps, S common steps, K all records of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.records import ABSENT, Loss, LossKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrows.reducers.collectives import Collectives
    from narrows.reducers.records import F64, I64, Bool, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Common steps in time order. ``start_ns_RS`` and ``end_ns_RS`` are 0 where a rank sat the segment out."""

    ranks: tuple[int, ...]
    idle: tuple[int, ...]
    steps: pd.DataFrame
    present_RS: Bool
    start_ns_RS: I64
    end_ns_RS: I64
    readings_RS: dict[str, F64]
    losses: tuple[Loss, ...]

    def step_of(self, at: int, time_ns_Q: I64) -> I64:
        """The step whose window on the rank in row ``at`` holds each time; ABSENT for none."""
        step_P = np.flatnonzero(self.present_RS[at])
        start_P, end_P = self.start_ns_RS[at, step_P], self.end_ns_RS[at, step_P]
        found_Q = np.searchsorted(start_P, time_ns_Q, side="right") - 1
        inside_Q = (found_Q >= 0) & (time_ns_Q < end_P[np.maximum(found_Q, 0)])
        return np.where(inside_Q, step_P[np.maximum(found_Q, 0)], ABSENT)


def common_windows(run: Run, collectives: Collectives, rows_of: Mapping[int, I64]) -> Windows:
    """Windows of every step that all ranks taking part in its segment finished.

    A rank takes part in a segment when it has a step there, or is a member of a group that the segment's steps
    used. A rank without any step is idle: it was placed, and given nothing to do or killed before its first step.

    Raises RunDirectoryError when no rank has a step, or two ranks disagree on a step's pair.
    """
    ranks = tuple(rank for rank, records in run.ranks.items() if len(records.steps))
    if not ranks:
        raise RunDirectoryError(f"{run.path}: no rank finished a step; run it for longer, or leave it out")
    records = _all_records(run, ranks)
    complete_K = _complete(records, _missing_segments(run, ranks, collectives, rows_of))
    losses = _incomplete(records[~complete_K])
    kept = records[complete_K]
    _check_agreement(run, kept)
    keyed = kept.groupby(["segment", "step"], as_index=False)
    steps = keyed.first().assign(warmup=keyed["warmup"].any()["warmup"])
    steps = steps.sort_values("start_ns", kind="stable").reset_index(drop=True)
    place = pd.Series(np.arange(len(steps)), index=pd.MultiIndex.from_frame(steps[["segment", "step"]]))
    step_K = place.reindex(pd.MultiIndex.from_frame(kept[["segment", "step"]])).to_numpy(dtype=np.int64)
    at_K = kept["at"].to_numpy()
    shape = (len(ranks), len(steps))
    start_ns_RS, end_ns_RS = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    present_RS = np.zeros(shape, dtype=np.bool_)
    present_RS[at_K, step_K] = True
    start_ns_RS[at_K, step_K] = kept["start_ns"]
    end_ns_RS[at_K, step_K] = kept["end_ns"]
    _check_order(run, ranks, present_RS, start_ns_RS)
    return Windows(
        ranks=ranks,
        idle=tuple(rank for rank in run.ranks if rank not in ranks),
        steps=steps[["step", "segment", "pair", "batch", "warmup"]],
        present_RS=present_RS,
        start_ns_RS=start_ns_RS,
        end_ns_RS=end_ns_RS,
        readings_RS=_readings(run, ranks, kept, step_K, shape),
        losses=tuple(losses),
    )


def _all_records(run: Run, ranks: tuple[int, ...]) -> pd.DataFrame:
    frames = []
    for at, rank in enumerate(ranks):
        steps = run.ranks[rank].steps
        columns = {
            "at": np.full(len(steps), at),
            "record": np.arange(len(steps)),
            "segment": steps.segment_N,
            "step": steps.step_N,
            "pair": steps.pair_N,
            "batch": steps.batch_N,
            "warmup": steps.warmup_N,
            "start_ns": steps.start_ns_N,
            "end_ns": steps.end_ns_N,
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _missing_segments(
    run: Run, ranks: tuple[int, ...], collectives: Collectives, rows_of: Mapping[int, I64]
) -> set[int]:
    """Segments in which a rank that has steps elsewhere took part and left none: its end of the file was lost."""
    took_part = {
        int(segment): {rank for rank in ranks if segment in run.ranks[rank].steps.segment_N}
        for segment in np.unique(np.concatenate([run.ranks[rank].steps.segment_N for rank in ranks]))
    }
    if all(len(members) == len(ranks) for members in took_part.values()):
        return set()
    used = _groups_used(run, ranks, collectives, rows_of)
    return {
        segment
        for segment, members in took_part.items()
        if any(rank in ranks and rank not in members for group in used.get(segment, ()) for rank in run.groups[group])
    }


def _groups_used(
    run: Run, ranks: tuple[int, ...], collectives: Collectives, rows_of: Mapping[int, I64]
) -> dict[int, set[str]]:
    """Groups whose collectives were entered inside a step window, by the window's segment."""
    used: dict[int, set[str]] = {}
    group_C, p2p_C = collectives.calls["group"].to_numpy(), collectives.calls["p2p"].to_numpy()
    call_N, enter_N = collectives.rows["call"].to_numpy(), collectives.rows["enter_ns"].to_numpy()
    for rank in ranks:
        steps, row_N = run.ranks[rank].steps, rows_of.get(rank, np.zeros(0, dtype=np.int64))
        row_N = row_N[~p2p_C[call_N[row_N]]]
        at_N = np.searchsorted(steps.start_ns_N, enter_N[row_N], side="right") - 1
        inside_N = (at_N >= 0) & (enter_N[row_N] < steps.end_ns_N[np.maximum(at_N, 0)])
        pairs = zip(steps.segment_N[at_N[inside_N]].tolist(), group_C[call_N[row_N[inside_N]]].tolist(), strict=True)
        for segment, group in set(pairs):
            if group in run.groups:
                used.setdefault(segment, set()).add(group)
    return used


def _complete(records: pd.DataFrame, missing_segments: set[int]) -> Bool:
    num_taking_part = records.groupby("segment")["at"].transform("nunique")
    num_having_it = records.groupby(["segment", "step"])["at"].transform("nunique")
    complete = (num_taking_part == num_having_it) & ~records["segment"].isin(missing_segments)
    return complete.to_numpy(dtype=np.bool_)


def _incomplete(dropped: pd.DataFrame) -> list[Loss]:
    steps = dropped[["segment", "step"]].drop_duplicates()
    return [
        Loss(
            kind=LossKind.INCOMPLETE_STEP,
            place="ranks",
            count=len(group),
            detail=f"segment {segment}: from step {group['step'].min()}; dropped for all ranks",
        )
        for segment, group in steps.groupby("segment")
    ]


def _check_agreement(run: Run, kept: pd.DataFrame) -> None:
    num_pairs = kept.groupby(["segment", "step"])["pair"].nunique()
    differing = num_pairs.index[num_pairs > 1]
    if len(differing):
        segment, step = differing[0]
        raise RunDirectoryError(
            f"{run.path}: ranks disagree on the pair of step {step} of segment {segment}; "
            "these are not ranks of one run: read them as separate runs"
        )


def _check_order(run: Run, ranks: tuple[int, ...], present_RS: Bool, start_ns_RS: I64) -> None:
    for at, rank in enumerate(ranks):
        if (np.diff(start_ns_RS[at, present_RS[at]]) < 0).any():
            raise RunDirectoryError(f"{run.path}: rank {rank} played its steps in another order than rank {ranks[0]}")


def _readings(
    run: Run, ranks: tuple[int, ...], kept: pd.DataFrame, step_K: I64, shape: tuple[int, int]
) -> dict[str, F64]:
    readings_RS: dict[str, F64] = {}
    at_K, record_K = kept["at"].to_numpy(), kept["record"].to_numpy()
    bounds = np.searchsorted(at_K, np.arange(len(ranks) + 1)).tolist()  # records are in order of rank
    for at, rank in enumerate(ranks):
        mine_K = slice(bounds[at], bounds[at + 1])
        for name, column in run.ranks[rank].steps.readings.items():
            if name not in readings_RS:
                readings_RS[name] = np.full(shape, np.nan)
            readings_RS[name][at, step_K[mine_K]] = column[record_K[mine_K]]
    return readings_RS
