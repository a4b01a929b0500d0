from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.reducers.scaling import (
    Algorithm,
    Link,
    bus_factor,
    expected_max,
    harmonic_ratio,
    imbalance_kappa,
    transfer_kappa,
    transfer_us,
)

FAST = Link(alpha_us=5.0, bytes_per_us=10_000.0)
NARROW = Link(alpha_us=5.0, bytes_per_us=5_000.0)
LATE = Link(alpha_us=50.0, bytes_per_us=10_000.0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.integers(1, 6))
def test_the_expected_maximum_is_the_mean_over_all_subsets(times: list[float], ranks: int) -> None:
    ranks = min(ranks, len(times))
    subsets = [max(chosen) for chosen in itertools.combinations(times, ranks)]
    assert expected_max([times], ranks)[0] == pytest.approx(np.mean(subsets))


def test_exponential_delays_scale_by_the_harmonic_numbers() -> None:
    assert harmonic_ratio(1, 32) == pytest.approx(0.246, abs=5e-4)
    assert harmonic_ratio(8, 32) == pytest.approx(0.67, abs=5e-3)
    rng = np.random.default_rng(1)
    healthy = np.full((2000, 32), 50.0)
    found = imbalance_kappa(healthy, healthy + rng.exponential(5.0, healthy.shape), 8)
    assert found.kappa == pytest.approx(found.exponential_kappa, abs=0.02)
    assert found.lower < found.kappa < found.upper


def test_full_scale_predicts_the_whole_effect() -> None:
    rng = np.random.default_rng(2)
    healthy = rng.normal(50, 1, (50, 8))
    assert imbalance_kappa(healthy, healthy + rng.exponential(5, healthy.shape), 8).kappa == pytest.approx(1)


def test_a_uniform_slowdown_keeps_its_size_at_every_scope() -> None:
    healthy = np.random.default_rng(3).normal(50, 1, (50, 8))
    assert imbalance_kappa(healthy, healthy + 5, 1).kappa == pytest.approx(1)


def test_one_slow_rank_is_seen_by_the_share_of_groups_that_hold_it() -> None:
    healthy = np.full((20, 8), 50.0)
    regressed = healthy.copy()
    regressed[:, 3] += 10
    assert imbalance_kappa(healthy, regressed, 2).kappa == pytest.approx(2 / 8)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(6)), st.floats(0.01, 100))
def test_rank_order_and_the_unit_of_time_do_not_matter(order: list[int], k: float) -> None:
    rng = np.random.default_rng(4)
    healthy = rng.normal(50, 1, (40, 6))
    regressed = healthy + rng.exponential(5, healthy.shape)
    one = imbalance_kappa(healthy, regressed, 2)
    other = imbalance_kappa(k * healthy[:, order], k * regressed[:, order], 2)
    assert other.kappa == pytest.approx(one.kappa)
    assert (other.lower, other.upper) == pytest.approx((one.lower, one.upper))


def test_the_interval_is_reproducible_by_its_seed() -> None:
    rng = np.random.default_rng(5)
    healthy = rng.normal(50, 1, (40, 6))
    regressed = healthy + rng.exponential(5, healthy.shape)
    assert imbalance_kappa(healthy, regressed, 2, seed=9) == imbalance_kappa(healthy, regressed, 2, seed=9)
    assert imbalance_kappa(healthy, regressed, 2, seed=9).lower != imbalance_kappa(healthy, regressed, 2, seed=8).lower


def test_an_imbalance_that_did_not_change_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="no imbalance to scale"):
        imbalance_kappa([[1.0, 2.0]], [[1.5, 2.0]], 1)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_scope_of_no_ranks_or_too_many_is_refused(ranks: int) -> None:
    with pytest.raises(ValueError, match="at least 1 rank and at most all"):
        imbalance_kappa([[1.0, 2.0]], [[1.5, 3.0]], ranks)


@pytest.mark.parametrize(
    ("op", "algorithm", "expected"),
    [
        ("all_reduce", Algorithm.RING, 14 * 5 + 2 * 8e6 * 7 / 8 / 1e4),
        ("all_reduce", Algorithm.TREE, 6 * 5 + 2 * 8e6 / 1e4),
        ("all_reduce", Algorithm.IN_NETWORK, 5 + 8e6 / 1e4),
        ("all_gather", Algorithm.RING, 7 * 5 + 8e6 * 7 / 8 / 1e4),
        ("reduce_scatter", Algorithm.RING, 7 * 5 + 8e6 * 7 / 8 / 1e4),
        ("all_to_all", Algorithm.RING, 7 * 5 + 8e6 * 7 / 8 / 1e4),
        ("broadcast", Algorithm.RING, 7 * 5 + 8e6 / 1e4),
        ("reduce", Algorithm.RING, 7 * 5 + 8e6 / 1e4),
    ],
)
def test_times_of_eight_ranks_follow_the_table(op: str, algorithm: Algorithm, expected: float) -> None:
    assert transfer_us(op, 8e6, 8, FAST, algorithm=algorithm) == pytest.approx(expected)


def test_a_hierarchy_of_one_node_or_of_one_rank_a_node_is_a_ring() -> None:
    def hierarchical(link: Link, inter: Link, nodes: int) -> float:
        return transfer_us("all_reduce", 8e6, 8, link, algorithm=Algorithm.HIERARCHICAL, inter=inter, nodes=nodes)

    assert hierarchical(FAST, NARROW, 1) == pytest.approx(transfer_us("all_reduce", 8e6, 8, FAST))
    assert hierarchical(FAST, NARROW, 8) == pytest.approx(transfer_us("all_reduce", 8e6, 8, NARROW))
    assert hierarchical(FAST, FAST, 2) < hierarchical(FAST, NARROW, 2)


def test_one_rank_transfers_nothing() -> None:
    assert transfer_us("all_reduce", 8e6, 1, FAST) == 0.0


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == pytest.approx(1.75)
    assert bus_factor("all_gather", 8) == pytest.approx(0.875)
    assert bus_factor("broadcast", 8) == 1.0


def test_a_narrower_link_scales_by_bytes_and_a_later_one_by_rounds() -> None:
    assert transfer_kappa("all_reduce", 8e6, 2, 8, FAST, NARROW) == pytest.approx((1 / 2) / (7 / 8))
    assert transfer_kappa("all_reduce", 8e6, 2, 8, FAST, LATE) == pytest.approx(1 / 7)


def test_a_link_that_the_scope_does_not_cross_predicts_nothing() -> None:
    assert transfer_kappa("all_reduce", 8e6, 4, 8, FAST, NARROW, present=False) == 0.0
    assert transfer_kappa("all_reduce", 8e6, 1, 8, FAST, NARROW) == 0.0


def test_an_unchanged_link_has_no_ratio_and_unknown_operations_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing to scale"):
        transfer_kappa("all_reduce", 8e6, 4, 8, FAST, FAST)
    with pytest.raises(ValueError, match="modelled are"):
        transfer_us("gossip", 8e6, 8, FAST)
    with pytest.raises(ValueError, match="the rate is positive"):
        Link(alpha_us=1.0, bytes_per_us=0.0)
