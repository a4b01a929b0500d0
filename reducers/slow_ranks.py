"""Where two runs of step records differ: in which steps, and whether one rank, every rank or the shared part is slower.

Ranks end a step together, so the step of all is slower when one is. What tells them apart is where a rank's time goes:
the others wait, inside whichever parts hold waiting; the slow one does not. Own time is the step without those parts,
and a step is the sum of three: the own time of the typical rank, what the slowest rank has beyond it, and the rest,
which is what the slowest rank shares with all.

Shape legend: R ranks, T steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from narrows.reducers.compared_parts import MARGIN
from narrows.reducers.decisions import RHO
from narrows.reducers.records import F64, Bool
from narrows.reducers.step_record_sides import StepTable
from narrows.reducers.step_scan import FLOOR, SCORE, Stretch, risen, shifted, without_spikes

LEADS = 0.75
"""A rank is named where it is the slowest in 3 of 4 parts of the stretch, and in this share of what the slowest lose.
Several are, where each loses this share of what the slowest of them does."""
TYPICAL = 0.25
"""The typical rank is the first quartile, so that half of the ranks (one of two hosts) can be slow beside it."""
_PARTS = 4
_PAIRED = 0.9


class Carrier(StrEnum):
    """Which of the three summands of the step grew."""

    SLOWEST = "the slowest rank's own time beyond the typical rank's"
    TYPICAL = "the own time of every rank"
    SHARED = "what all ranks share"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """``own_RT``: each rank's step without the parts that hold waiting. ``compute_waits``: compute is one of them."""

    own_RT: F64
    excess_RT: F64
    compute_waits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How the regressed run differs. ``steps`` are the positions compared of the regressed run, ``against`` those of
    the healthy one; ``stretch`` is None where the runs are compared whole. Times in ms a step, regressed minus healthy.

    ``ranks`` are the positions that carry the loss: none unless ``carrier`` is SLOWEST and they keep it.
    ``growth_R`` is each rank's own time beyond the typical rank's, against its own healthy run.
    """

    status: str
    stretch: Stretch | None
    steps: Bool
    against: Bool
    delta_ms: float
    summands_ms: dict[Carrier, float]
    carrier: Carrier | None
    ranks: tuple[int, ...]
    growth_R: F64
    found_on: str
    compute_waits: bool
    has_own_time: bool


def own_time(table: StepTable, *, compute_waits: bool) -> OwnTime:
    """Each rank's own time, by step, and what it has beyond the typical rank, ``excess_RT``."""
    waiting = _waiting(table, compute_waits=compute_waits)
    if waiting:
        own = table.step_ms_RT - np.sum([table.parts_ms[part] for part in waiting], axis=0)
    else:
        own = table.parts_ms.get("data_ms", np.zeros_like(table.step_ms_RT))
    typical = np.quantile(own, TYPICAL, axis=0)
    return OwnTime(own_RT=own, excess_RT=own - typical, compute_waits=compute_waits)


def _waiting(table: StepTable, *, compute_waits: bool) -> list[str]:
    among = ("comm_ms", "wait_ms", "compute_ms") if compute_waits else ("comm_ms", "wait_ms")
    return [part for part in among if part in table.parts_ms]


def compute_waits(tables: tuple[StepTable, StepTable]) -> bool:
    """Whether the ranks wait for each other inside compute, as a backward pass does whose all-reduce is in its span.

    In common steps what a rank spends beyond the others elsewhere it lacks where it waits. So compute holds the waiting
    where it moves against the rest of the step, and not where it moves against comm and wait.
    """
    if any("compute_ms" not in table.parts_ms for table in tables):
        return False
    compute, elsewhere = (np.concatenate([_deviation(part(one)) for one in tables], axis=1)
                          for part in (_compute, _collective))  # fmt: skip
    limit = np.quantile(np.abs(compute), 0.98)
    clipped = np.clip(compute, -limit, limit)
    return float((clipped * (clipped + 2 * np.clip(elsewhere, -limit, limit))).mean()) > 0


def _compute(table: StepTable) -> F64:
    return table.parts_ms["compute_ms"]


def _collective(table: StepTable) -> F64:
    found = [table.parts_ms[part] for part in ("comm_ms", "wait_ms") if part in table.parts_ms]
    return np.sum(found, axis=0) if found else np.zeros_like(table.step_ms_RT)


def _deviation(values_RT: F64) -> F64:
    return np.asarray(values_RT - np.median(values_RT, axis=0), dtype=np.float64)


def find_slowdown(healthy: StepTable, regressed: StepTable) -> tuple[Slowdown, OwnTime, OwnTime]:
    """The slowdown of ``regressed``, and the own times of both runs. Both have the same ranks.

    The slower part of the run is looked for by the step, then by each rank's own time; what the latter finds counts
    only where that rank carries the loss of the step.
    """
    waits = compute_waits((healthy, regressed))
    runs = _Runs(healthy, regressed, *(own_time(table, compute_waits=waits) for table in (healthy, regressed)))
    by_step = _by_step(runs)
    if by_step is not None:
        return _slowdown(runs, by_step, "the step"), runs.first, runs.second
    at, by_rank = _by_rank(runs)
    if by_rank is not None:
        found = _slowdown(runs, by_rank, f"rank {healthy.ranks[at]}")
        if at in found.ranks and _leads_beyond_any(runs, at, by_rank):
            return found, runs.first, runs.second
    return _slowdown(runs, None, ""), runs.first, runs.second


@dataclass(frozen=True, slots=True)
class _Runs:
    healthy: StepTable
    regressed: StepTable
    first: OwnTime
    second: OwnTime

    @property
    def steps_ms(self) -> tuple[F64, F64]:
        """The steps of both runs, without spikes."""
        return without_spikes(self.healthy.job_ms_T), without_spikes(self.regressed.job_ms_T)

    @property
    def floor_ms(self) -> float:
        return FLOOR * float(np.median(self.healthy.job_ms_T))

    @property
    def margin_ms(self) -> float:
        return MARGIN * float(self.healthy.job_ms_T.mean())


def _slowdown(runs: _Runs, stretch: Stretch | None, found_on: str) -> Slowdown:
    """What there is to say of the stretch, or of the whole runs."""
    steps, against = _compared_steps(runs, stretch)
    summands = _summands(runs, against, steps)
    delta = sum(summands.values())
    status = _status(runs, delta, stretch)
    waits = runs.first.compute_waits
    has_own_time = bool(_waiting(runs.regressed, compute_waits=waits)) or "data_ms" in runs.regressed.parts_ms
    carrier = _carrier(summands, delta) if status == "slower" and has_own_time else None
    growth = runs.second.excess_RT[:, steps].mean(axis=1) - runs.first.excess_RT[:, against].mean(axis=1)
    return Slowdown(
        status=status,
        stretch=stretch,
        steps=steps,
        against=against,
        delta_ms=delta,
        summands_ms=summands,
        carrier=carrier,
        ranks=_carriers(runs.second, steps, growth, delta) if carrier is Carrier.SLOWEST else (),
        growth_R=growth,
        found_on=found_on,
        compute_waits=waits,
        has_own_time=has_own_time,
    )


def _compared_steps(runs: _Runs, stretch: Stretch | None) -> tuple[Bool, Bool]:
    """The regressed run's steps, and the healthy run's of the same numbers, since checkpoints fall on numbers.

    All healthy steps where many of those numbers are missing.
    """
    steps = np.ones(len(runs.regressed.steps_T), dtype=np.bool_)
    if stretch is None:
        return steps, np.ones(len(runs.healthy.steps_T), dtype=np.bool_)
    steps[:] = False
    steps[stretch.start : stretch.stop] = True
    same = np.isin(runs.healthy.steps_T, runs.regressed.steps_T[steps])
    return steps, same if same.sum() >= _PAIRED * steps.sum() else np.ones_like(same)


def _by_step(runs: _Runs) -> Stretch | None:
    return _if_clear(runs, risen(*runs.steps_ms, runs.floor_ms))


def _by_rank(runs: _Runs) -> tuple[int, Stretch | None]:
    """The rank whose own time stands out most for a while. Own time is a part of the step, and so is its floor."""
    found = [
        risen(without_spikes(before), without_spikes(after), runs.floor_ms / 2)
        for before, after in zip(runs.first.excess_RT, runs.second.excess_RT, strict=True)
    ]
    at = max(range(len(found)), key=lambda one: -np.inf if (stretch := found[one]) is None else stretch.score)
    return at, _if_clear(runs, found[at])


def _if_clear(runs: _Runs, stretch: Stretch | None) -> Stretch | None:
    """The stretch, where it scores enough and its steps are slower by more than the margin."""
    if stretch is None or stretch.score < SCORE:
        return None
    steps, against = _compared_steps(runs, stretch)
    rise = float(runs.regressed.job_ms_T[steps].mean() - runs.healthy.job_ms_T[against].mean())
    return stretch if rise > runs.margin_ms else None


def _leads_beyond_any(runs: _Runs, at: int, stretch: Stretch) -> bool:
    """Whether the rank loses more than any rank of the healthy run did over as many steps: slow ranks take turns."""
    own = float(runs.second.excess_RT[at, stretch.start : stretch.stop].mean())
    running = np.cumsum(np.pad(runs.first.excess_RT, ((0, 0), (1, 0))), axis=1)
    length = min(stretch.stop - stretch.start, running.shape[1] - 1)
    largest = float(((running[:, length:] - running[:, :-length]) / length).max())
    return own - largest > runs.margin_ms


def _summands(runs: _Runs, against: Bool, steps: Bool) -> dict[Carrier, float]:
    sides = ((runs.healthy, runs.first, against), (runs.regressed, runs.second, steps))
    step = [float(table.job_ms_T[kept].mean()) for table, _, kept in sides]
    slowest = [float(own.own_RT.max(axis=0)[kept].mean()) for _, own, kept in sides]
    typical = [float(np.quantile(own.own_RT[:, kept].mean(axis=1), TYPICAL)) for _, own, kept in sides]
    changes = step[1] - step[0], slowest[1] - slowest[0], typical[1] - typical[0]
    return {
        Carrier.SLOWEST: changes[1] - changes[2],
        Carrier.TYPICAL: changes[2],
        Carrier.SHARED: changes[0] - changes[1],
    }


def _status(runs: _Runs, delta: float, stretch: Stretch | None) -> str:
    """Slower or faster only by more than the margin and, for whole runs, by more than each drifts."""
    if stretch is not None:
        return "slower"
    if abs(delta) <= runs.margin_ms:
        return "same"
    apart = shifted(*runs.steps_ms, runs.floor_ms)
    if abs(apart) < 1 or apart * delta < 0:
        return "unclear"
    return "slower" if delta > 0 else "faster"


def _carrier(summands: dict[Carrier, float], delta: float) -> Carrier | None:
    """What grew by half of the loss or more. Own time goes before what is shared: a busy host slows both."""
    own = max((Carrier.SLOWEST, Carrier.TYPICAL), key=lambda one: summands[one])
    return next((one for one in (own, Carrier.SHARED) if summands[one] >= RHO * delta), None)


def _carriers(second: OwnTime, steps: Bool, growth_R: F64, delta: float) -> tuple[int, ...]:
    """The positions whose own time grew most, by half of the loss or more, if they are the slowest nearly throughout.

    More than half of the ranks are nobody in particular.
    """
    largest = float(growth_R.max())
    high = tuple(int(at) for at in np.flatnonzero(growth_R >= max(RHO * delta, LEADS * largest)))
    if not high or len(high) > max(1, len(growth_R) // 2):
        return ()
    excess = second.excess_RT[:, steps]
    slowest, lead = excess.argmax(axis=0), excess.max(axis=0)
    held = np.isin(slowest, high)
    if lead[held].sum() < LEADS * lead.sum():
        return ()
    means = [part.mean(axis=1) for part in np.array_split(excess, _PARTS, axis=1) if part.shape[1]]
    kept = sum(int(part.argmax()) in high for part in means)
    return high if kept >= LEADS * len(means) else ()
