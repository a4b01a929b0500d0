"""The comparison of what is already there instead of runs: reduced traces of some ranks, or training logs.

Both become evidence of the same form as run directories, with one unit a side of traces, or one a log. What a trace
or a log cannot say is in the comparison's limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from narrows.inquiry.accounts import ACCOUNTS
from narrows.reducers.compared import compared
from narrows.reducers.compared_parts import ArmExtras, Comparison, Sources
from narrows.reducers.evidence import VIEWS, summarise
from narrows.reducers.expected_traces import expected_of_traces
from narrows.reducers.trace_sides import Side, side_of
from narrows.reducers.traces.labels import BT_1, Thresholds
from narrows.reducers.traces.reduced import Reduced
from narrows.reducers.units import Statistic, chosen_steps

ARMS = ("healthy", "regressed")
_LEAST_REPORTS = 3


def compare_traces(
    healthy: Sequence[Reduced],
    regressed: Sequence[Reduced],
    names: tuple[str, str],
    statistic: str = "mean",
    thresholds: Thresholds = BT_1,
) -> Comparison:
    """The comparison of two sets of reduced traces, one trace a rank, by the mean of their steps.

    Raises ``ValueError`` for another statistic (a trace holds too few steps), traces without any time in them, and
    sides of different ranks; ``TraceError`` for two traces of one rank.
    """
    if statistic != Statistic.MEAN:
        raise ValueError(f"statistic {statistic}: traces hold a few steps; only their mean can be compared")
    sides = {"healthy": side_of(list(healthy), names[0]), "regressed": side_of(list(regressed), names[1])}
    if sides["healthy"].ranks != sides["regressed"].ranks:
        raise ValueError(
            f"{names[0]} holds the traces of ranks {_shown(sides['healthy'])}, {names[1]} of "
            f"{_shown(sides['regressed'])}; compare traces of the same ranks"
        )
    units = {arm: [_trace_unit(side, at)] for at, (arm, side) in enumerate(sides.items())}
    evidence = _evidence(units, statistic, [loss for side in sides.values() for loss in side.losses])
    evidence["expected"] = expected_of_traces(sides)
    at = _most_changed(evidence)
    limits = dict.fromkeys(limit for side in sides.values() for limit in side.limits)
    sources = Sources(
        source="traces",
        names=names,
        limits=("from traces: the critical path is taken to be the rank with most time of its own", *limits),
        labels={arm: label for arm, side in sides.items() if (label := side.label_at(at)) is not None},
        thresholds=thresholds,
    )
    extras = {arm: ArmExtras(typical=side.typical(at), arrivals=side.arrivals(), services=side.services())
              for arm, side in sides.items()}  # fmt: skip
    return compared(evidence, sources, extras)


def compare_step_times(
    healthy: Sequence[Sequence[float]],
    regressed: Sequence[Sequence[float]],
    names: tuple[str, str],
    statistic: str = "mean",
    losses: Sequence[str] = (),
) -> Comparison:
    """The comparison of step times in ms, one sequence a log, in the order in which the logs were written.

    ``losses`` says what of the logs could not be read. The first report of three or more is left out: it holds
    compilation and warm-up. Raises ``ValueError`` for a log without step times.
    """
    rule = Statistic(statistic)
    units = {
        arm: [_log_unit(times, rule, index, at, name) for index, times in enumerate(logs)]
        for at, (arm, logs, name) in enumerate(zip(ARMS, (healthy, regressed), names, strict=True))
    }
    sources = Sources(
        source="logs",
        names=names,
        limits=("from logs: step times alone, so no account, rank or host can be named",),
        labels={},
    )
    return compared(_evidence(units, statistic, list(losses)), sources, {arm: ArmExtras() for arm in ARMS})


def _shown(side: Side) -> str:
    return ", ".join(map(str, side.ranks))


def _evidence(units: Mapping[str, list[dict[str, Any]]], statistic: str, losses: list[str]) -> dict[str, Any]:
    found = {
        "experiment": "compare",
        "statistic": statistic,
        "arms": {arm: {"units": rows} for arm, rows in units.items()},
        "manifest_differences": [],
        "emulated": False,
        "excluded_steps": 0,
        "losses": losses,
    }
    return summarise(found)


def _unit(arm: int, index: int, steps: Sequence[float]) -> dict[str, Any]:
    # Only an order is known, not when: each unit gets a place of its own, all of one arm before the other's.
    place = 1000 * arm + index
    return {
        "launch": "files", "run": str(index), "segment": place, "pair": index, "started_ns": place,
        "ended_ns": place + 1, "steps": len(steps), "steps_ms": list(steps), "last": {}, "work": {}, "loss": None,
    }  # fmt: skip


def _trace_unit(side: Side, arm: int) -> dict[str, Any]:
    mean = side.mean_step_ms
    return _unit(arm, 0, side.steps_ms) | {
        "step_ms": mean,
        "accounts": {view: _padded(side.view(view), mean) | {"hidden": side.hidden_ms} for view in VIEWS},
        "ranks": list(side.ranks),
        "rank_hosts": list(side.hosts),
        "local_ms": list(side.local_ms),
        "local_steps_ms": [],
        "coverage": side.coverage,
    }


def _padded(accounts: Mapping[str, float], step_ms: float) -> dict[str, float]:
    """All accounts, with what one rank's step lacks of the mean step in the residual, so that they add up to it."""
    found = {str(one): float(accounts.get(str(one), 0.0)) for one in ACCOUNTS}
    found["residual"] += step_ms - sum(found.values())
    return found


def _log_unit(times: Sequence[float], rule: Statistic, index: int, arm: int, name: str) -> dict[str, Any]:
    kept = np.asarray(times[1:] if len(times) >= _LEAST_REPORTS else times, dtype=np.float64)
    if not kept.size:
        raise ValueError(f"{name}: log {index + 1} holds no step time; give a log that prints them")
    step = float(kept[chosen_steps(kept, rule)].mean())
    return _unit(arm, index, [float(one) for one in kept]) | {
        "step_ms": step,
        "accounts": {view: _padded({}, step) | {"hidden": 0.0} for view in VIEWS},
        "ranks": [0],
        "rank_hosts": [""],
        "local_ms": [step],
        "local_steps_ms": [],
        "coverage": None,
    }


def _most_changed(evidence: Mapping[str, Any]) -> int:
    changes = evidence["difference"]["local_ms"][0]
    return int(np.abs(changes).argmax())
