"""Expected beside measured for recorded runs: shapes, what compute there is to hide communication, the pipeline.

Shape legend: N collective rows, C calls, B batches, W waits of one rank, R ranks, S steps, A accounts.
Source: docs/method.md, expected beside measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.collectives import rows_by_rank
from narrows.reducers.expected import (
    EXCEEDS,
    LOW,
    Basis,
    Measured,
    Shape,
    basis_of,
    beside,
    exposed,
    shape_rows,
)
from narrows.reducers.expected_calls import (
    SHAPE,
    measured_shapes,
    pooled,
    shape_of,
    steady_calls,
)
from narrows.reducers.expected_pipeline import Pipeline, pipeline
from narrows.reducers.ledger import Ledger
from narrows.reducers.records import ABSENT, Run
from narrows.reducers.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd

    from narrows.reducers.records import F64, I64
    from narrows.reducers.scaling import Link

WORTH = 0.01
"""An exposure or a bubble is flagged only where the excess is more than this share of the healthy step."""
JOINED_NS = 50_000
"""Waits closer than this are one: between them a rank only asks for the next collective."""

Arms = Mapping[str, Sequence[tuple[Run, Ledger]]]


def expected_beside(arms: Arms, link: Link | None = None) -> dict[str, Any]:
    """Plain values: ``rows`` of shapes (those beyond the first 20 are counted in ``left_out``); by role of group the
    bytes that a rank has ``sent`` a step, and the ``overlap``; the ``bubble``. The first arm is the healthy one, whose
    runs and manifest are the basis for both.

    ``link`` is what a person states of the links between hosts.
    """
    healthy = next(iter(arms))
    measured = {arm: pooled([measured_shapes(run, ledger) for run, ledger in own]) for arm, own in arms.items()}
    basis = basis_of(measured[healthy], arms[healthy][0][0].manifest, link)
    rows = shape_rows(measured, basis)
    worth_ms = WORTH * fmean(_step_ms(ledger) for _, ledger in arms[healthy])
    return beside(rows, _overlap_rows(arms, basis, measured, worth_ms), _bubble(arms, worth_ms))


def _step_ms(ledger: Ledger) -> float:
    steady_RS = ledger.present_RS & ~ledger.steps["warmup"].to_numpy(dtype=np.bool_)
    return float((ledger.end_ns_RS - ledger.start_ns_RS)[steady_RS].mean()) / NS_PER_MS


def _exceeds(measured_ms: float, expected_ms: float | None, worth_ms: float) -> bool:
    return expected_ms is not None and measured_ms > max(EXCEEDS * expected_ms, expected_ms + worth_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The median step, in ms: service of the collectives, the compute left when the first of a batch was ready, what
    was exposed, and what should have been (None where a shape's service is not known). In a quarter of the steps
    ``low_ms`` or less was exposed."""

    service_ms: float
    window_ms: float
    exposed_ms: float
    low_ms: float
    expected_ms: float | None


def overlaps(run: Run, ledger: Ledger, service_us: Mapping[Shape, float]) -> dict[str, Overlap]:
    """By role, the overlap of the group whose collectives were exposed for longest; empty where no wait is on record.

    A batch is what its members waited for at once. Its compute ends where the last member was blocked, so that what
    the others waited for that member is not in it.
    """
    blocked_C = _blocked_ns(ledger)
    if blocked_C is None:
        return {}
    calls = steady_calls(run, ledger)
    calls = calls.assign(blocked_ns=blocked_C[calls["call"].to_numpy()])
    found: dict[str, Overlap] = {}
    for (role, _), own in calls[calls["op"] != "send"].groupby(["group", "name"]):
        one = _overlap(own, service_us)
        if str(role) not in found or one.exposed_ms > found[str(role)].exposed_ms:
            found[str(role)] = one
    return found


def _overlap(own: pd.DataFrame, service_us: Mapping[Shape, float]) -> Overlap:
    own = own.sort_values(["place", "blocked_ns", "arrival_ns", "call"])
    key = own[["place", "blocked_ns"]].to_numpy()
    first_B = np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1)))
    # Counted from the first arrival: floats hold the time of a run to the ns, but not that since boot.
    zero = int(own["arrival_ns"].min())
    ready_C = (own["arrival_ns"] - zero).to_numpy(dtype=np.float64)
    until_B = (own["blocked_ns"] - zero).to_numpy(dtype=np.float64)[first_B]
    left_B = np.maximum.reduceat(ready_C + own["service_ns"].to_numpy(), first_B) - until_B
    service_C = _expected_service_ns(own, service_us)
    expected_B = None if service_C is None else exposed(first_B, ready_C, service_C, until_B)
    place_C = own["place"].to_numpy()
    first_S = np.flatnonzero(np.diff(place_C[first_B], prepend=ABSENT))
    exposed_S = np.add.reduceat(np.maximum(0.0, left_B), first_S) / NS_PER_MS

    def median_ms(value_B: F64) -> float:
        return float(np.median(np.add.reduceat(value_B, first_S))) / NS_PER_MS

    return Overlap(
        service_ms=median_ms(np.add.reduceat(own["own_service_ns"].to_numpy(dtype=np.float64), first_B)),
        window_ms=median_ms(until_B - ready_C[first_B]),
        exposed_ms=float(np.median(exposed_S)),
        low_ms=float(np.quantile(exposed_S, LOW)),
        expected_ms=None if expected_B is None else median_ms(expected_B),
    )


def _expected_service_ns(own: pd.DataFrame, service_us: Mapping[Shape, float]) -> Any:
    """Shape (C,); None where the service of a shape is not known."""
    number_C = own.groupby(SHAPE).ngroup().to_numpy()
    _, at = np.unique(number_C, return_index=True)
    known = [service_us.get(shape_of(values)) for values in own[SHAPE].iloc[at].itertuples(index=False, name=None)]
    return None if None in known else 1e3 * np.array(known, dtype=np.float64)[number_C]


def _blocked_ns(ledger: Ledger) -> I64 | None:
    """Shape (C,): when the last member of each call had nothing left to do beside it; None without waits on record."""
    rows = ledger.collectives.rows
    rows_of = rows_by_rank(rows)
    enter_N, end_N = rows["enter_ns"].to_numpy(), rows["end_ns"].to_numpy()
    blocked_N = enter_N.copy()
    for at, rank in enumerate(ledger.ranks):
        row_N = rows_of.get(rank, np.zeros(0, dtype=np.int64))
        row_N = row_N[ledger.row_step_N[row_N] != ABSENT]
        if not len(row_N):
            continue
        start_W, end_W = _joined(ledger.waits[at].start_ns_M, ledger.waits[at].end_ns_M)
        if not len(end_W):
            return None
        which = np.searchsorted(end_W, end_N[row_N] - JOINED_NS)
        wait_N = np.append(start_W, np.iinfo(np.int64).max)[which]
        until_N = np.minimum(wait_N, ledger.end_ns_RS[at, ledger.row_step_N[row_N]])
        blocked_N[row_N] = np.maximum(enter_N[row_N], until_N)
    first_C = np.flatnonzero(np.diff(rows["call"].to_numpy(), prepend=-1))
    return np.maximum.reduceat(blocked_N, first_C) if len(first_C) else blocked_N


def _joined(start_W: I64, end_W: I64) -> tuple[I64, I64]:
    """Starts and ends of a rank's waits, in order, those that follow each other at once as one."""
    if not len(start_W):
        return start_W, end_W
    order = np.argsort(start_W, kind="stable")
    start_W, end_W = start_W[order], np.maximum.accumulate(end_W[order])
    gap_W = start_W[1:] > end_W[:-1] + JOINED_NS
    return start_W[np.append(True, gap_W)], end_W[np.append(gap_W, True)]


def _overlap_rows(
    arms: Arms, basis: Basis, measured: Mapping[str, Sequence[Measured]], worth_ms: float
) -> list[dict[str, Any]]:
    """A service that nothing models is expected to be the healthy run's."""
    known = {one.shape: basis.expected_us(one.shape) for found in measured.values() for one in found}
    usual = {one.shape: one.service_us for one in next(iter(measured.values()))}
    usual |= {shape: found[0] for shape, found in known.items() if found is not None}
    by_arm = {arm: [overlaps(run, ledger, usual) for run, ledger in own] for arm, own in arms.items()}
    rows = []
    for role in dict.fromkeys(role for found in by_arm.values() for one in found for role in one):
        means = {arm: _mean([one[role] for one in found if role in one]) for arm, found in by_arm.items()}
        modelled = all(found is not None for shape, found in known.items() if shape.group == role)
        over = [arm for arm, one in means.items() if one and _exceeds(one.low_ms, one.expected_ms, worth_ms)]
        rows.append(
            {
                "group": role,
                "arms": {arm: None if one is None else _plain_overlap(one) for arm, one in means.items()},
                "basis": "expected services" if modelled else "services of the healthy run",
                "exceeded": over,
            }
        )
    return rows


def _mean(found: Sequence[Overlap]) -> Overlap | None:
    """The mean over runs."""
    if not found:
        return None
    expected = [one.expected_ms for one in found if one.expected_ms is not None]
    return Overlap(
        service_ms=fmean(one.service_ms for one in found),
        window_ms=fmean(one.window_ms for one in found),
        exposed_ms=fmean(one.exposed_ms for one in found),
        low_ms=fmean(one.low_ms for one in found),
        expected_ms=fmean(expected) if len(expected) == len(found) else None,
    )


def _plain_overlap(one: Overlap) -> dict[str, float | None]:
    return {
        "service_ms": one.service_ms,
        "window_ms": one.window_ms,
        "exposed_ms": one.exposed_ms,
        "expected_exposed_ms": one.expected_ms,
    }


def _bubble(arms: Arms, worth_ms: float) -> dict[str, Any]:
    """The first run of each arm; ``why_not`` instead where one of them allows nothing."""
    found = {arm: pipeline(*own[0]) for arm, own in arms.items()}
    known = {arm: one for arm, one in found.items() if isinstance(one, Pipeline)}
    if len(known) < len(found):
        return {"why_not": next(one for one in found.values() if isinstance(one, str))}
    plain = {
        arm: {"stages": one.stages, "microbatches": one.microbatches, "chunks": one.chunks, "share": one.share,
              "expected_ms": one.expected_ms, "waiting_ms": one.waiting_ms}
        for arm, one in known.items()
    }  # fmt: skip
    return {
        "arms": plain,
        "exceeded": [arm for arm, one in known.items() if _exceeds(one.waiting_ms, one.expected_ms, worth_ms)],
    }
