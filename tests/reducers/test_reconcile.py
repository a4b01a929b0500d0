"""The reading of the given runs: which mechanism, on which ranks, and how much of it a smaller scope can show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narrows.inquiry.accounts import Account
from narrows.inquiry.scopes import Scope
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.reconcile import Reconciliation, Shape, crossing_group, reconcile, slower_group

HOSTS = ("n0", "n0", "n1", "n1")
SHAPE = Shape(nodes=2, ranks_per_node=2, hosts=HOSTS, scopes=(Scope.ONE_RANK, Scope.ONE_NODE, Scope.TWO_NODES))
DELTA_MS = 6.0
Times = Callable[[int, int], float]
Read = Callable[..., Reconciliation]


def jitter(rank: int, step: int) -> float:
    return 0.02 * ((step * 7 + rank * 3) % 11)


def usual(rank: int, step: int) -> float:
    return 10.0 + jitter(rank, step)


def added(where: Callable[[int, int], bool]) -> Times:
    return lambda rank, step: usual(rank, step) + (DELTA_MS if where(rank, step) else 0.0)


def heavy_rank(step: int) -> int:
    """Another rank in each step, without a pattern that a block of steps would show."""
    return int(np.random.default_rng(step).integers(4))


@pytest.fixture
def read(tmp_path: Path, recorded_arm: type[Any]) -> Read:
    def make(
        hosts: tuple[str, ...] = HOSTS, shape: Shape = SHAPE, steps: int = 40, **regressed: Times
    ) -> Reconciliation:
        before = recorded_arm(hosts=hosts, compute=usual, steps=steps).write(tmp_path / "healthy")
        after = recorded_arm(**{"hosts": hosts, "compute": usual, "steps": steps} | regressed)
        path = after.write(tmp_path / "regressed", arm="regressed", turn=1)
        arms = (ArmRuns(name="healthy", paths=(before,)), ArmRuns(name="regressed", paths=(path,)))
        return reconcile(build_evidence("given", arms, statistic="mean", mode="given", washout=0), shape)

    return make


def test_every_rank_computing_longer_is_compute_everywhere(read: Read) -> None:
    found = read(compute=added(lambda _rank, _step: True))
    assert (found.mechanism, found.account, found.view) == ("compute", Account.COMPUTE, "critical_path")
    assert found.culprit == {"kind": "all", "members": []}
    assert found.share == pytest.approx(1, abs=0.05)
    assert set(found.kappa.values()) == {1.0}


def test_a_rank_is_no_culprit_while_no_other_rank_is_clearly_without_the_loss(read: Read) -> None:
    """Loaders that are all slow: whoever is behind shows the whole loss, those that loaded ahead meanwhile less."""

    def slower(rank: int, step: int) -> float:
        pair = step // 80
        behind = rank == 0 or (pair + rank) % 2 == 0
        return usual(rank, step) + (DELTA_MS if behind else 0.4 * DELTA_MS)

    found = read(compute=slower)
    assert found.mechanism == "compute"
    assert found.culprit == {"kind": "all", "members": []}


@pytest.mark.parametrize("slow", [0, 3])
def test_one_rank_computing_longer_is_that_rank(slow: int, read: Read) -> None:
    found = read(compute=added(lambda rank, _step: rank == slow))
    assert (found.mechanism, found.account) == ("slow_rank", Account.COMPUTE)
    assert found.culprit == {"kind": "rank", "members": [slow]}
    assert found.ranks == (slow,)
    assert found.share == pytest.approx(1, abs=0.05)
    assert found.slowest["top_rank"] == slow
    assert not found.slowest["varies"]


@pytest.mark.parametrize(("host", "ranks"), [("n0", {0, 1}), ("n1", {2, 3})])
def test_both_ranks_of_a_host_are_the_host(host: str, ranks: set[int], read: Read) -> None:
    found = read(compute=added(lambda rank, _step: rank in ranks))
    assert found.mechanism == "slow_host"
    assert found.culprit == {"kind": "host", "members": [host]}
    assert set(found.ranks) == ranks


def test_a_rank_of_each_host_is_no_host(read: Read) -> None:
    found = read(compute=added(lambda rank, _step: rank in (1, 2)))
    assert found.mechanism == "slow_rank"
    assert found.culprit == {"kind": "rank", "members": [1, 2]}


def test_a_heavy_rank_that_moves_is_imbalance_and_shows_less_on_fewer_ranks(read: Read) -> None:
    found = read(compute=added(lambda rank, step: rank == heavy_rank(step)))
    assert (found.mechanism, found.account, found.view) == ("imbalance", Account.SKEW, "rank_mean")
    assert found.culprit == {"kind": "varies", "members": []}
    assert found.slowest["varies"]
    assert found.share > 0.5
    kappas = [found.kappa[scope.value] for scope in SHAPE.scopes]
    assert kappas[0] == 0.0
    assert 0.3 < kappas[1] < 0.8  # two ranks of four hold the heavy one in half of the steps
    assert kappas[2] == pytest.approx(1, abs=0.01)


def test_longer_service_across_hosts_is_the_link(read: Read) -> None:
    found = read(service=lambda _rank, _step: 2.0 + DELTA_MS)
    assert (found.mechanism, found.account, found.view) == ("link", Account.TRANSFER, "least_waiting_rank")
    assert found.culprit == {"kind": "link", "members": ["n0", "n1"]}
    assert found.kappa == {"one_rank": 0.0, "one_node": 0.0, "two_nodes": 1.0}


@pytest.mark.parametrize(
    ("before", "after", "group"),
    [
        ({"16/16": 3.0, "2/1": 5.0}, {"16/16": 4.0, "2/1": 5.1}, (16, 1)),
        ({"8/4": 3.0}, {"8/4": 4.0}, (8, 2)),
        ({"16/16": 3.0}, {"16/16": 3.0, "32/16": 2.0}, (32, 2)),
        ({"16/16": 3.0, "32/16": 3.0}, {"16/16": 4.0, "32/16": 4.0}, None),  # both grew
        ({"16/16": 3.0, "2/1": 5.0}, {"16/16": 3.0, "2/1": 6.0}, None),  # inside a host
        ({"6/4": 3.0}, {"6/4": 4.0}, None),  # hosts hold unequal parts of it
        ({"16/16": 3.0}, {"16/16": 2.0}, None),
        ({}, {}, None),
    ],
)
def test_the_group_that_got_slower_is_told_by_its_shape(
    before: dict[str, float], after: dict[str, float], group: tuple[int, int] | None
) -> None:
    arms = {"healthy": before, "regressed": after}
    evidence = {"arms": {name: {"units": [{"group_service_ms": own}] * 2} for name, own in arms.items()}}
    assert slower_group(evidence) == group


@pytest.mark.parametrize(
    ("services", "group"),
    [
        ({"16/16": 3.0, "2/1": 5.0}, (16, 1)),
        ({"8/4": 3.0}, (8, 2)),
        ({"16/16": 3.0, "32/16": 3.0}, None),  # either may be the one
        ({"2/1": 5.0}, None),
        ({"6/4": 3.0}, None),
        ({}, None),
    ],
)
def test_without_a_slower_group_the_only_one_that_crosses_hosts_is_what_a_loss_of_transfer_is_scaled_by(
    services: dict[str, float], group: tuple[int, int] | None
) -> None:
    evidence = {"arms": {name: {"units": [{"group_service_ms": services}] * 2} for name in ("healthy", "regressed")}}
    assert slower_group(evidence) is None
    assert crossing_group(evidence) == group


def test_a_slower_group_of_one_rank_a_host_shows_half_of_its_loss_on_two_hosts() -> None:
    shape = Shape(nodes=16, ranks_per_node=2, hosts=tuple(f"n{at // 2}" for at in range(32)), scopes=(Scope.TWO_NODES,))
    accounts = {one.value: [0.0, 0.0] for one in Account} | {Account.TRANSFER.value: [1.0, 1.0]}
    units = {"healthy": {"16/16": 3.0}, "regressed": {"16/16": 4.0}}
    evidence = {
        "arms": {name: {"ranks": [0], "units": [{"group_service_ms": own}] * 2} for name, own in units.items()},
        "difference": {
            "step_ms": [1.0, 1.0],
            "accounts": dict.fromkeys(("rank_mean", "critical_path", "least_waiting_rank"), accounts),
            "local_ms": [],
        },
    }
    found = reconcile(evidence, shape)
    assert found.kappa["two_nodes"] == pytest.approx((1 / 2) / (15 / 16))
    assert found.span == 16


def test_longer_service_inside_one_host_is_the_collective(read: Read) -> None:
    one = Shape(nodes=1, ranks_per_node=4, hosts=("n0",) * 4, scopes=(Scope.ONE_RANK, Scope.ONE_NODE))
    found = read(hosts=("n0",) * 4, shape=one, service=lambda _rank, _step: 2.0 + DELTA_MS)
    assert found.mechanism == "collective"
    assert found.kappa == {"one_rank": 0.0, "one_node": 1.0}


def test_longer_loading_everywhere_is_input(read: Read) -> None:
    found = read(read=lambda _rank, _step: 0.5 + DELTA_MS)
    assert (found.mechanism, found.account) == ("input", Account.INPUT)
    assert found.culprit["kind"] == "all"
    assert found.shares["input"] == pytest.approx(1, abs=0.05)
    assert abs(found.shares["compute"]) < 0.05


def test_longer_loading_on_one_host_is_that_host_with_input_as_account(read: Read) -> None:
    found = read(read=lambda rank, _step: 0.5 + (DELTA_MS if rank in (2, 3) else 0.0))
    assert (found.mechanism, found.account) == ("slow_host", Account.INPUT)
    assert found.culprit == {"kind": "host", "members": ["n1"]}


@pytest.mark.parametrize("order", [(1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)])
@pytest.mark.parametrize(
    "where",
    [lambda _rank, _step: True, lambda rank, _step: rank == 0, lambda rank, _step: rank in (0, 1),
     lambda rank, step: rank == heavy_rank(step)],
    ids=["all", "one rank", "one host", "moving"],
)  # fmt: skip
def test_other_rank_numbers_lead_to_the_same_mechanism(
    where: Callable[[int, int], bool],
    order: tuple[int, ...],
    read: Read,
    tmp_path_factory: Any,
    recorded_arm: type[Any],
) -> None:
    found = read(compute=added(where))
    hosts = tuple(HOSTS[old] for old in order)
    folder = tmp_path_factory.mktemp("renumbered")
    before = recorded_arm(hosts=hosts, compute=lambda rank, step: usual(order[rank], step), steps=40)
    after = recorded_arm(hosts=hosts, compute=lambda rank, step: added(where)(order[rank], step), steps=40)
    arms = (
        ArmRuns(name="healthy", paths=(before.write(folder / "healthy"),)),
        ArmRuns(name="regressed", paths=(after.write(folder / "regressed", arm="regressed", turn=1),)),
    )
    evidence = build_evidence("given", arms, statistic="mean", mode="given", washout=0)
    shape = Shape(nodes=2, ranks_per_node=2, hosts=hosts, scopes=SHAPE.scopes)
    renumbered = reconcile(evidence, shape)
    assert (renumbered.mechanism, renumbered.account) == (found.mechanism, found.account)
    assert renumbered.share == pytest.approx(found.share)
    assert {order[rank] for rank in renumbered.ranks} == set(found.ranks)
    if found.culprit["kind"] == "host":
        assert renumbered.culprit == found.culprit


def test_the_reading_says_in_one_sentence_where_the_time_is(read: Read) -> None:
    found = read(compute=added(lambda rank, _step: rank == 3))
    assert found.sentence == "compute holds 100% of the loss on the critical path, and it is the own time of rank 3"
    assert found.rank_changes_ms == pytest.approx((0, 0, 0, DELTA_MS), abs=0.2)
