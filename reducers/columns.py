"""One rank's lines as plain columns, and these as the records of a run, refused where they contradict themselves.

Columns hold what was written, nothing changed; the records are what a reader may rely on. A compacted rank keeps the
columns, so both kinds of file go through the same checks.

Shape legend: N lines of one rank, M spans of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from narrows.inquiry.accounts import SPAN_ACCOUNTS, WAIT_SPAN
from narrows.reducers.jsonlines import CollectiveLine, StepLine, damaged
from narrows.reducers.records import ABSENT, F64, I64, Bool, CollectiveRecords, Loss, LossKind, StepRecords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_KNOWN_SPANS = frozenset(SPAN_ACCOUNTS) | {WAIT_SPAN}
_Item = TypeVar("_Item", bound=np.generic)
_USUAL = ("seq", "enter_ns", "end_ns", "payload_bytes", "step")
"""Of a collective: what nearly every line holds."""
_NUMBERS = frozenset({int, float})
_TOO_LONG = "it holds an integer of more than 64 bits"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """The step lines of one rank; ``span_from_M`` and ``span_to_M`` are ns after the step's start, as written."""

    step_N: I64
    segment_N: I64
    pair_N: I64
    batch_N: I64
    warmup_N: Bool
    start_ns_N: I64
    end_ns_N: I64
    readings: dict[str, F64]
    num_spans_N: I64
    span_names: tuple[str, ...]
    span_name_M: I64
    span_from_M: I64
    span_to_M: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class CallColumns:
    """The collective lines of one rank; ``declared`` maps a group to its members; ``ended_N`` is false where the
    line has no end."""

    declared: dict[str, tuple[int, ...]]
    groups: tuple[str, ...]
    ops: tuple[str, ...]
    group_N: I64
    op_N: I64
    seq_N: I64
    payload_bytes_N: I64
    enter_ns_N: I64
    end_ns_N: I64
    ended_N: Bool
    step_N: I64
    segment_N: I64
    p2p_N: Bool
    peer_N: I64
    device_us_N: F64


def step_columns(lines: Sequence[StepLine], place: str) -> StepColumns:
    """Raises RunDirectoryError for a number beyond 64 bits."""
    spans = list(chain.from_iterable(map(attrgetter("spans_ns"), lines)))
    names, froms, tos = zip(*spans, strict=True) if spans else ((), (), ())
    span_names, span_name_M = _coded(names)
    return StepColumns(
        **{f"{name}_N": _numbers(lines, name, place) for name in ("step", "segment", "pair", "batch")},
        warmup_N=np.fromiter(map(attrgetter("warmup"), lines), np.bool_, len(lines)),
        start_ns_N=_numbers(lines, "start_ns", place),
        end_ns_N=_numbers(lines, "end_ns", place),
        readings=_readings(lines),
        num_spans_N=np.fromiter(map(len, map(attrgetter("spans_ns"), lines)), np.int64, len(lines)),
        span_names=span_names,
        span_name_M=span_name_M,
        span_from_M=_integers(froms, place),
        span_to_M=_integers(tos, place),
    )


def call_columns(lines: Sequence[CollectiveLine], place: str) -> CallColumns:
    """Raises RunDirectoryError for a group declared twice with other members, and a line without seq or enter."""
    declared = _declared_groups(lines, place)
    calls = [line for line in lines if line.ranks is None]
    numbers = _together(calls, _USUAL, place)
    if numbers is None:
        _check_calls(calls, place)
        numbers = {name: _numbers(calls, name, place) for name in _USUAL}
    groups, group_N = _coded(list(map(attrgetter("group"), calls)))
    ops, op_N = _coded(list(map(attrgetter("op"), calls)))
    return CallColumns(
        declared=declared,
        groups=groups,
        ops=ops,
        group_N=shared(group_N),
        op_N=shared(op_N),
        ended_N=shared(np.array([line.end_ns is not None for line in calls], dtype=np.bool_)),
        segment_N=_numbers(calls, "segment", place),
        peer_N=_numbers(calls, "peer", place),
        p2p_N=shared(np.fromiter(map(attrgetter("p2p"), calls), np.bool_, len(calls))),
        device_us_N=shared(np.array(list(map(attrgetter("device_us"), calls)), dtype=np.float64)),  # None becomes NaN
        **{f"{name}_N": column for name, column in numbers.items()},
    )


def step_records(columns: StepColumns, place: str) -> tuple[StepRecords, list[Loss]]:
    """The steps of one rank; spans clipped to their window. Raises RunDirectoryError for a step that cannot be."""
    _check_windows(columns, place)
    start_M, end_M, losses = _spans(columns, place)
    start_ns_N, end_ns_N, segment_N = columns.start_ns_N, columns.end_ns_N, columns.segment_N
    same = segment_N[1:] == segment_N[:-1]
    num_gaps = int((same & (start_ns_N[1:] > end_ns_N[:-1])).sum())
    if num_gaps:
        losses.append(Loss(kind=LossKind.GAP, place=place, count=num_gaps, detail="in no step's window"))
    records = StepRecords(
        step_N=columns.step_N,
        segment_N=segment_N,
        start_ns_N=start_ns_N,
        end_ns_N=end_ns_N,
        pair_N=columns.pair_N,
        batch_N=columns.batch_N,
        warmup_N=columns.warmup_N,
        readings=columns.readings,
        span_names=columns.span_names,
        span_name_M=columns.span_name_M,
        span_start_ns_M=start_M,
        span_end_ns_M=end_M,
    )
    return records, losses


def collective_records(columns: CallColumns, place: str) -> tuple[CollectiveRecords, list[Loss]]:
    """The finished collectives of one rank. Raises RunDirectoryError for one that ended before it was entered."""
    losses = []
    if not columns.ended_N.all():
        count = int((~columns.ended_N).sum())
        losses.append(Loss(kind=LossKind.UNFINISHED_CALL, place=place, count=count))
        columns = _ended(columns)
    backwards = np.flatnonzero(columns.end_ns_N < columns.enter_ns_N)
    if backwards.size:
        at = int(backwards[0])
        group, seq, end_ns = columns.groups[columns.group_N[at]], columns.seq_N[at], columns.end_ns_N[at]
        raise damaged(place, f"collective {group} {seq} ends at {end_ns}, before it was entered")
    records = CollectiveRecords(
        groups=columns.groups,
        ops=columns.ops,
        group_N=columns.group_N,
        op_N=columns.op_N,
        seq_N=columns.seq_N,
        payload_bytes_N=columns.payload_bytes_N,
        enter_ns_N=columns.enter_ns_N,
        end_ns_N=columns.end_ns_N,
        step_N=columns.step_N,
        segment_N=columns.segment_N,
        p2p_N=columns.p2p_N,
        peer_N=columns.peer_N,
        device_us_N=columns.device_us_N,
    )
    return records, losses


def shared(column: NDArray[_Item]) -> NDArray[_Item]:
    """The column, read-only and without memory of its own where all its values are one."""
    bits = column.view(np.int64) if column.dtype == np.float64 else column
    if len(column) < 2 or not (bits == bits[0]).all():
        return column
    return np.broadcast_to(column[:1].copy(), column.shape)


def _ended(columns: CallColumns) -> CallColumns:
    """The lines that have an end; names of which none is left are gone."""
    at = np.flatnonzero(columns.ended_N)
    kept = {name: getattr(columns, name)[at] for name in CallColumns.__slots__ if name.endswith("_N")}
    groups, kept["group_N"] = _used(columns.groups, kept["group_N"])
    ops, kept["op_N"] = _used(columns.ops, kept["op_N"])
    return CallColumns(declared=columns.declared, groups=groups, ops=ops, **kept)


def _used(names: tuple[str, ...], code_N: I64) -> tuple[tuple[str, ...], I64]:
    codes, first = np.unique(code_N, return_index=True)
    codes = codes[np.argsort(first)]
    new = np.zeros(len(names), dtype=np.int64)
    new[codes] = np.arange(len(codes))
    return tuple(names[code] for code in codes.tolist()), new[code_N]


def _numbers(lines: Sequence[StepLine] | Sequence[CollectiveLine], name: str, place: str) -> I64:
    """ABSENT where a line does not say it."""
    values = list(map(attrgetter(name), lines))
    num_absent = values.count(None)
    if num_absent == len(values):
        return shared(np.full(len(values), ABSENT))
    if num_absent:
        values = [ABSENT if value is None else value for value in values]
    return shared(_integers(values, place))


def _together(lines: Sequence[CollectiveLine], names: tuple[str, ...], place: str) -> dict[str, I64] | None:
    """Several columns in one pass; None where a line lacks one of them."""
    flat = chain.from_iterable(map(attrgetter(*names), lines))
    try:
        table = np.fromiter(flat, dtype=np.int64, count=len(names) * len(lines)).reshape(len(lines), len(names))
    except TypeError:
        return None
    except OverflowError as error:
        raise damaged(place, _TOO_LONG) from error
    return {name: shared(np.ascontiguousarray(table[:, at])) for at, name in enumerate(names)}


def _integers(values: Sequence[int], place: str) -> I64:
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except OverflowError as error:
        raise damaged(place, _TOO_LONG) from error


def _coded(names: Sequence[str]) -> tuple[tuple[str, ...], I64]:
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    if len(codes) == 1:
        return tuple(codes), np.zeros(len(names), dtype=np.int64)
    return tuple(codes), np.fromiter(map(codes.__getitem__, names), dtype=np.int64, count=len(names))


def _check_windows(columns: StepColumns, place: str) -> None:
    """A header is line 1, so record i stands in line i + 2."""
    step_N, segment_N = columns.step_N, columns.segment_N
    start_ns_N, end_ns_N = columns.start_ns_N, columns.end_ns_N
    backwards = np.flatnonzero(end_ns_N < start_ns_N)
    if backwards.size:
        at = int(backwards[0])
        raise damaged(
            f"{place}:{at + 2}", f"step {step_N[at]} ends {start_ns_N[at] - end_ns_N[at]} ns before it starts"
        )
    order = np.lexsort((step_N, segment_N))
    again = (step_N[order][1:] == step_N[order][:-1]) & (segment_N[order][1:] == segment_N[order][:-1])
    if again.any():
        at = int(order[1:][again].min())
        raise damaged(f"{place}:{at + 2}", f"step {step_N[at]} of segment {segment_N[at]} is there twice")
    overlaps = np.flatnonzero(start_ns_N[1:] < end_ns_N[:-1])
    if overlaps.size:
        at = int(overlaps[0]) + 1
        raise damaged(f"{place}:{at + 2}", f"step {step_N[at]} starts before the step written before it ends")


def _spans(columns: StepColumns, place: str) -> tuple[I64, I64, list[Loss]]:
    names, name_M = columns.span_names, columns.span_name_M
    offset_M, until_M = columns.span_from_M, columns.span_to_M
    step_M = np.repeat(np.arange(len(columns.step_N)), columns.num_spans_N)
    backwards = np.flatnonzero(until_M < offset_M)
    if backwards.size:
        at = int(backwards[0])
        raise damaged(f"{place}:{step_M[at] + 2}", f"span {names[name_M[at]]!r} ends before it starts")
    window_M = (columns.end_ns_N - columns.start_ns_N)[step_M]
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
    return from_M + columns.start_ns_N[step_M], to_M + columns.start_ns_N[step_M], losses


def _readings(lines: Sequence[StepLine]) -> dict[str, F64]:
    """Every numeric reading under its dotted name, NaN where a line lacks it; what is never a number is left out."""
    columns: dict[str, F64] = {}
    for field in ("useful", "parts_us", "memory"):
        found = list(map(attrgetter(field), lines))
        for key in dict.fromkeys(chain.from_iterable(found)):
            values = [one.get(key) for one in found]
            if not _NUMBERS.issuperset(map(type, values)):
                values = [_number(value) for value in values]
            if values.count(None) < len(values):
                columns[f"{field}.{key}"] = np.array(values, dtype=np.float64)  # None becomes NaN
    for field in ("loss", "grad_norm"):
        values = list(map(attrgetter(field), lines))
        if values.count(None) < len(values):
            columns[field] = np.array(values, dtype=np.float64)
    return columns


def _number(value: object) -> float | int | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


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
