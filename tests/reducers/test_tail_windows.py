"""Ledgers of the slow steps: they add up to their statistic, and are told where the loss is in them."""

from __future__ import annotations

import pytest

from narrows.inquiry.accounts import ACCOUNTS
from narrows.reducers.compared_plain import report
from narrows.reducers.compared_runs import compare_runs
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.ledger import build_ledger
from narrows.reducers.rundir import read_run
from narrows.reducers.tail_windows import window_rows
from narrows.reducers.units import unit_places, units
from narrows.reducers.views import critical_path, least_waiting_rank, rank_mean

SHORT = ("n0", "n1")


def usual(_rank, step):
    return 0.5 + 0.01 * (step % 7)


def now_and_then(rank, step):
    """In every 30th step, rank 1 reads for long."""
    return 90.0 if rank == 1 and step % 30 == 29 else usual(rank, step)


@pytest.fixture
def both(recorded_arm, tmp_path):
    def write(**slow):
        fields = {"hosts": SHORT, "steps": 60, "pairs": 4, "read": usual}
        healthy = recorded_arm(**fields).write(tmp_path / "healthy")
        return healthy, recorded_arm(**fields | slow).write(tmp_path / "regressed", arm="regressed", turn=1)

    return write


@pytest.mark.parametrize("steps", [10, 30, 210])
def test_accounts_of_each_window_add_up_to_its_statistic_in_every_view(recorded_arm, tmp_path, steps):
    run = recorded_arm(hosts=SHORT, pairs=1, steps=steps, read=now_and_then).write(tmp_path / "run")
    ledger = build_ledger(read_run(run))
    seen = {view.__name__: view(ledger) for view in (rank_mean, critical_path, least_waiting_rank)}
    [found] = window_rows(seen, unit_places(ledger))
    assert set(found) == {"median"} | ({"es95"} if steps >= 20 else set()) | ({"p95"} if steps >= 200 else set())
    for statistic, by_view in found.items():
        for name, table in by_view.items():
            measured = units(seen[name], ledger, statistic)["step_ms"].iloc[0]
            assert set(table) == set(map(str, ACCOUNTS))
            assert sum(table.values()) == pytest.approx(measured)


def test_the_tail_ledger_names_what_the_slow_steps_lost_and_stands_in_the_comparison(both):
    healthy, regressed = both(read=now_and_then)
    found = report(compare_runs([healthy], [regressed]))
    assert found["tail"].startswith("the slowest steps changed more than the typical one")
    slow, typical = (found["windows_ms"][one]["critical_path"]["input"] for one in ("es95", "median"))
    assert slow["delta"] > 50
    assert typical["delta"] == pytest.approx(0, abs=0.1)
    arms = (ArmRuns(name="healthy", paths=(healthy,)), ArmRuns(name="regressed", paths=(regressed,)))
    evidence = build_evidence("given", arms, statistic="mean", mode="given")
    assert evidence["tail"]["leading"]["critical_path"] == "input"
    assert evidence["tail"]["change_ms"]["critical_path"]["input"] == pytest.approx(slow["delta"])
    assert "what_if" not in evidence


def test_a_loss_of_every_step_has_windows_and_no_tail(both):
    healthy, regressed = both(service=lambda _rank, _step: 5.0)
    found = report(compare_runs([healthy], [regressed]))
    assert found["tail"] == ""
    assert set(found["windows_ms"]) == {"median", "es95"}
    assert found["what_if"]["agree"] is True
    assert found["what_if"]["leading"]["replay"] == "transfer"
    assert report(compare_runs([regressed], [healthy]))["what_if"] is None
