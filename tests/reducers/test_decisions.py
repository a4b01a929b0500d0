"""The decision table: one row for each kind of evidence, read from the top, with bounds in ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.inquiry.accounts import Account
from narrows.reducers.decisions import RHO, TABLE, Signs, next_experiment, unsettled

COMPUTE = Signs(delta_ms=10.0, account=Account.COMPUTE, account_ms=9.0, culprit="all")
SKEW = replace(COMPUTE, account=Account.SKEW, culprit="varies", skew_share=0.9)
TRANSFER = replace(COMPUTE, account=Account.TRANSFER, culprit="link")
CASES: dict[str, Signs] = {
    "work": replace(COMPUTE, work_changed=True, work_ms=8.0),
    "grows": replace(COMPUTE, growth_share=0.6),
    "tail": replace(COMPUTE, tail_share=0.6),
    "compute-everywhere": COMPUTE,
    "compute-somewhere": replace(COMPUTE, culprit="host", members=("host n1",)),
    "imbalance": replace(SKEW, heaviest_rank_up=True),
    "jitter": SKEW,
    "host": replace(COMPUTE, account=Account.HOST),
    "input": replace(COMPUTE, account=Account.INPUT),
    "copy-memory-checkpoint": replace(COMPUTE, account=Account.MEMORY),
    "episodes": replace(TRANSFER, rise_of_autocorrelation=0.3),
    "transfer-inside": replace(TRANSFER, slower_inside_hosts=("tp",)),
    "transfer-one-group": replace(TRANSFER, slower_across_hosts=("dp",), num_groups=3),
    "transfer-across": replace(TRANSFER, slower_across_hosts=("dp",)),
    "overlap": replace(TRANSFER, hidden_ms=-3.0),
    "transfer": TRANSFER,
}


def test_every_row_has_evidence_that_leads_to_it() -> None:
    assert list(CASES) == [row.name for row in TABLE]


@pytest.mark.parametrize(("row", "signs"), CASES.items())
def test_evidence_leads_to_its_row_with_a_prediction_and_a_bound(row: str, signs: Signs) -> None:
    found = next_experiment(signs)
    assert found.row == row
    assert found.predicted_ms == pytest.approx(8.0 if row == "work" else 9.0)
    assert found.reject_below_ms == pytest.approx(RHO * (found.predicted_ms or 0.0))
    assert "{" not in " ".join([found.evidence, found.experiment, found.prediction, found.rejection])


def test_a_loss_in_no_account_asks_for_more_evidence() -> None:
    found = next_experiment(replace(COMPUTE, account=None, account_ms=0.0, culprit="none"))
    assert found.row == "more-evidence"
    assert found.predicted_ms == 10.0


def test_an_unsettled_difference_asks_for_more_pairs() -> None:
    assert unsettled(0.4, 0.3).reject_below_ms == 0.3


@given(
    st.sampled_from(list(CASES.values())), st.floats(0.001, 1000), st.sampled_from(["all", "host", "varies", "none"])
)
def test_scaling_time_scales_the_prediction_and_keeps_the_row(signs: Signs, factor: float, culprit: str) -> None:
    signs = replace(signs, culprit=culprit)
    times: dict[str, Any] = {name: factor * getattr(signs, name) for name in ("delta_ms", "account_ms", "work_ms")}
    before, after = next_experiment(signs), next_experiment(replace(signs, **times))
    assert before.row == after.row
    assert after.predicted_ms == pytest.approx(factor * (before.predicted_ms or 0.0))
