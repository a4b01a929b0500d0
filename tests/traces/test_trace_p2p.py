"""Sends and receives in traces: a pipeline of stages whose waits and transfers are planted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trace_makers as make
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.traces.hosts import HostClocks
from narrows.reducers.traces.p2p import PointToPoint, point_to_point
from narrows.reducers.traces.ranks import AcrossRanks, across_ranks, communication_parts, with_sublabel
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Collective, Label, Reduced

T = make.BASE_US * 1000
HOP_NS = 30_000
GROUP = {"Process Group Name": "pp", "Process Group Ranks": "[0, 1, 2]", "Group size": 3}


def call(op: str, start_ns: int, end_ns: int, peer: int | None, nelems: int = 1024) -> make.Event:
    named = GROUP | {"Collective name": op, "In msg nelems": nelems, "Out msg nelems": nelems}
    if peer is not None:
        named["Dst Rank" if op == "send" else "Src Rank"] = peer
    return make.collective(T + start_ns, T + end_ns, **named)


def reduced(folder: Path, rank: int, events: list[make.Event], **extra: object) -> Reduced:
    return reduce_file(make.write(folder / f"rank{rank}.json", events, rank=rank, world=3, **extra))


def hop(events: dict[int, list[make.Event]], source: int, target: int, sent_ns: int, asked_ns: int) -> None:
    """One message: both sides are busy from their own start until a hop after the later one."""
    end = max(sent_ns, asked_ns) + HOP_NS
    events[source].append(call("send", sent_ns, end, target))
    events[target].append(call("recv", asked_ns, end, source))


def pipeline(folder: Path, **extra: object) -> list[Reduced]:
    """Two microbatches through three stages. Stage 1 waits 200 and 50 us for stage 0, stage 2 waits 400 and 0; the last
    send of stage 1 waits 70 us for stage 2."""
    events: dict[int, list[make.Event]] = {0: [], 1: [], 2: []}
    hop(events, 0, 1, 200_000, 0)
    hop(events, 1, 2, 500_000, 100_000)
    hop(events, 0, 1, 700_000, 650_000)
    hop(events, 1, 2, 900_000, 970_000)
    return [reduced(folder, rank, found, **extra) for rank, found in events.items()]


def of(traces: list[Reduced]) -> PointToPoint:
    found = across_ranks(traces).p2p
    assert found is not None
    return found


def test_waits_are_the_pipelines_and_what_follows_them_is_transfer(tmp_path: Path) -> None:
    found = of(pipeline(tmp_path))
    assert (found.matched, found.coverage, found.undecided, found.notes) == (4, 1.0, 0, [])
    assert found.wait_ns == {0: 0, 1: 200_000 + 50_000 + 70_000, 2: 400_000}
    assert found.transfer_ns == 4 * HOP_NS
    assert found.service_ns == {0: 2 * HOP_NS, 1: 4 * HOP_NS, 2: 2 * HOP_NS}
    assert found.late_starts == {0: 2, 1: 1, 2: 1}


def test_without_any_send_there_is_nothing_to_say(tmp_path: Path) -> None:
    traces = [reduced(tmp_path, rank, [make.collective(T, T + 10_000, 1)]) for rank in (0, 1)]
    assert across_ranks(traces).p2p is None


def test_traces_of_sends_alone_are_conclusive(tmp_path: Path) -> None:
    across = across_ranks(pipeline(tmp_path))
    assert (across.collectives, across.coverage, across.conclusive) == ([], 1.0, True)


def test_a_way_that_lacks_a_call_is_left_out_whole_and_lowers_the_coverage(tmp_path: Path) -> None:
    traces = pipeline(tmp_path)
    short = msgspec.structs.replace(traces[2], collectives=traces[2].collectives[:1])
    across = across_ranks([traces[0], traces[1], short])
    found = across.p2p
    assert found is not None
    assert (found.matched, found.coverage) == (2, pytest.approx(4 / 7))
    assert found.wait_ns == {0: 0, 1: 250_000}
    assert any("rank 1 to rank 2" in note and "2 sends and 1 receives" in note for note in found.notes)
    assert not across.conclusive
    assert any("57% of the sends" in note for note in across.notes)


def test_a_peer_without_a_trace_and_a_call_without_a_peer_are_counted_as_not_matched(tmp_path: Path) -> None:
    traces = pipeline(tmp_path)[:2]
    found = of(traces)
    assert found.coverage == pytest.approx(4 / 6)
    assert any("no trace of rank 2" in note for note in found.notes)
    nameless = reduced(tmp_path, 2, [call("recv", 0, 10, None)])
    found = of([*traces, nameless])
    assert found.coverage == pytest.approx(4 / 7)
    assert any("name no peer" in note for note in found.notes)


@pytest.mark.parametrize(
    ("receive", "why"),
    [
        (call("recv", 0, 50_000, 0, nelems=7), "not of one size"),
        (call("recv", 0, 50_000, 0), "received before it was sent"),
    ],
)
def test_what_cannot_be_one_message_is_not_paired(receive: make.Event, why: str, tmp_path: Path) -> None:
    sender = reduced(tmp_path, 0, [call("send", 900_000, 950_000, 1)])
    found = of([sender, reduced(tmp_path, 1, [receive])])
    assert (found.matched, found.coverage) == (0, 0.0)
    assert why in found.notes[0]


def test_groups_and_directions_are_kept_apart(tmp_path: Path) -> None:
    """Both ranks send first and receive later, in two groups: order alone over all calls would pair them wrongly."""
    other = {"Process Group Name": "other", "stream": 41}
    events: dict[int, list[make.Event]] = {0: [], 1: [], 2: []}
    hop(events, 0, 1, 0, 10_000)
    hop(events, 1, 0, 100_000, 180_000)
    one = call("send", 5_000, 300_000, 1)
    one["args"] |= other
    two = call("recv", 250_000, 300_000, 0)
    two["args"] |= other
    events[0].append(one)
    events[1].insert(0, two)
    found = of([reduced(tmp_path, rank, events[rank]) for rank in (0, 1)])
    assert found.matched == 3
    assert found.wait_ns == {0: 10_000 + 245_000, 1: 80_000}


def test_sends_between_hosts_are_split_on_one_clock(tmp_path: Path) -> None:
    """Rank 2 is on another host, 5 s ahead; barriers of all ranks tell by how much."""
    ahead_ns = 5 * 10**9
    barrier = {"Collective name": "barrier", "Group size": 3, "Process Group Ranks": "[0, 1, 2]"}
    come = [
        {0: 0, 1: 500, 2: 900},
        {0: 900, 1: 0, 2: 100},
        {0: 100, 1: 900, 2: 0},
        {0: 700, 1: 0, 2: 900},
        {0: 0, 1: 0, 2: 60_000},
    ]
    traces = []
    for trace in pipeline(tmp_path):
        rank, shift_ns = trace.rank or 0, ahead_ns if trace.rank == 2 else 0
        starts = [T + 2_000_000 + 50_000 * seq + at[rank] for seq, at in enumerate(come)]
        ends = [T + 2_000_000 + 50_000 * seq + max(at.values()) + 1_000 for seq, at in enumerate(come)]
        more = reduced(tmp_path, rank, [make.collective(*pair, seq, **barrier)
                                        for seq, pair in enumerate(zip(starts, ends, strict=True))])  # fmt: skip
        calls = [shifted(one, shift_ns) for one in (*trace.collectives, *more.collectives)]
        traces.append(msgspec.structs.replace(more, host_name="b" if rank == 2 else "a", collectives=calls))
    across = across_ranks(traces)
    assert (across.clocks, across.conclusive) == ("collectives", True)
    found = across.p2p
    assert found is not None
    assert found.matched == 4
    assert found.wait_ns[2] == pytest.approx(400_000, abs=2 * across.epsilon_ns)
    assert found.wait_ns[1] == pytest.approx(320_000, abs=2 * across.epsilon_ns)
    assert found.late_starts == {0: 2, 1: 1, 2: 1}


def shifted(one: Collective, by_ns: int) -> Collective:
    return msgspec.structs.replace(one, start_ns=one.start_ns + by_ns, end_ns=one.end_ns + by_ns)


times = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5))


@given(st.lists(times, min_size=1, max_size=6))
def test_waiting_and_service_add_up_to_the_calls(rows: list[tuple[int, int, int, int]]) -> None:
    sides: dict[int, list[Collective]] = {0: [], 1: []}
    for index, (sent, asked, more, most) in enumerate(rows):
        later = 10**7 * index + max(sent, asked)
        for rank, start, end in ((0, sent, later + more), (1, asked, later + most)):
            op = "send" if rank == 0 else "recv"
            at = 10**7 * index + start
            sides[rank].append(
                Collective(op=op, start_ns=at, end_ns=max(at, end), on="0", p2p=True, peer=1 - rank, group="g")
            )
    ranks = {rank: _only(rank, calls) for rank, calls in sides.items()}
    found = point_to_point(ranks, HostClocks(host_of={0: "", 1: ""}, differences={}))
    assert found is not None
    assert found.matched == len(rows)
    for rank, calls in sides.items():
        assert found.wait_ns[rank] + found.service_ns[rank] == sum(one.end_ns - one.start_ns for one in calls)
    assert sum(found.late_starts.values()) + found.undecided == len(rows)


def _only(rank: int, calls: list[Collective]) -> Reduced:
    return msgspec.convert(
        {
            "schema": 1, "kind": "reduced_trace", "rank": rank, "world_size": 2, "host_name": None, "backend": "nccl",
            "clock": "unix_ns", "devices": {}, "steps": [], "outside": {}, "gaps": {}, "top_kernels": [], "memory": {},
            "collectives": calls, "host": None, "label": None,
            "quality": {"layout": "kineto", "bytes": 1, "truncated": False, "repaired": 0, "dropped": 0,
                        "dropped_for": {}, "unlinked": 0, "clipped_ns": 0},
        },
        Reduced,
    )  # fmt: skip


def sublabel(trace: Reduced, across: AcrossRanks) -> str | None:
    """What a rank's communication is called, were it what its steps mostly go to."""
    shares = {"measurements": {}, "margins": {}}
    named = Label(version="bt-1", label="communication", sublabel="unsplit", **shares)
    label = with_sublabel(msgspec.structs.replace(trace, label=named), across).label
    return label and label.sublabel


def test_the_sublabel_is_what_the_ranks_own_communication_is_mostly(tmp_path: Path) -> None:
    """Stage 2 waits for its neighbour, stage 0 for nobody: it only sends."""
    traces = pipeline(tmp_path)
    across = across_ranks(traces)
    assert communication_parts(across, 2) == {"transfer": 2 * HOP_NS, "skew": 0, "pipeline": 400_000}
    named = {trace.rank: sublabel(trace, across) for trace in traces}
    assert named == {0: "transfer", 1: "pipeline", 2: "pipeline"}


def test_waits_in_collectives_outweigh_those_of_the_pipeline_where_they_are_longer(tmp_path: Path) -> None:
    events = {rank: [] for rank in (0, 1, 2)}
    hop(events, 0, 1, 20_000, 0)
    for rank, come in ((0, 100_000), (1, 200_000), (2, 900_000)):
        args = {"Group size": 3, "Process Group Ranks": "[0, 1, 2]"}
        events[rank].append(make.collective(T + come, T + 910_000, 4, **args))
    traces = [reduced(tmp_path, rank, found) for rank, found in events.items()]
    across = across_ranks(traces)
    assert {trace.rank: sublabel(trace, across) for trace in traces} == {0: "skew", 1: "skew", 2: "transfer"}


def test_an_uncertain_split_leaves_the_label_unsplit(tmp_path: Path) -> None:
    traces = pipeline(tmp_path)[:2]
    assert sublabel(traces[1], across_ranks(traces)) == "unsplit"
