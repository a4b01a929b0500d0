"""What a comparison of run directories follows: links by rail and by size, racks, lateness, time since start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrows.reducers.compared_parts import Comparison
from narrows.reducers.compared_runs import compare_runs

MS = 1_000_000
GROUPS = {"tp[0,1]": [0, 1], "tp[2,3]": [2, 3], "dp[0,2]": [0, 2], "dp[1,3]": [1, 3]}
CALLS = (("tp", 64 << 10, 0.5), ("dp", 1 << 20, 1.0), ("dp", 16 << 20, 4.0))
HOSTS = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
Slowdown = Callable[[str, int], float]


def mesh_run(builder: Any, path: Path, turn: int, slower: Slowdown, **manifest: Any) -> Path:
    """Eight segments of twelve steps on a 2 x 2 mesh; the collectives of a step follow each other, one call a group."""
    run = builder(hosts=HOSTS, groups=GROUPS, manifest=manifest)
    for pair in range(8):
        now = dict.fromkeys(HOSTS, (2 * pair + turn + 1) * 1_000 * MS)
        for place in range(12):
            now = _step(run, now, slower, {"segment": 2 * pair + turn, "pair": pair}, pair * 12 + place)
    return run.write(path)


def _step(run: Any, now: dict[int, int], slower: Slowdown, labels: dict[str, int], step: int) -> dict[int, int]:
    """Each rank goes on when its own collective is over, so that a slow group is waited for at the next one."""
    at = {rank: start + 8 * MS + (step * 7919) % 40_000 for rank, start in now.items()}
    spans = {rank: [("forward", now[rank], at[rank])] for rank in HOSTS}
    for turn, (role, size, service_ms) in enumerate(CALLS):
        for name in (name for name in GROUPS if name.startswith(role)):
            service = service_ms * slower(name, size) * (1 + 0.002 * ((step * 31 + turn) % 7))
            end = max(at[rank] for rank in GROUPS[name]) + round(service * MS)
            enters = {rank: at[rank] for rank in GROUPS[name]}
            labelled = {"group": name, "payload_bytes": size, "segment": labels["segment"]}
            waits = run.blocking(step * len(CALLS) + turn, enters, dict.fromkeys(enters, end), **labelled)
            for rank, wait in zip(enters, waits, strict=True):
                spans[rank].append(wait)
                at[rank] = end
    for rank in HOSTS:
        run.step(rank, step, now[rank], at[rank], spans[rank], **labels)
    return at


@pytest.fixture
def compared_mesh(blank_run: Any, tmp_path: Path) -> Callable[..., Comparison]:
    def compare(slower: Slowdown, **manifest: Any) -> Comparison:
        healthy = mesh_run(blank_run, tmp_path / "healthy", 0, lambda _name, _size: 1.0, **manifest)
        regressed = mesh_run(blank_run, tmp_path / "regressed", 1, slower, **manifest)
        return compare_runs([healthy], [regressed])

    return compare


def test_a_slower_rail_is_told_by_its_group_and_what_else_holds_the_same_collectives(
    compared_mesh: Callable[..., Comparison],
) -> None:
    rails = {"local_ranks": {"0": {"rail": "a"}, "1": {"rail": "b"}}}
    placed = [{"rank": rank, "host": host, "local_rank": rank % 2} for rank, host in HOSTS.items()]
    found = compared_mesh(lambda name, _size: 1.6 if name == "dp[1,3]" else 1.0, topology=rails, placement=placed)
    assert (found.lead, found.culprit) == ("transfer", {"kind": "group", "members": ["dp[1,3]"]})
    assert "Service after the last arrival: the change follows group dp[1,3]" in found.follows
    assert "rail b" in found.follows
    assert found.next.row == "transfer-one-group"


def test_a_size_that_alone_got_slower_is_named_by_its_bytes(compared_mesh: Callable[..., Comparison]) -> None:
    found = compared_mesh(lambda _name, size: 1.6 if size > 4 << 20 else 1.0)
    assert found.culprit == {"kind": "bytes", "members": ["up to 16 MiB"]}
    assert "+60 % against the other collectives" in found.follows
    assert found.next.row == "transfer-across"


def test_links_that_slowed_down_alike_follow_no_single_one(compared_mesh: Callable[..., Comparison]) -> None:
    found = compared_mesh(lambda _name, _size: 1.5)
    assert found.lead == "transfer"
    assert found.follows == ""


def pair(folder: Path, arm: type[Any], before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    healthy = arm(pairs=8, **before).write(folder / "healthy")
    regressed = arm(pairs=8, **after).write(folder / "regressed", arm="regressed", turn=1)
    return compare_runs([healthy], [regressed])


def usual(rank: int, step: int) -> float:
    return 8.0 + 0.05 * ((step * 7 + rank * 3) % 11)


def test_the_ranks_of_a_rack_are_called_by_the_rack(tmp_path: Path, recorded_arm: Any) -> None:
    racks = {"topology": {"hosts": {f"n{at}": {"rack": f"r{at // 2}"} for at in range(4)}}}
    common = {"hosts": tuple(f"n{at // 2}" for at in range(8)), "manifest": racks}
    slow = lambda rank, step: usual(rank, step) + (3.0 if rank >= 4 else 0.0)  # noqa: E731
    found = pair(tmp_path, recorded_arm, {"compute": usual, **common}, {"compute": slow, **common})
    assert found.culprit == {"kind": "rack", "members": ["r1"]}
    assert found.next.row == "compute-somewhere"
    assert "rack r1" in found.next.evidence


def test_a_loss_that_grows_with_the_time_since_start_is_told(tmp_path: Path, recorded_arm: Any) -> None:
    growing = lambda rank, step: usual(rank, step) + 0.05 * (step % 80)  # noqa: E731
    common = {"steps": 80}
    found = pair(tmp_path, recorded_arm, {"compute": usual, **common}, {"compute": growing, **common})
    assert found.next.row == "grows"
    assert "Time since start: over a run the step grows by +" in found.follows


def test_steps_that_only_scatter_more_do_not_grow(tmp_path: Path, recorded_arm: Any) -> None:
    """In some pairs the last third is slower, in others the first: what the mean over pairs shows is not clear."""
    scattered = lambda rank, step: usual(rank, step) + (step * 2654435761 % 97) / 20.0  # noqa: E731
    common = {"steps": 80}
    found = pair(tmp_path, recorded_arm, {"compute": usual, **common}, {"compute": scattered, **common})
    assert "Time since start" not in found.follows
    assert found.next.row != "grows"


def test_runs_that_overlap_in_time_are_described_by_the_difference_of_their_means(
    tmp_path: Path, recorded_arm: Any
) -> None:
    slow = lambda rank, step: usual(rank, step) + 3.0  # noqa: E731
    healthy = recorded_arm(compute=usual, pairs=8).write(tmp_path / "healthy")
    regressed = recorded_arm(compute=slow, pairs=8).write(tmp_path / "regressed", arm="regressed")
    found = compare_runs([healthy], [regressed])
    assert (found.status, found.lead, found.pairs, found.tested) == ("slower", "compute", 1, False)
    assert found.step.interval is None
    assert found.step.delta == pytest.approx(3.0, rel=0.05)
    assert "overlap in time" in found.certainty
    assert any("overlap in time" in limit for limit in found.limits)


def test_runs_recorded_in_blocks_are_not_called_pairs(tmp_path: Path, recorded_arm: Any) -> None:
    """Four, four, four, four: what drifts within a block of four is part of the difference."""
    blocks = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    arms = [
        recorded_arm(compute=usual).write(tmp_path / name, segments={at: pair for pair, at in enumerate(places)})
        for name, places in zip(("first", "second"), blocks, strict=True)
    ]
    found = compare_runs([arms[0]], [arms[1]])
    assert (found.pairs, found.tested) == (8, False)
    assert "in blocks" in found.certainty
