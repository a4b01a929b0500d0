"""On which side of the margin upgraded hosts lie, alone and against what their set did before the upgrade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.inquiry.verdict import Verdict
from narrows.reducers.admission import judge_admission

SPREAD = [0.02, -0.01, 0.01, -0.02, 0.015, -0.015]


def around(mean: float) -> list[float]:
    return [mean + one for one in SPREAD]


@pytest.mark.parametrize(
    ("mean", "verdict", "kind"),
    [
        (0.0, Verdict.REJECTED, "equivalent"),
        (0.9, Verdict.SUPPORTED, ""),
        (-0.9, Verdict.REJECTED, "faster"),
        (0.5, Verdict.INCONCLUSIVE, ""),
    ],
)
def test_the_upgrade_is_admitted_below_the_margin_refused_above_it_and_open_on_it(
    mean: float, verdict: Verdict, kind: str
) -> None:
    found = judge_admission(around(mean), 0.5)
    assert (found.verdict, found.kind) == (verdict, kind)


def test_a_baseline_takes_out_what_the_hosts_differed_by_before() -> None:
    slower_hosts, same_loss = around(0.9), around(0.9)
    assert judge_admission(slower_hosts, 0.5).verdict is Verdict.SUPPORTED
    after = judge_admission(slower_hosts, 0.5, same_loss)
    assert after.verdict is Verdict.REJECTED
    assert after.effect_ms == pytest.approx(0.0)
    hidden = judge_admission(around(0.0), 0.5, around(-0.9))
    assert hidden.verdict is Verdict.SUPPORTED, "faster hosts hid what the upgrade cost"


def test_an_uncertain_baseline_makes_the_verdict_uncertain() -> None:
    wild = [2.0, -2.0, 1.5, -1.5]
    assert judge_admission(around(0.0), 0.5).verdict is Verdict.REJECTED
    found = judge_admission(around(0.0), 0.5, wild)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.more_pairs is None, "no number of pairs mends the baseline"


def test_an_open_question_says_how_many_more_pairs_decide_it() -> None:
    rng = np.random.Generator(np.random.PCG64(5))
    noisy = rng.normal(0.0, 1.2, 12)
    found = judge_admission(noisy, 0.5)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.more_pairs is not None
    quieter = judge_admission(noisy - noisy.mean(), 0.5)
    assert quieter.more_pairs is not None
    closer = judge_admission(noisy - noisy.mean() + 0.2, 0.5)
    assert closer.more_pairs is None or closer.more_pairs > quieter.more_pairs


@given(
    pairs=st.lists(st.floats(-20, 20), min_size=4, max_size=12),
    before=st.lists(st.floats(-20, 20), min_size=4, max_size=8),
    scale=st.sampled_from([0.25, 2.0, 8.0]),
)
def test_scaling_all_times_and_the_margin_alike_leaves_the_verdict(
    pairs: list[float], before: list[float], scale: float
) -> None:
    here = judge_admission(pairs, 1.0, before)
    there = judge_admission([scale * one for one in pairs], scale, [scale * one for one in before])
    assert there.verdict is here.verdict
    assert there.effect_ms == pytest.approx(scale * here.effect_ms, abs=1e-9)


def test_identical_sets_are_called_slower_no_more_often_than_promised() -> None:
    rng = np.random.Generator(np.random.PCG64(11))
    on_the_margin = [judge_admission(rng.normal(0.5, 0.3, 12), 0.5).verdict for _ in range(400)]
    for wrong in (Verdict.SUPPORTED, Verdict.REJECTED):
        assert on_the_margin.count(wrong) / 400 < 0.09


def test_a_margin_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="above 0"):
        judge_admission(around(0.0), 0.0)
