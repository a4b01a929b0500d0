"""What a picture of one run needs: a typical step of one rank as lanes, and when each rank arrives at collectives.

Shape legend: R ranks, S steps, K collectives of a step in the order of their first arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS, SPAN_ACCOUNTS, Account
from narrows.reducers import views
from narrows.reducers.lateness import lateness
from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import Run

NS_PER_MS = 1e6
MOST_COLLECTIVES = 64
"""Columns of the heat map; a step with more collectives shows its first."""
Block = tuple[str, float, float]
"""What it was, its start and its end in ms since the start of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalStep:
    """One step of one rank, near the median of its run. ``own`` is what the rank itself did, by account;
    ``communication`` its collectives, as ``waiting`` until the last arrival and ``transfer`` after it.

    ``accounts_ms`` add up to ``step_ms``; ``parts_ms`` divides compute by the names of the spans.
    """

    rank: int
    host: str
    step: int
    step_ms: float
    own: tuple[Block, ...]
    communication: tuple[Block, ...]
    accounts_ms: dict[str, float]
    parts_ms: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalTable:
    """Median lateness in ms of each rank (row) at each collective of a step (column), after its first arrival.

    ``more`` counts the collectives of a step that are not shown.
    """

    ranks: tuple[int, ...]
    lateness_ms: tuple[tuple[float, ...], ...]
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupService:
    """What one group's collectives took after the last arrival: the median in ms, queueing left out."""

    group: str
    crosses_hosts: bool
    service_ms: float


def steady(ledger: Ledger) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Places of the steps that are not washout."""
    return np.flatnonzero(~ledger.steps["warmup"].to_numpy(dtype=np.bool_))


def slowest_position(ledger: Ledger) -> int:
    """The position of the rank with the most local time over the steady steps."""
    local = views.local_time_RS(ledger)[:, steady(ledger)]
    known = ~np.isnan(local).all(axis=1)
    means = np.full(len(local), -np.inf)
    means[known] = np.nanmean(local[known], axis=1)
    return int(means.argmax())


def typical_step(run: Run, ledger: Ledger, at: int) -> TypicalStep:
    """The steady step of the rank at position ``at`` whose length is nearest to the median of such steps."""
    places = steady(ledger)
    places = places[ledger.present_RS[at, places]]
    windows = (ledger.end_ns_RS - ledger.start_ns_RS)[at, places]
    place = int(places[np.abs(windows - np.median(windows)).argmin()])
    start, end = int(ledger.start_ns_RS[at, place]), int(ledger.end_ns_RS[at, place])
    accounts = ledger.account_ns_RSA[at, place]
    compute_ms = float(accounts[ACCOUNTS.index(Account.COMPUTE)]) / NS_PER_MS
    return TypicalStep(
        rank=ledger.ranks[at],
        host=ledger.hosts[at],
        step=int(ledger.steps["step"].iloc[place]),
        step_ms=(end - start) / NS_PER_MS,
        own=_own_blocks(ledger, at, start, end),
        communication=_calls(ledger, at, start, end),
        accounts_ms={str(one): float(ns) / NS_PER_MS for one, ns in zip(ACCOUNTS, accounts, strict=True)},
        parts_ms=_compute_parts(run, ledger.ranks[at], start, end, compute_ms),
    )


def _own_blocks(ledger: Ledger, at: int, start: int, end: int) -> tuple[Block, ...]:
    line = ledger.timelines[at]
    first = max(0, int(np.searchsorted(line.start_ns_E, start, side="right")) - 1)
    until = int(np.searchsorted(line.start_ns_E, end))
    starts = line.start_ns_E[first:until].tolist()
    found: list[Block] = []
    for since, to, code in zip(starts, [*starts[1:], end], line.code_E[first:until].tolist(), strict=True):
        account = ACCOUNTS[code]
        since_ns, to_ns = max(since, start), min(to, end)
        if to_ns > since_ns and account not in (*views.WAITING_ACCOUNTS, Account.RESIDUAL):
            found.append((account.value, (since_ns - start) / NS_PER_MS, (to_ns - start) / NS_PER_MS))
    return tuple(found)


def _calls(ledger: Ledger, at: int, start: int, end: int) -> tuple[Block, ...]:
    rows = ledger.collectives.rows
    mine = rows[(rows["rank"] == ledger.ranks[at]) & (rows["end_ns"] > start) & (rows["enter_ns"] < end)]
    found: list[Block] = []
    for enter, wait, done in zip(mine["enter_ns"], mine["wait_ns"], mine["end_ns"], strict=True):
        for kind, since, to in (("waiting", enter, enter + wait), ("transfer", enter + wait, done)):
            first, last = max(int(since), start), min(int(to), end)
            if last > first:
                found.append((kind, (first - start) / NS_PER_MS, (last - start) / NS_PER_MS))
    return tuple(found)


def _compute_parts(run: Run, rank: int, start: int, end: int, compute_ms: float) -> dict[str, float]:
    """Compute by span name, scaled so that the parts add up to the account (waits inside spans are not compute)."""
    steps = run.ranks[rank].steps
    inside = (steps.span_end_ns_M > start) & (steps.span_start_ns_M < end)
    lengths: dict[str, float] = {}
    for name, since, to in zip(
        steps.span_name_M[inside].tolist(),
        steps.span_start_ns_M[inside].tolist(),
        steps.span_end_ns_M[inside].tolist(),
        strict=True,
    ):
        label = steps.span_names[name]
        if SPAN_ACCOUNTS.get(label) is Account.COMPUTE:
            lengths[label] = lengths.get(label, 0.0) + min(to, end) - max(since, start)
    whole = sum(lengths.values())
    return {name: compute_ms * ns / whole for name, ns in lengths.items()} if whole else {}


def arrivals(ledger: Ledger) -> ArrivalTable | None:
    """When ranks arrive, by the place of the collective in its step; None where no collective was matched."""
    rows = lateness(ledger).rows
    if rows.empty:
        return None
    first = ledger.collectives.calls["first_ns"].to_numpy()
    calls = rows[["step", "call"]].drop_duplicates()
    calls = calls.assign(first=first[calls["call"].to_numpy()]).sort_values(["step", "first"])
    calls["place"] = calls.groupby("step").cumcount()
    table = rows.merge(calls[["call", "place"]], on="call")
    shown = table[table["place"] < MOST_COLLECTIVES]
    means = shown.pivot_table(index="rank", columns="place", values="lateness_ns", aggfunc="median") / NS_PER_MS
    return ArrivalTable(
        ranks=tuple(int(one) for one in means.index),
        lateness_ms=tuple(tuple(float(one) for one in row) for row in means.to_numpy()),
        more=max(0, int(table["place"].max()) + 1 - MOST_COLLECTIVES),
    )


def group_services(ledger: Ledger) -> dict[str, GroupService]:
    """Each group's median service, washout left out; groups without a matched collective are left out."""
    calls = ledger.collectives.calls
    host_of = dict(zip(ledger.ranks, ledger.hosts, strict=True))
    rows = ledger.collectives.rows
    warm = ledger.steps["warmup"].to_numpy(dtype=np.bool_)
    inside = ledger.row_step_N != ABSENT
    inside[inside] &= ~warm[ledger.row_step_N[inside]]
    kept = rows[inside & rows["matched"].to_numpy(dtype=np.bool_)]
    found = {}
    for group, own in kept.groupby(calls["group"].to_numpy()[kept["call"].to_numpy()]):
        hosts = {host_of.get(rank) for rank in own["rank"].unique().tolist()}
        service = calls["own_service_ns"].to_numpy()[own["call"].unique()]
        service_ms = float(np.median(service)) / NS_PER_MS
        found[str(group)] = GroupService(group=str(group), crosses_hosts=len(hosts) > 1, service_ms=service_ms)
    return found
