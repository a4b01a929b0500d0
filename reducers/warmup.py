"""Where a run's warm-up ends: MSER-5 on the log of step times, with one cut for all runs of a block.

The rule does not see which arm a run belongs to. Runs that a plan marked keep its marks: the first steps of a
segment are washed out because another arm ran before. Shape legend: T steps of one run, in order of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.reducers.records import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from narrows.reducers.ledger import Ledger
    from narrows.reducers.records import F64, I64

BATCH = 5
FLOOR_STEPS = 10
"""Steps that are always left out, or a quarter of a run that is short."""
LEAST_BATCHES = 10
"""Below 50 steps the few means that a long cut leaves agree by chance, and a cut would always look good."""
_DECIMALS = 15  # a variance of rounding errors is none
STEADY_SHARE = 1 / 3
"""A run that needs a longer cut than this share of itself was still settling."""


def mser5(step_T: npt.ArrayLike) -> int:
    """Steps to leave out at the start: 5 times the d that minimises Var(x_d..) / n_d over means of 5, at most half.

    0 for a run of fewer than 50 steps.

    Raises ``ValueError`` for a time that is not positive.
    Source: White 1997; White, Cobb & Spratt 2000 (means of five).
    """
    times = np.asarray(step_T, dtype=np.float64)
    if times.size and not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("step times are positive and finite")
    num = len(times) // BATCH
    if num < LEAST_BATCHES:
        return 0
    means = np.log(times[: num * BATCH]).reshape(num, BATCH).mean(axis=1)
    rest = num - np.arange(num // 2 + 1)
    errors = [float(means[num - n :].var().round(_DECIMALS)) / n for n in rest.tolist()]
    return BATCH * int(np.argmin(errors))


def run_cut(step_T: npt.ArrayLike, marked: int = 0) -> int:
    """The cut that one run asks for: what MSER-5 finds, the floor, and what the run itself marked as warm-up."""
    times = np.asarray(step_T, dtype=np.float64)
    half = len(times) // 2
    return min(half, max(mser5(times), min(FLOOR_STEPS, len(times) // 4), marked))


def block_cut(runs: Sequence[npt.ArrayLike], marked: Sequence[int] = ()) -> int:
    """The one cut for all runs of a block, whatever their arms: the longest that any of them asks for."""
    marks = marked or [0] * len(runs)
    return max((run_cut(one, mark) for one, mark in zip(runs, marks, strict=True)), default=0)


def is_steady(num_steps: int, cut: int) -> bool:
    """Whether the cut leaves enough: a run that settles for more than a third of itself has no steady state."""
    return cut <= math.ceil(STEADY_SHARE * num_steps)


def drift(step_T: npt.ArrayLike) -> float:
    """The median of the last third of an uncut run minus that of its first third, in the unit of the input."""
    times = np.asarray(step_T, dtype=np.float64)
    third = max(1, len(times) // 3)
    return float(np.median(times[-third:]) - np.median(times[:third]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """What was left out of a block: by ``rule``, ``cut_steps`` of each run; ``steady`` unless a run never settled.

    ``whole`` says of each ledger, in the order given, whether its units are whole runs with their start.
    """

    rule: str
    cut_steps: int | None
    steady: bool
    whole: tuple[bool, ...]


MARKED, MSER, NONE = "as the plan marks", "mser-5, the same for all runs of a block", "none"


def mark_warmup(ledgers: Sequence[Ledger], washout: int | None) -> Warmup:
    """Marks the warm-up of the runs that no plan marked. ``washout`` 0: the plan says that there is none."""
    whole = tuple(washout != 0 and not _planned(ledger) for ledger in ledgers)
    runs = [(ledger, step_T) for ledger, own in zip(ledgers, whole, strict=True) if own for step_T in _runs(ledger)]
    if not runs:
        return Warmup(rule=NONE if washout == 0 else MARKED, cut_steps=None, steady=True, whole=whole)
    times = [_step_ns(ledger, step_T) for ledger, step_T in runs]
    marks = [int(ledger.steps["warmup"].to_numpy(dtype=np.bool_)[step_T].sum()) for ledger, step_T in runs]
    cut = block_cut(times, marks)
    for ledger, step_T in runs:
        flags = ledger.steps["warmup"].to_numpy(dtype=np.bool_, copy=True)  # the frame's own is read-only
        flags[step_T[: min(cut, len(step_T) // 2)]] = True
        ledger.steps["warmup"] = flags
    steady = all(is_steady(len(one), run_cut(one, mark)) for one, mark in zip(times, marks, strict=True))
    return Warmup(rule=MSER, cut_steps=cut, steady=steady, whole=whole)


def _planned(ledger: Ledger) -> bool:
    """Whether the run's steps belong to a plan's pairs and carry its marks; a recorder alone numbers no pair."""
    marked = ledger.steps["warmup"].to_numpy(dtype=np.bool_).any()
    return bool(marked and (ledger.steps["pair"].to_numpy() != ABSENT).all())


def _runs(ledger: Ledger) -> Iterator[I64]:
    segment_S = ledger.steps["segment"].to_numpy()
    for segment in np.unique(segment_S):
        yield np.flatnonzero(segment_S == segment)


def _step_ns(ledger: Ledger, step_T: I64) -> F64:
    """How far the last rank's end moved in each step; the first step is counted from its first start."""
    present_RT = ledger.present_RS[:, step_T]
    ends_T = np.where(present_RT, ledger.end_ns_RS[:, step_T], np.iinfo(np.int64).min).max(axis=0)
    start = ledger.start_ns_RS[:, step_T[0]][present_RT[:, 0]].min()
    return np.asarray(np.maximum(np.diff(ends_T, prepend=start), 1), dtype=np.float64)


def merged_warmup(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of several blocks of one experiment, each cut by itself: the longest cut, steady if all were."""
    cuts = [part["cut_steps"] for part in parts if part["cut_steps"] is not None]
    return {
        "rule": parts[0]["rule"],
        "cut_steps": max(cuts, default=None),
        "steady": all(part["steady"] for part in parts),
    }
