"""What the pairs show beside their mean, by name: the tail, the drift within a run, the order, one rank's own change.

All are read off the same pairs as the verdict, describe it, and decide nothing. A list of them stands in the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrows.inquiry.design import REGRESSED
from narrows.inquiry.findings import MEANINGS, Finding
from narrows.reducers.differential import METRICS, rank_difference
from narrows.reducers.estimates import crossover, estimate, format_ms, interval_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAST_PAIRS = 4
ORDER_EFFECT_T = 2.5
"""A t of the order effect beyond this is flagged: 1 % of clean experiments are at 12 pairs."""
TIME_ALPHA = 0.005
"""One-sided, in each direction: drift is looked for in every experiment, so it must stand out."""
TIME_SHARE = 0.25
TAIL_LOSS_SHARE = 0.5
"""A loss of which the slowest 5 % of the steps carry more than this share sits in the tail."""


def named_findings(evidence: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings on summarised evidence: ``name``, ``sentence``, and the numbers behind it."""
    difference, found = evidence["difference"], []
    step = difference["step_ms"]
    if not evidence.get("warmup", {}).get("steady", True):
        found.append(_named(Finding.NO_STEADY_STATE, "", cut_steps=evidence["warmup"]["cut_steps"]))
    if len(step) < LEAST_PAIRS:
        return found
    for one in (_order(step, evidence["order"]), _tail(difference), _time(difference), _rank(evidence)):
        found += one
    return found


def _named(name: Finding, detail: str, **numbers: Any) -> dict[str, Any]:
    return {"name": name.value, "sentence": MEANINGS[name] + (f" ({detail})" if detail else ""), **numbers}


def _order(step: list[float], order: list[int]) -> Iterator[dict[str, Any]]:
    if np.ptp(order) == 0:
        return
    fitted = crossover(step, order)
    if abs(fitted.t_gamma) > ORDER_EFFECT_T:
        yield _named(
            Finding.ORDER_EFFECT, f"running second costs {format_ms(fitted.gamma)[0]} ms", gamma_ms=fitted.gamma
        )


def _tail(difference: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "median_ms" not in difference:
        return
    mean, median = estimate(difference["step_ms"]), estimate(difference["median_ms"])
    # A median that moved further than the mean is the opposite of a tail.
    apart = (mean.lower > max(median.upper, 0)) or (mean.upper < min(median.lower, 0))
    share = _tail_share(difference)
    if apart or (share is not None and share > TAIL_LOSS_SHARE):
        said = f"the mean moved by {interval_ms(mean.mean, mean.lower, mean.upper)}, the median by "
        said += interval_ms(median.mean, median.lower, median.upper)
        said += "" if share is None else f"; the slowest 5 % of the steps carry {100 * share:.0f} %"
        yield _named(Finding.TAIL_MECHANISM, said, median_ms=median.mean, tail_share=share)


def _tail_share(difference: dict[str, Any]) -> float | None:
    """The share of the mean's change that the slowest 5 % of the steps carry; None unless there clearly is a change."""
    step = estimate(difference["step_ms"])
    if "tail_ms" not in difference or step.lower <= 0 <= step.upper:
        return None
    return float(np.mean(difference["tail_ms"]) / step.mean)


def _time(difference: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "drift_ms" not in difference:
        return
    drift = estimate(difference["drift_ms"], TIME_ALPHA)
    large = abs(drift.mean) >= TIME_SHARE * abs(float(np.mean(difference["step_ms"])))
    if large and not drift.lower <= 0 <= drift.upper:
        said = f"from the first to the last third of a run by {interval_ms(drift.mean, drift.lower, drift.upper)}"
        yield _named(Finding.TIME, said, drift_ms=drift.mean)


def _rank(evidence: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name, arm = next(iter(evidence["arms"].items()))
    toward = -1 if name == REGRESSED else 1  # the arm that is expected to be slower, against the other one
    tables = {metric: toward * np.asarray(evidence["difference"].get(metric, ())) for metric in METRICS}
    found = rank_difference(tables, arm["ranks"])
    if found is not None:
        numbers = {"rank": found.rank, "metric": found.metric, "change": found.change, "p": found.p}
        yield _named(Finding.RANK_DIFFERENCE, found.sentence, **numbers)
