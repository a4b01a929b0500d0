"""Adjacent healthy and regressed runs as pairs, and the order to run them in.

A unit is one run, or one segment of a switchback launch: the thing that can be repeated. Pairing units that are
next to each other in time removes what drifts slowly; nothing else is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    import numpy.typing as npt

HEALTHY = "healthy"
REGRESSED = "regressed"

_NOT_MEASURED = frozenset(
    {"launch", "segment", "pair", "arm", "run", "path", "host", "scope", "started_ns", "ended_ns", "steps", "order"}
)
_KEYS = ("started_ns", "step_ms")
# Ranks enter the next segment one by one while the last ones still leave the one before it.
_OVERLAP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Pairs in the order in which they ran.

    `healthy`, `regressed` and `differences` (regressed minus healthy) hold one row a pair and the same columns:
    `step_ms` and every measured column that both tables have; what one side did not measure is NaN. `order` is +1
    where the healthy unit ran first, else -1. `dropped` names each unit that found no partner, and both units of a
    pair in which one has no step time.
    """

    healthy: pd.DataFrame
    regressed: pd.DataFrame
    differences: pd.DataFrame
    order: npt.NDArray[np.int64]
    dropped: tuple[str, ...]

    @property
    def num_pairs(self) -> int:
        return len(self.differences)

    @property
    def num_dropped(self) -> int:
        return len(self.dropped)


def abba_order(num_pairs: int, seed: int) -> list[str]:
    """Arms in running order, two for each pair: quadruples ABBA or BAAB by the flip of a seeded coin.

    A longer order with the same seed begins with the shorter one, so pairs can be added after a look.
    Raises `ValueError` for a negative number of pairs.
    """
    if num_pairs < 0:
        raise ValueError(f"num_pairs={num_pairs}: give 0 or more pairs")
    coins = np.random.Generator(np.random.PCG64(seed)).random((num_pairs + 1) // 2) < 0.5
    order: list[str] = []
    for healthy_first in coins:
        first, second = (HEALTHY, REGRESSED) if healthy_first else (REGRESSED, HEALTHY)
        order += [first, second, second, first]
    return order[: 2 * num_pairs]


def form_pairs(healthy: pd.DataFrame, regressed: pd.DataFrame, columns: Sequence[str] | None = None) -> Pairs:
    """Units of two arms as adjacent pairs: by their `pair` where both sides carry one, the rest by running order.

    Each table holds one row a unit with `started_ns` and `step_ms`, and where known `launch`, `segment`, `pair`,
    `ended_ns`; `columns` names the measured columns to difference (by default all that both tables have). In running
    order, units of different arms that follow each other are paired, and a pair is never used twice.

    Raises `ValueError` for a missing column, a pair number used twice, or units that overlap in time by more than a
    tenth of the shorter: units that compete for the same links and storage measure each other.
    """
    left, right = _units(healthy, HEALTHY), _units(regressed, REGRESSED)
    clash = _clash(left, right)
    if clash is not None:
        raise ValueError(f"{clash}; arms that share links or storage must take turns")
    numbered = _by_number(left, right)
    matched = numbered + _by_adjacency(
        left.drop(index=[h for h, _ in numbered]), right.drop(index=[r for _, r in numbered])
    )
    steps = left["step_ms"].to_numpy(), right["step_ms"].to_numpy()
    matched = [(h, r) for h, r in matched if not (np.isnan(steps[0][h]) or np.isnan(steps[1][r]))]
    starts = left["started_ns"].to_numpy(), right["started_ns"].to_numpy()
    matched.sort(key=lambda pair: min(int(starts[0][pair[0]]), int(starts[1][pair[1]])))
    dropped = _leftovers(left, [h for h, _ in matched]) + _leftovers(right, [r for _, r in matched])
    names = list(columns) if columns is not None else _measured(left, right)
    return _differences(left, right, matched, ["step_ms", *(n for n in names if n != "step_ms")], dropped)


def _units(table: pd.DataFrame, arm: str) -> pd.DataFrame:
    missing = [key for key in _KEYS if key not in table.columns]
    if missing:
        raise ValueError(f"the {arm} units lack {', '.join(missing)}; a unit table has one row for each run or segment")
    return table.reset_index(drop=True).assign(arm=arm)


def ran_together(healthy: pd.DataFrame, regressed: pd.DataFrame) -> str | None:
    """Which unit started while another ran, by more than `form_pairs` allows; None where all took turns."""
    return _clash(_units(healthy, HEALTHY), _units(regressed, REGRESSED))


def _clash(left: pd.DataFrame, right: pd.DataFrame) -> str | None:
    starts = np.concatenate([table["started_ns"].to_numpy(dtype=np.int64) for table in (left, right)])
    ends = np.concatenate([_ends(table) for table in (left, right)])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    latest = np.maximum.accumulate(ends)[:-1]
    shorter = np.minimum(ends[:-1] - starts[:-1], ends[1:] - starts[1:])
    clash = np.flatnonzero(latest - starts[1:] > np.floor(_OVERLAP * shorter))
    if not clash.size:
        return None
    row = int(clash[0])
    ordered = pd.concat([left, right], ignore_index=True).iloc[order]
    return f"{_name(ordered, row + 1)} started while another unit ran (before it: {_name(ordered, row)})"


def _ends(units: pd.DataFrame) -> npt.NDArray[np.int64]:
    """A unit without a known end occupies its start alone."""
    ends = units["started_ns"].to_numpy(dtype=np.int64) + 1
    if "ended_ns" in units.columns:
        known = units["ended_ns"].notna().to_numpy()
        ends[known] = units["ended_ns"].to_numpy()[known].astype(np.int64)
    return ends


def _by_number(left: pd.DataFrame, right: pd.DataFrame) -> list[tuple[int, int]]:
    """Row numbers of the units that carry the same pair number (inside the same launch, where arms share launches)."""
    if "pair" not in left.columns or "pair" not in right.columns:
        return []
    shared = {"launch"} <= set(left.columns) & set(right.columns) and bool(set(left["launch"]) & set(right["launch"]))
    first, second = _numbered(left, shared), _numbered(right, shared)
    return [(first[key], second[key]) for key in first if key in second]


def _numbered(units: pd.DataFrame, by_launch: bool) -> dict[Hashable, int]:
    rows: dict[Hashable, int] = {}
    pairs, launches = units["pair"].tolist(), units["launch"].tolist() if by_launch else []
    for row in np.flatnonzero(units["pair"].notna().to_numpy()).tolist():
        number = int(pairs[row])
        key = (launches[row], number) if by_launch else number
        if key in rows:
            raise ValueError(f"pair {number} holds {_name(units, rows[key])} and {_name(units, row)}; one is meant")
        rows[key] = row
    return rows


def _by_adjacency(left: pd.DataFrame, right: pd.DataFrame) -> list[tuple[int, int]]:
    """Row numbers of units that follow each other and differ in arm; a unit beside one of its own arm waits."""
    runs = sorted(
        (int(start), arm, int(row))
        for arm, units in ((HEALTHY, left), (REGRESSED, right))
        for row, start in zip(units.index.to_numpy(), units["started_ns"].to_numpy(), strict=True)
    )
    pairs: list[tuple[int, int]] = []
    at = 0
    while at + 1 < len(runs):
        (_, arm, row), (_, next_arm, next_row) = runs[at], runs[at + 1]
        if arm == next_arm:
            at += 1
            continue
        pairs.append((row, next_row) if arm == HEALTHY else (next_row, row))
        at += 2
    return pairs


def _leftovers(units: pd.DataFrame, used: Iterable[int]) -> tuple[str, ...]:
    return tuple(_name(units, int(row)) for row in sorted(set(range(len(units))) - set(used)))


def _measured(left: pd.DataFrame, right: pd.DataFrame) -> list[str]:
    first, second = (
        [str(name) for name, dtype in table.dtypes.items() if pd.api.types.is_numeric_dtype(dtype)]
        for table in (left, right)
    )
    shared = set(second) - _NOT_MEASURED
    return [name for name in first if name in shared]


def _differences(
    left: pd.DataFrame, right: pd.DataFrame, matched: list[tuple[int, int]], names: list[str], dropped: tuple[str, ...]
) -> Pairs:
    rows = [h for h, _ in matched], [r for _, r in matched]
    before = left[names].take(rows[0]).reset_index(drop=True).astype("float64")
    after = right[names].take(rows[1]).reset_index(drop=True).astype("float64")
    starts = left["started_ns"].to_numpy()[rows[0]], right["started_ns"].to_numpy()[rows[1]]
    order = np.where(starts[0] < starts[1], 1, -1).astype(np.int64)
    return Pairs(healthy=before, regressed=after, differences=after - before, order=order, dropped=dropped)


def _name(units: pd.DataFrame, row: int) -> str:
    known = [f"{key} {units[key].iloc[row]}" for key in ("launch", "segment") if key in units.columns]
    return f"the {units['arm'].iloc[row]} unit {' '.join(known) or f'in row {row}'}"
