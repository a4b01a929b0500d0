"""What-if replay of run directories whose cause was planted."""

from __future__ import annotations

import dataclasses

import pytest

from narrows.reducers.ledger import build_ledger
from narrows.reducers.ledger_replay import what_if
from narrows.reducers.rundir import read_run
from narrows.reducers.sweep import Intervals


@pytest.fixture
def ledger(data_parallel, tmp_path):
    def build(name, **fields):
        return build_ledger(read_run(data_parallel(**fields).build().write(tmp_path / name)))

    return build


@pytest.mark.parametrize(
    ("account", "planted"),
    [
        ("compute", {"compute": lambda rank, _step: 9_000_000 if rank == 1 else 6_000_000}),
        ("input", {"read": lambda _rank, _step: 3_000_000}),
        ("transfer", {"service": lambda _bucket, _step: 4_000_000}),
    ],
)
def test_the_planted_account_carries_all_of_the_loss_and_the_others_none(ledger, account, planted):
    found = what_if(ledger("healthy"), ledger("regressed", **planted))
    assert found.why_not is None
    assert found.replay_error == pytest.approx((0, 0), abs=1e-9)
    shares = {one.account: one.share for one in found.accounts}
    assert shares.pop(account) == pytest.approx(1)
    assert all(share == pytest.approx(0) for share in shares.values())


def test_causes_that_overlap_are_told_by_removal_and_addition_that_disagree(ledger):
    slow = {
        "compute": lambda rank, _step: 9_000_000 if rank == 1 else 6_000_000,
        "service": lambda _bucket, _step: 4_000_000,
    }
    shares = {one.account: one for one in what_if(ledger("healthy"), ledger("regressed", **slow)).accounts}
    assert shares["transfer"].share is None
    assert shares["compute"].share is None
    assert shares["compute"].addition > shares["compute"].removal
    assert shares["input"].share == pytest.approx(0)


def test_without_wait_spans_no_claim_is_made(ledger):
    healthy = ledger("healthy")
    slow = ledger("regressed", service=lambda _bucket, _step: 4_000_000)
    none = Intervals(**dict.fromkeys(("code_M", "start_ns_M", "end_ns_M"), slow.waits[0].start_ns_M[:0]))
    found = what_if(healthy, dataclasses.replace(slow, waits=(none,) * len(slow.ranks)))
    assert found.accounts == ()
    assert "blocked" in (found.why_not or "")


def test_runs_with_other_ranks_or_without_a_loss_are_not_compared(ledger):
    healthy = ledger("healthy")
    assert "differ in their ranks" in (what_if(healthy, ledger("more", num_ranks=5)).why_not or "")
    assert "not slower" in (what_if(healthy, healthy).why_not or "")


def test_a_replay_that_misses_the_measured_steps_by_more_than_three_percent_allows_no_claim(data_parallel, tmp_path):
    slow = data_parallel(service=lambda _bucket, _step: 4_000_000).build()
    slow.steps[2] = [line for line in slow.steps[2] if line["step"] != 5]  # the others wait for a step without record
    healthy = data_parallel().build().write(tmp_path / "healthy")
    both = [build_ledger(read_run(path)) for path in (healthy, slow.write(tmp_path / "regressed"))]
    found = what_if(*both)
    assert found.accounts == ()
    assert found.replay_error[1] > 0.03
    assert "the replay of the regressed run differs from its measured steps by +" in (found.why_not or "")
