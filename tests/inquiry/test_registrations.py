"""Experiments that compare something, and registrations whose digest holds every field."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import pytest

from narrows.inquiry.accounts import Account
from narrows.inquiry.codec import plain
from narrows.inquiry.design import Arm, Experiment, Mode
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Prediction,
    Registration,
    RejectionCriterion,
    Test,
)
from narrows.inquiry.scopes import Rung, Scope, placement

HYPOTHESIS = Hypothesis(
    key="scope:one_rank",
    rung=Rung.ONE_RANK,
    test=Test.SCOPE,
    basis=Basis.EXPERIMENT,
    claim="The loss appears at one rank",
    mechanism="compute",
    prediction=Prediction(metric="step time", unit="ms", low=3.0, high=9.0),
    reject_if=RejectionCriterion(metric="step time", comparison=Comparison.UPPER_BELOW, bound=3.0, unit="ms"),
    scope=Scope.ONE_RANK,
    account=Account.COMPUTE,
)
RECORD = Registration(id="H01", hypothesis=HYPOTHESIS, created_ns=5).sealed()


def _experiment(**given: Any) -> Experiment:
    fields = {
        "key": "one_rank-regressed",
        "rung": Rung.ONE_RANK,
        "scope": Scope.ONE_RANK,
        "program": "step",
        "before": Arm(name="healthy", config={"packing": "snake"}),
        "after": Arm(name="regressed", config={"packing": "greedy"}),
        "placement": placement(("n0",), 1),
        "mode": Mode.SWITCHBACK,
        "device": "emulated",
    }
    return Experiment(**(fields | given))


def _other(value: Any) -> Any:
    """A value of the same kind that is not ``value``."""
    if isinstance(value, Enum):
        return next(one for one in type(value) if one is not value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = dataclasses.fields(value)[0].name
        return dataclasses.replace(value, **{name: _other(getattr(value, name))})
    if isinstance(value, str) or value is None:
        return f"{value} changed"
    if isinstance(value, tuple):
        return (*value, value[0] if value else "n9")
    return value + 1


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Hypothesis)])
def test_a_changed_field_of_the_hypothesis_no_longer_matches_the_digest(name: str) -> None:
    changed = dataclasses.replace(HYPOTHESIS, **{name: _other(getattr(HYPOTHESIS, name))})
    assert dataclasses.replace(RECORD, hypothesis=changed).computed() != RECORD.sha256


@pytest.mark.parametrize("name", ["id", "created_ns", "analysis_version"])
def test_a_changed_field_of_the_registration_no_longer_matches_the_digest(name: str) -> None:
    changed = dataclasses.replace(RECORD, **{name: _other(getattr(RECORD, name))})
    assert changed.computed() != RECORD.sha256


def test_a_sealed_registration_carries_the_digest_that_it_computes() -> None:
    assert RECORD.sha256 == RECORD.computed() == RECORD.sealed().sha256
    assert len(RECORD.sha256) == 64


@pytest.mark.parametrize("low", [None, 3.0])
@pytest.mark.parametrize("high", [None, 9.0])
def test_predictions_and_criteria_are_said_with_their_unit(low: float | None, high: float | None) -> None:
    if low is None and high is None:
        return
    words = Prediction(metric="step time", unit="ms", low=low, high=high).words()
    assert words.startswith("step time")
    assert words.endswith(" ms")
    assert HYPOTHESIS.reject_if.words() == "step time: upper bound below 3 ms"


def test_arms_that_are_the_same_but_for_their_name_are_refused() -> None:
    with pytest.raises(ValueError, match="healthy and regressed are the same; nothing can differ"):
        _experiment(after=Arm(name="regressed", config={"packing": "snake"}))


@pytest.mark.parametrize(
    "change",
    [{"config": {"packing": "greedy"}}, {"args": ("--x",)}, {"env": {"A": "1"}}, {"ranks": (0,)}, {"shards": (3,)}],
)
def test_arms_may_differ_in_any_one_thing(change: dict[str, Any]) -> None:
    assert _experiment(before=Arm(name="healthy"), after=Arm(name="regressed", **change)).after.name == "regressed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after": Arm(name="healthy", config={"packing": "greedy"})}, "both arms are named healthy"),
        ({"pairs": 0}, "0 pairs"),
        ({"steps": 3, "washout": 3}, "3 washed out"),
    ],
)
def test_an_experiment_that_could_compare_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _experiment(**given)


def test_the_plan_digest_follows_every_field_of_the_experiment() -> None:
    plain_one = _experiment()
    changes = [{"seed": 1}, {"steps": 17}, {"placement": placement(("n1",), 1)}, {"base": {"layers": 2}}, {"pairs": 4}]
    digests = {_experiment(**change).spec_digest() for change in changes} | {plain_one.spec_digest()}
    assert len(digests) == len(changes) + 1
    assert plain(plain_one)["before"]["config"] == {"packing": "snake"}


def test_restarts_pay_for_every_start_and_switchback_for_one() -> None:
    one_launch = _experiment().device_hours(6, start_s=10)
    restarts = _experiment(mode=Mode.RESTART).device_hours(6, start_s=10)
    assert restarts - one_launch == pytest.approx(11 * 10 / 3600)
    four = _experiment(placement=placement(("n0", "n1"), 2)).device_hours(6, start_s=10)
    assert four == pytest.approx(4 * one_launch)
