"""Evidence of two arms: what merging, swapping and renumbering leave as it is, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.errors import RunDirectoryError
from narrows.reducers.evidence import VIEWS, ArmRuns, build_evidence, merge_evidence

Write = Callable[..., Path]


def jitter(rank: int, step: int) -> float:
    return 0.05 * ((step * 7 + rank * 3) % 11)


def slower(rank: int, step: int) -> float:
    return 11.0 + 1.3 * jitter(rank, step)


def usual(rank: int, step: int) -> float:
    return 8.0 + jitter(rank, step)


@pytest.fixture
def arms(tmp_path: Path, recorded_arm: type[Any]) -> tuple[ArmRuns, ArmRuns]:
    healthy = recorded_arm(compute=usual).write(tmp_path / "healthy")
    regressed = recorded_arm(compute=slower).write(tmp_path / "regressed", arm="regressed", turn=1)
    return ArmRuns(name="healthy", paths=(healthy,)), ArmRuns(name="regressed", paths=(regressed,))


def evidence(arms: tuple[ArmRuns, ArmRuns], **given: Any) -> dict[str, Any]:
    return build_evidence("E1", arms, **({"statistic": "mean", "mode": "switchback", "washout": 0} | given))


def test_the_record_is_json_with_its_pairs_and_the_mean_of_each_arm(arms: tuple[ArmRuns, ArmRuns]) -> None:
    found = evidence(arms)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["schema"], found["kind"], found["pairs"]) == (1, "evidence", 4)
    assert found["emulated"] is True
    assert found["order"] == [1, 1, 1, 1]
    assert found["arms"]["healthy"]["hosts"] == ["n0", "n1"]
    delta = found["arms"]["regressed"]["step_ms"] - found["arms"]["healthy"]["step_ms"]
    assert sum(found["difference"]["step_ms"]) / 4 == pytest.approx(delta)
    low, high = found["intervals"]["step_ms"]
    assert low < delta < high


@pytest.mark.parametrize("statistic", ["mean", "median", "p25", "low50"])
def test_the_accounts_of_every_view_add_up_to_the_step(statistic: str, arms: tuple[ArmRuns, ArmRuns]) -> None:
    found = evidence(arms, statistic=statistic)
    for arm in found["arms"].values():
        for unit in arm["units"]:
            for view in VIEWS:
                total = sum(unit["accounts"][view][str(account)] for account in ACCOUNTS)
                assert total == pytest.approx(unit["step_ms"], rel=1e-9), (statistic, view)


def test_a_tail_that_so_few_steps_cannot_hold_is_refused_with_what_it_needs(arms: tuple[ArmRuns, ArmRuns]) -> None:
    with pytest.raises(RunDirectoryError, match="segment 0: not estimable: p95 needs 200 steps, the unit has 12"):
        evidence(arms, statistic="p95")


def test_swapping_the_arms_turns_every_difference_round(arms: tuple[ArmRuns, ArmRuns]) -> None:
    found, swapped = evidence(arms), evidence(arms[::-1])
    assert swapped["difference"]["step_ms"] == pytest.approx([-one for one in found["difference"]["step_ms"]])
    assert swapped["order"] == [-one for one in found["order"]]
    for view in VIEWS:
        for account in map(str, ACCOUNTS):
            there, back = (one["difference"]["accounts"][view][account] for one in (found, swapped))
            assert back == pytest.approx([-one for one in there])


def test_parts_merged_are_the_same_evidence_as_all_at_once(tmp_path: Path, recorded_arm: type[Any]) -> None:
    """Two launches of two pairs each, against the same four pairs read together."""

    def launch(number: int) -> tuple[ArmRuns, ArmRuns]:
        found = []
        for turn, (name, compute) in enumerate({"healthy": usual, "regressed": slower}.items()):
            segments = {4 * number + 2 * at + turn: 2 * number + at for at in range(2)}
            arm = recorded_arm(compute=compute, manifest={"launch": f"launch-{number}"})
            path = arm.write(tmp_path / f"launch-{number}" / name, arm=name, segments=segments)
            found.append(ArmRuns(name=name, paths=(path,)))
        return found[0], found[1]

    launches = [launch(0), launch(1)]
    files = []
    for number, one in enumerate(launches):
        files.append(tmp_path / f"part-{number}.json")
        files[-1].write_text(json.dumps(evidence(one, first_pair=2 * number)))
    merged = merge_evidence("E1", files)
    both = tuple(ArmRuns(name=one[0].name, paths=one[0].paths + one[1].paths) for one in zip(*launches, strict=True))
    whole = evidence((both[0], both[1]))
    for key in ("pairs", "order", "difference", "intervals", "arms", "coverage", "losses"):
        assert merged[key] == whole[key], key
    assert merged["pairs"] == 4


def test_a_part_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"gone\.json: this evidence cannot be read .*restore it"):
        merge_evidence("E1", [tmp_path / "gone.json"])


def test_runs_without_pair_numbers_are_paired_in_order_of_time(tmp_path: Path, recorded_arm: type[Any]) -> None:
    paths: dict[str, list[Path]] = {"healthy": [], "regressed": []}
    for at, name in enumerate(["healthy", "regressed", "regressed", "healthy"]):
        compute = usual if name == "healthy" else slower
        run = recorded_arm(
            compute=compute, numbered=False, began_ns=10**9 * (10 * at + 1), manifest={"launch": f"r{at}"}
        )
        paths[name].append(run.write(tmp_path / str(at) / name, arm=name, segments={0: 0}))
    found = evidence(tuple(ArmRuns(name=name, paths=tuple(runs)) for name, runs in paths.items()), first_pair=6)  # type: ignore[arg-type]  # exactly two
    for arm in found["arms"].values():
        assert sorted(unit["pair"] for unit in arm["units"]) == [6, 7]
    assert found["pairs"] == 2
    assert found["order"] == [1, -1]


def test_only_what_the_arms_do_not_declare_is_confounded(tmp_path: Path, recorded_arm: type[Any]) -> None:
    healthy = recorded_arm(config={"packing": "snake"}, manifest={"packages": {"torch": "2.4"}})
    regressed = recorded_arm(config={"packing": "greedy"}, manifest={"packages": {"torch": "2.5"}})
    both = (
        ArmRuns(name="healthy", paths=(healthy.write(tmp_path / "healthy"),)),
        ArmRuns(name="regressed", paths=(regressed.write(tmp_path / "regressed", arm="regressed", turn=1),)),
    )
    assert evidence(both, declared=("config.packing",))["confounded"] == ["packages.torch"]
    assert set(evidence(both, declared=())["confounded"]) == {"config.packing", "packages.torch"}
    assert evidence(both)["confounded"] == []


def test_the_start_of_a_run_that_marks_none_is_left_out(tmp_path: Path, recorded_arm: type[Any]) -> None:
    def warming(rank: int, step: int) -> float:
        return usual(rank, step) + (50.0 if step < 3 else 0.0)

    first = ArmRuns(name="healthy", paths=(recorded_arm(compute=warming).write(tmp_path / "healthy"),))
    second = ArmRuns(
        name="regressed", paths=(recorded_arm(compute=usual).write(tmp_path / "regressed", arm="regressed", turn=1),)
    )
    left_out = evidence((first, second), washout=None)
    assert left_out["arms"]["healthy"]["step_ms"] < 14
    assert evidence((first, second), washout=0)["arms"]["healthy"]["step_ms"] > 14


@pytest.mark.parametrize(("missing", "pairs"), [(6, 4), (12, 3), (18, 3)])
def test_steps_that_a_rank_did_not_finish_are_left_out_for_all_and_listed(
    missing: int, pairs: int, tmp_path: Path, arms: tuple[ArmRuns, ArmRuns]
) -> None:
    path = tmp_path / "regressed" / "ranks" / "00003" / "steps.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-missing]))
    found = evidence(arms)
    assert found["pairs"] == pairs
    assert sum("dropped for all ranks" in loss for loss in found["losses"]) == (missing + 11) // 12
    assert found["arms"]["regressed"]["ranks"] == [0, 1, 2, 3]
    assert len(found["arms"]["regressed"]["local_ms"]) == len(found["arms"]["regressed"]["ranks"])


def test_an_arm_without_a_steady_step_is_refused(tmp_path: Path, arms: tuple[ArmRuns, ArmRuns]) -> None:
    for path in (tmp_path / "regressed" / "ranks").glob("*/steps.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(RunDirectoryError, match="regressed"):
        evidence(arms)
