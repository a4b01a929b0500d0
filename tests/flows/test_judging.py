"""Hypotheses that are judged side by side share their error: what one alone would show, two together may not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from narrows.flows import judging
from narrows.inquiry.accounts import Account
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Ledger,
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


BARELY = around(5.6, 1.0)
"""Above the boundary of 5 ms by a p between half of alpha and alpha."""


@pytest.mark.parametrize(("family", "verdict"), [(1, Verdict.SUPPORTED), (2, Verdict.INCONCLUSIVE)])
def test_a_change_among_several_needs_more_than_one_alone(family: int, verdict: Verdict) -> None:
    evidence = {
        "arms": {"perturbed": {}, "regressed": {}},
        "order": [1, -1] * (PAIRS // 2),
        "difference": {"step_ms": BARELY},
    }
    assert judging._perturbation(SESSION, registered(Test.PERTURBATION, "case", family), evidence).verdict is verdict


def gained(step: list[float], **accounts: list[float]) -> dict[str, Any]:
    """The evidence of a change that gave ``step`` ms back, pair by pair, and of it so much from each account."""
    tables = {view.value: accounts for view in Ledger}
    return {"arms": {"perturbed": {}, "regressed": {}}, "difference": {"step_ms": step, "accounts": tables}}


def closing(account: Account, *together: Account) -> Registration:
    one = registered(Test.CLOSING, "case", 1)
    return replace(
        one, hypothesis=replace(one.hypothesis, account=account, together_with=together, ledger=Ledger.RANK_MEAN)
    )


OPEN = [2.0, 9.0, 4.0, 9.5]
"""What an account holds of a gain of 10 ms: more than half in some pairs, so neither closed nor unsupported."""


def test_an_account_that_is_open_at_a_look_asks_for_the_next_and_is_judged_at_the_last() -> None:
    one = closing(Account.SKEW)
    first = judging._closing(SESSION, one, gained([10.0, 10.1, 9.9, 10.0], skew=OPEN))
    assert (first.verdict, first.wanted_pairs, first.pairs) == (None, 6, 4)
    last = judging._closing(SESSION, one, gained([10.0, 10.1, 9.9, 10.0] * 3, skew=OPEN * 3))
    assert (last.verdict, last.wanted_pairs) == (Verdict.INCONCLUSIVE, None)


def test_an_open_account_whose_experiment_was_declined_is_judged_on_what_there_is() -> None:
    one = closing(Account.SKEW)
    one = replace(one, hypothesis=replace(one.hypothesis, experiment="tried"))
    state = SimpleNamespace(reference={}, failures={}, answers={"tried": {"decision": "skip"}})
    found = judging._closing(
        SimpleNamespace(state=state),
        one,
        gained([10.0, 10.1, 9.9, 10.0], skew=OPEN),  # type: ignore[arg-type]
    )
    assert (found.verdict, found.wanted_pairs) == (Verdict.INCONCLUSIVE, None)


def test_waiting_and_local_time_close_together_where_the_waiting_alone_holds_less_than_half() -> None:
    step = [10.0, 10.1, 9.9, 10.0] * 3
    evidence = gained(step, skew=[0.4 * one for one in step], compute=[0.6 * one for one in step])
    assert judging._closing(SESSION, closing(Account.SKEW), evidence).verdict is Verdict.REJECTED
    assert judging._closing(SESSION, closing(Account.SKEW, Account.COMPUTE), evidence).verdict is Verdict.SUPPORTED
