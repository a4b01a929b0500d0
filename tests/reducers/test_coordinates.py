"""Where ranks and collectives sit, by what a run recorded."""

from __future__ import annotations

from typing import Any

import pytest

from narrows.reducers.coordinates import bytes_bin, bytes_label, collective_factors, local_ranks, rank_factors

RANKS = (0, 1, 2, 3)
HOSTS = ("n0", "n0", "n1", "n1")
MESH = {"tp[0,1]": (0, 1), "tp[2,3]": (2, 3), "dp[0,2]": (0, 2), "dp[1,3]": (1, 3), "world": RANKS}
TOPOLOGY = {
    "hosts": {"n0": {"rack": "r1"}, "n1": {"rack": "r2"}},
    "local_ranks": {"0": {"rail": 0, "nic": "mlx5_0"}, "1": {"rail": 1, "nic": "mlx5_1"}},
    "ranks": {"3": {"rail": 7, "shard": "d"}},
}


def factors(topology: Any = None, groups: Any = None) -> dict[str, list[str | None]]:
    return rank_factors(RANKS, HOSTS, groups or {}, {"topology": topology} if topology is not None else {})


def test_a_run_without_topology_has_hosts_and_places_on_the_host() -> None:
    assert factors() == {"host": ["n0", "n0", "n1", "n1"], "local_rank": ["0", "1", "0", "1"]}


def test_a_topology_labels_by_host_by_local_rank_and_by_rank_the_last_one_winning() -> None:
    found = factors(TOPOLOGY)
    assert found["rack"] == ["r1", "r1", "r2", "r2"]
    assert found["rail"] == ["0", "1", "0", "7"]
    assert found["shard"] == [None, None, None, "d"]


def test_a_network_card_is_one_card_of_one_host() -> None:
    assert factors(TOPOLOGY)["nic"] == ["n0/mlx5_0", "n0/mlx5_1", "n1/mlx5_0", "n1/mlx5_1"]


def test_a_mesh_gives_the_place_inside_each_group_and_the_group() -> None:
    found = factors(groups=MESH)
    assert found["tp"] == ["0", "1", "0", "1"]
    assert found["dp"] == ["0", "0", "1", "1"]
    assert found["dp group"] == ["dp[0,2]", "dp[1,3]", "dp[0,2]", "dp[1,3]"]
    assert "world" not in found


@pytest.mark.parametrize("topology", ["racks", {"hosts": ["n0"]}, {"hosts": {"n0": "r1"}}, {"racks": {}}])
def test_a_topology_of_another_form_labels_nothing(topology: Any) -> None:
    assert list(factors(topology)) == ["host", "local_rank"]


def test_the_place_on_a_host_is_counted_where_the_recorded_ones_collide() -> None:
    placed = {"placement": [{"rank": rank, "local_rank": 0} for rank in RANKS]}
    assert local_ranks(RANKS, HOSTS, placed) == [0, 1, 0, 1]
    apart = {"placement": [{"rank": rank, "local_rank": 3 - rank} for rank in RANKS]}
    assert local_ranks(RANKS, HOSTS, apart) == [3, 2, 1, 0]


def test_a_collective_has_the_labels_that_all_its_ranks_share() -> None:
    cells = [("dp[0,2]", 1 << 20), ("dp[1,3]", 1 << 20), ("tp[0,1]", 64 << 10)]
    found = collective_factors(cells, MESH, RANKS, factors(TOPOLOGY, MESH))
    assert found["group"] == ["dp[0,2]", "dp[1,3]", "tp[0,1]"]
    assert found["bytes"] == ["up to 1 MiB", "up to 1 MiB", "up to 64 KiB"]
    assert found["host"] == [None, None, "n0"]
    assert found["rail"] == ["0", None, None]
    assert found["tp"] == ["0", "1", None]


@pytest.mark.parametrize(
    ("payload", "label"),
    [(0, "none"), (1, "up to 1 B"), (1000, "up to 1 KiB"), (1024, "up to 1 KiB"), (1025, "up to 2 KiB"),
     (25 << 20, "up to 32 MiB"), (1 << 45, "up to 32 TiB")],
)  # fmt: skip
def test_payloads_fall_in_powers_of_two(payload: int, label: str) -> None:
    assert bytes_label(bytes_bin(payload)) == label
