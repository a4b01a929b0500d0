"""The accounts of every rank and step are disjoint and add up to the window, exactly."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.inquiry.accounts import ACCOUNTS, SPAN_ACCOUNTS, Account
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.adjustments import Adjustment, Reason, adjusted, async_checkpoint, clock_clamp, profiler_overhead
from narrows.reducers.collectives import match_collectives
from narrows.reducers.ledger import Ledger, build_ledger
from narrows.reducers.records import Alignment, LossKind
from narrows.reducers.rundir import read_run

CODE = {account: code for code, account in enumerate(ACCOUNTS)}
NAMES = ("restart", "forward", "backward", "h2d", "gc", "checkpoint", "input", "launch", "wait", "wait", "custom")
HORIZON = 60


def _read(run, name: str = "run"):
    with tempfile.TemporaryDirectory() as folder:
        return read_run(run.write(Path(folder) / name))


def _ledger(run) -> Ledger:
    return build_ledger(_read(run))


@st.composite
def plays(draw, num_ranks: int = 3):
    """Windows that tile, spans of any kind inside them, collectives anywhere, some of them missing on a rank."""
    num_steps = draw(st.integers(1, 3))
    windows, spans, calls = {}, {}, {}
    for rank in range(num_ranks):
        inner = draw(st.lists(st.integers(0, HORIZON), min_size=num_steps + 1, max_size=num_steps + 1))
        bounds = sorted(inner)
        windows[rank] = list(pairwise(bounds))
        spans[rank] = [
            [
                (name, *sorted(ends))
                for name, *ends in draw(
                    st.lists(
                        st.tuples(st.sampled_from(NAMES), st.integers(since, until), st.integers(since, until)),
                        max_size=5,
                    )
                )
            ]
            for since, until in windows[rank]
        ]
    for seq in range(draw(st.integers(0, 4))):
        members = draw(st.sets(st.integers(0, num_ranks - 1), min_size=1)) if draw(st.booleans()) else range(num_ranks)
        time = st.integers(-5, HORIZON + 5)
        calls[seq] = {rank: sorted((draw(time), draw(time))) for rank in members}
    return windows, spans, calls


def _built(blank_run, play, scale: int = 1, order=(0, 1, 2)):
    """The play as a run; ``order[rank]`` is the number that a rank of the play goes by."""
    windows, spans, calls = play
    run = blank_run.of(len(windows))
    for rank, bounds in windows.items():
        for step, ((start, end), inside) in enumerate(zip(bounds, spans[rank], strict=True)):
            scaled = [(name, scale * since, scale * until) for name, since, until in inside]
            run.step(order[rank], step, scale * start, scale * end, scaled)
    for seq, members in calls.items():
        for rank, (enter, end) in members.items():
            run.call(order[rank], seq, scale * enter, scale * end)
    return run


def _account_at(time: int, spans, calls, num_ranks: int) -> Account:
    """The definition, for one instant: the first account that is active."""
    active = {SPAN_ACCOUNTS[name] for name, since, until in spans if since <= time < until and name in SPAN_ACCOUNTS}
    if any(name == "wait" and since <= time < until for name, since, until in spans):
        active.discard(Account.COMPUTE)
    for members, (enter, end) in calls:
        arrival = max(start for start, _ in members.values()) if len(members) == num_ranks else enter
        if enter <= time < end:
            active.add(Account.TRANSFER if time >= arrival else Account.SKEW)
    return next((account for account in ACCOUNTS if account in active), Account.RESIDUAL)


@given(play=plays())
@settings(max_examples=80, deadline=None)
def test_the_ledger_equals_the_definition_applied_at_every_nanosecond(blank_run, play):
    windows, spans, calls = play
    ledger = _ledger(_built(blank_run, play))
    for rank, bounds in windows.items():
        mine = [(members, members[rank]) for members in calls.values() if rank in members]
        for step, (start, end) in enumerate(bounds):
            expected = np.zeros(len(ACCOUNTS), dtype=np.int64)
            for time in range(start, end):
                expected[CODE[_account_at(time, spans[rank][step], mine, len(windows))]] += 1
            assert ledger.account_ns_RSA[rank, step].tolist() == expected.tolist()
    assert (ledger.account_ns_RSA.sum(axis=2) == ledger.end_ns_RS - ledger.start_ns_RS).all()


@given(play=plays(), scale=st.integers(2, 10**9))
@settings(max_examples=40, deadline=None)
def test_scaling_all_times_scales_all_accounts(blank_run, play, scale):
    one, many = _ledger(_built(blank_run, play)), _ledger(_built(blank_run, play, scale))

    assert (many.account_ns_RSA == scale * one.account_ns_RSA).all()
    assert (many.hidden_ns_RS == scale * one.hidden_ns_RS).all()


@given(play=plays(), order=st.permutations(range(3)))
@settings(max_examples=40, deadline=None)
def test_permuting_ranks_permutes_rows(blank_run, play, order):
    one, other = _ledger(_built(blank_run, play)), _ledger(_built(blank_run, play, order=order))

    assert (other.account_ns_RSA[list(order)] == one.account_ns_RSA).all()
    assert other.coverage == pytest.approx(one.coverage, nan_ok=True)


@given(play=plays())
@settings(max_examples=40, deadline=None)
def test_wait_and_service_of_a_matched_collective_add_up_to_its_length(blank_run, play):
    found = match_collectives(_read(_built(blank_run, play)))
    rows = found.rows

    assert (rows["wait_ns"] + rows["service_ns"] == rows["end_ns"] - rows["enter_ns"]).all()
    assert (rows["wait_ns"] >= 0).all()
    weights = rows[rows["matched"]].groupby("call")["last_weight"].sum()
    assert weights.to_numpy() == pytest.approx(np.ones(len(weights)))


def test_ranks_that_arrive_at_0_1_and_5_ms_wait_5_4_and_0(blank_run):
    ms = 1_000_000
    run = blank_run.of(3)
    arrivals = {0: 0, 1: 1 * ms, 2: 5 * ms}
    for rank, wait in enumerate(run.blocking(0, arrivals, dict.fromkeys(arrivals, 7 * ms))):
        run.step(rank, 0, 0, 8 * ms, [("forward", 0, 8 * ms), wait])
    ledger = _ledger(run)
    rows, calls = ledger.collectives.rows, ledger.collectives.calls

    assert rows["wait_ns"].tolist() == [5 * ms, 4 * ms, 0]
    assert rows["service_ns"].tolist() == [2 * ms] * 3
    assert rows["last_weight"].tolist() == [0, 0, 1]
    assert rows["lateness_ns"].tolist() == [0, 1 * ms, 5 * ms]
    assert (calls["last_rank"].tolist(), calls["service_ns"].tolist()) == ([2], [2 * ms])
    assert ledger.account_ns_RSA[:, 0, CODE[Account.SKEW]].tolist() == [5 * ms, 4 * ms, 0]
    assert ledger.account_ns_RSA[:, 0, CODE[Account.TRANSFER]].tolist() == [2 * ms] * 3
    assert ledger.account_ns_RSA[:, 0, CODE[Account.COMPUTE]].tolist() == [1 * ms, 2 * ms, 6 * ms]


def test_arrivals_within_the_clocks_error_share_the_last_place(blank_run):
    run = blank_run.of(3)
    run.blocking(0, {0: 0, 1: 99_400, 2: 100_000}, dict.fromkeys(range(3), 200_000))

    assert match_collectives(_read(run)).rows["last_weight"].tolist() == [0, 0.5, 0.5]


def test_a_member_that_leaves_early_has_no_service(blank_run):
    run = blank_run.of(2)
    run.blocking(0, {0: 0, 1: 50}, {0: 10, 1: 60}, op="broadcast")
    rows = match_collectives(_read(run)).rows

    assert (rows["wait_ns"].tolist(), rows["service_ns"].tolist()) == ([10, 0], [0, 10])
    assert rows["clamped_ns"].tolist() == [0, 0]


def test_a_collective_missing_on_one_member_is_unsplit_transfer_and_lowers_coverage(blank_run):
    run = blank_run.of(2)
    run.blocking(0, {0: 10, 1: 20}, {0: 40, 1: 40})
    run.call(0, 1, 60, 80)
    for rank in range(2):
        run.step(rank, 0, 0, 100)
    ledger = _ledger(run)

    assert ledger.collectives.calls["matched"].tolist() == [True, False]
    assert ledger.coverage == 50 / 70
    assert ledger.account_ns_RSA[0, 0, CODE[Account.TRANSFER]] == 20 + 20
    assert ledger.account_ns_RSA[0, 0, CODE[Account.SKEW]] == 10


def test_members_that_disagree_on_the_operation_are_not_matched(blank_run):
    run = blank_run.of(2)
    run.call(0, 0, 10, 30)
    run.call(1, 0, 20, 30, op="all_gather")

    assert match_collectives(_read(run)).calls["matched"].tolist() == [False]


def test_a_receive_before_its_send_is_pipeline_time(blank_run):
    run = blank_run.of(2)
    for seq, (received, sent) in enumerate([(10, 30), (60, 70)]):
        run.call(0, seq, sent, sent + 2, op="isend", p2p=True, peer=1)
        run.call(1, seq, received, sent + 5, op="recv", p2p=True, peer=0)
    for rank in range(2):
        run.step(rank, 0, 0, 100)
    ledger = _ledger(run)

    assert ledger.collectives.calls["matched"].tolist() == [True, True]
    assert ledger.account_ns_RSA[1, 0, CODE[Account.PIPELINE]] == 20 + 10
    assert ledger.account_ns_RSA[1, 0, CODE[Account.TRANSFER]] == 5 + 5
    assert ledger.account_ns_RSA[0, 0, CODE[Account.PIPELINE]] == 0


def test_collectives_that_queue_on_one_stream_have_their_own_service_told_apart(blank_run):
    run = blank_run.of(2)
    for rank in range(2):
        run.call(rank, 0, 0, 100)
        run.call(rank, 1, 10, 130)
    calls = match_collectives(_read(run)).calls

    assert calls["service_ns"].tolist() == [100, 120]
    assert calls["own_service_ns"].tolist() == [100, 30]


def test_a_run_without_collectives_has_a_ledger_and_no_coverage(blank_run):
    run = blank_run.of(1)
    run.step(0, 0, 0, 10, [("forward", 2, 7)])
    ledger = _ledger(run)

    assert ledger.account_ns_RSA[0, 0, CODE[Account.COMPUTE]] == 5
    assert np.isnan(ledger.coverage)


def test_compute_beside_a_transfer_is_hidden_and_still_compute(blank_run):
    run = blank_run.of(2)
    for rank in range(2):
        run.call(rank, 0, 10, 40)
        run.step(rank, 0, 0, 50, [("backward", 0, 30), ("wait", 30, 40)])
    ledger = _ledger(run)

    assert ledger.hidden_ns_RS.tolist() == [[20], [20]]
    assert ledger.account_ns_RSA[0, 0, CODE[Account.COMPUTE]] == 30
    assert ledger.account_ns_RSA[0, 0, CODE[Account.TRANSFER]] == 10


def test_a_step_that_one_rank_lost_is_dropped_for_all_and_counted(blank_run):
    run = blank_run.of(2)
    for rank, num_steps in enumerate((5, 3)):
        for step in range(num_steps):
            run.step(rank, step, 10 * step, 10 * step + 10)
    ledger = _ledger(run)

    assert ledger.steps["step"].tolist() == [0, 1, 2]
    assert [(loss.kind, loss.count) for loss in ledger.losses] == [(LossKind.INCOMPLETE_STEP, 2)]


def test_ranks_that_sat_out_are_listed_or_not_present(blank_run):
    run = blank_run.of(3)
    for rank in (0, 1):
        run.step(rank, 0, 0, 10, segment=0)
    run.step(0, 1, 20, 30, segment=1)
    ledger = _ledger(run)

    assert (ledger.ranks, ledger.idle) == ((0, 1), (2,))
    assert ledger.present_RS.tolist() == [[True, True], [True, False]]
    assert ledger.account_ns_RSA[1, 1].sum() == 0


def test_a_segment_whose_collectives_name_a_rank_without_steps_there_is_dropped(blank_run):
    run = blank_run.of(2)
    for rank in range(2):
        run.step(rank, 0, 0, 10, segment=0)
    run.step(0, 1, 20, 40, segment=1)
    run.call(0, 0, 25, 30)
    ledger = _ledger(run)

    assert ledger.steps["segment"].tolist() == [0]
    assert [(loss.kind, loss.count) for loss in ledger.losses] == [(LossKind.INCOMPLETE_STEP, 1)]


def test_a_run_without_a_common_step_is_refused(blank_run):
    run = blank_run.of(2)
    run.step(0, 0, 0, 10)
    run.step(1, 1, 0, 10)

    with pytest.raises(RunDirectoryError, match=r"no step was finished by all ranks"):
        _ledger(run)


def test_ranks_that_disagree_on_the_pair_are_refused(blank_run):
    run = blank_run.of(2)
    for rank in range(2):
        run.step(rank, 0, 0, 10, pair=rank)

    with pytest.raises(RunDirectoryError, match=r"disagree on the pair of step 0"):
        _ledger(run)


@pytest.fixture
def checkpointed(blank_run) -> Ledger:
    """Three quiet steps of compute 60 ns, and two of 80 ns beside which a checkpoint was written."""
    run = blank_run.of(1)
    for step, compute in enumerate((60, 60, 60, 80, 80)):
        run.step(0, step, 100 * step, 100 * step + 100, [("forward", 100 * step, 100 * step + compute)])
    return _ledger(run)


def test_an_adjustment_moves_time_and_keeps_every_sum(checkpointed):
    after = adjusted(checkpointed, [async_checkpoint(checkpointed, np.array([[False, False, False, True, True]]))])

    assert after.account_ns_RSA[0, :, CODE[Account.COMPUTE]].tolist() == [60] * 5
    assert after.account_ns_RSA[0, :, CODE[Account.CHECKPOINT]].tolist() == [0, 0, 0, 20, 20]
    assert (after.account_ns_RSA.sum(axis=2) == 100).all()
    assert checkpointed.account_ns_RSA[0, 3, CODE[Account.CHECKPOINT]] == 0


def test_an_adjustment_cannot_overdraw_an_account(checkpointed):
    ns_RS = np.full((1, 5), 61)
    entry = Adjustment(source=Account.COMPUTE, target=Account.HOST, ns_RS=ns_RS, reason=Reason.PROFILER_OVERHEAD)

    with pytest.raises(ValueError, match=r"rank 0 step index 0: 61 ns from compute, which holds 60"):
        adjusted(checkpointed, [entry])
    with pytest.raises(ValueError, match=r"-61 ns"):
        replace(entry, ns_RS=-ns_RS)


def test_profiler_overhead_takes_no_more_host_time_than_there_is(blank_run):
    run = blank_run.of(1)
    run.step(0, 0, 0, 100, [("launch", 0, 30)])
    ledger = _ledger(run)
    after = adjusted(ledger, [profiler_overhead(ledger, np.array([[50]]))])

    assert after.account_ns_RSA[0, 0, CODE[Account.HOST]] == 0
    assert after.account_ns_RSA[0, 0, CODE[Account.RESIDUAL]] == 100


def test_skew_that_only_clock_error_explains_becomes_transfer(blank_run):
    """Rank 0 left at 40, so the last arrival was no later, whatever rank 1's clock says: rank 2 waited 20, not 30."""
    run = blank_run.of(3)
    run.blocking(0, {0: 10, 1: 50, 2: 20}, {0: 40, 1: 60, 2: 60})
    for rank in range(3):
        run.step(rank, 0, 0, 100)
    ledger = _ledger(run)
    after = adjusted(ledger, [clock_clamp(ledger)])

    assert ledger.collectives.rows["clamped_ns"].tolist() == [10, 0, 0]
    assert ledger.account_ns_RSA[:, 0, CODE[Account.SKEW]].tolist() == [30, 0, 30]
    assert after.account_ns_RSA[:, 0, CODE[Account.SKEW]].tolist() == [30, 0, 20]
    assert after.account_ns_RSA[:, 0, CODE[Account.TRANSFER]].tolist() == [0, 10, 20]


def _on_another_clock(run, rank: int, away) -> None:
    """Every stamp of the rank as its own host's clock shows it."""
    for line in run.steps[rank]:
        start = line["start_ns"]
        line["spans_ns"] = [
            [name, away(start + a) - away(start), away(start + b) - away(start)] for name, a, b in line["spans_ns"]
        ]
        line["start_ns"], line["end_ns"] = away(start), away(line["end_ns"])
    for line in run.calls[rank]:
        line["enter_ns"], line["end_ns"] = away(line["enter_ns"]), away(line["end_ns"])


@pytest.mark.parametrize("offset_ns", [-3_000_000, 3_000_000])
def test_hosts_on_wall_clocks_that_disagree_are_aligned_by_their_collectives(data_parallel, offset_ns):
    noise = np.random.default_rng(5).integers(0, 400_000, size=(2, 200))
    job = data_parallel(num_ranks=2, num_steps=200, compute=lambda rank, step: 6_000_000 + int(noise[rank, step]))
    truth = _ledger(job.build())
    run = job.build()
    run.hosts, run.boot_ids = {0: "n0", 1: "n1"}, {"n0": "a", "n1": "b"}
    run.clock = {0: [(0, 10**18)], 1: [(0, 10**18)]}
    _on_another_clock(run, 1, lambda time: time + offset_ns + time * 20 // 10**6)
    read = _read(run)
    ledger = build_ledger(read)

    assert (read.clock.aligned, ledger.clock.aligned) == (Alignment.UNIX, Alignment.COLLECTIVES)
    assert ledger.clock.epsilon_ns < 1_100_000  # what a service of 1 ms leaves open
    skew = CODE[Account.SKEW]
    wrong_ns_RS = np.abs(ledger.account_ns_RSA[:, :, skew] - truth.account_ns_RSA[:, :, skew])
    assert wrong_ns_RS.max() < 10_000
    assert (ledger.account_ns_RSA.sum(axis=2) == ledger.end_ns_RS - ledger.start_ns_RS).all()


def test_a_clock_that_stepped_leaves_the_run_on_the_wall_clock_and_is_listed(data_parallel):
    run = data_parallel(num_ranks=2, num_steps=20).build()
    run.hosts, run.boot_ids = {0: "n0", 1: "n1"}, {"n0": "a", "n1": "b"}
    run.clock = {0: [(0, 10**18)], 1: [(0, 10**18)]}
    half = run.steps[1][10]["start_ns"]
    _on_another_clock(run, 1, lambda time: time + (50_000_000 if time >= half else 0))
    ledger = _ledger(run)

    assert ledger.clock.aligned is Alignment.UNIX
    assert LossKind.CLOCK_STEP in {loss.kind for loss in ledger.losses}
