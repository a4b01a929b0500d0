"""Typed lines of one rank turned into compact arrays, and refused where they contradict themselves."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import SPAN_ACCOUNTS, WAIT_SPAN
from narrows.reducers.jsonlines import CollectiveLine, StepLine, damaged
from narrows.reducers.records import ABSENT, I64, CollectiveRecords, Loss, LossKind, StepRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from narrows.reducers.records import F64

_KNOWN_SPANS = frozenset(SPAN_ACCOUNTS) | {WAIT_SPAN}


def step_records(lines: Sequence[StepLine], place: str) -> tuple[StepRecords, list[Loss]]:
    """The steps of one rank; spans clipped to their window. Raises RunDirectoryError for a step that cannot be."""
    steps = {
        "step_N": _ints(line.step for line in lines),
        "segment_N": _ints(line.segment for line in lines),
        "start_ns_N": _ints(line.start_ns for line in lines),
        "end_ns_N": _ints(line.end_ns for line in lines),
    }
    _check_windows(place, **steps)
    names, name_M, start_M, end_M, losses = _spans(lines, place, steps["start_ns_N"], steps["end_ns_N"])
    same = steps["segment_N"][1:] == steps["segment_N"][:-1]
    num_gaps = int((same & (steps["start_ns_N"][1:] > steps["end_ns_N"][:-1])).sum())
    if num_gaps:
        losses.append(Loss(kind=LossKind.GAP, place=place, count=num_gaps, detail="in no step's window"))
    records = StepRecords(
        **steps,
        pair_N=_ints(ABSENT if line.pair is None else line.pair for line in lines),
        batch_N=_ints(ABSENT if line.batch is None else line.batch for line in lines),
        warmup_N=np.array([line.warmup for line in lines], dtype=np.bool_),
        readings=_readings(lines),
        span_names=names,
        span_name_M=name_M,
        span_start_ns_M=start_M,
        span_end_ns_M=end_M,
    )
    return records, losses


def collective_records(
    lines: Sequence[CollectiveLine], place: str
) -> tuple[CollectiveRecords, dict[str, tuple[int, ...]], list[Loss]]:
    """The finished collectives of one rank, and the groups it declared. Raises RunDirectoryError on a contradiction."""
    groups = _declared_groups(lines, place)
    calls = [line for line in lines if line.ranks is None]
    _check_calls(calls, place)
    finished = [line for line in calls if line.end_ns is not None]
    group_names, group_N = _coded([line.group for line in finished])
    op_names, op_N = _coded([line.op for line in finished])
    records = CollectiveRecords(
        groups=group_names,
        ops=op_names,
        group_N=group_N,
        op_N=op_N,
        seq_N=_optional(line.seq for line in finished),
        payload_bytes_N=_optional(line.payload_bytes for line in finished),
        enter_ns_N=_optional(line.enter_ns for line in finished),
        end_ns_N=_optional(line.end_ns for line in finished),
        step_N=_optional(line.step for line in finished),
        segment_N=_optional(line.segment for line in finished),
        p2p_N=np.array([line.p2p for line in finished], dtype=np.bool_),
        peer_N=_optional(line.peer for line in finished),
        device_us_N=np.array([np.nan if line.device_us is None else line.device_us for line in finished], np.float64),
    )
    backwards = np.flatnonzero(records.end_ns_N < records.enter_ns_N)
    if backwards.size:
        line = finished[int(backwards[0])]
        raise damaged(place, f"collective {line.group} {line.seq} ends at {line.end_ns}, before it was entered")
    losses = []
    if len(finished) < len(calls):
        losses.append(Loss(kind=LossKind.UNFINISHED_CALL, place=place, count=len(calls) - len(finished)))
    return records, groups, losses


def _ints(values: Iterable[int]) -> I64:
    return np.fromiter(values, dtype=np.int64)


def _optional(values: Iterable[int | None]) -> I64:
    return np.fromiter((ABSENT if value is None else value for value in values), dtype=np.int64)


def _coded(names: list[str]) -> tuple[tuple[str, ...], I64]:
    codes: dict[str, int] = {}
    code_N = _ints(codes.setdefault(name, len(codes)) for name in names)
    return tuple(codes), code_N


def _check_windows(place: str, *, step_N: I64, segment_N: I64, start_ns_N: I64, end_ns_N: I64) -> None:
    """A header is line 1, so record i stands in line i + 2."""
    backwards = np.flatnonzero(end_ns_N < start_ns_N)
    if backwards.size:
        at = int(backwards[0])
        raise damaged(
            f"{place}:{at + 2}", f"step {step_N[at]} ends {start_ns_N[at] - end_ns_N[at]} ns before it starts"
        )
    keys = list(zip(segment_N.tolist(), step_N.tolist(), strict=True))
    if len(set(keys)) < len(keys):
        at = next(i for i, key in enumerate(keys) if key in keys[:i])
        raise damaged(f"{place}:{at + 2}", f"step {step_N[at]} of segment {segment_N[at]} is there twice")
    overlaps = np.flatnonzero(start_ns_N[1:] < end_ns_N[:-1])
    if overlaps.size:
        at = int(overlaps[0]) + 1
        raise damaged(f"{place}:{at + 2}", f"step {step_N[at]} starts before the step written before it ends")


def _spans(
    lines: Sequence[StepLine], place: str, start_ns_N: I64, end_ns_N: I64
) -> tuple[tuple[str, ...], I64, I64, I64, list[Loss]]:
    num_N = _ints(len(line.spans_ns) for line in lines)
    spans = list(chain.from_iterable(line.spans_ns for line in lines))
    names, name_M = _coded([span[0] for span in spans])
    offset_M, until_M = _ints(span[1] for span in spans), _ints(span[2] for span in spans)
    step_M = np.repeat(np.arange(len(lines)), num_N)
    backwards = np.flatnonzero(until_M < offset_M)
    if backwards.size:
        at = int(backwards[0])
        raise damaged(f"{place}:{step_M[at] + 2}", f"span {names[name_M[at]]!r} ends before it starts")
    window_M = (end_ns_N - start_ns_N)[step_M]
    from_M, to_M = np.clip(offset_M, 0, window_M), np.clip(until_M, 0, window_M)
    losses = []
    num_clipped = int(((from_M != offset_M) | (to_M != until_M)).sum())
    if num_clipped:
        detail = "reached outside its step's window"
        losses.append(Loss(kind=LossKind.CLIPPED_SPAN, place=place, count=num_clipped, detail=detail))
    losses.extend(
        Loss(kind=LossKind.UNKNOWN_SPAN, place=place, count=int((name_M == code).sum()), detail=f"{name!r}: no account")
        for code, name in enumerate(names)
        if name not in _KNOWN_SPANS
    )
    return names, name_M, from_M + start_ns_N[step_M], to_M + start_ns_N[step_M], losses


def _readings(lines: Sequence[StepLine]) -> dict[str, F64]:
    columns: dict[str, F64] = {}
    for field in ("useful", "parts_us", "memory"):
        for at, line in enumerate(lines):
            for key, value in getattr(line, field).items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    _column(columns, f"{field}.{key}", len(lines))[at] = value
    for field in ("loss", "grad_norm"):
        values = [getattr(line, field) for line in lines]
        if any(value is not None for value in values):
            columns[field] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return columns


def _column(columns: dict[str, F64], name: str, length: int) -> F64:
    if name not in columns:
        columns[name] = np.full(length, np.nan)
    return columns[name]


def _declared_groups(lines: Sequence[CollectiveLine], place: str) -> dict[str, tuple[int, ...]]:
    groups: dict[str, tuple[int, ...]] = {}
    for line in lines:
        if line.ranks is None:
            continue
        members = tuple(sorted(line.ranks))
        if groups.setdefault(line.group, members) != members:
            raise damaged(place, f"group {line.group!r} is declared as {groups[line.group]} and as {members}")
    return groups


def _check_calls(calls: Sequence[CollectiveLine], place: str) -> None:
    for line in calls:
        if line.seq is None or line.enter_ns is None:
            raise damaged(place, f"a collective of group {line.group!r} lacks seq or enter_ns")
