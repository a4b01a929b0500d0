"""What-if replay of recorded runs: what the regressed run would have taken with one account as it was in the healthy.

A rank's main timeline is cut where it entered a collective, where it was blocked in one and where its steps ended;
a collective begins when its last member has entered and what it queued behind is done. So no waiting is in the
graph: it comes out of the replay. The i-th steady step of one run borrows from the i-th of the other.

Shape legend: R ranks, S steps, A accounts, V events of one rank, K parts of a step between its enters, N nodes,
M collective rows. Source: docs/method.md, What-if replay; Lin et al., OSDI 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, LOCAL_ACCOUNTS, Account
from narrows.reducers.collectives import rows_by_rank
from narrows.reducers.records import ABSENT
from narrows.reducers.sweep import CODES
from narrows.reducers.whatif import Graph, from_edges, replay, shares

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64

SELF_CHECK = 0.03
"""A replay that differs from the measured steps by more than this claims nothing. Source: docs/method.md."""

_TRANSFER = CODES[Account.TRANSFER]
_WAITING = [CODES[one] for one in (Account.TRANSFER, Account.SKEW, Account.PIPELINE)]
_JOIN, _END, _ENTER, _BLOCK = range(4)  # at one instant they happen in this order


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountShare:
    """``removal``: what of the loss goes with this account as in the healthy run; ``addition``: what of it comes to
    the healthy run with this account as in the regressed. ``share`` is their mean, absent where they disagree: then
    the account interacts with another.
    """

    account: str
    removal: float
    addition: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """``replay_error``: replayed over measured step, less 1, of the healthy and of the regressed run. ``accounts`` is
    empty, and ``why_not`` a sentence, where the replay allows no claim. Milliseconds are means over steady steps;
    ``steps`` counts them in each run.
    """

    healthy_ms: float
    regressed_ms: float
    replay_error: tuple[float, float]
    steps: tuple[int, int]
    accounts: tuple[AccountShare, ...]
    why_not: str | None = None


def what_if(healthy: Ledger, regressed: Ledger) -> WhatIf:
    """One row an account that holds time in either run, the largest share first."""
    sides = _side(healthy), _side(regressed)
    times = [float(one.step_ms(one.durations()[:, np.newaxis])[0]) for one in sides]
    measured = [one.measured_ms for one in sides]
    errors = tuple(replayed / known - 1 if known else 0.0 for replayed, known in zip(times, measured, strict=True))
    why_not = _why_not(sides, errors, times)
    found: list[AccountShare] = []
    if why_not is None:
        fast, slow = sides
        removed, added = _replaced(slow, fast), _replaced(fast, slow)
        for account in removed:
            one = shares(slow=times[1], fast=times[0], removed=removed[account], added=added[account])
            assert one is not None
            name = account.value
            found.append(AccountShare(account=name, removal=one.removal, addition=one.addition, share=one.agreed))
    return WhatIf(
        healthy_ms=times[0],
        regressed_ms=times[1],
        replay_error=(errors[0], errors[1]),
        steps=(len(sides[0].steady_S), len(sides[1].steady_S)),
        accounts=tuple(sorted(found, key=lambda one: -max(one.removal, one.addition))),
        why_not=why_not,
    )


def _why_not(sides: tuple[_Side, _Side], errors: tuple[float, ...], times: list[float]) -> str | None:
    for name, side, error in zip(("healthy", "regressed"), sides, errors, strict=True):
        if abs(side.unexplained) > SELF_CHECK:
            return (
                f"the {name} run's record does not say when ranks were blocked: waiting of {side.unexplained:.0%} of "
                "its step is in no wait span"
            )
        if abs(error) > SELF_CHECK:
            return f"the replay of the {name} run differs from its measured steps by {error:+.1%}; 3 % is allowed"
    if sides[0].shape != sides[1].shape:
        return "the two runs differ in their ranks, or in how many collectives a rank's step has"
    if not sides[0].regular or not sides[1].regular:
        return "steps of one run differ in how many collectives a rank enters"
    if not any(_used(side, account) for side in sides for account in ACCOUNTS):
        return "neither run recorded time in an account that a replay could change"
    return None if times[1] > times[0] else "the regressed run is not slower when replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One run as a graph. ``local_RSKA`` is ns of own doing by part of a step, ``service_RSK`` ns of the collective
    that ended the part. A local node is a share ``weight_NA`` of its part's account.
    """

    ops: Graph
    local_RSKA: F64
    service_RSK: F64
    place_N: I64
    weight_NA: F64
    service_node_M: I64
    service_place_M: I64
    fixed_N: F64
    end_node_RS: I64
    first_S: I64
    origin_S: F64
    steady_S: I64
    measured_ms: float
    unexplained: float
    regular: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.local_RSKA.shape[0], self.local_RSKA.shape[2])

    def durations(self, donor: _Side | None = None, account: Account | None = None) -> F64:
        """Shape (N,): ns of every node, with ``account`` taken from the donor's steps."""
        local, service = self.local_RSKA, self.service_RSK
        if donor is not None and account is not None:
            mine = self.steady_S
            theirs = donor.steady_S[np.arange(len(mine)) % len(donor.steady_S)]
            local, service = local.copy(), service.copy()
            if account is Account.TRANSFER:
                service[:, mine] = donor.service_RSK[:, theirs]
            local[:, mine, :, CODES[account]] = donor.local_RSKA[:, theirs, :, CODES[account]]
        duration_N = self.fixed_N.copy()
        at_N = np.flatnonzero(self.place_N != ABSENT)
        duration_N[at_N] += (local.reshape(-1, len(ACCOUNTS))[self.place_N[at_N]] * self.weight_NA[at_N]).sum(axis=1)
        duration_N[self.service_node_M] += service.reshape(-1)[self.service_place_M]
        return duration_N

    def step_ms(self, duration_NC: F64) -> F64:
        """Shape (C,): the mean steady step of each replay."""
        done_NC = replay(self.ops, duration_NC)
        known_RSC = np.where((self.end_node_RS != ABSENT)[:, :, np.newaxis], done_NC[self.end_node_RS], 0.0)
        frontier_SC = known_RSC.max(axis=0)
        before_SC = np.concatenate([frontier_SC[:1] * 0, frontier_SC[:-1]])
        before_SC[self.first_S] = self.origin_S[self.first_S, np.newaxis]
        return np.asarray((frontier_SC - before_SC)[self.steady_S].mean(axis=0) / 1e6, np.float64)


def _replaced(side: _Side, donor: _Side) -> dict[Account, float]:
    """Milliseconds of a step of ``side`` with each account in turn as in the donor."""
    used = [account for account in ACCOUNTS if _used(side, account) or _used(donor, account)]
    columns = np.stack([side.durations(donor, account) for account in used], axis=1)
    return dict(zip(used, side.step_ms(columns).tolist(), strict=True))


def _used(side: _Side, account: Account) -> bool:
    """Whether it is an account that a rank's own doing or a collective's service can have, and has."""
    if account is Account.TRANSFER:
        return bool(side.service_RSK.any() or side.local_RSKA[..., _TRANSFER].any())
    return account in LOCAL_ACCOUNTS and bool(side.local_RSKA[..., CODES[account]].any())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """One rank's events in order; ``row_V`` is the collective row of an enter or join; ``spent_VA`` its own doing
    since the event before; ``part_V`` how many collectives the rank had entered before in the step."""

    kind_V: I64
    row_V: I64
    step_V: I64
    part_V: I64
    spent_VA: F64
    blocked_ns: int


def _events(ledger: Ledger, at: int, row_M: I64) -> _Events:
    rows = ledger.collectives.rows
    step_P = np.flatnonzero(ledger.present_RS[at])
    end_P = ledger.end_ns_RS[at, step_P]
    row_M = row_M[ledger.row_step_N[row_M] != ABSENT]
    enter_M, end_M = rows["enter_ns"].to_numpy()[row_M], rows["end_ns"].to_numpy()[row_M]
    wait_start_J, join_J, join_row_J = _joined(ledger, at, row_M, end_M)
    none_P, none_J = np.full(len(step_P), ABSENT), np.full(len(wait_start_J), ABSENT)
    time_V = np.concatenate([join_J, end_P, enter_M, wait_start_J])
    kind_V = np.repeat([_JOIN, _END, _ENTER, _BLOCK], [len(join_J), len(end_P), len(enter_M), len(wait_start_J)])
    row_V = np.concatenate([join_row_J, none_P, row_M, none_J])
    at_step_V = step_P[np.minimum(np.searchsorted(end_P, time_V, side="left"), len(step_P) - 1)]
    step_V, entered_V = at_step_V.copy(), kind_V == _ENTER
    step_V[entered_V] = ledger.row_step_N[row_V[entered_V]]
    order = np.lexsort((kind_V, time_V))
    time_V, kind_V, row_V, step_V = time_V[order], kind_V[order], row_V[order], step_V[order]
    spent = ledger.timelines[at].spent_ns(time_V).astype(np.float64)
    spent_VA = np.diff(spent, axis=0, prepend=spent[:1])
    segment_S = ledger.steps["segment"].to_numpy()
    fresh_V = np.flatnonzero(np.diff(segment_S[step_V], prepend=-1) != 0)
    start_ns = ledger.start_ns_RS[at, step_V[fresh_V]]
    spent_VA[fresh_V] = spent[fresh_V] - ledger.timelines[at].spent_ns(start_ns)
    blocked_V = np.cumsum((kind_V == _BLOCK).astype(np.int64) - (kind_V == _JOIN)) > 0
    spent_VA[1:][blocked_V[:-1]] = 0.0
    entered_V = np.cumsum(kind_V == _ENTER) - (kind_V == _ENTER)
    first_V = np.searchsorted(step_V, step_V, side="left")
    return _Events(
        kind_V=kind_V,
        row_V=row_V,
        step_V=step_V,
        part_V=entered_V - entered_V[first_V],
        spent_VA=np.maximum(spent_VA, 0.0),
        blocked_ns=int((join_J - wait_start_J).sum()),
    )


def _joined(ledger: Ledger, at: int, row_M: I64, end_M: I64) -> tuple[I64, I64, I64]:
    """Of each blocked interval that a collective released: its start, when it was released, and by which row."""
    wait = ledger.waits[at]
    order_W = np.argsort(wait.start_ns_M, kind="stable")
    start_W, until_W = wait.start_ns_M[order_W], wait.end_ns_M[order_W]
    if not len(row_M) or not len(start_W):
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing
    order_M = np.argsort(end_M, kind="stable")
    ends, ordered = end_M[order_M], row_M[order_M]
    found_W = np.searchsorted(ends, until_W, side="right") - 1
    good_W = (found_W >= 0) & (ends[np.maximum(found_W, 0)] > start_W)
    good_W[1:] &= start_W[1:] >= until_W[:-1]  # a wait within a wait adds nothing
    return start_W[good_W], ends[found_W[good_W]], ordered[found_W[good_W]]


def _side(ledger: Ledger) -> _Side:
    rows = ledger.collectives.rows
    rows_of = rows_by_rank(rows)
    nothing = np.zeros(0, dtype=np.int64)
    events = [_events(ledger, at, rows_of.get(rank, nothing)) for at, rank in enumerate(ledger.ranks)]
    num_ranks, num_steps = ledger.present_RS.shape
    num_parts = max((int(one.part_V.max(initial=0)) for one in events), default=0) + 1
    first = np.concatenate([[0], np.cumsum([len(one.kind_V) for one in events])]).astype(np.int64)
    num_events = int(first[-1])
    kind_N, row_N, step_N, part_N = (
        np.concatenate([getattr(one, name) for one in events]) for name in ("kind_V", "row_V", "step_V", "part_V")
    )
    rank_N = np.repeat(np.arange(num_ranks), np.diff(first))
    spent_NA = np.concatenate([one.spent_VA for one in events])
    place_N = (rank_N * num_steps + step_N) * num_parts + part_N
    totals = np.zeros((num_ranks * num_steps * num_parts, len(ACCOUNTS)))
    np.add.at(totals, place_N, spent_NA)
    chain = np.flatnonzero((np.diff(rank_N, prepend=-1) == 0) & _same_segment(ledger, step_N))
    edges = [(chain - 1, chain)]
    call, member, service = _collective_nodes(ledger, kind_N, row_N, num_events, edges)
    num_nodes = num_events + call + len(member)
    starts = _starts(ledger)
    fixed_N = np.zeros(num_nodes)
    heads = np.setdiff1d(np.arange(num_events), chain)
    fixed_N[heads] = starts[rank_N[heads], step_N[heads]]
    entered_of = np.flatnonzero(kind_N == _ENTER)
    service_RSK = np.zeros((num_ranks, num_steps, num_parts))
    service_RSK.reshape(-1)[place_N[entered_of]] = service
    end_node_RS = np.full((num_ranks, num_steps), ABSENT)
    ends = np.flatnonzero(kind_N == _END)
    end_node_RS[rank_N[ends], step_N[ends]] = ends
    all_place_N = np.full(num_nodes, ABSENT)
    all_place_N[:num_events] = place_N
    weight_NA = np.zeros((num_nodes, len(ACCOUNTS)))
    weight_NA[:num_events] = _weights(spent_NA, totals, place_N)
    segment_S = ledger.steps["segment"].to_numpy()
    first_S = np.flatnonzero(np.diff(segment_S, prepend=-1) != 0)
    steady_S = steady_steps(ledger)
    windows = np.where(ledger.present_RS, ledger.end_ns_RS - ledger.start_ns_RS, 0).sum()
    waited = ledger.account_ns_RSA[:, :, _WAITING].sum()
    counts_RS = np.zeros((num_ranks, num_steps), dtype=np.int64)
    np.add.at(counts_RS, (rank_N[entered_of], step_N[entered_of]), 1)
    return _Side(
        ops=from_edges(num_nodes, np.concatenate([a for a, _ in edges]), np.concatenate([b for _, b in edges])),
        local_RSKA=totals.reshape(num_ranks, num_steps, num_parts, len(ACCOUNTS)),
        service_RSK=service_RSK,
        place_N=all_place_N,
        weight_NA=weight_NA,
        service_node_M=member,
        service_place_M=place_N[entered_of],
        fixed_N=fixed_N,
        end_node_RS=end_node_RS,
        first_S=first_S,
        origin_S=starts.max(axis=0),
        steady_S=steady_S,
        measured_ms=_measured_ms(ledger, steady_S),
        unexplained=float((waited - sum(one.blocked_ns for one in events)) / windows),
        regular=all(len(np.unique(row[here])) == 1 for row, here in zip(counts_RS, ledger.present_RS, strict=True)),
    )


def _collective_nodes(
    ledger: Ledger, kind_N: I64, row_N: I64, num_events: int, edges: list[tuple[I64, I64]]
) -> tuple[int, I64, F64]:
    """Adds one node a call (all members are there) and one a row (the member is done); of the rows in order of their
    enters: how many calls, the rows' nodes, and each row's own service in ns.
    """
    rows = ledger.collectives.rows
    enters, joins = np.flatnonzero(kind_N == _ENTER), np.flatnonzero(kind_N == _JOIN)
    row_M = row_N[enters]
    call_M, place_M = np.unique(rows["call"].to_numpy()[row_M], return_inverse=True)
    node_of_row = np.full(len(rows), ABSENT)
    member_M = num_events + len(call_M) + np.arange(len(row_M))
    node_of_row[row_M] = member_M
    columns = {
        name: rows[name].to_numpy()[row_M]
        for name in ("matched", "service_ns", "queued_ns", "wait_ns", "enter_ns", "end_ns")
    }
    # A member that left before the last arrival, or whose partners are not in the record, waited for nobody.
    meets_M = columns["matched"] & (columns["end_ns"] > columns["enter_ns"] + columns["wait_ns"])
    alone_ns = columns["end_ns"] - columns["enter_ns"]
    edges.append((enters, num_events + place_M))
    edges.append((np.where(meets_M, num_events + place_M, enters), member_M))
    before_M, after_M = _queues(ledger, row_M)
    edges.append((member_M[before_M], member_M[after_M]))
    edges.append((node_of_row[row_N[joins]], joins))
    own_ns = np.where(meets_M, columns["service_ns"], alone_ns) - columns["queued_ns"]
    return len(call_M), member_M, own_ns.astype(np.float64)


def _queues(ledger: Ledger, row_M: I64) -> tuple[I64, I64]:
    """Places of rows that go one after the other through one group on one rank, whether or not the later had to wait.

    A row whose predecessor ended later than itself ran beside it, and waits for nothing.
    """
    rows, calls = ledger.collectives.rows, ledger.collectives.calls
    group_M = calls["group"].astype("category").cat.codes.to_numpy()[rows["call"].to_numpy()[row_M]]
    rank_M, enter_M, end_M = (rows[name].to_numpy()[row_M] for name in ("rank", "enter_ns", "end_ns"))
    order = np.lexsort((row_M, enter_M, group_M, rank_M))
    order = order[~rows["p2p"].to_numpy()[row_M[order]]]
    before, after = order[:-1], order[1:]
    same = (rank_M[before] == rank_M[after]) & (group_M[before] == group_M[after]) & (end_M[before] <= end_M[after])
    step_M = ledger.row_step_N[row_M]
    segment_S = ledger.steps["segment"].to_numpy()
    same &= segment_S[step_M[before]] == segment_S[step_M[after]]
    return before[same], after[same]


def _weights(spent_NA: F64, totals: F64, place_N: I64) -> F64:
    """Which share of its part's account each event has; of an account that the part lacks, the last has all."""
    total_NA = totals[place_N]
    last_N = np.ones(len(place_N), dtype=np.bool_)
    last_N[:-1] = place_N[1:] != place_N[:-1]
    share_NA = spent_NA / np.where(total_NA > 0, total_NA, 1.0)
    return np.where(total_NA > 0, share_NA, last_N[:, np.newaxis].astype(np.float64))


def _same_segment(ledger: Ledger, step_N: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    segment_N = ledger.steps["segment"].to_numpy()[step_N]
    return np.asarray(np.diff(segment_N, prepend=-1) == 0, dtype=np.bool_)


def _starts(ledger: Ledger) -> F64:
    """Shape (R, S): ns by which a rank's window starts after the first one of its step."""
    lowest = np.iinfo(np.int64).max
    first_S = np.where(ledger.present_RS, ledger.start_ns_RS, lowest).min(axis=0)
    return np.where(ledger.present_RS, ledger.start_ns_RS - first_S, 0).astype(np.float64)


def _measured_ms(ledger: Ledger, steady_S: I64) -> float:
    end_S = np.where(ledger.present_RS, ledger.end_ns_RS, np.iinfo(np.int64).min).max(axis=0)
    start_S = np.where(ledger.present_RS, ledger.start_ns_RS, np.iinfo(np.int64).min).max(axis=0)
    return float((end_S - start_S)[steady_S].mean() / 1e6)


def steady_steps(ledger: Ledger) -> I64:
    """Places of the steps that are not washout; of all steps where every one is."""
    steady_S = np.flatnonzero(~ledger.steps["warmup"].to_numpy(dtype=np.bool_))
    return steady_S if len(steady_S) else np.arange(len(ledger.steps))
