"""Four readings of one ledger; each adds up, and a planted cause stands on the right account of the right one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.lateness import lateness
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.views import (
    View,
    critical_path,
    least_waiting_rank,
    local_time_RS,
    named_ranks,
    rank_mean,
)

CODE = {account: code for code, account in enumerate(ACCOUNTS)}
MS = 1_000_000


def _ledger(run) -> Ledger:
    with tempfile.TemporaryDirectory() as folder:
        return build_ledger(read_run(run.write(Path(folder) / "run")))


def _share(view, healthy: Ledger, regressed: Ledger, account: Account) -> float:
    """The part of the change of the mean step that the account carries."""
    before, after = view(healthy), view(regressed)
    moved = (after.account_ns_SA - before.account_ns_SA).mean(axis=0)[CODE[account]]
    return moved / (after.step_ns_S - before.step_ns_S).mean()


def _adds_up(view: View) -> bool:
    return bool((view.account_ns_SA.sum(axis=1) + view.boundary_ns_S == view.step_ns_S).all())


@st.composite
def jobs(draw):
    """Asynchronous and blocking collectives with every delay drawn: late ranks, slow links, overlap or none."""
    num_ranks, num_buckets = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    delay = st.integers(0, 50)
    table = draw(st.lists(delay, min_size=40, max_size=40))
    return num_ranks, num_buckets, draw(st.integers(1, 5)), table


def _job(data_parallel, job):
    num_ranks, num_buckets, num_steps, table = job
    return data_parallel(
        num_ranks=num_ranks,
        num_buckets=num_buckets,
        num_steps=num_steps,
        segments=2,
        compute=lambda rank, step: 1000 * table[(7 * rank + 3 * step) % 40],
        service=lambda bucket, step: 1000 * table[(5 * bucket + step) % 40],
        read=lambda rank, step: 1000 * table[(11 * rank + 13 * step) % 40],
    )


@given(job=jobs())
@settings(max_examples=60, deadline=None)
def test_the_critical_path_adds_up_to_the_elapsed_time_and_holds_no_skew(data_parallel, job):
    ledger = _ledger(_job(data_parallel, job).build())
    view = critical_path(ledger)

    assert _adds_up(view)
    assert not view.account_ns_SA[:, [CODE[Account.SKEW], CODE[Account.PIPELINE]]].any()
    for segment in range(2):
        here = (ledger.steps["segment"] == segment).to_numpy()
        elapsed = ledger.end_ns_RS[:, here].max() - ledger.start_ns_RS[:, here][:, 0].max()
        assert view.account_ns_SA[here].sum() == elapsed


@given(job=jobs())
@settings(max_examples=40, deadline=None)
def test_the_other_views_add_up_as_well(data_parallel, job):
    ledger = _ledger(_job(data_parallel, job).build())

    assert _adds_up(least_waiting_rank(ledger))
    for view in (rank_mean(ledger), named_ranks(ledger, [0])):
        assert view.account_ns_SA.sum(axis=1) == pytest.approx(view.step_ns_S, rel=1e-12)
    assert (named_ranks(ledger, [0]).account_ns_SA == ledger.account_ns_RSA[0]).all()


@st.composite
def chaos(draw):
    """Anything that can be written: waits that no collective explains, leavers before the last arrival, lost rows."""
    num_ranks, num_steps, length = 3, 2, 40
    starts = {rank: draw(st.integers(0, 10)) for rank in range(num_ranks)}
    moment = st.integers(0, 2 * length + 10)
    interval = st.tuples(moment, moment).map(sorted)
    waits = {rank: draw(st.lists(interval, max_size=3)) for rank in range(num_ranks)}
    calls = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(range(num_ranks), st.none() | interval)), max_size=5))
    return num_steps, length, starts, waits, calls


@given(world=chaos())
@settings(max_examples=80, deadline=None)
def test_the_critical_path_adds_up_on_anything_that_can_be_written(blank_run, world):
    num_steps, length, starts, waits, calls = world
    run = blank_run.of(len(starts))
    for rank, first in starts.items():
        for step in range(num_steps):
            start, end = first + step * length, first + (step + 1) * length
            spans = [("wait", max(a, start), min(b, end)) for a, b in waits[rank] if max(a, start) < min(b, end)]
            run.step(rank, step, start, end, [("forward", start, end), *spans])
    for seq, members in enumerate(calls):
        for rank, times in members.items():
            if times is not None:
                run.call(rank, seq, *times)
    ledger = _ledger(run)
    view = critical_path(ledger)

    assert _adds_up(view)
    assert view.step_ns_S.sum() == max(starts.values()) + num_steps * length - max(starts.values())


def _provenance(job) -> list[list[int]]:
    """The definition, event by event: a vector a timeline, inherited from the last arriver and at joins."""
    ranks = range(job.num_ranks)
    main = [np.zeros(len(ACCOUNTS), dtype=np.int64) for _ in ranks]
    now = [0] * job.num_ranks
    frontier, path = np.zeros(len(ACCOUNTS), dtype=np.int64), []
    for step in range(job.num_steps):
        part = [job.compute(rank, step) // (job.num_buckets + 1) for rank in ranks]
        for rank in ranks:
            main[rank][CODE[Account.INPUT]] += job.read(rank, step)
            main[rank][CODE[Account.COMPUTE]] += part[rank]
            now[rank] += job.read(rank, step) + part[rank]
        stream = [(0, main[rank]) for rank in ranks]
        for bucket in range(job.num_buckets):
            for rank in ranks:
                main[rank] = main[rank].copy()
                main[rank][CODE[Account.COMPUTE]] += part[rank]
                now[rank] += part[rank]
            ready = [stream[r] if stream[r][0] > now[r] else (now[r], main[r]) for r in ranks]
            arrival, vector = max(ready, key=lambda found: found[0])
            end = arrival + job.service(bucket, step)
            inherited = vector.copy()
            inherited[CODE[Account.TRANSFER]] += job.service(bucket, step)
            stream = [(end, inherited)] * job.num_ranks
        for rank in ranks:
            now[rank], vector = stream[rank] if stream[rank][0] > now[rank] else (now[rank], main[rank])
            main[rank] = vector.copy()
            main[rank][CODE[Account.COMPUTE]] += 400_000
            main[rank][CODE[Account.RESIDUAL]] += 30_000
            now[rank] += 430_000
        last = max(ranks, key=lambda rank: (now[rank], -rank))
        path.append((main[last] - frontier).tolist())
        frontier = main[last].copy()
    return path


@given(job=jobs())
@settings(max_examples=60, deadline=None)
def test_the_critical_path_equals_the_definition_followed_event_by_event(data_parallel, job):
    num_ranks, num_buckets, num_steps, table = job
    model = _job(data_parallel, (num_ranks, num_buckets, num_steps, [1 + length for length in table]))
    model.segments = 1

    assert critical_path(_ledger(model.build())).account_ns_SA.tolist() == _provenance(model)


def test_a_delay_is_followed_from_rank_to_rank(blank_run):
    """Rank 1 is late for the first collective through input, rank 0 for the second through compute."""
    run = blank_run.of(2)
    first = run.blocking(0, {0: 10, 1: 40}, {0: 45, 1: 45})
    second = run.blocking(1, {0: 85, 1: 50}, {0: 92, 1: 92})
    run.step(0, 0, 0, 100, [("forward", 0, 100), first[0], second[0]])
    run.step(1, 0, 0, 96, [("input", 0, 40), ("forward", 40, 96), first[1], second[1]])
    view = critical_path(_ledger(run))

    path = {
        account: int(view.account_ns_SA[0, CODE[account]])
        for account in ACCOUNTS
        if view.account_ns_SA[0, CODE[account]]
    }
    assert path == {Account.INPUT: 40, Account.TRANSFER: 5 + 7, Account.COMPUTE: 40 + 8}
    assert view.step_ns_S.tolist() == [100]


def test_overlapped_communication_is_on_the_path_only_where_the_main_thread_waits_for_it(blank_run):
    run = blank_run.of(2)
    for rank in range(2):
        run.call(rank, 0, 10, 30)
        run.call(rank, 1, 20, 90)
        spans = [("backward", 0, 60), ("wait", 60, 90), ("optimizer", 90, 100)]
        run.step(rank, 0, 0, 100, spans)
    view = critical_path(_ledger(run))

    # The second call queued behind the first, so the path goes through both: compute ends at the first's arrival.
    assert view.account_ns_SA[0, CODE[Account.TRANSFER]] == 80
    assert view.account_ns_SA[0, CODE[Account.COMPUTE]] == 20


def test_a_member_that_left_before_the_last_arrival_does_not_inherit_its_path(blank_run):
    run = blank_run.of(2)
    waits = run.blocking(0, {0: 10, 1: 80}, {0: 20, 1: 85}, op="broadcast")
    run.step(0, 0, 0, 100, [("forward", 0, 100), waits[0]])
    run.step(1, 0, 0, 90, [("input", 0, 80), waits[1]])
    view = critical_path(_ledger(run))

    assert view.account_ns_SA[0, CODE[Account.INPUT]] == 0
    assert view.account_ns_SA[0, CODE[Account.TRANSFER]] == 10
    assert view.account_ns_SA[0, CODE[Account.COMPUTE]] == 90


def test_a_slow_rank_is_compute_on_the_critical_path_and_mostly_waiting_in_the_rank_mean(data_parallel):
    plain = {"num_buckets": 1, "num_ranks": 4}
    healthy = _ledger(data_parallel(**plain).build())
    slow = _ledger(data_parallel(**plain, compute=lambda rank, _step: (9 if rank == 2 else 6) * MS).build())

    assert 0.9 < _share(critical_path, healthy, slow, Account.COMPUTE) < 1.1
    assert 0.9 < _share(least_waiting_rank, healthy, slow, Account.COMPUTE) < 1.1
    assert _share(rank_mean, healthy, slow, Account.SKEW) > 0.7
    assert _share(rank_mean, healthy, slow, Account.COMPUTE) < 0.3


def test_a_rank_that_changes_every_step_is_still_compute_on_the_critical_path(data_parallel):
    healthy = _ledger(data_parallel().build())
    packed = _ledger(data_parallel(compute=lambda rank, step: (9 if step % 4 == rank else 6) * MS).build())

    assert 0.9 < _share(critical_path, healthy, packed, Account.COMPUTE) < 1.1


def test_longer_service_is_transfer_for_the_least_waiting_rank(data_parallel):
    healthy = _ledger(data_parallel().build())
    slow = _ledger(data_parallel(service=lambda _bucket, _step: 3 * MS).build())

    assert 0.9 < _share(least_waiting_rank, healthy, slow, Account.TRANSFER) < 1.1
    assert 0.9 < _share(rank_mean, healthy, slow, Account.TRANSFER) < 1.1


def test_slow_input_on_all_ranks_is_input_on_the_critical_path(data_parallel):
    healthy = _ledger(data_parallel().build())
    slow = _ledger(data_parallel(read=lambda _rank, _step: 2 * MS).build())

    assert 0.9 < _share(critical_path, healthy, slow, Account.INPUT) < 1.1


def test_slow_input_on_one_rank_is_input_on_the_critical_path_though_others_wait(data_parallel):
    healthy = _ledger(data_parallel().build())
    slow = _ledger(data_parallel(read=lambda rank, _step: 3 * MS if rank == 1 else MS // 2).build())

    assert 0.9 < _share(critical_path, healthy, slow, Account.INPUT) < 1.1
    assert _share(rank_mean, healthy, slow, Account.INPUT) < 0.3


def test_local_time_singles_out_the_slow_rank_while_step_time_does_not(data_parallel):
    ledger = _ledger(data_parallel(num_buckets=1, compute=lambda rank, _step: (9 if rank == 2 else 6) * MS).build())
    local_ms_R = local_time_RS(ledger).mean(axis=1) / MS
    window_ms_R = (ledger.end_ns_RS - ledger.start_ns_RS).mean(axis=1) / MS

    assert local_ms_R == pytest.approx([6.93, 6.93, 9.93, 6.93])
    assert np.ptp(window_ms_R) < 0.1


def test_lateness_names_the_rank_for_which_the_others_wait(data_parallel):
    job = data_parallel(num_buckets=1, washout=2, compute=lambda rank, _step: (9 if rank == 2 else 6) * MS)
    found = lateness(_ledger(job.build()))

    by_rank = found.by_rank.set_index("rank")
    assert by_rank["last_share"].tolist() == [0, 0, 1, 0]
    assert by_rank["lateness_ms"].tolist() == [0, 0, 3, 0]
    assert by_rank["calls"].tolist() == [10] * 4
    assert found.wait_ms_RR.tolist() == [[0, 0, 30, 0], [0, 0, 30, 0], [0, 0, 0, 0], [0, 0, 30, 0]]


def test_lateness_of_a_run_without_collectives_is_empty(data_parallel):
    found = lateness(_ledger(data_parallel(num_ranks=1, num_buckets=0).build()))

    assert len(found.rows) == len(found.by_rank) == 0
    assert found.wait_ms_RR.tolist() == [[0]]


def test_ranks_that_the_ledger_lacks_cannot_be_named(data_parallel):
    ledger = _ledger(data_parallel(num_ranks=2, num_steps=1).build())

    with pytest.raises(ValueError, match=r"ranks \[7\]: the ledger has \[0, 1\]"):
        named_ranks(ledger, [0, 7])
