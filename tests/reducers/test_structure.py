from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.reducers.coordinates import rank_factors
from narrows.reducers.structure import FOLLOWS_NOTHING, Words, max_movement, max_t, scan_structure

HOSTS = [f"n{rank // 4}" for rank in range(16)]
SHARDS = [rank % 4 for rank in range(16)]
FACTORS = {"host": HOSTS, "shard": SHARDS}


def _noise(seed: int, pairs: int = 8, ranks: int = 16, hosts: float = 0.3) -> np.ndarray:
    """Noise of ranks and of hosts as a whole: ranks of one host are not independent."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, hosts, (pairs, ranks // 4)).repeat(4, axis=1)
    return rng.normal(0, 1, (pairs, ranks)) + common


def test_a_planted_rank_is_named() -> None:
    change = _noise(0)
    change[:, 5] += 6
    result = scan_structure(change, FACTORS)
    assert result.follows == "rank 5"
    assert result.culprit is not None
    assert result.culprit.effect == pytest.approx(6, abs=1.5)


def test_a_planted_host_is_blamed_rather_than_its_ranks() -> None:
    change = _noise(1)
    change[:, 4:8] += 5
    result = scan_structure(change, FACTORS)
    assert result.follows == "host n1"
    assert result.culprit is not None
    assert result.culprit.ranks == (4, 5, 6, 7)


def test_a_planted_shard_is_named() -> None:
    change = _noise(2)
    change[:, [2, 6, 10, 14]] += 5
    assert scan_structure(change, FACTORS).follows == "shard 2"


def test_a_host_is_not_blamed_for_one_of_its_ranks() -> None:
    """Host and rank are both significant; three quarters of the host did not move."""
    change = _noise(3)
    change[:, 9] += 12
    assert scan_structure(change, FACTORS).follows == "rank 9"


def test_the_right_level_is_named_nearly_always() -> None:
    named = {"rank": 0, "host": 0}
    for seed in range(40):
        one, four = _noise(seed), _noise(seed)
        one[:, 5] += 5
        four[:, 4:8] += 3
        named["rank"] += scan_structure(one, FACTORS).follows == "rank 5"
        named["host"] += scan_structure(four, FACTORS).follows == "host n1"
    assert named["rank"] >= 38
    assert named["host"] >= 36


def test_noise_names_a_level_no_more_often_than_alpha() -> None:
    named = sum(scan_structure(_noise(seed, hosts=0.5), FACTORS).culprit is not None for seed in range(300))
    assert named / 300 <= 0.085


def test_a_change_common_to_all_ranks_follows_nothing() -> None:
    assert scan_structure(_noise(4) + 20, FACTORS).follows == "nothing"


def test_a_slowest_rank_that_moves_from_step_to_step_varies() -> None:
    local = np.random.default_rng(5).exponential(5, (60, 16))
    result = scan_structure(_noise(6), FACTORS, local_SR=local)
    assert result.follows == FOLLOWS_NOTHING
    assert "take turns" in result.sentence


def test_one_rank_that_is_always_the_slowest_does_not_vary() -> None:
    local = np.random.default_rng(5).exponential(1, (60, 16))
    local[:, 3] += 20
    moved = max_movement(local)
    assert (moved.top_rank, moved.top_share, moved.varies) == (3, 1.0, False)


@pytest.mark.parametrize(("share", "varies"), [(0.5, True), (0.7, True), (0.8, False)])
def test_two_ranks_vary_unless_one_is_mostly_the_slowest(share: float, varies: bool) -> None:
    first = np.arange(100) < 100 * share
    assert max_movement(np.column_stack([first, ~first]).astype(float)).varies is varies


def test_of_two_hosts_the_one_that_moved_is_named() -> None:
    change = np.random.default_rng(7).normal(0, 0.1, (6, 4))
    change[:, 2:] += 5
    result = scan_structure(change, {"host": ["a", "a", "b", "b"]})
    assert result.follows == "host b"


def test_levels_with_the_same_ranks_are_reported_as_aliases() -> None:
    change = np.random.default_rng(8).normal(0, 0.1, (6, 3))
    change[:, 2] += 5
    result = scan_structure(change, {"host": ["a", "b", "c"]})
    assert result.follows == "rank 2"
    assert result.aliases == ("host c",)


def test_five_pairs_cannot_name_and_say_so() -> None:
    change = np.random.default_rng(9).normal(0, 0.1, (5, 4))
    change[:, 1] += 50
    result = scan_structure(change, {})
    assert not result.resolvable
    assert "5 pairs cannot single out" in result.sentence


def test_changes_without_any_noise_are_named() -> None:
    change = np.zeros((6, 4))
    change[:, 1] = 3
    assert scan_structure(change, {"host": ["a", "a", "b", "b"]}).follows == "rank 1"
    assert scan_structure(np.zeros((6, 4)), {}).follows == "nothing"


def test_an_effect_below_the_least_that_matters_is_not_named() -> None:
    change = _noise(0)
    change[:, 5] += 6
    assert scan_structure(change, FACTORS, least=20).follows == "nothing"


@settings(deadline=None, max_examples=15)
@given(st.permutations(range(16)), st.sampled_from([-1.0, 0.25, 1024.0]))
def test_rank_order_arms_and_the_unit_of_time_change_no_name(order: list[int], k: float) -> None:
    change = _noise(1)
    change[:, 4:8] += 5
    straight = scan_structure(change, FACTORS)
    moved = scan_structure(
        k * change[:, order], {"host": [HOSTS[r] for r in order], "shard": [SHARDS[r] for r in order]}, ranks=order
    )
    assert moved.follows == straight.follows
    assert straight.culprit is not None
    assert moved.culprit is not None
    assert set(moved.culprit.ranks) == set(straight.culprit.ranks)
    assert moved.culprit.p == straight.culprit.p
    assert moved.culprit.effect == pytest.approx(k * straight.culprit.effect)


def test_the_smallest_p_is_one_pattern_in_all() -> None:
    _, p = max_t(np.full((6, 1), 2.0) + np.arange(6)[:, None] * 0.01)
    assert p[0] == pytest.approx(2**-5)


def test_many_pairs_are_judged_by_a_seeded_sample_of_patterns() -> None:
    change = np.random.default_rng(1).normal(0, 1, (18, 4))
    change[:, 1] += 3
    assert scan_structure(change, {}, seed=3) == scan_structure(change, {}, seed=3)
    assert scan_structure(change, {}, seed=3).follows == "rank 1"


def test_labels_that_do_not_fit_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="labels 2 ranks"):
        scan_structure(np.zeros((6, 4)), {"host": ["a", "b"]})
    with pytest.raises(ValueError, match="at least 2 pairs"):
        scan_structure(np.zeros((1, 4)), {})


CLUSTER_RANKS = tuple(range(32))
CLUSTER_HOSTS = tuple(f"n{rank // 4}" for rank in CLUSTER_RANKS)
CLUSTER = rank_factors(
    CLUSTER_RANKS,
    CLUSTER_HOSTS,
    {
        **{f"tp[{first},{first + 1}]": (first, first + 1) for first in range(0, 32, 2)},
        **{f"pp[{at},{at + 16}]": (at, at + 16) for at in range(16)},
    },
    {
        "topology": {
            "hosts": {f"n{host}": {"rack": f"r{host // 2}"} for host in range(8)},
            "local_ranks": {str(at): {"rail": at, "nic": f"mlx5_{at // 2}"} for at in range(4)},
        }
    },
)
"""Eight hosts of four ranks in four racks; two ranks share a card, and each local rank has its rail."""


def _cluster_noise(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    hosts = rng.normal(0, 0.5, (8, 8)).repeat(4, axis=1)
    racks = rng.normal(0, 0.3, (8, 4)).repeat(8, axis=1)
    return rng.normal(0, 1, (8, 32)) + hosts + racks


@pytest.mark.parametrize(
    ("factor", "level", "size"),
    [("rank", "21", 6.0), ("host", "n5", 4.0), ("rack", "r2", 3.0), ("rail", "3", 2.0), ("nic", "n6/mlx5_1", 5.0),
     ("tp", "1", 1.6), ("pp", "1", 1.6)],
)  # fmt: skip
def test_a_planted_coordinate_is_named_among_all_that_are_known(factor: str, level: str, size: float) -> None:
    labels = CLUSTER_RANKS if factor == "rank" else CLUSTER[factor]
    inside = [str(label) == level for label in labels]
    named = 0
    for seed in range(20):
        change = _cluster_noise(seed)
        change[:, inside] += size
        result = scan_structure(change, CLUSTER)
        named += f"{factor} {level}" in (result.follows, *result.aliases)
    assert named >= 17


def test_with_every_factor_and_noise_of_hosts_and_racks_the_family_wise_error_holds() -> None:
    named = sum(scan_structure(_cluster_noise(seed), CLUSTER).culprit is not None for seed in range(400))
    # alpha 0.05 over 400 tables: two standard errors are 0.022.
    assert named / 400 <= 0.072


def test_a_column_without_a_label_is_in_no_level_of_that_factor() -> None:
    change = np.random.default_rng(2).normal(0, 0.1, (8, 4))
    change[:, 1:3] += 2
    result = scan_structure(change, {"rail": [None, "a", "a", None]})
    assert result.follows == "rail a"
    assert {effect.level for effect in result.levels if effect.factor == "rail"} == {"a"}


def test_changes_of_collectives_are_told_in_percent_and_by_the_group_before_its_one_size() -> None:
    change = np.random.default_rng(3).normal(0, 0.01, (8, 3))
    change[:, 2] += np.log(1.4)
    result = scan_structure(
        change,
        {"group": ["dp", "dp", "tp"]},
        ranks=range(3),
        words=Words(each="collective", labels=["of dp, 1", "of dp, 2", "of tp, 1"], relative=True),
    )
    assert result.follows == "group tp"
    assert result.aliases == ("collective of tp, 1",)
    assert "+39 % against the other collectives" in result.sentence
