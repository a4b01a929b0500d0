"""Topology files as coordinates of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from narrows.reducers.coordinates import rank_factors
from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.topology import read_topology, with_topology

SLURM = """\
# two leaves, one spine
SwitchName=leaf1 Nodes=n[00-01]
SwitchName=leaf2 Nodes=n[02-03]
SwitchName=spine Switches=leaf[1-2]
"""
NCCL = """\
<system version="1">
  <cpu numaid="0" arch="x86_64">
    <pci busid="0000:01:00.0" class="0x060400">
      <pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0"/></pci>
      <pci busid="0000:03:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64">
    <pci busid="0000:81:00.0" class="0x060400">
      <pci busid="0000:82:00.0" class="0x030200"><gpu dev="1" sm="90" rank="1"/></pci>
      <pci busid="0000:83:00.0" class="0x020700"><nic><net name="mlx5_1" dev="1" speed="400000"/></nic></pci>
    </pci>
  </cpu>
</system>
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "topology"
    path.write_text(text)
    return path


def test_switches_of_slurm_are_coordinates_of_hosts_level_by_level(tmp_path: Path) -> None:
    topology = read_topology(_written(tmp_path, SLURM))
    assert topology["hosts"]["n02"] == {"switch": "leaf2", "switch 2": "spine"}
    factors = rank_factors((0, 1, 2), ("n00", "n01", "n03"), {}, with_topology({}, topology))
    assert factors["switch"] == ["leaf1", "leaf1", "leaf2"]
    assert "switch 2" not in factors


def test_switches_that_hang_on_each_other_in_a_loop_end(tmp_path: Path) -> None:
    loop = "SwitchName=a Nodes=n0 Switches=b\nSwitchName=b Switches=a\n"
    assert read_topology(_written(tmp_path, loop))["hosts"]["n0"] == {"switch": "a", "switch 2": "b"}


def test_the_nearest_card_and_the_numa_node_of_each_gpu_come_from_nccls_file(tmp_path: Path) -> None:
    topology = read_topology(_written(tmp_path, NCCL))
    assert topology["local_ranks"] == {"0": {"numa": "0", "nic": "mlx5_0"}, "1": {"numa": "1", "nic": "mlx5_1"}}


def test_a_topology_that_is_given_replaces_the_layer_that_was_recorded(tmp_path: Path) -> None:
    given = read_topology(_written(tmp_path, json.dumps({"hosts": {"n0": {"rack": 7}}})))
    recorded = {"topology": {"hosts": {"n0": {"rack": "old"}}, "ranks": {"0": {"rail": "1"}}}}
    told = with_topology(recorded, given)["topology"]
    assert told == {"hosts": {"n0": {"rack": "7"}}, "ranks": {"0": {"rail": "1"}}}
    assert with_topology(recorded, None) is recorded


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"racks": {"n0": {}}}', "'racks' is none of hosts, local_ranks, ranks"),
        ('{"hosts": ["n0"]}', "Expected `object`"),
        ('{"hosts": {}}', "labels no host"),
        ("step 1 | loss 2.0 | 3 ms\nstep 2 | loss 2.0 | 3 ms\n", "topology"),
        ("", "is empty"),
    ],
)
def test_a_file_that_is_no_topology_is_refused_by_name_and_rule(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(UnreadableError, match=r"topology: .*") as refused:
        read_topology(_written(tmp_path, text))
    assert rule in str(refused.value)
