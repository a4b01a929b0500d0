"""Which of two runs is given first changes the sign of what is found, and nothing else."""

from __future__ import annotations

import pytest
from step_record_makers import job

from narrows.reducers.compared_records import compare_records

STRETCH = (9.0, 120, 260)


@pytest.mark.parametrize(
    ("healthy", "regressed"),
    [
        pytest.param({}, {"own": [((3,), STRETCH)]}, id="one rank for a while"),
        pytest.param({}, {"own": [((3,), (9.0, 0, 400))]}, id="one rank throughout"),
        pytest.param({}, {"own": [(range(8), STRETCH)]}, id="all ranks for a while"),
        pytest.param({}, {"shared": STRETCH}, id="what they share for a while"),
        pytest.param({}, {}, id="nothing"),
    ],
)
def test_swapping_the_runs_flips_every_sign(healthy, regressed):
    one, two = job(1, **healthy), job(2, **regressed)
    found = compare_records(one, two, ("one", "two"))
    turned = compare_records(two, one, ("two", "one"))
    assert turned.step.delta == pytest.approx(-found.step.delta)
    assert turned.step.healthy == pytest.approx(found.step.regressed)
    for view, accounts in found.views.items():
        for name, change in accounts.items():
            assert turned.views[view][name].delta == pytest.approx(-change.delta)
    assert turned.status == {"slower": "faster", "faster": "slower"}.get(found.status, found.status)
    assert sum(change.delta for change in turned.accounts.values()) == pytest.approx(turned.step.delta)


def test_a_slower_part_of_the_first_run_is_told_and_lays_the_loss_to_nobody():
    healthy, slow = job(1), job(2, own=[((3,), STRETCH)])
    found = compare_records(slow, healthy, ("one", "two"))
    assert found.status == "faster"
    assert found.culprit == {"kind": "none", "members": []}
    assert found.slow_steps == pytest.approx((120, 259), abs=10)
    assert "than those of the first, which are a slower part of it" in found.reading
    assert "Inside the first run" in found.certainty
    assert (found.follows, found.next.row) == ("", "none")


def test_a_run_that_is_slower_throughout_is_slower_whatever_part_of_the_other_stands_out():
    found = compare_records(job(1, own=[((3,), (4.0, 120, 260))]), job(2, shared=(8.0, 0, 400)), ("one", "two"))
    assert found.status == "slower"
