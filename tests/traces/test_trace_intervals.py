from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.traces.intervals import (
    clip_streams,
    covered_before,
    covered_within,
    join,
    overlap,
    segments,
    touching,
    union,
)
from narrows.reducers.traces.times import FLOAT_LIMIT_US, ns_from_digits, ns_from_us

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 20)), max_size=25)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in pairs], np.int64)
    return starts, starts + np.array([length for _, length in pairs], np.int64)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {at for start, length in pairs for at in range(start, start + length)}


@given(intervals)
def test_a_union_is_the_set_of_points_in_disjoint_ordered_pieces(pairs: list[tuple[int, int]]) -> None:
    found = union(*arrays(pairs))
    assert found.total == len(points(pairs))
    assert (found.ends > found.starts).all()
    assert (found.starts[1:] > found.ends[:-1]).all()


@given(intervals, intervals)
def test_overlap_and_join_agree_with_sets_whichever_comes_first(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = union(*arrays(one)), union(*arrays(other))
    assert overlap(a, b) == overlap(b, a) == len(points(one) & points(other))
    assert join(a, b).total == len(points(one) | points(other))
    assert join(a, b).total == a.total + b.total - overlap(a, b)


@given(intervals, intervals)
def test_only_touching_pieces_overlap(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = union(*arrays(one)), union(*arrays(other))
    near = touching(a, b)
    assert overlap(near, b) == overlap(a, b)
    assert set(near.starts.tolist()) <= set(a.starts.tolist())
    assert (covered_within(b, near.starts, near.ends) > 0).all()


@given(intervals, st.lists(st.integers(-5, 90), max_size=8))
def test_what_is_covered_before_a_time_is_counted(pairs: list[tuple[int, int]], times: list[int]) -> None:
    cover = union(*arrays(pairs))
    found = covered_before(cover, np.array(times, np.int64))
    assert found.tolist() == [sum(1 for point in points(pairs) if point < time) for time in times]


@given(intervals, st.integers(1, 9))
def test_scaling_time_scales_what_is_covered(pairs: list[tuple[int, int]], factor: int) -> None:
    starts, ends = arrays(pairs)
    assert union(starts * factor, ends * factor).total == factor * union(starts, ends).total
    cover = union(starts, ends)
    whole = covered_within(cover, np.array([-10], np.int64), np.array([100], np.int64))
    assert whole.tolist() == [cover.total]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 2)), max_size=20))
def test_clipped_streams_run_one_thing_at_a_time(rows: list[tuple[int, int, int]]) -> None:
    rows.sort()
    starts, ends = arrays([(start, length) for start, length, _ in rows])
    streams = np.array([stream for *_, stream in rows], np.int64)
    clipped, cut = clip_streams(starts, ends, streams)
    assert cut == int((ends - clipped).sum()) >= 0
    for stream in range(3):
        here = streams == stream
        assert union(starts[here], clipped[here]).total == int((clipped[here] - starts[here]).sum())


@pytest.mark.parametrize("block", [1, 3, 1 << 14])
@given(pairs=intervals)
def test_no_segment_reaches_into_the_next(block: int, pairs: list[tuple[int, int]]) -> None:
    starts, ends = arrays(sorted(pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("narrows.reducers.traces.intervals._BLOCK", block)
        pieces = list(segments(starts, ends, np.arange(len(starts), dtype=np.int64)))
    assert [row for piece in pieces for row in piece.tolist()] == list(range(len(starts)))
    for piece, after in pairwise(pieces):
        assert ends[piece].max() < starts[after].min()
    assert sum(union(starts[piece], ends[piece]).total for piece in pieces) == union(starts, ends).total


@given(st.integers(0, int(FLOAT_LIMIT_US) * 1000 - 1))
def test_a_relative_time_with_three_decimals_gives_its_exact_nanoseconds(ns: int) -> None:
    text = f"{ns // 1000}.{ns % 1000:03d}"
    assert ns_from_us([float(text)]).tolist() == [ns]
    assert ns_from_digits(text) == ns


@given(st.integers(10**18, 2 * 10**18))
def test_the_digits_of_an_absolute_time_give_its_exact_nanoseconds(ns: int) -> None:
    assert ns_from_digits(f"{ns // 1000}.{ns % 1000:03d}".encode()) == ns
