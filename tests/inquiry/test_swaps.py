"""Swaps as experiments: who is exchanged with whom, what is on record before, what the ladder makes of the answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from narrows.inquiry import swaps
from narrows.inquiry.case import ArmSpec, Case
from narrows.inquiry.design import ArmKind, Experiment
from narrows.inquiry.docket import Kind
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.steps import Launch
from narrows.inquiry.verdict import Verdict

MakeCase = Callable[..., Case]
HOSTS = tuple(f"n{at}" for at in range(6))


def reading(mechanism: str, *ranks: int, kind: str = "rank", members: tuple[Any, ...] = ()) -> dict[str, Any]:
    return {
        "account": "compute", "mechanism": mechanism, "culprit": {"kind": kind, "members": list(members or ranks)},
        "ranks": list(ranks), "kappa": dict.fromkeys(("one_rank", "one_node", "two_nodes", "full"), 1.0),
    }  # fmt: skip


def state_of(found: dict[str, Any], **verdicts: str) -> Any:
    """What swaps look at, without a docket. ``verdicts`` of the swap, which then has evidence."""
    return SimpleNamespace(
        reconciliation=found, mechanism=found["mechanism"], opened={}, reference={"delta_ms": 6.0},
        evidence={"swap": [{}]} if verdicts else {}, ids={f"swap:{one}": one for one in verdicts},
        verdict=lambda key: Verdict(verdicts[key.split(":")[1]]) if key.split(":")[1] in verdicts else None,
    )  # fmt: skip


def planned(case: Case, state: Any) -> list[tuple[Experiment, tuple[Hypothesis, ...]]]:
    return list(swaps.experiments(case, state))


def seats(experiment: Experiment) -> list[tuple[str, int, int]]:
    """Host, local rank and own shard of every place."""
    starts = {host: ranks[0] for host, ranks in experiment.placement.hosts}
    hosts = [experiment.placement.host_of(rank) for rank in experiment.before.ranks]
    return [
        (host, rank - starts[host], shard)
        for host, rank, shard in zip(hosts, experiment.before.ranks, experiment.before.shards, strict=True)
    ]


def test_one_slow_device_is_exchanged_with_the_same_device_of_a_good_host(case_of: MakeCase) -> None:
    ((experiment, hypotheses),) = planned(case_of(nodes=3), state_of(reading("slow_rank", 3)))
    assert experiment.key == "swap"
    assert seats(experiment) == [("n0", 1, 1), ("n1", 1, 3)]
    assert experiment.after.shards == experiment.before.shards[::-1]
    assert [one.key for one in hypotheses] == ["swap:hardware", "swap:data", "swap:interaction"]
    assert {one.ranks for one in hypotheses} == {(1, 0)}
    assert {one.family for one in hypotheses} == {3}


def test_a_hypothesis_says_what_it_predicts_and_what_rejects_it(case_of: MakeCase) -> None:
    ((_, hypotheses),) = planned(case_of(), state_of(reading("slow_rank", 3)))
    for one in hypotheses:
        assert (one.prediction.low, one.prediction.high) == (3.0, 9.0)
        assert one.reject_if.words().endswith("upper bound below 3 ms")
    claims = [one.claim for one in hypotheses]
    assert "stays with rank 3" in claims[0]
    assert "goes with shard 3" in claims[1]
    assert "takes shard 3 on rank 3" in claims[2]


@pytest.mark.parametrize("ranks", [(3,), (0, 3), (3, 1, 4), (5, 4), (0, 1, 2, 3)])
@pytest.mark.parametrize("mechanism", ["slow_rank", "slow_host"])
def test_no_suspected_rank_host_or_shard_is_a_control(
    case_of: MakeCase, mechanism: str, ranks: tuple[int, ...]
) -> None:
    case, found = case_of(nodes=3), reading(mechanism, *ranks)
    suspected_hosts = {case.full_placement.host_of(rank) for rank in ranks}
    for experiment, hypotheses in planned(case, state_of(found, hardware="inconclusive")):
        places = seats(experiment)
        controls = {column for one in hypotheses for column in one.ranks[1:]}
        assert controls
        assert controls.isdisjoint(one.ranks[0] for one in hypotheses)
        for column in controls:
            host, local, shard = places[column]
            assert shard not in ranks
            assert case.full_hosts.index(host) * 2 + local not in ranks
            assert mechanism == "slow_rank" or host not in suspected_hosts
        assert len({(host, local) for host, local, _ in places}) == len(places)
        assert len({shard for _, _, shard in places}) == len(places)


def test_several_suspects_are_rotated_with_a_control_by_latin_square(case_of: MakeCase) -> None:
    ((experiment, hypotheses),) = planned(case_of(nodes=4), state_of(reading("slow_rank", 3, 4, 6)))
    assert experiment.key == "square"
    rows = [arm.shards for arm in experiment.arms]
    assert len(rows) == 4
    assert all(len(set(line)) == 4 for line in (*rows, *zip(*rows, strict=True)))
    assert {arm.ranks for arm in experiment.arms} == {experiment.before.ranks}
    assert len({arm.name for arm in experiment.arms}) == 4
    assert [one.key for one in hypotheses] == [
        f"square:{source}:{rank}" for rank in (3, 4, 6) for source in ("hardware", "data")
    ]
    assert {one.family for one in hypotheses} == {6}
    assert experiment.device_hours(6, 10.0) > 1.9 * 0.5 * experiment.device_hours(3, 10.0)


def test_of_many_suspects_those_that_changed_most_are_rotated(case_of: MakeCase) -> None:
    ((_, hypotheses),) = planned(case_of(nodes=4), state_of(reading("slow_rank", 5, 1, 3, 4, 7)))
    assert {one.key.rpartition(":")[2] for one in hypotheses} == {"5", "1", "3"}


def test_two_slow_hosts_are_two_suspects_however_many_ranks_they_have(case_of: MakeCase) -> None:
    found = reading("slow_host", 4, 5, 2, 3, kind="host", members=("n1", "n2"))
    ((experiment, hypotheses),) = planned(case_of(nodes=3), state_of(found))
    assert [host for host, _, _ in seats(experiment)] == ["n0", "n2", "n1"]
    assert {one.key.rpartition(":")[2] for one in hypotheses} == {"n1", "n2"}


def test_a_swap_that_leaves_it_open_is_followed_by_a_square_with_another_control(case_of: MakeCase) -> None:
    case, found = case_of(nodes=3), reading("slow_rank", 3)
    open_still = planned(case, state_of(found, hardware="inconclusive", data="rejected", interaction="rejected"))
    assert [experiment.key for experiment, _ in open_still] == ["swap", "square"]
    square, hypotheses = open_still[1]
    assert len(square.arms) == 3
    assert [one.key for one in hypotheses] == ["square:hardware", "square:data", "square:interaction"]
    for settled in (
        {"hardware": "supported", "data": "rejected"},
        {"hardware": "inconclusive", "data": "inconclusive", "interaction": "supported"},
        {},
    ):
        assert len(planned(case, state_of(found, **settled))) == 1


def test_on_a_single_host_a_slow_device_is_exchanged_with_its_neighbour(case_of: MakeCase) -> None:
    ((experiment, _),) = planned(case_of(nodes=1), state_of(reading("slow_rank", 1)))
    assert seats(experiment) == [("n0", 0, 0), ("n0", 1, 1)]


def test_where_every_place_is_suspected_nothing_is_swapped(case_of: MakeCase) -> None:
    assert planned(case_of(), state_of(reading("slow_rank", 0, 1, 2, 3))) == []


# On the ladder.


@pytest.fixture
def climbed(case_of: MakeCase, world_of: type[Any], player_of: Callable[..., Any]) -> Callable[..., Any]:
    def play(found: dict[str, Any], **verdicts: str) -> Any:
        known = {
            "scope:one_rank": "supported",
            "control:one_rank": "rejected",
            "perturbation:replace-rank": "supported",
            "closing:replace-rank": "supported",
            "soak": "supported",
        }
        work = {"kind": ArmKind.CONFIG, "healthy": ArmSpec(), "regressed": ArmSpec(config={"label": "new"})}
        answers = known | {key.replace("__", ":"): value for key, value in verdicts.items()}
        case = case_of(nodes=4, hosts=HOSTS, workload=work)
        player = player_of(world_of(reading=found, verdicts=answers), case)
        player.play()
        return player

    return play


def test_the_square_names_the_one_suspect_that_is_slow(climbed: Callable[..., Any]) -> None:
    player = climbed(
        reading("slow_rank", 3, 5),
        square__hardware__3="rejected", square__data__3="rejected",
        square__hardware__5="supported", square__data__5="rejected",
    )  # fmt: skip
    assert "square" in player.launched
    assert "swap" not in player.launched
    assert player.conclusion.mechanism == "slow_rank"
    assert player.conclusion.culprit == {"kind": "rank", "members": [5]}
    registered = {entry.body["hypothesis"]["key"]: entry.line for entry in player.docket.of(Kind.REGISTERED)}
    launched = next(e.line for e in player.docket.of(Kind.LAUNCHED) if e.body["experiment"] == "square")
    assert registered["square:hardware:5"] < launched


def test_the_square_names_the_shard_that_is_slow(climbed: Callable[..., Any]) -> None:
    player = climbed(
        reading("slow_rank", 3, 5),
        square__hardware__3="rejected", square__data__3="supported",
        square__hardware__5="rejected", square__data__5="rejected",
    )  # fmt: skip
    assert player.conclusion.mechanism == "shard"
    assert player.conclusion.culprit == {"kind": "shard", "members": [3]}


def test_a_shard_that_is_slow_on_one_place_alone_is_neither_of_them(climbed: Callable[..., Any]) -> None:
    player = climbed(reading("slow_rank", 3), swap__interaction="supported")
    assert "square" not in player.launched
    assert player.conclusion.mechanism == "shard on hardware"


def test_an_open_swap_is_judged_again_by_the_square(climbed: Callable[..., Any]) -> None:
    player = climbed(reading("slow_rank", 3), square__hardware="rejected", square__data="supported")
    keys = [step.experiment.key for step in player.of(Launch)]
    assert keys.index("swap") < keys.index("square")
    assert player.conclusion.mechanism == "shard"
