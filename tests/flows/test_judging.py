"""Hypotheses that are judged side by side share their error: what one alone would show, two together may not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from narrows.flows import judging
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Prediction,
    Registration,
    RejectionCriterion,
    Test,
)
from narrows.inquiry.scopes import Rung
from narrows.inquiry.verdict import Verdict

PAIRS = 12
SESSION: Any = SimpleNamespace(state=SimpleNamespace(reference={"d_ms": [10.0] * 8}, failures={}, answers={}))


def registered(test: Test, mechanism: str, family: int) -> Registration:
    one = Hypothesis(
        key=f"{test.value}:{mechanism}", rung=Rung.PERTURBATION, test=test, basis=Basis.EXPERIMENT, claim="it is so",
        mechanism=mechanism, prediction=Prediction(metric="step time", unit="ms", low=5.0, high=15.0),
        reject_if=RejectionCriterion(metric="step time", comparison=Comparison.UPPER_BELOW, bound=5.0, unit="ms"),
        pi_ms=10.0, family=family,
    )  # fmt: skip
    return Registration(id="H01", hypothesis=one, created_ns=1)


def around(mean: float, spread: float) -> list[float]:
    return [mean + (spread if at % 2 else -spread) for at in range(PAIRS)]


def swapped(hardware: list[float], data: list[float]) -> dict[str, Any]:
    def units(sign: int) -> list[dict[str, Any]]:
        both = zip(hardware, data, strict=True)
        return [{"pair": at, "local_ms": [0.0, h + sign * d]} for at, (h, d) in enumerate(both)]

    return {"arms": {"own": {"units": units(1)}, "exchanged": {"units": units(-1)}}}


BARELY = around(5.6, 1.0)
"""Above the boundary of 5 ms by a p between half of alpha and alpha."""


def test_one_of_two_explanations_gets_all_of_the_error_once_the_other_is_decided() -> None:
    one = registered(Test.SWAP, "hardware", 2)
    settled, open_still = swapped(BARELY, around(0.0, 0.1)), swapped(BARELY, around(5.0, 1.0))
    assert judging._swap(SESSION, one, settled).verdict is Verdict.SUPPORTED
    assert judging._swap(SESSION, one, open_still).verdict is Verdict.INCONCLUSIVE
    assert judging._swap(SESSION, registered(Test.SWAP, "data", 2), settled).verdict is Verdict.REJECTED


@pytest.mark.parametrize(("family", "verdict"), [(1, Verdict.SUPPORTED), (2, Verdict.INCONCLUSIVE)])
def test_a_change_among_several_needs_more_than_one_alone(family: int, verdict: Verdict) -> None:
    evidence = {
        "arms": {"perturbed": {}, "regressed": {}},
        "order": [1, -1] * (PAIRS // 2),
        "difference": {"step_ms": BARELY},
    }
    assert judging._perturbation(SESSION, registered(Test.PERTURBATION, "case", family), evidence).verdict is verdict
