"""What the reconciliation reads from simulated runs of faults that a largest account would not tell apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.faults import Fault
from simulation.kinds import GOOD
from simulation.launcher import SimulatedCluster

from narrows.inquiry.scopes import Scope
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.reconcile import Reconciliation, Shape, reconcile

SHAPE = Shape(nodes=8, ranks_per_node=2, hosts=tuple(host for host in GOOD for _ in range(2)), scopes=tuple(Scope))
ODD = [1, 3, 5, 7, 9, 11, 13, 15]

Read = Callable[[Fault], Reconciliation]


@pytest.fixture
def read(tmp_path: Path, record: Callable[..., SimulatedCluster]) -> Read:
    def make(fault: Fault) -> Reconciliation:
        record(tmp_path / "run", arms={"healthy": {"label": "old"}, "regressed": {"label": "new"}}, faults=(fault,))
        arms = [ArmRuns(name=arm, paths=(tmp_path / "run" / arm,)) for arm in ("healthy", "regressed")]
        return reconcile(build_evidence("given", (arms[0], arms[1]), statistic="mean", mode="given"), SHAPE)

    return make


def test_one_rail_is_told_from_the_link_by_whose_collectives_take_longer_after_the_last_arrival(read: Read) -> None:
    found = read(Fault(image="new", rail=1, across_us=3000))

    assert (found.mechanism, found.culprit) == ("link", {"kind": "rail", "members": ODD})


def test_where_every_rail_is_slower_the_link_between_all_hosts_is_named(read: Read) -> None:
    assert read(Fault(image="new", across_us=3000)).culprit == {"kind": "link", "members": list(GOOD)}


def test_pauses_that_strike_ranks_in_turn_are_memory_not_an_imbalance_of_work(read: Read) -> None:
    found = read(Fault(image="new", pause_us=8000, chance=0.2))

    assert (found.mechanism, found.account, found.culprit["kind"]) == ("memory", "memory", "varies")


def test_work_that_is_heavy_on_ranks_in_turn_stays_an_imbalance(read: Read) -> None:
    found = read(Fault(image="new", spread=0.3))

    assert (found.mechanism, found.account, found.culprit["kind"]) == ("imbalance", "skew", "varies")
