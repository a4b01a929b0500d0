"""The same collective on all its ranks: who arrived last, how long each waited, and what the service took.

Times are those of the run's common clock, in integer nanoseconds. Source of the split: docs/method.md, the
collective split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from narrows.reducers.columns import shared
from narrows.reducers.records import ABSENT
from narrows.reducers.traces.kinds import SYMMETRIC_OPS

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from narrows.reducers.records import F64, I64, Bool, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """All collectives of a run.

    ``calls``: one row a collective, indexed 0..C-1: group, op, seq, p2p, payload_bytes, num_ranks, matched, step,
    segment, first_ns, arrival_ns (the last enter), spread_ns, last_rank (lowest of the last arrivers), service_ns
    (median over ranks), own_service_ns (the same without queueing behind the group's previous collective).

    ``rows``: one row a (collective, rank), ordered by call, then rank: call, rank, enter_ns, end_ns, ready_ns (the
    later of enter and the end of the group's previous collective on that rank), behind (the row of that collective,
    -1 where it did not queue), wait_ns, service_ns, queued_ns (service spent queueing), lateness_ns (enter after the
    first enter), last_weight (1 split over the ranks that arrived within the clock's epsilon of the last),
    clamped_ns (by how much a symmetric collective ended before its last arrival: clock error), matched, p2p,
    device_us. Where matched, ``wait_ns + service_ns == end_ns - enter_ns`` exactly; where not, the wait is 0 and all
    of it is service, unsplit.

    ``coverage``: share of collective time (sum over ranks of end - enter) that was matched; NaN without any.
    """

    calls: pd.DataFrame
    rows: pd.DataFrame
    coverage: float


def match_collectives(run: Run) -> Collectives:
    """The collectives of a run matched by group and sequence number, point-to-point calls by their order per pair.

    A collective counts as matched when every member of its group recorded it exactly once and as the same
    operation; a send and a receive when both sides are there.
    """
    calls, rows = _split(_Written.of(run), run.clock.epsilon_ns)
    duration_N = rows["end_ns"] - rows["enter_ns"]
    total_ns = int(duration_N.sum())
    coverage = float(duration_N[rows["matched"]].sum() / total_ns) if total_ns else float("nan")
    # Without a copy, the frame holds these columns and not one block of all of them.
    return Collectives(calls=calls, rows=pd.DataFrame(rows, copy=False), coverage=coverage)


def rows_by_rank(rows: pd.DataFrame) -> dict[int, I64]:
    """The places of each rank's rows, in order."""
    rank_N = rows["rank"].to_numpy()
    if not len(rank_N):
        return {}
    order = stable_order(rank_N - rank_N.min())
    ranks = np.flatnonzero(np.bincount(rank_N))
    num_R = np.bincount(rank_N)[ranks]
    return dict(zip(ranks.tolist(), np.split(order, np.cumsum(num_R)[:-1]), strict=True))


def within(rank_N: I64, ranks: Collection[int]) -> Bool:
    """Which rows are of these ranks."""
    table = np.zeros(int(rank_N.max(initial=-1)) + 1, dtype=np.bool_)
    table[[rank for rank in ranks if rank < len(table)]] = True
    return table[rank_N]


def stable_order(number_N: I64) -> I64:
    """The stable order of numbers from 0, by passes over 16 bits each, which numpy sorts in linear time."""
    most = int(number_N.max(initial=0))
    order = np.argsort((number_N & 0xFFFF).astype(np.uint16), kind="stable")
    if most > 0xFFFF:
        high_N = number_N >> 16
        order = order[np.argsort(high_N[order].astype(np.uint16 if most < 2**32 else np.int64), kind="stable")]
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """The rows of matched symmetric collectives, ordered by call, then rank."""

    call_N: I64
    rank_N: I64
    enter_ns_N: I64
    end_ns_N: I64


def symmetric_stamps(run: Run) -> Stamps:
    """What relates the clocks of hosts, without the rest of ``match_collectives``."""
    written = _Written.of(run)
    parts, call_N = written.parts, written.call_N
    rank_N, op_N = written.ordered(parts.rank()), written.ordered(parts.op())
    p2p_N = written.ordered(parts.column("p2p_N")).astype(np.bool_, copy=False)
    good_C = _matched(written, rank_N, p2p_N, op_N)
    good_C &= parts.symmetric()[op_N[written.first_C]] if len(op_N) else good_C
    at_N = np.flatnonzero(good_C[call_N])
    return Stamps(
        call_N=call_N[at_N],
        rank_N=rank_N[at_N],
        enter_ns_N=written.ordered(parts.column("enter_ns_N"))[at_N],
        end_ns_N=written.ordered(parts.column("end_ns_N"))[at_N],
    )


class _Parts:
    """The collectives of all ranks one after the other, in order of rank, a column at a time.

    Suffix W: rows as written; N: rows ordered by call, then rank, as written where a rank repeats a call.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ranks = sorted(run.ranks)
        self._calls = [run.ranks[rank].collectives for rank in self.ranks]
        self.groups = sorted(set(run.groups) | {name for calls in self._calls for name in calls.groups})
        self.ops = sorted({op for calls in self._calls for op in calls.ops})
        self.num_R = np.array([len(calls) for calls in self._calls], dtype=np.int64)

    def column(self, name: str) -> NDArray[Any]:
        """Shape (W,). One value for all is held once."""
        columns = [getattr(calls, name) for calls in self._calls if len(calls)]
        if not columns:
            return np.zeros(0, dtype=np.int64)
        if all(column.strides == (0,) and _alike(column[0], columns[0][0]) for column in columns):
            return np.broadcast_to(columns[0][:1], (int(self.num_R.sum()),))
        return np.concatenate(columns)

    def rank(self) -> I64:
        return np.repeat(np.array(self.ranks, dtype=np.int64), self.num_R)

    def group(self) -> I64:
        return self._coded(self.groups, "groups", "group_N")

    def op(self) -> I64:
        return self._coded(self.ops, "ops", "op_N")

    def symmetric(self) -> Bool:
        """Which of the operations no member can leave before the last one arrived."""
        return np.array([op.startswith(SYMMETRIC_OPS) for op in self.ops], np.bool_)

    def members(self) -> list[tuple[int, ...]]:
        return [self.run.groups.get(name, ()) for name in self.groups]

    def _coded(self, names: list[str], own: str, column: str) -> I64:
        code_of = {name: code for code, name in enumerate(names)}
        if len(names) == 1:
            return np.broadcast_to(np.zeros(1, dtype=np.int64), (int(self.num_R.sum()),))
        parts = [np.array([code_of[name] for name in getattr(calls, own)], dtype=np.int64) for calls in self._calls]
        codes = [part[getattr(calls, column)] for part, calls in zip(parts, self._calls, strict=True) if len(calls)]
        return np.concatenate(codes) if codes else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The columns as written, where each row of the result is in them, and each call's first row and number of rows."""

    parts: _Parts
    order: I64
    call_N: I64
    first_C: I64
    num_C: I64

    @classmethod
    def of(cls, run: Run) -> _Written:
        parts = _Parts(run)
        call_W = _call_numbers(parts)
        order = stable_order(call_W)
        call_N = call_W[order]
        first_C = np.flatnonzero(np.diff(call_N, prepend=-1))
        return cls(parts=parts, order=order, call_N=call_N, first_C=first_C, num_C=np.diff(first_C, append=len(call_N)))

    def ordered(self, column_W: NDArray[Any]) -> NDArray[Any]:
        """Shape (N,). One value for all stays held once."""
        return column_W if column_W.strides == (0,) else column_W[self.order]

    def first(self, column_W: NDArray[Any]) -> NDArray[Any]:
        """Shape (C,): the value of each call's first row."""
        return column_W[self.order[self.first_C]]


def _alike(a: np.generic, b: np.generic) -> bool:
    return bool(a == b or (a != a and b != b))  # NaN is not itself


def _call_numbers(parts: _Parts) -> I64:
    """Shape (W,): a dense number for each call, in order of first enter; a point-to-point row goes by pair, turn."""
    p2p_W, enter_W, group_W = parts.column("p2p_N"), parts.column("enter_ns_N"), parts.group()
    key_W = parts.column("seq_N")
    if p2p_W.any():
        source_W, target_W = _directions(parts, p2p_W)
        key_W = key_W.copy()
        key_W[p2p_W] = _turns(parts, p2p_W, source_W[p2p_W], target_W[p2p_W])
        # A call is one (group, kind, source, target, key); collectives have no source or target.
        number_W = dense(group_W, p2p_W.astype(np.int64), source_W, target_W, key_W)
    else:
        number_W = dense(group_W, key_W)
    first_ns_C = np.full(int(number_W.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_ns_C, number_W, enter_W)
    rank_of_C = np.empty(len(first_ns_C), dtype=np.int64)
    rank_of_C[np.argsort(first_ns_C, kind="stable")] = np.arange(len(first_ns_C))
    return rank_of_C[number_W]


def dense(*keys: I64) -> I64:
    """A number for each distinct combination, in the keys' order of precedence, without a gap."""
    number_W, size = np.zeros(len(keys[0]), dtype=np.int64), 1
    for key_W in keys:
        if key_W.strides == (0,):
            continue
        place_W, num = _ranked(key_W)
        if size * num >= 2**62:
            number_W, size = _ranked(number_W)
        number_W = place_W + number_W * num
        size *= num
    return _ranked(number_W)[0]


def _ranked(key_W: I64) -> tuple[I64, int]:
    """Each key's place among the distinct keys, and how many there are; by counting where they lie close together."""
    if not len(key_W):
        return key_W, 1
    least, most = int(key_W.min()), int(key_W.max())
    if most - least <= 8 * len(key_W) + 1024:
        present = np.zeros(most - least + 1, dtype=np.bool_)
        present[key_W - least] = True
        place = np.cumsum(present) - 1
        return place[key_W - least], int(place[-1]) + 1
    distinct, place_W = np.unique(key_W, return_inverse=True)
    return place_W.astype(np.int64), len(distinct)


def _directions(parts: _Parts, p2p_W: Bool) -> tuple[I64, I64]:
    """Source and target of point-to-point rows; ABSENT for collectives and where the peer is unknown."""
    receives = np.array([op.removeprefix("i").startswith("recv") for op in parts.ops], np.bool_)
    is_receive_W = receives[parts.op()]
    rank_W, peer_W = parts.rank(), parts.column("peer_N")
    source_W = np.where(p2p_W, np.where(is_receive_W, peer_W, rank_W), ABSENT)
    target_W = np.where(p2p_W, np.where(is_receive_W, rank_W, peer_W), ABSENT)
    return source_W, target_W


def _turns(parts: _Parts, p2p_W: Bool, source_P: I64, target_P: I64) -> I64:
    """The k of a rank's k-th call in one direction with one peer: messages of a pair do not overtake each other."""
    keys = {"group": parts.group()[p2p_W], "rank": parts.rank()[p2p_W], "source": source_P, "target": target_P}
    ordered = pd.DataFrame(
        keys | {"seq": parts.column("seq_N")[p2p_W], "enter": parts.column("enter_ns_N")[p2p_W]}
    ).sort_values(["enter", "seq"], kind="stable")
    turn = ordered.groupby(list(keys), sort=False).cumcount()
    return np.asarray(turn.sort_index(), dtype=np.int64)


def _split(written: _Written, epsilon_ns: int) -> tuple[pd.DataFrame, dict[str, NDArray[Any]]]:
    """The table of calls and the columns of the rows."""
    parts, call_N, first_C, num_C = written.parts, written.call_N, written.first_C, written.num_C
    rank_N = written.ordered(parts.rank())
    p2p_N = written.ordered(parts.column("p2p_N")).astype(np.bool_, copy=False)
    op_N = written.ordered(parts.op())
    matched_C = _matched(written, rank_N, p2p_N, op_N)
    ready_N, behind_N = _ready(written)
    enter_N, end_N = (written.ordered(parts.column(name)) for name in ("enter_ns_N", "end_ns_N"))
    matched_N = matched_C[call_N]
    arrival_C = np.maximum.reduceat(enter_N, first_C) if first_C.size else enter_N
    earliest_C = np.minimum.reduceat(enter_N, first_C) if first_C.size else enter_N
    arrival_N = np.where(matched_N, arrival_C[call_N], enter_N)
    service_N = np.maximum(0, end_N - arrival_N)
    is_last_N = matched_N & (enter_N >= arrival_N - epsilon_ns)
    num_last_C = np.bincount(call_N, weights=is_last_N, minlength=len(first_C))
    clamped_N = (
        np.where(matched_N & parts.symmetric()[op_N], np.maximum(0, arrival_N - end_N), 0) if len(op_N) else op_N
    )
    queued_N = np.clip(ready_N - np.maximum(enter_N, arrival_N), 0, service_N)
    rows = {
        "call": call_N,
        "rank": rank_N,
        "p2p": p2p_N,
        "enter_ns": enter_N,
        "end_ns": end_N,
        "device_us": written.ordered(parts.column("device_us_N")).astype(np.float64, copy=False),
        "ready_ns": ready_N,
        "behind": behind_N,
        "wait_ns": np.minimum(end_N, arrival_N) - enter_N,
        "service_ns": service_N,
        "queued_ns": shared(queued_N),
        "lateness_ns": enter_N - earliest_C[call_N],
        "last_weight": is_last_N / np.maximum(num_last_C, 1)[call_N],
        "clamped_ns": shared(clamped_N),
        "matched": matched_N,
    }
    names = np.array(parts.groups, dtype=object)
    first = {name: written.first(parts.column(f"{name}_N")) for name in _OF_FIRST}
    calls = {
        "group": names[written.first(parts.group())],
        "op": pd.Categorical.from_codes(op_N[first_C], categories=pd.Index(parts.ops, dtype=object)),
        **{name: first[name] for name in _OF_FIRST},
        "num_ranks": num_C,
        "matched": matched_C,
        "first_ns": earliest_C,
        "arrival_ns": arrival_C,
        "spread_ns": arrival_C - earliest_C,
        "last_rank": _last_rank(call_N, rank_N, enter_N, arrival_C),
        "service_ns": _medians(service_N, first_C, num_C),
        "own_service_ns": _medians(service_N - queued_N, first_C, num_C),
    }
    return pd.DataFrame(calls), rows


_OF_FIRST = ("seq", "p2p", "payload_bytes", "step", "segment")


def _last_rank(call_N: I64, rank_N: I64, enter_N: I64, arrival_C: I64) -> I64:
    at_N = np.flatnonzero(enter_N == arrival_C[call_N])
    last_C = np.empty(len(arrival_C), dtype=np.int64)
    last_C[call_N[at_N][::-1]] = rank_N[at_N][::-1]
    return last_C


def _medians(values_N: I64, first_C: I64, num_C: I64) -> F64:
    """The median of each call's rows, calls of one size at a time."""
    median_C = np.empty(len(first_C), dtype=np.float64)
    for num in np.unique(num_C).tolist():
        of_size = np.flatnonzero(num_C == num)
        tables = np.array_split(of_size, max(1, len(of_size) * num // _MEDIAN_ROWS))
        for some in tables:
            median_C[some] = np.median(values_N[first_C[some, None] + np.arange(num)], axis=1)
    return median_C


_MEDIAN_ROWS = 1_000_000
"""Rows gathered at once: the gathering costs memory."""


def _matched(written: _Written, rank_N: I64, p2p_N: Bool, op_N: I64) -> Bool:
    """Rows of a call are sorted by rank, so a repeated rank stands beside itself and a full call spells the group."""
    call_N, first_C, members = written.call_N, written.first_C, written.parts.members()
    group_N = written.ordered(written.parts.group())
    sizes = np.array([len(ranks) for ranks in members], dtype=np.int64)
    if not len(call_N):
        return np.zeros(0, dtype=np.bool_)
    expected_C = np.where(p2p_N[first_C], 2, sizes[group_N[first_C]])
    place_N = np.arange(len(call_N)) - first_C[call_N]
    # The members of all groups one after the other; a place beyond a group's last is no member's.
    begin = np.concatenate([[0], np.cumsum(sizes)])
    listed = np.array([rank for ranks in members for rank in ranks] + [ABSENT], dtype=np.int64)
    place_N = np.where(place_N < sizes[group_N], begin[group_N] + place_N, len(listed) - 1)
    good_N = listed[place_N] == rank_N
    good_N &= op_N == op_N[first_C][call_N]
    if p2p_N.any():
        repeated_N = np.zeros(len(call_N), dtype=np.bool_)
        repeated_N[1:] = (call_N[1:] == call_N[:-1]) & (rank_N[1:] == rank_N[:-1])
        good_N = np.where(p2p_N, ~repeated_N, good_N)
    num_bad_C = np.bincount(call_N[~good_N], minlength=len(first_C))
    return np.asarray((written.num_C == expected_C) & (num_bad_C == 0), dtype=np.bool_)


def _ready(written: _Written) -> tuple[I64, I64]:
    """When a rank's collective could start, and the row of the group's collective that it queued behind, or ABSENT.

    It starts at its enter, or when the group's previous one ended on that rank. A previous collective that ended
    later than this one ran beside it, not before it.
    """
    parts = written.parts
    row_W = np.empty(len(written.order), dtype=np.int64)
    row_W[written.order] = np.arange(len(written.order))
    enter_W, end_W = parts.column("enter_ns_N"), parts.column("end_ns_N")
    group_W, p2p_W = parts.group(), parts.column("p2p_N")
    ready_W, behind_W = enter_W.copy(), np.full(len(enter_W), ABSENT)
    ends = np.cumsum(parts.num_R).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        at = np.arange(start, end)
        if p2p_W[start:end].any():
            at = at[~p2p_W[start:end]]
        group, enter = group_W[at], enter_W[at]
        order = np.lexsort((row_W[at], enter, group))
        at = at[order]
        before, after = at[:-1], at[1:]
        queued = (group_W[before] == group_W[after]) & (enter_W[after] < end_W[before])
        queued &= end_W[before] <= end_W[after]
        ready_W[after[queued]] = end_W[before[queued]]
        behind_W[after[queued]] = row_W[before[queued]]
    return ready_W[written.order], behind_W[written.order]
