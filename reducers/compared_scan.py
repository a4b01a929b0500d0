"""What the change of two arms follows: the ranks' own time, their lateness, or the service of collectives.

Which of the three is scanned follows from the account that holds the loss. Differences are of paired units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from narrows.inquiry.accounts import Account
from narrows.reducers.coordinates import bytes_bin, bytes_label, collective_factors, rank_factors
from narrows.reducers.decisions import GROWTH_SHARE, SERVICE_RISE
from narrows.reducers.estimates import estimate
from narrows.reducers.evidence import NS_PER_MS
from narrows.reducers.lateness import lateness
from narrows.reducers.ledger import Ledger
from narrows.reducers.pairs import form_pairs
from narrows.reducers.patterns import drift_ms
from narrows.reducers.shares import SCREENING_PAIRS
from narrows.reducers.structure import StructureResult, Words, scan_structure

RHO = 0.5
LATE_SHARE = 0.25
"""Of the loss, by how much a level must come later: a step's first collectives meet only part of it."""
Unit = tuple[str, str, int]
"""Launch, run and segment."""
Cell = tuple[str, int]
"""Group and bytes bin."""
_PLACED = ("launch", "segment", "pair", "started_ns", "ended_ns", "step_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Of each unit: the logarithm of the median service in ms by group and bytes bin, and the mean lateness in ms of
    each rank, in the order of ranks."""

    service: Mapping[Unit, Mapping[Cell, float]]
    late_ms: Mapping[Unit, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where things are: the groups and the manifest of the regressed arm, and how to read the arrivals of an arm."""

    groups: Mapping[str, tuple[int, ...]]
    manifest: Mapping[str, Any]
    arrivals: Callable[[str], Arrivals]


def arrivals_of(ledger: Ledger, launch: str) -> Arrivals:
    """Of each segment's steady steps; segments without a matched collective are left out."""
    rows = lateness(ledger).rows
    calls = ledger.collectives.calls.iloc[rows["call"].to_numpy()]
    table = pd.DataFrame(
        {
            "segment": rows["segment"].to_numpy(),
            "call": rows["call"].to_numpy(),
            "rank": rows["rank"].to_numpy(),
            "late": rows["lateness_ns"].to_numpy() / NS_PER_MS,
            "group": calls["group"].astype(str).to_numpy(),
            "size": [bytes_bin(int(one)) for one in calls["payload_bytes"]],
            "service": calls["own_service_ns"].to_numpy() / NS_PER_MS,
        }
    )
    service: dict[Unit, dict[Cell, float]] = {}
    medians = table.drop_duplicates("call").groupby(["segment", "group", "size"], as_index=False)["service"].median()
    for segment, group, size, ms in medians.itertuples(index=False):
        if ms > 0:
            service.setdefault((launch, ledger.name, int(segment)), {})[str(group), int(size)] = math.log(ms)
    late = table.pivot_table(index="segment", columns="rank", values="late", aggfunc="mean")
    return Arrivals(
        service=service,
        late_ms={
            (launch, ledger.name, int(segment)): tuple(row)
            for segment, row in zip(late.index, late.to_numpy().tolist(), strict=True)
        },
    )


def merged(parts: Sequence[Arrivals]) -> Arrivals:
    """The arrivals of several runs as of one arm."""
    return Arrivals(
        service={key: value for one in parts for key, value in one.service.items()},
        late_ms={key: value for one in parts for key, value in one.late_ms.items()},
    )


def scan(
    evidence: Mapping[str, Any], lead: Account | None, regressed: Mapping[str, Any], places: Places | None
) -> StructureResult | None:
    """The scan that fits the account; None where there are too few pairs, or nothing to tell apart.

    A level is named only if it moved by a good part of the loss, or its service by more than 5 %.
    """
    if evidence["pairs"] < 2 or evidence.get("together"):
        return None
    loss = abs(float(np.mean(evidence["difference"]["step_ms"])))
    factors = rank_factors(
        regressed["ranks"],
        regressed["rank_hosts"],
        places.groups if places else {},
        places.manifest if places else {},
    )
    if lead in (Account.TRANSFER, Account.PIPELINE):
        return None if places is None else _service(evidence, regressed, places, factors)
    if lead is Account.SKEW and places is not None:
        change = _lateness(evidence, places)
        least = LATE_SHARE * loss
    else:
        change = np.asarray(evidence["difference"]["local_ms"])
        least = RHO * loss
    if change.ndim != 2 or change.shape[1] != len(regressed["ranks"]) or change.shape[1] < 2:
        return None
    rows = [row for unit in regressed["units"] for row in unit["local_steps_ms"]]
    return scan_structure(change, factors, ranks=regressed["ranks"], local_SR=rows or None, least=least)


def _lateness(evidence: Mapping[str, Any], places: Places) -> np.ndarray[Any, Any]:
    """Paired change of each rank's mean lateness, pairs by ranks."""
    tables = [
        {unit: dict(enumerate(row)) for unit, row in places.arrivals(arm).late_ms.items()}
        for arm in ("healthy", "regressed")
    ]
    _, change = _paired(evidence, tables[0], tables[1])
    return change


def _service(
    evidence: Mapping[str, Any],
    regressed: Mapping[str, Any],
    places: Places,
    factors: Mapping[str, Sequence[str | None]],
) -> StructureResult | None:
    """Over the collectives by group and size; on a logarithmic scale, on which a slower link moves all sizes alike."""
    tables = [places.arrivals(arm).service for arm in ("healthy", "regressed")]
    cells, change = _paired(evidence, tables[0], tables[1])
    if change.shape[1] < 2:
        return None
    several = {group for group, _ in cells}
    labels = [f"of {group}, {bytes_label(size)}" if len(several) > 1 else bytes_label(size) for group, size in cells]
    return scan_structure(
        change,
        collective_factors(cells, places.groups, regressed["ranks"], factors),
        ranks=range(len(cells)),
        words=Words(each="collective", labels=labels, relative=True),
        least=math.log(SERVICE_RISE),
    )


def _paired(
    evidence: Mapping[str, Any],
    healthy: Mapping[Unit, Mapping[Any, float]],
    regressed: Mapping[Unit, Mapping[Any, float]],
) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The keys that every paired unit has, and their changes, pairs by keys; the pairs are those of the evidence."""
    frames, keys = [], set[Any]()
    for at, (arm, table) in enumerate((("healthy", healthy), ("regressed", regressed))):
        rows = []
        for unit in evidence["arms"][arm]["units"]:
            own = table.get((unit["launch"], unit["run"], unit["segment"]), {})
            rows.append({key: unit[key] for key in _PLACED} | {("value", key): value for key, value in own.items()})
        here = {key for row in rows for key in row if isinstance(key, tuple)}
        keys = here if not at else keys & here
        frames.append(pd.DataFrame(rows))
    ordered = sorted(keys)
    names = [f"value:{at}" for at in range(len(ordered))]
    renamed = dict(zip(ordered, names, strict=True))
    frames = [frame.rename(columns=renamed) for frame in frames]
    found = form_pairs(frames[0], frames[1], names).differences[names].dropna(axis=1)
    kept = [key[1] for key, name in zip(ordered, names, strict=True) if name in found.columns]
    return kept, found.to_numpy(dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How much more the step grows over a unit of the regressed arm than over one of the healthy, in ms; the 90 %
    interval over pairs, None below the pairs of a test."""

    ms: float
    interval: tuple[float, float] | None

    @property
    def excluded(self) -> bool:
        """Whether the pairs do not show that it grows."""
        return self.interval is not None and self.interval[0] <= 0


def drift(evidence: Mapping[str, Any]) -> Drift | None:
    """From Theil-Sen slopes of each unit, by pairs; None for units too short to have one."""
    tables: list[dict[Unit, dict[str, float]]] = []
    for arm in ("healthy", "regressed"):
        tables.append({})
        for unit in evidence["arms"][arm]["units"]:
            own = drift_ms(unit["steps_ms"])
            if own is not None:
                tables[-1][unit["launch"], unit["run"], unit["segment"]] = {"drift": own}
    if not all(tables) or evidence.get("together"):
        return None
    _, change = _paired(evidence, tables[0], tables[1])
    if not change.size:
        return None
    values = change[:, 0]
    if len(values) < SCREENING_PAIRS:
        return Drift(ms=float(values.mean()), interval=None)
    one = estimate(values)
    return Drift(ms=float(one.mean), interval=(float(one.lower), float(one.upper)))


def drift_told(found: Drift | None, growth_share: float | None) -> str:
    """A sentence where the loss grows with the time since start."""
    if found is None or growth_share is None or growth_share <= GROWTH_SHARE or found.ms <= 0:
        return ""
    bounds = "" if found.interval is None else f" [{found.interval[0]:+.3g}, {found.interval[1]:+.3g}]"
    return f"Time since start: over a run the step grows by {found.ms:+.3g} ms{bounds} more than in the healthy one."


def told(found: StructureResult | None, lead: Account | None) -> str:
    """The scan as a sentence that says what was scanned; empty where nothing stands out."""
    if found is None or not (found.culprit is not None or not found.resolvable):
        return ""
    if lead in (Account.TRANSFER, Account.PIPELINE):
        what = "Service after the last arrival"
    else:
        what = "Lateness at collectives" if lead is Account.SKEW else "Own time of the ranks"
    return f"{what}: {found.sentence}."


def culprit_of(
    named: Mapping[str, Any], found: StructureResult | None, reading_ranks: Sequence[int]
) -> Mapping[str, Any]:
    """The culprit by the coarser name that the scan gives it.

    A level of other coordinates replaces ranks or hosts only if it holds exactly the ranks that the reading found; a
    level of the collectives replaces the link as a whole.
    """
    if found is None or found.culprit is None:
        return named
    level = found.culprit
    if named["kind"] in ("link", "group", "rail"):
        # One cell is told by its group and its size; the group is who.
        return named if level.factor == "collective" else {"kind": level.factor, "members": [level.level]}
    if named["kind"] in ("rank", "host") and level.factor not in ("rank", "host"):
        same = set(level.ranks) == set(reading_ranks)
        return {"kind": level.factor, "members": [level.level]} if same else named
    return named
