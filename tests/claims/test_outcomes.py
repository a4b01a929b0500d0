"""How a revalidation ends, from pair differences alone: the range, the outcomes, and what is registered first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.flows.claims_file import load_claim
from narrows.inquiry.claim import Claim, Outcome
from narrows.inquiry.docket import Docket
from narrows.inquiry.hypotheses import Registration
from narrows.inquiry.revalidation import RANGE_KEYS, SHARE, next_step, outcome, present_key
from narrows.inquiry.state import Judgement, State
from narrows.inquiry.steps import Register
from narrows.inquiry.verdict import Verdict
from narrows.reducers.ranges import judge_range

PADDING = Path(__file__).with_name("padding.yaml")
FAR, NEAR = [9.9, 10.0, 10.1, 10.05, 9.95, 10.0], [4.9, 5.0, 5.1, 5.05, 4.95, 5.0]


@pytest.fixture(scope="module")
def claim() -> Claim:
    return load_claim(PADDING)


def test_an_effect_inside_the_range_is_supported_and_one_outside_is_rejected() -> None:
    assert judge_range(NEAR, 4.0, 6.0).verdict is Verdict.SUPPORTED
    for low, high in ((11.0, 20.0), (1.0, 9.0)):
        assert judge_range(FAR, low, high).verdict is Verdict.REJECTED


def test_an_effect_at_the_edge_of_the_range_asks_for_more_pairs_and_ends_inconclusive() -> None:
    edge = [4.0, 6.0, 4.5, 5.5, 4.2, 5.8, 4.6, 5.4, 4.1, 5.9, 4.3, 5.7]
    first = judge_range(edge[:4], 5.0, 9.0)
    assert (first.verdict, first.wanted_pairs) == (Verdict.INCONCLUSIVE, 6)
    last = judge_range(edge, 5.0, 9.0)
    assert (last.verdict, last.wanted_pairs) == (Verdict.INCONCLUSIVE, None)


@given(
    pairs=st.lists(st.floats(-50, 50), min_size=4, max_size=12),
    low=st.floats(-40, 40),
    width=st.floats(0.5, 40),
    shift=st.floats(-30, 30),
)
def test_shifting_pairs_and_range_alike_leaves_the_verdict(
    pairs: list[float], low: float, width: float, shift: float
) -> None:
    here = judge_range(pairs, low, low + width)
    there = judge_range([one + shift for one in pairs], low + shift, low + width + shift)
    mirrored = judge_range([-one for one in pairs], -low - width, -low)
    scaled = judge_range([4 * one for one in pairs], 4 * low, 4 * (low + width))
    assert mirrored.verdict is here.verdict
    assert scaled.verdict is here.verdict
    if here.verdict is not there.verdict:  # a bound that lies on the edge may fall to either side by rounding
        assert Verdict.INCONCLUSIVE in (here.verdict, there.verdict)


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="is empty"):
        judge_range(NEAR, 3.0, 3.0)


def test_everything_is_registered_before_anything_is_launched(claim: Claim) -> None:
    step = next_step(claim, Docket(None))
    assert isinstance(step, Register)
    assert [one.key for one in step.hypotheses] == ["scope:one_rank", "range:effect_ms", "share"]
    assert all(one.experiment == "one_rank-regressed" for one in step.hypotheses)
    assert [one.pi_ms for one in step.hypotheses[:2]] == [5.0, 5.0]


def judged(claim: Claim, **verdicts: Verdict) -> State:
    """A state with these verdicts, by the short names ``present``, ``range``, ``share``, ``gain``."""
    keys = {"present": present_key(claim), "range": RANGE_KEYS[next(iter(RANGE_KEYS))], "share": SHARE,
            "gain": list(RANGE_KEYS.values())[1]}  # fmt: skip
    step = next_step(claim, Docket(None))
    assert isinstance(step, Register)
    state = State()
    for number, (name, verdict) in enumerate(verdicts.items()):
        hypothesis = replace(step.hypotheses[0], key=keys[name])
        state.registrations[f"H{number}"] = Registration(id=f"H{number}", hypothesis=hypothesis, created_ns=0)
        state.ids[keys[name]] = f"H{number}"
        state.judgements[f"H{number}"] = Judgement(
            hypothesis=f"H{number}", verdict=verdict, effect_ms=1.0, interval_ms=None, reason=name
        )
    return state


YES, NO, OPEN = Verdict.SUPPORTED, Verdict.REJECTED, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"present": YES, "range": YES, "share": YES}, Outcome.HOLDS),
        ({"present": YES, "range": YES, "share": YES, "gain": YES}, Outcome.HOLDS),
        ({"present": NO, "range": NO, "share": NO}, Outcome.GONE),
        ({"present": NO, "range": NO, "share": OPEN}, Outcome.GONE),
        ({"present": YES, "range": NO, "share": YES}, Outcome.MOVED),
        ({"present": OPEN, "range": NO, "share": YES}, Outcome.MOVED),
        ({"present": YES, "range": YES, "share": NO}, Outcome.MOVED),
        ({"present": YES, "range": YES, "share": YES, "gain": NO}, Outcome.MOVED),
        ({"present": YES, "range": OPEN, "share": YES}, Outcome.INCONCLUSIVE),
        ({"present": OPEN, "range": OPEN, "share": OPEN}, Outcome.INCONCLUSIVE),
        ({}, Outcome.INCONCLUSIVE),
    ],
)
def test_the_outcome_follows_from_the_verdicts(claim: Claim, verdicts: dict[str, Any], expected: Outcome) -> None:
    found, sentence = outcome(judged(claim, **verdicts))
    assert found is expected
    assert sentence
