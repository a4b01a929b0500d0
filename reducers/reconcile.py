"""Where the missing time is, on which ranks, and what it follows: the reading of the given runs.

It describes; it chooses what is tested next. A cause is named only after an experiment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrows.inquiry.accounts import LOCAL_ACCOUNTS, Account
from narrows.inquiry.proposals import account_view
from narrows.inquiry.scopes import Scope
from narrows.reducers.estimates import estimate
from narrows.reducers.scaling import imbalance_kappa
from narrows.reducers.structure import max_movement

RHO = 0.5
HIGH_SHARE, LOW_SHARE = 0.75, 0.25
"""Of the loss, by the point: a rank whose pairs do not settle on which side of a half it is."""

NEGLIGIBLE_KAPPA = 0.15
"""Below this share of the effect, a scope is taken not to hold the mechanism: no test at half of it could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the reading needs of the cluster; ``hosts`` are the regressed run's, by rank position."""

    nodes: int
    ranks_per_node: int
    hosts: tuple[str, ...]
    scopes: tuple[Scope, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """``share`` is the part of the loss that ``account`` holds in its own view; ``kappa`` the part of the loss that
    the mechanism predicts at each scope; ``ranks`` the positions that carry it, empty where all or none do;
    ``span`` the hosts that a slower group reaches over, 0 where no group is known to."""

    account: Account
    mechanism: str
    view: str
    share: float
    shares: dict[str, float]
    culprit: dict[str, Any]
    ranks: tuple[int, ...]
    kappa: dict[str, float]
    kappa_source: str
    sentence: str
    span: int = 0
    rank_changes_ms: tuple[float, ...] = ()
    slowest: dict[str, Any] = field(default_factory=dict)


def reconcile(evidence: dict[str, Any], shape: Shape) -> Reconciliation:
    """The reading of the evidence of the given runs (second arm minus first)."""
    step = np.asarray(evidence["difference"]["step_ms"])
    delta = float(step.mean())
    shares = account_shares(evidence)
    lead = max(_LEADS, key=lambda account: shares.get(account.value, 0.0))
    local = np.asarray(evidence["difference"]["local_ms"])
    changes = tuple(float(one) for one in local.mean(axis=0)) if local.size else ()
    if lead in (Account.TRANSFER, Account.PIPELINE):
        group = slower_group(evidence) or crossing_group(evidence)
        return _communication(lead, shares, shape, changes, _slower_collectives(evidence), group)
    high, low = _high_ranks(step, local), _low_ranks(step, local)
    movement = _movement(evidence)
    if high and not low:
        return _everywhere(lead, shares, shape, changes, movement)
    if high:
        return _somewhere(lead, shares, shape, changes, movement, high)
    return _moving(lead, evidence, shares, shape, changes, movement, delta)


_LEADS = (*(one for one in Account if one in LOCAL_ACCOUNTS), Account.TRANSFER, Account.PIPELINE)


def account_shares(evidence: dict[str, Any]) -> dict[str, float]:
    """Each account's share of the loss, in the view in which it closes."""
    delta = float(np.mean(evidence["difference"]["step_ms"]))
    found = {}
    for account in Account:
        view = account_view(account)
        change = float(np.mean(evidence["difference"]["accounts"][view][account.value]))
        found[account.value] = change / delta if delta else 0.0
    return found


def _high_ranks(step: np.ndarray[Any, Any], local: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Positions whose local time grew by more than half of the loss, by the point where pairs do not settle it."""
    found = []
    for at in range(local.shape[1]):
        excess = local[:, at] - RHO * step
        if len(excess) < 2:
            clear = bool(excess.mean() > 0)
        else:
            one = estimate(excess)
            clear = one.lower > 0 or (one.mean > 0 and not one.upper < 0 and _sizeable(local[:, at], step))
        if clear:
            found.append(at)
    return tuple(found)


def _low_ranks(step: np.ndarray[Any, Any], local: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Positions that clearly do not carry the loss: only beside such a rank is a high one a culprit.

    Where every rank is slower, one that loaded ahead while it waited for another shows less of it, but not none.
    """
    found = []
    for at in range(local.shape[1]):
        settled = len(step) >= 2 and estimate(local[:, at] - RHO * step).upper < 0
        if settled or float(local[:, at].mean()) <= LOW_SHARE * float(step.mean()):
            found.append(at)
    return tuple(found)


def _sizeable(change: np.ndarray[Any, Any], step: np.ndarray[Any, Any]) -> bool:
    """By the point: what a rank that really carries the loss shows even when pairs are noisy."""
    return float(change.mean()) >= HIGH_SHARE * float(step.mean())


def _movement(evidence: dict[str, Any]) -> dict[str, Any]:
    arm = evidence["arms"][list(evidence["arms"])[1]]
    rows = [row for unit in arm["units"] for row in unit["local_steps_ms"]]
    if not rows or len(rows[0]) < 2:
        return {}
    moved = max_movement(rows)
    return {
        "top_rank": moved.top_rank,
        "top_share": moved.top_share,
        "num_distinct": moved.num_distinct,
        "varies": moved.varies,
    }


def _slower_collectives(evidence: dict[str, Any]) -> tuple[int, ...]:
    """Positions whose collectives take longer after their last arrival, where others' clearly do not; else nobody."""
    tables = []
    for arm in evidence["arms"].values():
        rows = [list(unit.get("service_ms", {}).values()) for unit in arm["units"]]
        if not rows or {len(row) for row in rows} != {len(arm["ranks"])}:
            return ()
        tables.append(np.mean(rows, axis=0))
    if tables[0].shape != tables[1].shape:
        return ()
    change = tables[1] - tables[0]
    high = np.flatnonzero(change > RHO * change.max())
    others = np.delete(change, high)
    apart = others.size > 0 and others.max() < LOW_SHARE * change.max() > LOW_SHARE**2 * tables[0].mean()
    return tuple(int(at) for at in high) if apart else ()


def slower_group(evidence: dict[str, Any]) -> tuple[int, int] | None:
    """Ranks of the groups whose service grew most, and how many of them each host holds.

    None where groups of several shapes share the growth, where those that grew stay inside a host, or where the
    recorded groups do not tell.
    """
    before, after = _group_services(evidence)
    growth = {shape: after[shape] - before.get(shape, 0.0) for shape in after}
    total = sum(max(one, 0.0) for one in growth.values())
    lead = max(growth, key=lambda shape: growth[shape], default=None)
    if lead is None or not growth[lead] > HIGH_SHARE * total:
        return None
    return _spread(lead)


def crossing_group(evidence: dict[str, Any]) -> tuple[int, int] | None:
    """Ranks of the only groups that cross hosts, and how many of them each host holds.

    Exposed transfer may grow without any service growing, when less of it is hidden: then it is still that of the
    groups that cross hosts. None where groups of several shapes do, or where the recorded groups do not tell.
    """
    shapes = {shape for arm in _group_services(evidence) for shape in arm if not shape.endswith("/1")}
    return _spread(shapes.pop()) if len(shapes) == 1 else None


def _group_services(evidence: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """By arm and shape of the group, what its collectives take after their last arrival, in ms a step."""
    means: list[dict[str, float]] = []
    for arm in evidence["arms"].values():
        rows = [unit.get("group_service_ms", {}) for unit in arm["units"]]
        means.append({shape: float(np.mean([row.get(shape, 0.0) for row in rows])) for row in rows for shape in row})
    return means[0], means[1]


def _spread(shape: str) -> tuple[int, int] | None:
    """A shape as ranks, and ranks of it on each of its several hosts; None where those are unequal, or one host."""
    ranks, hosts = map(int, shape.split("/"))
    return (ranks, ranks // hosts) if hosts > 1 and ranks % hosts == 0 else None


def _communication(
    lead: Account,
    shares: dict[str, float],
    shape: Shape,
    changes: tuple[float, ...],
    slower: tuple[int, ...],
    group: tuple[int, int] | None,
) -> Reconciliation:
    crosses = shape.nodes > 1
    mechanism = "pipeline" if lead is Account.PIPELINE else "link" if crosses else "collective"
    hosts = list(dict.fromkeys(shape.hosts))
    culprit: dict[str, Any] = {"kind": "link", "members": hosts} if crosses else {"kind": "group", "members": ["dp"]}
    if crosses and slower and {shape.hosts[at] for at in slower} == set(hosts):
        # One group of several that cross hosts: a rail. On one host's ranks alone it may be the groups inside it.
        culprit = {"kind": "rail", "members": list(slower)}
    # A ring moves 2(n-1)/n of the buffer: the effect of a slower link, relative to the full group's.
    full, on_host = group or (shape.nodes * shape.ranks_per_node, shape.ranks_per_node)
    kappa = {
        scope.value: _ring_share(_ranks_at(scope, on_host, full), full, crosses=crosses, scope=scope)
        for scope in shape.scopes
    }
    share = shares[lead.value]
    return Reconciliation(
        account=lead,
        mechanism=mechanism,
        view=account_view(lead),
        share=share,
        shares=shares,
        culprit=culprit,
        ranks=(),
        kappa=kappa,
        kappa_source="ring model: 2(n-1)/n of the buffer, 0 where the group does not cross hosts",
        span=full // on_host if crosses else 0,
        rank_changes_ms=changes,
        sentence=f"{lead.value} holds {share:.0%} of the loss on the rank that waits least",
    )


def _ring_share(ranks: int, full: int, *, crosses: bool, scope: Scope) -> float:
    if ranks < 2 or (crosses and scope in (Scope.ONE_RANK, Scope.ONE_NODE)):
        return 0.0
    return (2 * (ranks - 1) / ranks) / (2 * (full - 1) / full)


def _ranks_at(scope: Scope, on_host: int, full: int) -> int:
    """How many ranks of the group a scope holds, of ``full``, with ``on_host`` of them on each host."""
    return min({Scope.ONE_RANK: 1, Scope.ONE_NODE: on_host, Scope.TWO_NODES: 2 * on_host}.get(scope, full), full)


def _everywhere(
    lead: Account, shares: dict[str, float], shape: Shape, changes: tuple[float, ...], movement: dict[str, Any]
) -> Reconciliation:
    share = shares[lead.value]
    return Reconciliation(
        account=lead,
        mechanism=lead.value,
        view=account_view(lead),
        share=share,
        shares=shares,
        culprit={"kind": "all", "members": []},
        ranks=(),
        kappa={scope.value: 1.0 for scope in shape.scopes},
        kappa_source="local to every rank",
        rank_changes_ms=changes,
        slowest=movement,
        sentence=f"{lead.value} holds {share:.0%} of the loss on the critical path"
        + (", and every rank's own time grew" if len(shape.hosts) > 1 else ""),
    )


def _somewhere(
    lead: Account,
    shares: dict[str, float],
    shape: Shape,
    changes: tuple[float, ...],
    movement: dict[str, Any],
    high: tuple[int, ...],
) -> Reconciliation:
    whole = [
        host for host in dict.fromkeys(shape.hosts) if all(at in high for at, h in enumerate(shape.hosts) if h == host)
    ]
    covered = {at for at, host in enumerate(shape.hosts) if host in whole}
    by_host = bool(whole) and covered == set(high)
    culprit = {"kind": "host", "members": whole} if by_host else {"kind": "rank", "members": list(high)}
    share = shares[lead.value]
    names = ", ".join(whole) if by_host else ", ".join(f"rank {at}" for at in high)
    # The most changed rank first: a reduced scope that can hold only one of them takes that one.
    ordered = tuple(sorted(high, key=lambda at: -changes[at]))
    return Reconciliation(
        account=lead,
        mechanism="slow_host" if by_host else "slow_rank",
        view=account_view(lead),
        share=share,
        shares=shares,
        culprit=culprit,
        ranks=ordered,
        kappa={scope.value: 1.0 for scope in shape.scopes},
        kappa_source="local to the ranks that carry it, so they are part of every scope",
        rank_changes_ms=changes,
        slowest=movement,
        sentence=f"{lead.value} holds {share:.0%} of the loss on the critical path, and it is the own time of {names}",
    )


def _moving(
    lead: Account,
    evidence: dict[str, Any],
    shares: dict[str, float],
    shape: Shape,
    changes: tuple[float, ...],
    movement: dict[str, Any],
    delta: float,
) -> Reconciliation:
    """Uneven compute is an imbalance of work; any other account that strikes ranks in turn is its own mechanism."""
    work = lead is Account.COMPUTE or shares[lead.value] < RHO
    account = Account.SKEW if work else lead
    share = shares[account.value]
    held = "waiting for the last rank" if work else f"{lead.value}, on the rank that is last,"
    kappa, source = _imbalance_kappas(evidence, shape)
    top = movement.get("top_share")
    moves = f"; the slowest rank is the same one in only {top:.0%} of the steps" if top is not None else ""
    return Reconciliation(
        account=account,
        mechanism="imbalance" if work else lead.value,
        view=account_view(account),
        share=share,
        shares=shares,
        culprit={"kind": "varies", "members": []},
        ranks=(),
        kappa=kappa,
        kappa_source=source,
        rank_changes_ms=changes,
        slowest=movement,
        sentence=(
            f"{held} holds {share:.0%} of the loss of {delta:.3g} ms, "
            f"while no rank's own time grew by half of it{moves}"
        ),
    )


def _imbalance_kappas(evidence: dict[str, Any], shape: Shape) -> tuple[dict[str, float], str]:
    """The change of the expected maximum over the ranks of a scope, relative to that over all ranks."""
    tables = [
        np.array([row for unit in arm["units"] for row in unit["local_steps_ms"]]) for arm in evidence["arms"].values()
    ]
    found: dict[str, float] = {}
    source = "no local times to scale from"
    for scope in shape.scopes:
        ranks = _ranks_at(scope, shape.ranks_per_node, shape.nodes * shape.ranks_per_node)
        if ranks == 1:
            found[scope.value] = 0.0
            continue
        try:
            one = imbalance_kappa(tables[0], tables[1], ranks)
        except ValueError as error:
            found[scope.value], source = 1.0, str(error)
            continue
        share = min(1.0, one.kappa)
        found[scope.value] = share if share >= NEGLIGIBLE_KAPPA else 0.0
        if found[scope.value] < 1:
            source = one.source
    return found, source
