"""Swaps: suspected and good places play their own and each other's shards, so that data is told from hardware.

One suspect is exchanged with one good place. Several, or one that this left open, are rotated with good places by
Latin square. No suspected rank, host or shard ever serves as a control.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from narrows.inquiry import places, plans, proposals
from narrows.inquiry.case import Case
from narrows.inquiry.design import Arm, ArmKind, Experiment, Mode
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Ledger, Prediction, RejectionCriterion, Test
from narrows.inquiry.scopes import Placement, Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict

HARDWARE, DATA, INTERACTION = "hardware", "data", "interaction"

SWAP, SQUARE = "swap", "square"

MOST_SUSPECTS = 3
"""Rotated at once: with a control that makes a square of four, and the family of tests six."""

SQUARES = 6
"""Squares of the first launch: the fewest with which sign flips can reach a p of 0.05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One place of a swap: a local rank of a host, and the share of the full-scale batch that is its own.

    ``names`` is who it stands for where it is suspected: the host's name, or the full-scale rank.
    """

    host: str
    local: int
    shard: int
    name: str = ""


def suspects(case: Case, state: State) -> tuple[Seat, ...]:
    """The places that the evidence points to, the most changed first: one a host of slow hosts, one a slow rank."""
    width, where = case.cluster.ranks_per_node, case.full_placement
    first = places.suspect_host(case, state)
    ranks = [rank for rank in places.culprit_ranks(state) if _may_be_suspected(case, where.host_of(rank))]
    if not ranks and first in case.full_hosts:
        ranks = [case.full_hosts.index(first) * width]
    if state.mechanism == "slow_rank":
        return tuple(Seat(host=where.host_of(r), local=r % width, shard=r, name=str(r)) for r in ranks)
    by_host: dict[str, int] = {}
    for rank in ranks:
        by_host.setdefault(where.host_of(rank), rank)
    return tuple(Seat(host=host, local=0, shard=rank, name=host) for host, rank in by_host.items())


def _may_be_suspected(case: Case, host: str) -> bool:
    """With placement arms a host that stayed where it was cannot be the difference."""
    return case.workload.kind is not ArmKind.PLACEMENT or host not in case.healthy_hosts


def _controls(case: Case, state: State, suspected: tuple[Seat, ...]) -> Iterator[Seat]:
    """Good places with good shards: on hosts without any suspect first, and of a slow rank the same device first."""
    width, by_rank = case.cluster.ranks_per_node, state.mechanism == "slow_rank"
    bad_hosts = {seat.host for seat in suspected}
    bad_shards = {seat.shard for seat in suspected} | set(places.culprit_ranks(state))
    hosts = dict.fromkeys((*case.healthy_hosts, *places.spare_hosts(case, state), *case.full_hosts))
    elsewhere = [host for host in hosts if host not in bad_hosts]
    near = suspected[0].local
    seats = [(host, near) for host in elsewhere]
    if by_rank:
        others = [local for local in range(width) if local != near]
        seats += [(host, local) for host in elsewhere for local in others]
        taken = {(seat.host, seat.local) for seat in suspected}
        seats += [(host, at) for host in hosts if host in bad_hosts for at in range(width) if (host, at) not in taken]
    free = [rank for rank in range(case.world_size) if rank not in bad_shards]
    for host, local in seats:
        own = case.full_hosts.index(host) * width + local if host in case.full_hosts else -1
        if not free or own in bad_shards:
            continue
        shard = own if own in free else free[0]
        free.remove(shard)
        yield Seat(host=host, local=local, shard=shard)


def experiments(case: Case, state: State) -> Iterator[tuple[Experiment, tuple[Hypothesis, ...]]]:
    """The swap to run with what it tests; then, once that ended undecided, the square that adds controls to it."""
    if not case.workload.builtin or case.world_size < 2:
        return
    suspected = suspects(case, state)
    if not suspected:
        return
    several = suspected[:MOST_SUSPECTS]
    good = list(_controls(case, state, several))
    if not good:
        return
    if len(several) > 1:
        yield _planned(case, state, several, tuple(good[:1]))
        return
    yield _planned(case, state, several, tuple(good[:1]))
    if _left_open(state) and len(good) > 1:
        yield _planned(case, state, several, tuple(good[:2]))


def _left_open(state: State) -> bool:
    """Whether the swap ran and told neither hardware, nor data, nor that it takes both."""
    sides = {state.verdict(f"{SWAP}:{one}") for one in (HARDWARE, DATA)}
    settled = Verdict.INCONCLUSIVE not in sides or state.verdict(f"{SWAP}:{INTERACTION}") is Verdict.SUPPORTED
    return bool(state.evidence.get(SWAP)) and not settled


def _planned(
    case: Case, state: State, suspected: tuple[Seat, ...], good: tuple[Seat, ...]
) -> tuple[Experiment, tuple[Hypothesis, ...]]:
    experiment, seats = _rotated(case, state, suspected, good)
    columns = tuple(seats.index(seat) for seat in good)
    sources = (HARDWARE, DATA) if len(suspected) > 1 else (HARDWARE, DATA, INTERACTION)
    found = tuple(
        _hypothesis(case, state, experiment, seat, (seats.index(seat), *columns), source, len(suspected) * len(sources))
        for seat in suspected
        for source in sources
    )
    return experiment, found


def _rotated(
    case: Case, state: State, suspected: tuple[Seat, ...], good: tuple[Seat, ...]
) -> tuple[Experiment, list[Seat]]:
    """Every place plays every shard once a square; the seats are in the order of their ranks in the launch."""
    locals_of: dict[str, list[int]] = {}
    for seat in (*good, *suspected):
        locals_of.setdefault(seat.host, []).append(seat.local)
    sizes = {host: max(locals_) + 1 for host, locals_ in locals_of.items()}
    starts = {host: sum(list(sizes.values())[:at]) for at, host in enumerate(sizes)}
    where = Placement(hosts=tuple((h, tuple(range(starts[h], starts[h] + sizes[h]))) for h in sizes))
    seats = sorted((*good, *suspected), key=lambda seat: starts[seat.host] + seat.local)
    ranks, shards = tuple(starts[s.host] + s.local for s in seats), tuple(s.shard for s in seats)
    spec = case.workload.regressed
    names = ("own", "exchanged") if len(seats) == 2 else ("own", *(f"rotated-{at}" for at in range(1, len(seats))))
    before, after, *rotations = (
        Arm(
            name=name, config=dict(spec.config), args=spec.args, env=dict(spec.env), ranks=ranks,
            shards=shards[at:] + shards[:at],
        )
        for at, name in enumerate(names)
    )  # fmt: skip
    experiment = plans.unseated(
        case,
        state,
        rung=Rung.PERTURBATION,
        scope=Scope.ONE_RANK,
        key=SWAP if len(seats) == 2 else SQUARE,
        where=where,
        mode=Mode.SWITCHBACK,
        before=before,
        after=after,
        differs=("shards",),
    )
    pairs = experiment.pairs if len(seats) == 2 else max(SQUARES, experiment.pairs)
    return replace(experiment, rotations=tuple(rotations), pairs=min(pairs, experiment.max_pairs)), seats


_CLAIMS = {
    HARDWARE: "the slow local time stays with {place}, whichever shard it plays",
    DATA: "the slow local time goes with shard {shard}, wherever it is played",
    INTERACTION: "the slow local time takes shard {shard} on {place}; neither shows it without the other",
}
_METRICS = {
    HARDWARE: "local time of the place over all shards, against the controls",
    DATA: "local time of the shard over all places, against the controls",
    INTERACTION: "local time of the shard on the place, beyond what each adds alone",
}


def _hypothesis(
    case: Case,
    state: State,
    experiment: Experiment,
    seat: Seat,
    columns: tuple[int, ...],
    source: str,
    family: int,
) -> Hypothesis:
    """``columns``: the suspect's, then the controls', among the ranks that take part."""
    delta = float(state.reference["delta_ms"])
    prediction, reject = proposals.step_prediction(delta)
    metric = _METRICS[source]
    place = f"host {seat.name}" if state.mechanism == "slow_host" else f"rank {seat.name}"
    moved = "exchanged" if experiment.key == SWAP else "rotated"
    # One swap, one suspect: keys name whom they are about where there are several.
    several = family > len(_CLAIMS)
    return Hypothesis(
        key=f"{experiment.key}:{source}" + (f":{seat.name}" if several else ""),
        rung=Rung.PERTURBATION,
        test=Test.SWAP,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=f"With shards {moved}, " + _CLAIMS[source].format(place=place, shard=seat.shard),
        mechanism=source,
        account=None,
        ledger=Ledger.NAMED_RANKS,
        ranks=columns,
        perturbation=experiment.key,
        prediction=Prediction(metric=metric, unit="ms", low=prediction.low, high=prediction.high),
        reject_if=RejectionCriterion(metric=metric, comparison=Comparison.UPPER_BELOW, bound=reject.bound, unit="ms"),
        pi_ms=delta,
        pi_source="the loss at full scale",
        expected="supported" if source == HARDWARE else "rejected",
        family=family,
        **proposals.common(case),
    )


def told(state: State) -> tuple[str, tuple[str, ...]] | None:
    """What the swaps left standing and who: hardware (None: everybody suspected), data or interaction; None: nothing.

    The square speaks where it ran, else the swap. Suspects of a square are named where hardware, or else data, was
    supported for them and the other one rejected.
    """
    key = SQUARE if any(one.startswith(f"{SQUARE}:") for one in state.ids) else SWAP
    judged = [one for one in state.ids if one.startswith(f"{key}:")]
    supported = [one for one in judged if state.verdict(one) is Verdict.SUPPORTED]
    for source, other in ((HARDWARE, DATA), (DATA, HARDWARE)):
        clear = [one for one in supported if one.split(":")[1] == source
                 and state.verdict(one.replace(f":{source}", f":{other}")) is Verdict.REJECTED]  # fmt: skip
        if clear:
            return source, tuple(one.split(":", 2)[2] for one in clear if one.count(":") == 2)
    return (INTERACTION, ()) if f"{key}:{INTERACTION}" in supported else None
