"""The what-if replay of a stretch of both runs, and what it comes to beside the two exact ledgers."""

from __future__ import annotations

from copy import deepcopy

import pytest

from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.ledger import build_ledger
from narrows.reducers.ledger_replay import what_if
from narrows.reducers.opinions import opinions
from narrows.reducers.rundir import read_run
from narrows.reducers.third_opinion import third_opinion

SLOW_RANK = {"compute": lambda rank, _step: 9_000_000 if rank == 1 else 6_000_000}
SLOW_LINK = {"service": lambda _bucket, _step: 4_000_000}


@pytest.fixture
def ledger(data_parallel, tmp_path):
    def build(name, **fields):
        return build_ledger(read_run(data_parallel(**fields).build().write(tmp_path / name)))

    return build


@pytest.fixture
def evidence(data_parallel, tmp_path):
    def build(slow, fast=None, **every):
        fields = {"num_steps": 24} | every
        arms = []
        for name, own in (("healthy", fast or {}), ("regressed", slow)):
            path = data_parallel(**fields | own).build().write(tmp_path / name)
            arms.append(ArmRuns(name=name, paths=(path,)))
        return build_evidence("given", arms, statistic="mean", mode="given", first_pair=0, replay=True)

    return build


def test_the_third_opinion_on_a_stretch_is_that_on_the_whole_run(ledger):
    both = ledger("healthy", num_steps=90), ledger("regressed", **SLOW_RANK, num_steps=90)
    whole, part = what_if(*both), third_opinion(*both)
    assert (whole.steps, part.steps) == ((90, 90), (60, 60))
    assert part.replay_error == pytest.approx((0, 0), abs=1e-9)
    assert part.healthy_ms == pytest.approx(whole.healthy_ms)
    assert part.accounts[0].account == whole.accounts[0].account == "compute"
    assert part.accounts[0].share == pytest.approx(whole.accounts[0].share)


def test_washout_is_not_replayed_and_a_stretch_from_the_middle_fits_its_measured_steps(ledger):
    cold = {"segments": 2, "washout": 3, "read": lambda _rank, step: 9_000_000 if step % 12 < 3 else 500_000}
    found = third_opinion(ledger("healthy", **cold), ledger("regressed", **cold, **SLOW_LINK))
    assert found.steps == (18, 18)
    assert found.replay_error == pytest.approx((0, 0), abs=1e-9)
    assert {one.account: one.share for one in found.accounts}["transfer"] == pytest.approx(1)


def test_runs_whose_single_step_is_too_large_are_not_replayed(ledger, monkeypatch):
    monkeypatch.setattr("narrows.reducers.third_opinion.MOST_EVENTS", 5)
    found = third_opinion(ledger("healthy"), ledger("regressed", read=lambda _rank, _step: 3_000_000))
    assert (found.accounts, found.steps) == ((), (0, 0))
    assert "too many to replay" in (found.why_not or "")


@pytest.mark.parametrize(
    ("account", "slow"), [("compute", SLOW_RANK), ("input", {"read": lambda _rank, _step: 3_000_000})]
)
def test_of_one_planted_cause_all_three_opinions_say_the_same(evidence, account, slow):
    found = opinions(evidence(slow))
    assert found is not None
    assert found.agree is True
    assert set(found.leading.values()) == {account}
    row = next(one for one in found.accounts if one.account == account)
    assert row.replay == pytest.approx(1, abs=0.01)
    assert found.sentence.startswith(f"all three put {account} first")


def test_waiting_that_the_mean_over_ranks_shows_is_said_to_be_charged_elsewhere(evidence):
    assert "is charged by path and replay to what was waited for" in opinions(evidence(SLOW_RANK)).sentence
    assert "charged" not in opinions(evidence({"read": lambda _rank, _step: 3_000_000})).sentence


def test_causes_that_overlap_are_told_with_both_of_the_replays_shares(evidence):
    found = opinions(evidence(SLOW_RANK | SLOW_LINK))
    rows = {one.account: one for one in found.accounts}
    assert rows["compute"].replay is None
    assert rows["compute"].addition > rows["compute"].removal
    assert found.agree is False or "so it interacts with another account" in found.sentence


def test_opinions_that_differ_say_so_with_what_each_puts_first(evidence):
    given = deepcopy(evidence(SLOW_RANK))
    tables = given["difference"]["accounts"]["least_waiting_rank"]
    tables["transfer"], tables["compute"] = tables["compute"], tables["transfer"]
    found = opinions(given)
    assert found.agree is False
    assert found.leading == {"critical_path": "compute", "least_waiting_rank": "transfer", "replay": "compute"}
    assert found.sentence.startswith("the opinions differ: the critical path puts compute first (100%), ")


def test_a_replay_that_fails_its_self_check_is_withheld_with_the_reason(evidence):
    given = deepcopy(evidence(SLOW_RANK))
    given["what_if"] |= {"accounts": [], "why_not": "the replay of the healthy run differs"}
    found = opinions(given)
    assert found.agree is None
    assert found.sentence.startswith("the what-if replay is withheld: the replay of the healthy run differs")
    assert all(one.removal is None for one in found.accounts)


def test_replayed_steps_that_lost_less_than_half_of_the_loss_do_not_speak_for_it(evidence, monkeypatch):
    monkeypatch.setattr("narrows.reducers.third_opinion.MOST_STEPS", 10)
    late = {"compute": lambda rank, step: (9_000_000 if step >= 36 else 6_100_000) if rank == 1 else 6_000_000}
    found = opinions(evidence(late, num_steps=48))
    assert found.agree is None
    assert "less than half of the" in (found.why_not or "")


def test_without_a_loss_or_a_replay_there_is_no_opinion(evidence):
    given = evidence(SLOW_RANK)
    assert opinions({**given, "what_if": None}) is None
    assert opinions({**given, "difference": given["difference"] | {"step_ms": [-1.0]}}) is None
