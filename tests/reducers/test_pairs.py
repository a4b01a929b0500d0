from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.reducers.pairs import HEALTHY, REGRESSED, abba_order, form_pairs


def _units(starts: list[int], steps: list[float], **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"started_ns": starts, "step_ms": steps, **columns})


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(0, 2**32))
def test_an_order_is_made_of_quadruples_and_a_longer_one_begins_with_the_shorter(pairs: int, seed: int) -> None:
    order = abba_order(pairs, seed)
    assert len(order) == 2 * pairs
    assert all({first, second} == {HEALTHY, REGRESSED} for first, second in zip(order[::2], order[1::2], strict=True))
    for at in range(0, len(order) - 3, 4):
        assert order[at : at + 2] == order[at + 2 : at + 4][::-1]
    assert abba_order(pairs + 3, seed)[: 2 * pairs] == order


def test_both_orientations_occur() -> None:
    assert {abba_order(2, seed)[0] for seed in range(20)} == {HEALTHY, REGRESSED}


def test_units_are_paired_by_their_number_whatever_ran_between() -> None:
    healthy = _units([0, 30], [1.0, 3.0], pair=[0, 1], compute=[0.5, 1.0])
    regressed = _units([10, 20], [2.0, 5.0], pair=[1, 0], compute=[0.5, 2.0])
    pairs = form_pairs(healthy, regressed)
    assert pairs.differences["step_ms"].tolist() == [4.0, -1.0]
    assert pairs.differences["compute"].tolist() == [1.5, -0.5]
    assert pairs.order.tolist() == [1, -1]


def test_the_same_number_in_two_launches_is_two_pairs() -> None:
    healthy = _units([0, 40], [1.0, 2.0], pair=[0, 0], launch=["a", "b"])
    regressed = _units([10, 30], [2.0, 5.0], pair=[0, 0], launch=["a", "b"])
    assert form_pairs(healthy, regressed).differences["step_ms"].tolist() == [1.0, 3.0]


def test_units_of_separate_launches_are_paired_by_number_too() -> None:
    healthy = _units([0, 30], [1.0, 3.0], pair=[0, 1], launch=["a", "d"])
    regressed = _units([10, 20], [2.0, 5.0], pair=[0, 1], launch=["b", "c"])
    assert form_pairs(healthy, regressed).differences["step_ms"].tolist() == [1.0, 2.0]


def test_without_numbers_neighbours_in_time_are_paired() -> None:
    """A B | B A | A B: the second and third unit are of one arm and belong to different pairs."""
    pairs = form_pairs(_units([0, 30, 40], [1.0, 2.0, 3.0]), _units([10, 20, 50], [4.0, 6.0, 8.0]))
    assert pairs.differences["step_ms"].tolist() == [3.0, 4.0, 5.0]
    assert pairs.order.tolist() == [1, -1, 1]
    assert pairs.num_dropped == 0


def test_a_unit_without_partner_is_dropped_and_counted() -> None:
    pairs = form_pairs(_units([0, 10, 30], [1.0, 2.0, 3.0]), _units([20], [4.0]))
    assert pairs.num_pairs == 1
    assert pairs.dropped == ("the healthy unit in row 0", "the healthy unit in row 2")


def test_a_pair_with_an_unmeasured_unit_is_dropped_whole() -> None:
    pairs = form_pairs(_units([0, 30], [1.0, np.nan], pair=[0, 1]), _units([10, 20], [4.0, 6.0], pair=[0, 1]))
    assert pairs.differences["step_ms"].tolist() == [3.0]
    assert pairs.num_dropped == 2


def test_what_one_side_did_not_measure_is_absent_and_not_zero() -> None:
    pairs = form_pairs(_units([0], [1.0], input=[np.nan], host=[1.0]), _units([10], [4.0], input=[2.0], copy=[1.0]))
    assert list(pairs.differences.columns) == ["step_ms", "input"]
    assert pairs.differences["input"].isna().all()


def test_arms_that_ran_at_the_same_time_are_refused() -> None:
    healthy = _units([0], [1.0], ended_ns=[100])
    with pytest.raises(ValueError, match="must take turns"):
        form_pairs(healthy, _units([50], [4.0], ended_ns=[150]))
    with pytest.raises(ValueError, match="must take turns"):
        form_pairs(_units([0], [1.0]), _units([0], [4.0]))


def test_ranks_that_leave_a_segment_while_others_enter_the_next_are_no_concurrency() -> None:
    assert form_pairs(_units([0], [1.0], ended_ns=[100]), _units([95], [4.0], ended_ns=[200])).num_pairs == 1


def test_a_number_used_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="pair 0 holds"):
        form_pairs(_units([0, 20], [1.0, 2.0], pair=[0, 0]), _units([10], [4.0], pair=[0]))


def test_a_table_without_step_times_is_refused() -> None:
    with pytest.raises(ValueError, match="lack step_ms"):
        form_pairs(pd.DataFrame({"started_ns": [0]}), _units([10], [4.0]))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=12), st.integers(0, 1000))
def test_swapping_the_arms_flips_signs_and_row_order_does_not_matter(steps: list[float], seed: int) -> None:
    arms = np.array(abba_order(len(steps) // 2, seed))
    table = _units(list(range(0, 10 * len(arms), 10)), steps[: len(arms)])
    healthy, regressed = table[arms == HEALTHY], table[arms == REGRESSED]
    straight = form_pairs(healthy, regressed)
    swapped = form_pairs(regressed, healthy)
    mixed = form_pairs(healthy.iloc[::-1], regressed.sample(frac=1, random_state=seed))
    assert swapped.differences["step_ms"].tolist() == (-straight.differences["step_ms"]).tolist()
    assert swapped.order.tolist() == (-straight.order).tolist()
    assert mixed.differences["step_ms"].tolist() == straight.differences["step_ms"].tolist()
