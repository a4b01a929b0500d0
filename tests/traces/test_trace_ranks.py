from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trace_makers as make

from narrows.reducers.traces.errors import TraceError
from narrows.reducers.traces.ranks import AcrossRanks, across_ranks, with_sublabel
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Reduced

T = make.BASE_US * 1000
SERVICE_NS = 20_000


def rank_traces(
    folder: Path, arrivals: list[dict[int, int]], *, with_seq: bool = True, end_noise_ns: int = 0, **extra: Any
) -> list[Reduced]:
    """Traces of ranks that come to each collective at the given times and leave together after the last."""
    draw = random.Random(2)
    num = len(arrivals[0])
    traces = []
    for rank in arrivals[0]:
        events = []
        for seq, come in enumerate(arrivals):
            end = max(come.values()) + SERVICE_NS + draw.randint(0, end_noise_ns)
            ranks = {"Process Group Ranks": str(list(range(num))), "Group size": num}
            events.append(make.collective(T + come[rank], T + end, seq if with_seq else None, **ranks))
        path = make.write(folder / f"rank{rank}.json", events, rank=rank, world=num, **extra)
        traces.append(reduce_file(path))
    return traces


ARRIVALS = [{0: 0, 1: 5_000, 2: 90_000}, {0: 300_000, 1: 310_000, 2: 380_000}, {0: 900_000, 1: 960_000, 2: 900_000}]


def planted(found: AcrossRanks) -> None:
    assert found.coverage == 1.0
    assert found.conclusive
    assert [entry.last_rank for entry in found.collectives] == [2, 2, 1]
    assert [entry.skew_ns for entry in found.collectives] == [90_000, 80_000, 60_000]
    assert [entry.transfer_ns for entry in found.collectives] == [SERVICE_NS] * 3
    assert found.last_arrivals == {1: 1, 2: 2}
    assert found.wait_ns == {0: 230_000, 1: 155_000, 2: 60_000}
    assert (found.last_most, found.waits_most) == (2, 0)


def test_the_last_arriver_is_named_and_not_the_rank_with_the_longest_kernel(tmp_path: Path) -> None:
    traces = rank_traces(tmp_path, ARRIVALS)
    found = across_ranks(traces)
    planted(found)
    assert found.matched_by == "sequence"
    longest = max(traces, key=lambda trace: max(call.end_ns - call.start_ns for call in trace.collectives))
    assert longest.rank == found.waits_most != found.last_most


def test_the_order_of_the_traces_does_not_matter(tmp_path: Path) -> None:
    traces = rank_traces(tmp_path, ARRIVALS)
    assert across_ranks(traces[::-1]) == across_ranks(traces)


def test_without_sequence_numbers_order_is_used_where_ends_agree(tmp_path: Path) -> None:
    found = across_ranks(rank_traces(tmp_path, ARRIVALS, with_seq=False))
    planted(found)
    assert found.matched_by == "order"


def test_order_is_refused_where_ends_do_not_agree(tmp_path: Path) -> None:
    found = across_ranks(rank_traces(tmp_path, ARRIVALS, with_seq=False, end_noise_ns=5_000_000))
    assert (found.matched_by, found.coverage, found.conclusive, found.collectives) == ("none", 0.0, False, [])
    assert any("apart" in note for note in found.notes)


def test_order_is_refused_where_a_rank_lacks_a_call(tmp_path: Path) -> None:
    traces = rank_traces(tmp_path, ARRIVALS, with_seq=False)
    short = rank_traces(tmp_path, ARRIVALS[:2], with_seq=False)
    found = across_ranks([*traces[:2], short[2]])
    assert found.matched_by == "none"
    assert any("2 to 3 calls" in note for note in found.notes)


def test_a_call_that_one_rank_lacks_lowers_the_coverage_and_below_95_percent_nothing_is_concluded(
    tmp_path: Path,
) -> None:
    traces = rank_traces(tmp_path, ARRIVALS)
    short = rank_traces(tmp_path, ARRIVALS[:2])
    found = across_ranks([*traces[:2], short[2]])
    assert found.coverage == pytest.approx(6 / 8)
    assert not found.conclusive
    assert len(found.collectives) == 2


def test_some_ranks_of_a_group_do_not_say_who_came_last(tmp_path: Path) -> None:
    found = across_ranks(rank_traces(tmp_path, ARRIVALS)[:2])
    assert found.matched_by == "none"
    assert any("2 of 3 ranks" in note for note in found.notes)


def test_relative_times_cannot_be_compared(tmp_path: Path) -> None:
    found = across_ranks(rank_traces(tmp_path, ARRIVALS, baseTimeNanoseconds=None))
    assert found.coverage == 0.0
    assert any("not absolute" in note for note in found.notes)


def test_different_time_bases_are_put_on_one_clock(tmp_path: Path) -> None:
    """Each process has its own base; only the sum of base and time counts."""
    shifted = [{rank: at + 1_000_000 for rank, at in come.items()} for come in ARRIVALS]
    early = rank_traces(tmp_path, shifted, baseTimeNanoseconds=make.BASE_NS - 1_000_000)
    traces = rank_traces(tmp_path, ARRIVALS)
    planted(across_ranks([*traces[:2], early[2]]))


def test_two_traces_of_one_rank_and_a_trace_without_a_rank_are_refused(tmp_path: Path) -> None:
    traces = rank_traces(tmp_path, ARRIVALS)
    with pytest.raises(TraceError, match="rank 1"):
        across_ranks([*traces, traces[1]])
    nameless = reduce_file(make.write(tmp_path / "x.json", [make.kernel(T, 5)], rank=None))
    with pytest.raises(TraceError, match="does not say its rank"):
        across_ranks([*traces, nameless])


def test_a_communication_label_is_split_by_the_other_ranks(tmp_path: Path) -> None:
    traces = rank_traces(tmp_path, ARRIVALS)
    found = across_ranks(traces)
    first = next(trace for trace in traces if trace.rank == 0)
    assert first.label is not None
    renamed = with_sublabel(first, found).label
    assert renamed is not None
    assert first.label.label == renamed.label
    assert renamed.sublabel == ("skew" if renamed.label == "communication" else first.label.sublabel)
