"""Replay of a graph of operations, and the shares that are read off it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.whatif import graph, replay, shares


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    num = draw(st.integers(1, 12))
    return [draw(st.lists(st.integers(0, n - 1), max_size=3, unique=True)) if n else [] for n in range(num)]


@given(before=graphs(), data=st.data())
def test_an_operation_ends_its_duration_after_the_last_that_it_waits_for(before, data):
    duration = data.draw(st.lists(st.integers(0, 9), min_size=len(before), max_size=len(before)))
    done = replay(graph(before), np.array(duration, dtype=float)[:, np.newaxis])[:, 0]
    for at, waits_for in enumerate(before):
        assert done[at] == duration[at] + max((done[one] for one in waits_for), default=0)


def test_columns_are_replayed_independently():
    ops = graph([[], [0], [0], [1, 2]])
    durations = np.array([[1.0, 2], [5, 1], [2, 7], [1, 1]])
    assert replay(ops, durations)[3].tolist() == [7, 10]


def test_operations_that_wait_in_a_circle_are_refused():
    with pytest.raises(ValueError, match="circle"):
        graph([[1], [0]])


def test_removal_and_addition_that_agree_give_their_mean_and_others_do_not():
    alike = shares(slow=20, fast=10, removed=11, added=19.9)
    assert alike is not None
    assert alike.agreed == pytest.approx(0.945)
    hidden = shares(slow=20, fast=10, removed=20, added=20)  # beside another cause of the same size
    assert hidden is not None
    assert (hidden.removal, hidden.addition, hidden.agreed) == (0, 1, None)


def test_without_a_loss_there_is_nothing_to_share():
    assert shares(slow=10, fast=10, removed=10, added=10) is None
