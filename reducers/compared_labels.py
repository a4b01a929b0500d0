"""Bottleneck labels from accounts in ms a step, by the same rules as for traces; kernel lengths are not known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import msgspec
import numpy as np

from narrows.reducers.traces.labels import BT_1, StepSums, Thresholds, delta_label, label_steps
from narrows.reducers.traces.reduced import Label


class Rules(TypedDict):
    """What decides a label, beside the accounts."""

    has_input_spans: bool
    thresholds: Thresholds


_COMMUNICATION = ("transfer", "skew", "pipeline")


def label_of(
    accounts_ms: Mapping[str, float], hidden_ms: float, *, has_input_spans: bool, thresholds: Thresholds = BT_1
) -> Label:
    """What the step mostly goes to; ``hidden_ms`` is communication under compute."""
    split = {name: accounts_ms[name] for name in _COMMUNICATION}
    sums = _sums(accounts_ms, hidden_ms)
    return label_steps(sums, has_input_spans=has_input_spans, split=split, limits=thresholds)


def delta_label_of(
    healthy_ms: Mapping[str, float],
    regressed_ms: Mapping[str, float],
    *,
    has_input_spans: bool,
    thresholds: Thresholds = BT_1,
) -> Label:
    """The same rules on what grew, as shares of the step's change; ``none`` below 1 % of the healthy step."""
    before, after = _sums(healthy_ms, 0.0), _sums(regressed_ms, 0.0)
    found = delta_label(before, after, has_input_spans=has_input_spans, limits=thresholds)
    if found.label != "communication":
        return found
    return _with_sublabel(found, {name: regressed_ms[name] - healthy_ms[name] for name in _COMMUNICATION})


def _with_sublabel(label: Label, growth: Mapping[str, float]) -> Label:
    return msgspec.structs.replace(label, sublabel=max(growth, key=lambda name: growth[name]))


def _sums(accounts: Mapping[str, float], hidden: float) -> StepSums:
    """Idle is what is neither compute, communication nor copies; the critical path's entries may be negative."""
    at_least = {name: max(0.0, value) for name, value in accounts.items()}
    step = sum(at_least.values())
    exposed = sum(at_least[name] for name in _COMMUNICATION)
    busy = at_least["compute"] + exposed + at_least["copy"]

    def one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([value], dtype=np.float64)

    return StepSums(
        step=one(step),
        busy=one(busy),
        communication=one(exposed + hidden),
        exposed_communication=one(exposed),
        exposed_copy=one(at_least["copy"]),
        kernels=one(0.0),
        short_kernels=one(0.0),
        gaps=one(step - busy),
        launch_gaps=one(at_least["host"]),
        input_gaps=one(at_least["input"]),
    )
