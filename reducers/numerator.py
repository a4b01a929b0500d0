"""The numerator first: did the step get slower because it was given more to do?

Work counters are deterministic, so they are compared exactly; there is nothing to test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from narrows.reducers.estimates import format_ms

if TYPE_CHECKING:
    import pandas as pd

EXPLAINED_SHARE = 0.5
TOLERANCE = 0.25

# Means of integers over steps and ranks leave rounding in the last digits.
_ROUNDING = 1e-12
_KEYS = frozenset({"rank", "step", "segment", "pair", "arm", "launch", "host", "batch", "unit", "run"})
_TOKENS = "valid and padded tokens"


class NumeratorVerdict(StrEnum):
    """What the work counters say of the loss."""

    NUMERATOR = "numerator"
    DISTRIBUTION = "distribution"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a step: each counter summed over ranks (`total`) and at its heaviest rank (`max_rank`), step means."""

    total: Mapping[str, float]
    max_rank: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterChange:
    """A counter that differs; `factor` is regressed over healthy, None where the healthy run counted 0 or nothing.
    `aggregate` is `total` or `max_rank`; a side that did not count is None."""

    counter: str
    aggregate: str
    healthy: float | None
    regressed: float | None
    factor: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumeratorResult:
    """How much of the loss the changed work predicts (ms a step).

    `pi_num_ms` is the healthy compute time times the growth of `counter`; `explained_share` is its part of the loss
    and `remaining_ms` what is left to explain: the whole loss, unless the verdict is `numerator`. With `distribution`
    (equal totals, a heavier heaviest rank) `pi_num_ms` is the most that the imbalance can cost.
    """

    verdict: NumeratorVerdict
    changes: tuple[CounterChange, ...]
    counter: str | None
    pi_num_ms: float
    compute_change_ms: float
    explained_share: float | None
    remaining_ms: float
    sentence: str


def work_of(table: pd.DataFrame) -> Work:
    """Work per step from one row a rank and step (columns `rank`, `step`, perhaps `segment`, and the counters).

    A counter that some rank did not record is left out: a partial sum would look like less work.
    Raises `ValueError` without `rank` and `step`.
    """
    missing = {"rank", "step"} - set(table.columns)
    if missing:
        raise ValueError(f"the work table lacks {', '.join(sorted(missing))}; it holds one row for each rank and step")
    counters = [
        str(name)
        for name in table.columns
        if name not in _KEYS and table[name].dtype.kind in "iuf" and not table[name].isna().any()
    ]
    steps = table.groupby([key for key in ("launch", "segment", "step") if key in table.columns])[counters]
    return Work(
        total={str(name): float(value) for name, value in steps.sum().mean().items()},
        max_rank={str(name): float(value) for name, value in steps.max().mean().items()},
    )


def work_of_units(table: pd.DataFrame) -> Work:
    """Work per step from one row a unit, with columns `NAME_sum` and `NAME_max` (as `units.work` gives them).

    The mean over units; a counter that some unit did not record is left out.
    """
    means = {
        str(name): float(table[name].mean())
        for name in table.columns
        if str(name).endswith(("_sum", "_max")) and len(table) and not table[name].isna().any()
    }
    return Work(
        total={name.removesuffix("_sum"): value for name, value in means.items() if name.endswith("_sum")},
        max_rank={name.removesuffix("_max"): value for name, value in means.items() if name.endswith("_max")},
    )


def compare_work(healthy: Work, regressed: Work) -> tuple[CounterChange, ...]:
    """Every counter that differs, totals before heaviest ranks, the largest factor first."""
    changes = [
        CounterChange(counter=name, aggregate=aggregate, healthy=h, regressed=r, factor=_factor(h, r))
        for aggregate, before, after in (
            ("total", healthy.total, regressed.total),
            ("max_rank", healthy.max_rank, regressed.max_rank),
        )
        for name in dict.fromkeys((*before, *after))
        if not _equal(h := before.get(name), r := after.get(name))
    ]
    return tuple(sorted(changes, key=lambda c: (c.aggregate != "total", -_distance(c.factor), c.counter)))


def judge_numerator(
    healthy: Work, regressed: Work, *, compute_ms: float, compute_change_ms: float, delta_ms: float
) -> NumeratorResult:
    """Is the loss the price of more work?

    `compute_ms` is the healthy compute account, `compute_change_ms` its change and `delta_ms` the loss, all in ms a
    step on the critical path. Numerator: the growth of a counter predicts a change of at least half of the loss, and
    the compute account moved by it within a quarter. The counters are executed FLOPs, model FLOPs, valid plus padded
    tokens, and the sum of squared sequence lengths; the first that explains is taken, else the first that changed.
    Raises `ValueError` for a compute time that is not positive.
    """
    if not compute_ms > 0:
        raise ValueError(f"compute_ms={compute_ms}: the healthy compute account is a positive time")
    changes = compare_work(healthy, regressed)
    growths = _growths(healthy.total, regressed.total)
    heaviest, heaviest_factor = _heaviest(healthy, regressed)
    counter: str | None
    if growths:
        fits = (one for one in growths if _explains(compute_ms * (one[1] - 1), compute_change_ms, delta_ms))
        explaining = next(fits, None)
        counter, factor = explaining or growths[0]
        pi = compute_ms * (factor - 1)
        verdict = NumeratorVerdict.NUMERATOR if explaining else NumeratorVerdict.CHANGED
    elif heaviest is not None:
        counter, factor = heaviest, heaviest_factor
        pi = compute_ms * (factor - 1)
        verdict = NumeratorVerdict.DISTRIBUTION
    else:
        counter, factor = None, 1.0
        pi, verdict = 0.0, NumeratorVerdict.CHANGED if changes else NumeratorVerdict.UNCHANGED
    remaining = delta_ms - pi if verdict is NumeratorVerdict.NUMERATOR else delta_ms
    return NumeratorResult(
        verdict=verdict,
        changes=changes,
        counter=counter,
        pi_num_ms=pi,
        compute_change_ms=compute_change_ms,
        explained_share=pi / delta_ms if delta_ms else None,
        remaining_ms=remaining,
        sentence=_sentence(verdict, changes, counter, factor, pi, compute_change_ms, delta_ms),
    )


def _explains(pi_ms: float, compute_change_ms: float, delta_ms: float) -> bool:
    return pi_ms >= EXPLAINED_SHARE * delta_ms > 0 and abs(compute_change_ms - pi_ms) <= TOLERANCE * abs(pi_ms)


def _growths(before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[str, float]]:
    """The counters that the kernels may scale with, and their factors, likeliest first; none where the work is equal.

    Which one they do scale with depends on the kernels: what is linear in the tokens and what is quadratic in a
    sequence grow apart, and each convention for FLOPs weighs them in its own way.
    """
    first, second = _with_tokens(before), _with_tokens(after)
    found = []
    for name in ("executed_flops", "model_flops", _TOKENS, "sum_sq_len"):
        factor = _factor(first.get(name), second.get(name))
        if factor is not None and abs(factor - 1) > _ROUNDING:
            found.append((name, factor))
        # What was executed is the work itself: if it is equal, nothing else can make it more.
        elif name == "executed_flops" and factor is not None:
            return []
    return found + _one_sided(before, after)


def _with_tokens(counters: Mapping[str, float]) -> dict[str, float]:
    parts = [counters[name] for name in ("valid_tokens", "padded_tokens") if name in counters]
    return {**counters, _TOKENS: sum(parts)} if parts else dict(counters)


def _one_sided(before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[str, float]]:
    """Executed FLOPs that one run alone records, against the model's FLOPs of the other: a run records them only
    where they differ from the model's."""
    if ("executed_flops" in before) is ("executed_flops" in after):
        return []
    first, second = (side.get("executed_flops", side.get("model_flops")) for side in (before, after))
    factor = _factor(first, second)
    return [] if factor is None or abs(factor - 1) <= _ROUNDING else [("executed_flops", factor)]


def _heaviest(healthy: Work, regressed: Work) -> tuple[str | None, float]:
    """The heaviest rank's squared lengths, else FLOPs, where they changed at equal totals."""
    for name in ("sum_sq_len", "executed_flops", "model_flops"):
        factor = _factor(healthy.max_rank.get(name), regressed.max_rank.get(name))
        if factor is not None and abs(factor - 1) > _ROUNDING:
            return name, factor
    return next(iter(_one_sided(healthy.max_rank, regressed.max_rank)), (None, 1.0))


def _equal(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return math.isclose(before, after, rel_tol=_ROUNDING)


def _factor(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or before == 0:
        return None
    return after / before


def _distance(factor: float | None) -> float:
    return math.inf if factor is None or factor <= 0 else abs(math.log(factor))


def _sentence(
    verdict: NumeratorVerdict,
    changes: tuple[CounterChange, ...],
    counter: str | None,
    factor: float,
    pi_ms: float,
    compute_change_ms: float,
    delta_ms: float,
) -> str:
    if verdict is NumeratorVerdict.UNCHANGED:
        return "the work of a step is the same in both runs, counter by counter"
    if counter is None:
        names = ", ".join(dict.fromkeys(change.counter for change in changes))
        return f"{names} changed, which predicts no change of compute"
    pi, moved, delta = format_ms(pi_ms, compute_change_ms, delta_ms)
    name = counter.replace("_", " ")
    if verdict is NumeratorVerdict.DISTRIBUTION:
        return (
            f"the totals are equal, so nothing more is executed; but {name} of the heaviest rank changed by "
            f"{factor:.3g}x, which makes the others wait"
        )
    told = (
        f"{name} changed by {factor:.3g}x, which predicts {pi} ms of compute; {moved} ms were seen of {delta} ms lost"
    )
    if verdict is NumeratorVerdict.NUMERATOR:
        return f"{told}: the step is slower because it does more"
    return f"{told}: more work does not explain the loss"
