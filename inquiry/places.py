"""Where the experiments of the ladder are run: on which hosts and ranks, playing which shares of the batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, zip_longest

from narrows.inquiry.case import Case
from narrows.inquiry.design import Arm, ArmKind
from narrows.inquiry.scopes import Placement, Scope, placement
from narrows.inquiry.state import State


def culprit_ranks(state: State) -> tuple[int, ...]:
    return tuple(int(rank) for rank in state.reconciliation.get("ranks", ()))


def suspect_host(case: Case, state: State) -> str:
    """The regressed run's host that the evidence points to; its first one where none stands out.

    With placement arms it is a host that the healthy run did not have in its place, else nothing would differ.
    """
    hosts = [case.full_placement.host_of(rank) for rank in culprit_ranks(state)]
    moved = [host for host, other in zip(case.full_hosts, case.healthy_hosts, strict=True) if host != other]
    if moved and case.workload.kind is ArmKind.PLACEMENT:
        hosts = [host for host in hosts if host in moved] or moved
    return hosts[0] if hosts else case.full_hosts[0]


def spare_hosts(case: Case, state: State) -> tuple[str, ...]:
    """Hosts that are not suspected: spares first, then the healthy run's own."""
    suspect = suspect_host(case, state)
    used = set(case.full_hosts) | set(case.healthy_hosts)
    spares = [host for host in case.cluster.hosts if host not in used]
    return (*spares, *(host for host in case.healthy_hosts if host != suspect))


def parts_at(case: Case, state: State, scope: Scope) -> tuple[Placement, tuple[int, ...]]:
    """The hosts of the regressed run at ``scope`` and the full-scale ranks whose parts are played."""
    width = case.cluster.ranks_per_node
    host = suspect_host(case, state)
    first = case.full_hosts.index(host) if host in case.full_hosts else 0
    if scope is Scope.ONE_RANK:
        ranks = [rank for rank in culprit_ranks(state) if case.full_placement.host_of(rank) == host]
        return placement((host,), 1), (ranks[0] if ranks else first * width,)
    if scope is Scope.ONE_NODE:
        return placement((host,), width), tuple(range(first * width, (first + 1) * width))
    if scope is Scope.TWO_NODES:
        pair = sorted((first, _partner(case, state, first)))
        hosts = tuple(case.full_hosts[i] for i in pair)
        return placement(hosts, width), tuple(i * width + k for i in pair for k in range(width))
    return case.full_placement, tuple(range(case.world_size))


def _partner(case: Case, state: State, first: int) -> int:
    """The other host of two, by position: of a group that reaches over several hosts the one farthest from ``first``.

    Hosts stand in the order of the fabric, as schedulers list them, and groups are dealt along it: two neighbours may
    share the switch that the job does not.
    """
    span = int(state.reconciliation.get("span", 0))
    if span > 1:
        begin = first // span * span
        end = min(begin + span, len(case.full_hosts)) - 1
        other = begin if first - begin > end - first else end
        if other != first:
            return other
    return 1 if first == 0 else 0


def seat_of(case: Case, state: State, part: int) -> int:
    """The local rank of full-scale rank ``part``: a slow rank is a device, and another local rank is another one."""
    if state.mechanism != "slow_rank" or not case.workload.builtin:
        return 0
    return part % case.cluster.ranks_per_node


def seated(arm: Arm, where: Placement, seat: int) -> Arm:
    """The arm, which has one rank on each host of ``where``, with local rank ``seat`` taking part on each instead."""
    return replace(arm, ranks=tuple(rank * (seat + 1) + seat for rank in arm.ranks or range(where.world_size)))


def joined(before: Placement, after: Placement) -> tuple[Placement, tuple[int, ...], tuple[int, ...]]:
    """One launch that holds both sets of hosts, and the ranks of each set in it.

    Hosts of the same position stand beside each other, so that both sets keep their order: evidence is by position.
    """
    sizes: dict[str, int] = {}
    for host, ranks in chain.from_iterable(filter(None, pair) for pair in zip_longest(before.hosts, after.hosts)):
        sizes[host] = max(sizes.get(host, 0), len(ranks))
    names = list(sizes)
    starts, total = {}, 0
    for name in names:
        starts[name] = total
        total += sizes[name]
    whole = Placement(hosts=tuple((n, tuple(range(starts[n], starts[n] + sizes[n]))) for n in names))

    def of(part: Placement) -> tuple[int, ...]:
        return tuple(starts[host] + k for host, ranks in part.hosts for k in range(len(ranks)))

    return whole, of(before), of(after)


def mirrored(case: Case, where: Placement) -> Placement:
    """The healthy run's hosts in the positions of the regressed run's ``where``."""
    swapped = dict(zip(case.full_hosts, case.healthy_hosts, strict=True))
    return Placement(hosts=tuple((swapped.get(host, host), ranks) for host, ranks in where.hosts))


def unsuspected(case: Case, state: State, width: int) -> int | None:
    """The first of ``width`` ranks, one or all of a host, that are not suspected: of another host if there is one."""
    suspect, suspects = suspect_host(case, state), set(culprit_ranks(state))
    ranks = [rank for rank in range(0, case.world_size, width) if not suspects & set(range(rank, rank + width))]
    elsewhere = [rank for rank in ranks if case.full_placement.host_of(rank) != suspect]
    return next(iter(elsewhere or (ranks if width == 1 else ())), None)
