"""What a verdict costs: more pairs where a small scope needs them, and none at full scale that would not decide."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from narrows.flows.judging_given import _looks, judge_regression
from narrows.flows.judging_scope import against_prediction
from narrows.inquiry.case import ArmSpec, Budget, Case, Cluster, Judging, Workload
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Prediction,
    Registration,
    RejectionCriterion,
    Test,
)
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.verdict import Verdict

GIVEN_MS = [8.0, 9.0, 10.0, 11.0, 12.0, 9.5, 10.5, 10.0]
ON_THE_BOUNDARY = [3.0, 7.0, 6.5, 3.5]
CLEAR = [9.0, 13.0, 6.0, 8.0]
"""Above the boundary of 5 ms, though not after four pairs."""


def case_of(mode: Mode = Mode.RESTART, kind: ArmKind = ArmKind.CONFIG, nodes: int = 16) -> Case:
    arm = ArmSpec(config={"packing": "snake"})
    return Case(
        name="cost", question="", runs={},
        workload=Workload(
            program="step", builtin=True, kind=kind, healthy=arm, regressed=replace(arm, config={"packing": "greedy"}),
        ),
        cluster=Cluster(
            launcher="local", nodes=nodes, ranks_per_node=2, hosts=tuple(f"n{at}" for at in range(nodes)),
            device="emulated",
        ),
        budget=Budget(device_hours=1.0, ask_above_device_hours=1.0), judging=Judging(mode=mode),
    )  # fmt: skip


def session_of(case: Case, d_ms: list[float]) -> Any:
    state = SimpleNamespace(reference={"d_ms": d_ms}, failures={}, answers={}, opened={"margin_ms": 1.0})
    return SimpleNamespace(case=case, state=state)


def at(scope: Scope) -> Registration:
    one = Hypothesis(
        key=f"scope:{scope.value}", rung=Rung.FULL, test=Test.SCOPE, basis=Basis.EXPERIMENT, claim="it is there",
        mechanism="link", scope=scope, experiment="pairs",
        prediction=Prediction(metric="step time", unit="ms", low=5.0, high=15.0),
        reject_if=RejectionCriterion(metric="step time", comparison=Comparison.UPPER_BELOW, bound=5.0, unit="ms"),
        pi_ms=10.0, alpha=0.02,
    )  # fmt: skip
    return Registration(id="H01", hypothesis=one, created_ns=1)


def test_at_full_scale_a_question_that_the_last_look_would_leave_open_is_left_open_at_once() -> None:
    found = against_prediction(session_of(case_of(), GIVEN_MS), at(Scope.FULL), ON_THE_BOUNDARY, None)

    assert (found.verdict, found.wanted_pairs, found.pairs) == (Verdict.INCONCLUSIVE, None, 4)
    assert "stopped: as the pairs go, 12 of them would decide in" in found.reason
    assert "it would take more than 200" in found.reason


@pytest.mark.parametrize(("scope", "pairs"), [(Scope.FULL, CLEAR), (Scope.TWO_NODES, ON_THE_BOUNDARY)])
def test_more_pairs_are_asked_for_where_they_may_decide_or_cost_less_than_a_larger_scope(
    scope: Scope, pairs: list[float]
) -> None:
    found = against_prediction(session_of(case_of(), GIVEN_MS), at(scope), pairs, None)

    assert (found.verdict, found.wanted_pairs) == (None, 6)


def looks_for(case: Case, d_ms: list[float], **kappa: float) -> dict[str, list[int]]:
    reading: Any = SimpleNamespace(kappa=kappa)
    return _looks(session_of(case, d_ms), reading)


def test_a_small_scope_takes_more_pairs_only_where_its_share_of_the_loss_needs_them() -> None:
    wide = [10.0 + 3 * (one - 10.0) for one in GIVEN_MS]

    assert looks_for(case_of(), wide, one_rank=0.0, one_node=0.05, two_nodes=0.6, full=1.0) == {
        "two_nodes": [4, 6, 8, 12, 16, 24]
    }
    assert looks_for(case_of(), GIVEN_MS, two_nodes=0.6, full=1.0) == {}


def test_more_pairs_are_not_planned_where_they_would_cost_more_than_the_next_scope_or_no_restarts_are_compared() -> (
    None
):
    wide = [10.0 + 3 * (one - 10.0) for one in GIVEN_MS]
    kappa = {"two_nodes": 0.6, "full": 1.0}

    assert looks_for(case_of(nodes=3), wide, **kappa) == {}  # three hosts cost less than twice as much as two
    assert looks_for(case_of(Mode.SWITCHBACK), wide, **kappa) == {}
    assert looks_for(case_of(kind=ArmKind.PLACEMENT), wide, **kappa) == {}
    assert looks_for(case_of(), wide[:3], **kappa) == {}


def test_a_loss_that_eight_pairs_leave_open_is_told_with_the_pairs_that_it_would_take() -> None:
    pairs = [0.5, 2.5, 1.0, 3.0, 0.0, 2.0, 1.5, 2.3]
    one = replace(at(Scope.FULL), hypothesis=replace(at(Scope.FULL).hypothesis, test=Test.REGRESSION, alpha=0.05))
    arm = {"step_ms": 20.0}
    evidence = {"difference": {"step_ms": pairs}, "arms": {"a": arm, "b": arm}, "statistic": "mean"}

    found = judge_regression(session_of(case_of(), GIVEN_MS), one, evidence)

    assert found.verdict is Verdict.INCONCLUSIVE
    assert "pairs would, or longer runs" in found.reason
    few = judge_regression(session_of(case_of(), GIVEN_MS), one, evidence | {"difference": {"step_ms": pairs[:4]}})
    assert "pairs would" not in few.reason
