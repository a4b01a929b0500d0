"""Traces of several hosts whose clocks differ by seconds and drift apart, with the truth planted."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trace_makers as make

from narrows.reducers.traces.ranks import LEAST_COVERAGE, AcrossRanks, across_ranks
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.reduced import Reduced

T = make.BASE_US * 1000
SECOND = 10**9
HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
# Offset in ns and drift as a share, of each host's clock against the true time.
CLOCKS = {"a": (0, 0.0), "b": (3_700_000_123, 40e-6), "c": (-1_250_000_000, -25e-6)}
ONE_CLOCK = dict.fromkeys(CLOCKS, (0, 0.0))


def arrivals(num: int, ranks: list[int], spread_ns: int = 400_000) -> list[dict[int, int]]:
    """When each rank comes to each of ``num`` collectives over 6 s; some are late by chance, rank 3 often."""
    draw = random.Random(7)
    found = []
    for index in range(num):
        at = index * 6 * SECOND // num
        come = {rank: at + draw.randrange(spread_ns) for rank in ranks}
        if index % 3 == 0 and 3 in come:
            come[3] = at + 2 * spread_ns
        found.append(come)
    return found


def stamped(time_ns: int, host: str, clocks: dict[str, tuple[int, float]]) -> int:
    offset_ns, drift = clocks[host]
    return T + time_ns + offset_ns + round(drift * time_ns)


def traces_of(
    folder: Path,
    calls: list[tuple[str, dict[int, int]]],  # group and arrivals
    hosts: dict[int, str],
    clocks: dict[str, tuple[int, float]],
    *,
    service_ns: int = 60_000,
    short_ns: int = 5_000,
    with_seq: bool = True,
    named: bool = True,
    op: str = "allreduce",
) -> list[Reduced]:
    draw = random.Random(3)
    events: dict[int, list[make.Event]] = {rank: [] for rank in hosts}
    for seq, (group, come) in enumerate(calls):
        # A short one now and then, as a barrier is: these are what tell the clocks.
        end = max(come.values()) + (service_ns if seq % 4 < 2 else min(service_ns, short_ns))
        for rank, at in come.items():
            left = end + draw.randrange(2_000)
            ranks: dict[str, Any] = {"Process Group Ranks": str(sorted(come)), "Group size": len(come)}
            ranks |= {"Process Group Name": group, "Collective name": op}
            start, stop = (stamped(time, hosts[rank], clocks) for time in (at, left))
            events[rank].append(make.collective(start, stop, seq if with_seq else None, **ranks))
    extra = {rank: {"host_name": host} if named else {} for rank, host in hosts.items()}
    return [
        reduce_file(make.write(folder / f"rank{rank}.json", events[rank], rank=rank, world=len(hosts), **extra[rank]))
        for rank in hosts
    ]


def world(come: list[dict[int, int]]) -> list[tuple[str, dict[int, int]]]:
    return [("0", one) for one in come]


def as_on_one_clock(found: AcrossRanks, truth: AcrossRanks) -> None:
    """Same last arrivals, and the same split within the epsilon that is stated."""
    assert found.coverage == truth.coverage == 1.0
    assert truth.clocks == "one"
    assert found.clocks == "collectives"
    assert found.conclusive
    assert not found.notes
    error_ns = 2 * found.epsilon_ns
    for one, right in zip(found.collectives, truth.collectives, strict=True):
        assert one.seq in (right.seq, None)
        assert right.last_rank in (one.last_rank, *one.maybe_last)
        assert abs(one.skew_ns - right.skew_ns) <= error_ns
        assert abs(one.transfer_ns - right.transfer_ns) <= error_ns
        for rank, wait in one.wait_ns.items():
            assert abs(wait - right.wait_ns[rank]) <= error_ns
    assert found.waits_most == truth.waits_most
    assert found.last_most == truth.last_most


@pytest.mark.parametrize("with_seq", [True, False], ids=["sequence", "order"])
def test_last_arrivals_come_out_as_without_the_offset(with_seq: bool, tmp_path: Path) -> None:
    calls = world(arrivals(240, list(HOSTS)))
    found = across_ranks(traces_of(tmp_path, calls, HOSTS, CLOCKS, with_seq=with_seq))
    truth = across_ranks(traces_of(tmp_path, calls, HOSTS, ONE_CLOCK, named=False))
    as_on_one_clock(found, truth)
    assert found.matched_by == ("sequence" if with_seq else "order")
    assert 0 < found.epsilon_ns < 20_000, "causality leaves little more than what the shortest collective takes"
    exact = [one.last_rank == right.last_rank for one, right in zip(found.collectives, truth.collectives, strict=True)]
    assert sum(exact) >= 0.97 * len(exact), "the estimate is far better than its bound"


def test_what_the_clocks_cannot_tell_is_undecided_and_names_who_it_may_be(tmp_path: Path) -> None:
    come = arrivals(120, list(HOSTS))
    come[50] = {0: come[50][0], 1: come[50][0], 2: come[50][0] + 900_000, 3: come[50][0]}
    come[50][1] = come[50][2] - 500  # half a microsecond apart on two hosts
    found = across_ranks(traces_of(tmp_path, world(come), HOSTS, CLOCKS))
    (close,) = [one for one in found.collectives if one.seq == 50]
    assert {close.last_rank, *close.maybe_last} == {1, 2}
    assert found.undecided >= 1
    assert sum(found.last_arrivals.values()) + found.undecided == len(found.collectives)


def test_a_host_is_related_through_one_that_it_works_with(tmp_path: Path) -> None:
    """Ranks 0 and 2 never meet: both meet rank 1."""
    hosts = {0: "a", 1: "b", 2: "c"}
    one, other = arrivals(150, [0, 1]), arrivals(150, [1, 2])
    shifted = [{rank: at + 2_000_000 for rank, at in come.items()} for come in other]
    calls = [entry for pair in zip(one, shifted, strict=True) for entry in (("left", pair[0]), ("right", pair[1]))]
    found = across_ranks(traces_of(tmp_path, calls, hosts, CLOCKS))
    truth = across_ranks(traces_of(tmp_path, calls, hosts, ONE_CLOCK, named=False))
    as_on_one_clock(found, truth)


def test_hosts_that_share_no_collective_are_said_to_be_unknown(tmp_path: Path) -> None:
    calls = [("left", come) for come in arrivals(20, [0, 1])] + [("right", come) for come in arrivals(20, [2, 3])]
    found = across_ranks(traces_of(tmp_path, calls, HOSTS, CLOCKS))
    assert (found.clocks, found.coverage, found.conclusive) == ("unknown", 1.0, False)
    assert any("a share no collective" in note for note in found.notes)
    assert found.undecided == 0, "inside one host there is one clock"


def test_calls_that_a_member_may_leave_early_relate_no_clocks(tmp_path: Path) -> None:
    calls = world(arrivals(20, list(HOSTS)))
    found = across_ranks(traces_of(tmp_path, calls, HOSTS, CLOCKS, op="broadcast"))
    assert (found.clocks, found.conclusive) == ("unknown", False)
    assert found.undecided == len(found.collectives)
    assert found.last_most is None


def test_a_clock_that_steps_is_said_to_be_unknown(tmp_path: Path) -> None:
    come = arrivals(60, list(HOSTS))
    before = traces_of(tmp_path, world(come), HOSTS, CLOCKS)
    after = traces_of(tmp_path, world(come), HOSTS, CLOCKS | {"b": (3_900_000_000, 0.0)})
    stepped = [
        old if old.host_name == "a" else replaced(old, old.collectives[:30] + new.collectives[30:])
        for old, new in zip(before, after, strict=True)
    ]
    found = across_ranks(stepped)
    assert (found.clocks, found.conclusive) == ("unknown", False)
    assert any("no steady difference" in note for note in found.notes)


def replaced(trace: Reduced, calls: list[Any]) -> Reduced:

    return msgspec.structs.replace(trace, collectives=calls)


def test_clocks_that_are_known_too_badly_for_the_split_are_inconclusive(tmp_path: Path) -> None:
    """Long transfers and nearly equal arrivals leave causality much room: the split could be anything."""
    calls = world(arrivals(40, list(HOSTS), spread_ns=1_000))
    found = across_ranks(traces_of(tmp_path, calls, HOSTS, CLOCKS, service_ns=2_000_000, short_ns=2_000_000))
    assert (found.clocks, found.coverage, found.conclusive) == ("collectives", 1.0, False)
    assert found.coverage > LEAST_COVERAGE
    assert any("known within" in note for note in found.notes)


def test_hosts_without_names_are_found_out_by_times_that_contradict_each_other(tmp_path: Path) -> None:
    calls = world(arrivals(240, list(HOSTS)))
    found = across_ranks(traces_of(tmp_path, calls, HOSTS, CLOCKS, named=False))
    truth = across_ranks(traces_of(tmp_path, calls, HOSTS, ONE_CLOCK, named=False))
    as_on_one_clock(found, truth)


def test_ranks_of_one_host_are_compared_without_the_statistics_that_several_need() -> None:
    code = "import sys, narrows.reducers.traces.ranks; print({'scipy', 'pandas'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
