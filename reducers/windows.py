"""The step windows that all ranks of a segment have, as rectangles of ranks by steps.

Shape legend: R ranks that have steps, S common steps, K all records of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.collectives import dense
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
    records = _Records.of(run, ranks)
    complete_K = _complete(records, _missing_segments(run, ranks, collectives, rows_of))
    losses = _incomplete(records.only(~complete_K))
    kept = records.only(complete_K)
    steps, step_K = _steps(run, kept)
    shape = (len(ranks), len(steps))
    start_ns_RS, end_ns_RS = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    present_RS = np.zeros(shape, dtype=np.bool_)
    present_RS[kept.at_K, step_K] = True
    start_ns_RS[kept.at_K, step_K] = kept.start_ns_K
    end_ns_RS[kept.at_K, step_K] = kept.end_ns_K
    _check_order(run, ranks, present_RS, start_ns_RS)
    return Windows(
        ranks=ranks,
        idle=tuple(rank for rank in run.ranks if rank not in ranks),
        steps=steps,
        present_RS=present_RS,
        start_ns_RS=start_ns_RS,
        end_ns_RS=end_ns_RS,
        readings_RS=_readings(run, ranks, kept, step_K, shape),
        losses=tuple(losses),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Records:
    """The step records of all ranks one after the other: ``at_K`` is the rank's row, ``record_K`` its own count."""

    at_K: I64
    record_K: I64
    segment_K: I64
    step_K: I64
    pair_K: I64
    batch_K: I64
    warmup_K: Bool
    start_ns_K: I64
    end_ns_K: I64

    @classmethod
    def of(cls, run: Run, ranks: tuple[int, ...]) -> _Records:
        written = [run.ranks[rank].steps for rank in ranks]
        columns = ("segment", "step", "pair", "batch", "warmup", "start_ns", "end_ns")
        return cls(
            at_K=np.repeat(np.arange(len(written)), [len(steps) for steps in written]),
            record_K=np.concatenate([np.arange(len(steps)) for steps in written]),
            **{f"{name}_K": np.concatenate([getattr(steps, f"{name}_N") for steps in written]) for name in columns},
        )

    def only(self, chosen_K: Bool) -> _Records:
        return _Records(**{name: getattr(self, name)[chosen_K] for name in _Records.__slots__})


def _steps(run: Run, kept: _Records) -> tuple[pd.DataFrame, I64]:
    """The table of steps in order of the lowest rank's start, and the row in it of each record."""
    key_K = dense(kept.segment_K, kept.step_K)
    _, first_S = np.unique(key_K, return_index=True)
    _check_agreement(run, kept, key_K, first_S)
    order = np.argsort(kept.start_ns_K[first_S], kind="stable")
    row_of_key = np.empty(len(order), dtype=np.int64)
    row_of_key[order] = np.arange(len(order))
    step_K = row_of_key[key_K]
    first_S = first_S[order]
    columns = {name: getattr(kept, f"{name}_K")[first_S] for name in ("step", "segment", "pair", "batch")}
    warmup_S = np.zeros(len(order), dtype=np.bool_)
    warmup_S[step_K[kept.warmup_K]] = True  # where any rank says so
    return pd.DataFrame(columns | {"warmup": warmup_S}), step_K


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


def _complete(records: _Records, missing_segments: set[int]) -> Bool:
    """Which records are of a step that as many ranks have as have any step of its segment."""
    taking_part_K = _num_ranks(dense(records.segment_K), records.at_K)
    having_it_K = _num_ranks(dense(records.segment_K, records.step_K), records.at_K)
    complete_K: Bool = (taking_part_K == having_it_K) & ~np.isin(records.segment_K, list(missing_segments))
    return complete_K


def _num_ranks(key_K: I64, at_K: I64) -> I64:
    """How many ranks have a record of the same key."""
    _, first = np.unique(dense(key_K, at_K), return_index=True)
    return np.bincount(key_K[first])[key_K]


def _incomplete(dropped: _Records) -> list[Loss]:
    _, first = np.unique(dense(dropped.segment_K, dropped.step_K), return_index=True)
    segment_D, step_D = dropped.segment_K[first], dropped.step_K[first]
    losses = []
    for segment in np.unique(segment_D).tolist():
        own = step_D[segment_D == segment]
        detail = f"segment {segment}: from step {own.min()}; dropped for all ranks"
        losses.append(Loss(kind=LossKind.INCOMPLETE_STEP, place="ranks", count=len(own), detail=detail))
    return losses


def _check_agreement(run: Run, kept: _Records, key_K: I64, first_S: I64) -> None:
    differing = key_K[kept.pair_K != kept.pair_K[first_S][key_K]]
    if len(differing):
        at = first_S[differing.min()]
        raise RunDirectoryError(
            f"{run.path}: ranks disagree on the pair of step {kept.step_K[at]} of segment {kept.segment_K[at]}; "
            "these are not ranks of one run: read them as separate runs"
        )


def _check_order(run: Run, ranks: tuple[int, ...], present_RS: Bool, start_ns_RS: I64) -> None:
    for at, rank in enumerate(ranks):
        if (np.diff(start_ns_RS[at, present_RS[at]]) < 0).any():
            raise RunDirectoryError(f"{run.path}: rank {rank} played its steps in another order than rank {ranks[0]}")


def _readings(run: Run, ranks: tuple[int, ...], kept: _Records, step_K: I64, shape: tuple[int, int]) -> dict[str, F64]:
    readings_RS: dict[str, F64] = {}
    bounds = np.searchsorted(kept.at_K, np.arange(len(ranks) + 1)).tolist()  # records are in order of rank
    for at, rank in enumerate(ranks):
        mine_K = slice(bounds[at], bounds[at + 1])
        for name, column in run.ranks[rank].steps.readings.items():
            if name not in readings_RS:
                readings_RS[name] = np.full(shape, np.nan)
            readings_RS[name][at, step_K[mine_K]] = column[kept.record_K[mine_K]]
    return readings_RS
