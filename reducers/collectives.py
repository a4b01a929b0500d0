"""The same collective on all its ranks: who arrived last, how long each waited, and what the service took.

Times are those of the run's common clock, in integer nanoseconds. Source of the split: docs/method.md, the
collective split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from narrows.reducers.records import F64, I64, Bool, Run

SYMMETRIC_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations that no member can leave before the last one arrived. Names are matched by their beginning."""


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
    rows = _all_rows(run)
    call_N = _call_numbers(rows)
    order = np.lexsort((rows["rank"].to_numpy(), call_N))
    rows = rows.take(order).reset_index(drop=True)
    rows.insert(0, "call", call_N[order])
    calls = _split(rows, _members_by_code(run), run.clock.epsilon_ns)
    duration_N = (rows["end_ns"] - rows["enter_ns"]).to_numpy()
    total_ns = int(duration_N.sum())
    coverage = float(duration_N[rows["matched"].to_numpy()].sum() / total_ns) if total_ns else float("nan")
    names = _group_names(run)
    calls.insert(0, "group", [names[code] for code in calls["group_code"]])
    return Collectives(calls=calls.drop(columns="group_code"), rows=rows.drop(columns=_KEY_COLUMNS), coverage=coverage)


_KEY_COLUMNS = ["group_code", "op", "seq", "peer", "payload_bytes", "step", "segment"]


def _group_names(run: Run) -> list[str]:
    return sorted(set(run.groups) | {name for records in run.ranks.values() for name in records.collectives.groups})


def _members_by_code(run: Run) -> list[tuple[int, ...]]:
    return [run.groups.get(name, ()) for name in _group_names(run)]


def _all_rows(run: Run) -> pd.DataFrame:
    code_of = {name: code for code, name in enumerate(_group_names(run))}
    ops = sorted({op for records in run.ranks.values() for op in records.collectives.ops})
    op_of = {op: code for code, op in enumerate(ops)}
    parts: dict[str, list[I64 | Bool | F64]] = {}
    for rank, records in run.ranks.items():
        calls = records.collectives
        group_codes = np.array([code_of[name] for name in calls.groups], dtype=np.int64)
        op_codes = np.array([op_of[op] for op in calls.ops], dtype=np.int64)
        columns: dict[str, I64 | Bool | F64] = {
            "rank": np.full(len(calls), rank, dtype=np.int64),
            "group_code": group_codes[calls.group_N],
            "op": op_codes[calls.op_N],
            "seq": calls.seq_N,
            "p2p": calls.p2p_N,
            "peer": calls.peer_N,
            "payload_bytes": calls.payload_bytes_N,
            "step": calls.step_N,
            "segment": calls.segment_N,
            "enter_ns": calls.enter_ns_N,
            "end_ns": calls.end_ns_N,
            "device_us": calls.device_us_N,
        }
        for name, column in columns.items():
            parts.setdefault(name, []).append(column)
    rows = pd.DataFrame({name: np.concatenate(columns) for name, columns in parts.items()})
    rows["op"] = pd.Categorical.from_codes(rows["op"], categories=pd.Index(ops, dtype=object))
    return rows


def _call_numbers(rows: pd.DataFrame) -> I64:
    """A dense number for each call, ordered by first enter. A point-to-point row is keyed by pair and turn."""
    p2p_N = rows["p2p"].to_numpy()
    key_N = rows["seq"].to_numpy().copy()
    source_N, target_N = _directions(rows)
    if p2p_N.any():
        key_N[p2p_N] = _turns(rows[p2p_N], source_N[p2p_N], target_N[p2p_N])
    # A call is one (group, kind, source, target, key); collectives have no source or target.
    keys = np.column_stack([rows["group_code"].to_numpy(), p2p_N, source_N, target_N, key_N]).astype(np.int64)
    order = np.lexsort(keys.T[::-1])
    new_N = np.ones(len(rows), dtype=np.bool_)
    new_N[1:] = (keys[order][1:] != keys[order][:-1]).any(axis=1)
    number_N = np.empty(len(rows), dtype=np.int64)
    number_N[order] = np.cumsum(new_N) - 1
    first_ns_C = np.full(int(new_N.sum()), np.iinfo(np.int64).max)
    np.minimum.at(first_ns_C, number_N, rows["enter_ns"].to_numpy())
    rank_of_C = np.empty(len(first_ns_C), dtype=np.int64)
    rank_of_C[np.argsort(first_ns_C, kind="stable")] = np.arange(len(first_ns_C))
    return rank_of_C[number_N]


def _directions(rows: pd.DataFrame) -> tuple[I64, I64]:
    """Source and target of point-to-point rows; ABSENT for collectives and where the peer is unknown."""
    op_codes = rows["op"].cat.codes.to_numpy()
    receives = np.array([str(op).removeprefix("i").startswith("recv") for op in rows["op"].cat.categories], np.bool_)
    is_receive_N = receives[op_codes] if len(rows) else np.zeros(0, dtype=np.bool_)
    rank_N, peer_N, p2p_N = rows["rank"].to_numpy(), rows["peer"].to_numpy(), rows["p2p"].to_numpy()
    source_N = np.where(p2p_N, np.where(is_receive_N, peer_N, rank_N), ABSENT)
    target_N = np.where(p2p_N, np.where(is_receive_N, rank_N, peer_N), ABSENT)
    return source_N, target_N


def _turns(rows: pd.DataFrame, source_N: I64, target_N: I64) -> I64:
    """The k of a rank's k-th call in one direction with one peer: messages of a pair do not overtake each other."""
    keyed = pd.DataFrame(
        {"group": rows["group_code"], "rank": rows["rank"], "source": source_N, "target": target_N}, index=rows.index
    )
    ordered = keyed.assign(seq=rows["seq"], enter=rows["enter_ns"]).sort_values(["enter", "seq"], kind="stable")
    turn = ordered.groupby(["group", "rank", "source", "target"], sort=False).cumcount()
    return np.asarray(turn.reindex(rows.index), dtype=np.int64)


def _split(rows: pd.DataFrame, members: list[tuple[int, ...]], epsilon_ns: int) -> pd.DataFrame:
    """The table of calls; adds the split columns to ``rows``, which are ordered by call, then rank."""
    call_N = rows["call"].to_numpy()
    first_C = np.flatnonzero(np.diff(call_N, prepend=-1))
    num_C = np.diff(first_C, append=len(call_N))
    enter_N, end_N = rows["enter_ns"].to_numpy(), rows["end_ns"].to_numpy()
    matched_C = _matched(rows, members, first_C, num_C)
    matched_N = matched_C[call_N]
    arrival_C = np.maximum.reduceat(enter_N, first_C) if first_C.size else enter_N
    earliest_C = np.minimum.reduceat(enter_N, first_C) if first_C.size else enter_N
    arrival_N = np.where(matched_N, arrival_C[call_N], enter_N)
    wait_N = np.minimum(end_N, arrival_N) - enter_N
    service_N = np.maximum(0, end_N - arrival_N)
    ready_N, behind_N = _ready(rows)
    is_last_N = matched_N & (enter_N >= arrival_N - epsilon_ns)
    num_last_C = np.bincount(call_N, weights=is_last_N, minlength=len(first_C))
    clamped_N = np.where(matched_N & _symmetric(rows), np.maximum(0, arrival_N - end_N), 0)
    rows["ready_ns"] = ready_N
    rows["behind"] = behind_N
    rows["wait_ns"] = wait_N
    rows["service_ns"] = service_N
    rows["queued_ns"] = np.clip(ready_N - np.maximum(enter_N, arrival_N), 0, service_N)
    rows["lateness_ns"] = enter_N - earliest_C[call_N]
    rows["last_weight"] = is_last_N / np.maximum(num_last_C, 1)[call_N]
    rows["clamped_ns"] = clamped_N
    rows["matched"] = matched_N
    calls = rows.iloc[first_C][["group_code", "op", "seq", "p2p", "payload_bytes", "step", "segment"]]
    calls = calls.reset_index(drop=True)
    calls["num_ranks"] = num_C
    calls["matched"] = matched_C
    calls["first_ns"] = earliest_C
    calls["arrival_ns"] = arrival_C
    calls["spread_ns"] = arrival_C - earliest_C
    calls["last_rank"] = _last_rank(rows, arrival_C)
    by_call = rows.assign(own=service_N - rows["queued_ns"]).groupby("call")
    calls["service_ns"] = by_call["service_ns"].median().to_numpy(dtype=np.float64)
    calls["own_service_ns"] = by_call["own"].median().to_numpy(dtype=np.float64)
    return calls


def _last_rank(rows: pd.DataFrame, arrival_C: I64) -> I64:
    call_N = rows["call"].to_numpy()
    at_N = np.flatnonzero(rows["enter_ns"].to_numpy() == arrival_C[call_N])
    last_C = np.empty(len(arrival_C), dtype=np.int64)
    last_C[call_N[at_N][::-1]] = rows["rank"].to_numpy()[at_N][::-1]
    return last_C


def _matched(rows: pd.DataFrame, members: list[tuple[int, ...]], first_C: I64, num_C: I64) -> Bool:
    """Rows of a call are sorted by rank, so a repeated rank stands beside itself and a full call spells the group."""
    call_N, rank_N = rows["call"].to_numpy(), rows["rank"].to_numpy()
    group_N, p2p_N = rows["group_code"].to_numpy(), rows["p2p"].to_numpy()
    sizes = np.array([len(ranks) for ranks in members], dtype=np.int64)
    expected_C = np.where(p2p_N[first_C], 2, sizes[group_N[first_C]])
    full_C = num_C == expected_C
    place_N = np.arange(len(call_N)) - first_C[call_N]
    table = np.full((len(members), max([1, *sizes.tolist()])), ABSENT)
    for code, ranks in enumerate(members):
        table[code, : len(ranks)] = ranks
    inside_N = place_N < table.shape[1]
    spelled_N = inside_N & (table[group_N, np.where(inside_N, place_N, 0)] == rank_N)
    repeated_N = np.zeros(len(call_N), dtype=np.bool_)
    repeated_N[1:] = (call_N[1:] == call_N[:-1]) & (rank_N[1:] == rank_N[:-1])
    op_N = rows["op"].cat.codes.to_numpy()
    same_op_N = op_N == op_N[first_C][call_N]
    good_N = np.where(p2p_N, ~repeated_N, spelled_N & same_op_N)
    num_bad_C = np.bincount(call_N, weights=~good_N, minlength=len(first_C))
    return np.asarray(full_C & (num_bad_C == 0), dtype=np.bool_)


def _ready(rows: pd.DataFrame) -> tuple[I64, I64]:
    """When a rank's collective could start, and the row of the group's collective that it queued behind, or ABSENT.

    It starts at its enter, or when the group's previous one ended on that rank. A previous collective that ended
    later than this one ran beside it, not before it.
    """
    order = np.lexsort((rows["call"], rows["enter_ns"], rows["group_code"], rows["rank"], rows["p2p"]))
    key = rows[["p2p", "rank", "group_code"]].to_numpy(dtype=np.int64)[order]
    enter_N, end_N = rows["enter_ns"].to_numpy(), rows["end_ns"].to_numpy()
    before_N, after_N = order[:-1], order[1:]
    queued_N = (key[1:] == key[:-1]).all(axis=1) & (key[1:, 0] == 0)
    queued_N &= (enter_N[after_N] < end_N[before_N]) & (end_N[before_N] <= end_N[after_N])
    ready_N, behind_N = enter_N.copy(), np.full(len(rows), ABSENT)
    ready_N[after_N[queued_N]] = end_N[before_N[queued_N]]
    behind_N[after_N[queued_N]] = before_N[queued_N]
    return ready_N, behind_N


def _symmetric(rows: pd.DataFrame) -> Bool:
    symmetric = np.array([str(op).startswith(SYMMETRIC_OPS) for op in rows["op"].cat.categories], np.bool_)
    return symmetric[rows["op"].cat.codes.to_numpy()] if len(rows) else np.zeros(0, dtype=np.bool_)
