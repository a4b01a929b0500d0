"""What evidence may show beside its verdict, by name: each changes how the verdict is to be read."""

from __future__ import annotations

from enum import StrEnum


class Finding(StrEnum):
    """A named observation on one body of evidence. It describes; it supports and rejects nothing."""

    ORDER_EFFECT = "order_effect"
    TAIL_MECHANISM = "tail_mechanism"
    NO_STEADY_STATE = "no_steady_state"
    NOT_ESTIMABLE = "not_estimable"
    TIME = "time"
    RANK_DIFFERENCE = "rank_difference"


MEANINGS: dict[Finding, str] = {
    Finding.ORDER_EFFECT: "which arm ran first matters",
    Finding.TAIL_MECHANISM: "the slowest steps changed more than the typical one",
    Finding.NO_STEADY_STATE: "a run was still settling after a third of its steps; run it for longer",
    Finding.NOT_ESTIMABLE: "the units are too short for the statistic",
    Finding.TIME: "the difference changes within a run",
    Finding.RANK_DIFFERENCE: "one rank moved against the others",
}

LEAST_STEPS: dict[str, int] = {"p95": 200, "p99": 1000, "es95": 20}
"""Steady steps that a unit needs for a statistic of the tail.

The standard deviation of a run's p95 is 0.9 % at 200 steps, of its p99 2.7 % at 1000, where ten steps lie beyond it;
the mean of the slowest 5 % needs one step. Source: docs/method.md, design.
"""


def not_estimable(statistic: str, num_steps: int) -> str:
    """Why units of so many steady steps cannot give the statistic; empty where they can."""
    least = LEAST_STEPS.get(statistic, 1)
    return "" if num_steps >= least else f"not estimable: {statistic} needs {least} steps, the unit has {num_steps}"
