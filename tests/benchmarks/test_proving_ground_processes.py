"""The cases of real processes, laid out without a launch: each is one that the shipped loader takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes.cases import NOTHING, lay_out
from processes.faults import RankFault, packed, unpacked
from processes.kinds import KINDS

from narrows.flows.casefile import load_case


@pytest.mark.parametrize("name", [*KINDS, NOTHING])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_kind_makes_a_case_file_that_is_accepted_and_tells_nothing_of_hidden_faults(
    name: str, seed: int, tmp_path: Path
) -> None:
    made = lay_out(name, 0.12, seed, tmp_path)

    case = load_case(made.case_file, recorded=False)
    text = made.case_file.read_text()
    assert (case.name, case.world_size) == (name, 4)
    assert len(made.hosts) == 4
    assert unpacked(packed(made.cluster.faults)) == tuple(made.cluster.faults)
    for fault in made.cluster.faults:
        assert fault.hosts or fault.image or fault.shards
        assert not any(f"{field}:" in text for field in ("input_us", "stall_us", "churn_us", "fsync_us", "spread"))


def test_a_fault_of_the_new_image_spares_the_healthy_arm_and_one_of_a_host_spares_the_others() -> None:
    image, host = RankFault(image="image-8", stall_us=1.0), RankFault(hosts=("n2",), drift=0.1)

    assert image.reaches({"label": "image-8"})
    assert not image.reaches({"label": "image-7"})
    assert host.ranks(["n0", "n2"], [0, 0], [0, 2]) == [False, True]
