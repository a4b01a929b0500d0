"""The programs under real torchrun: what they record, and that faults and scopes reach only what they should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from narrows.experiments import PROGRAMS
from narrows.experiments.collective import main as collective_main
from narrows.experiments.step import main as step_main
from narrows.inquiry.workloads import BUILTIN

Line = dict[str, Any]
Launch = Callable[..., Path]
STEP = "narrows.experiments.step"


def segment(number: int, pair: int, arm: str, **changes: object) -> Line:
    steps = {"steps": 3, "washout": 1, "first_batch": 3 * pair}
    return {"segment": number, "pair": pair, "arm": arm, **steps, **changes}


def read(run: Path, rank: int, name: str) -> list[Line]:
    lines = (run / "ranks" / f"{rank:05d}" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def steps_of(run: Path, rank: int, number: int) -> list[Line]:
    return [line for line in read(run, rank, "steps.jsonl") if line["segment"] == number]


def collectives_of(run: Path, rank: int, number: int) -> list[Line]:
    return [line for line in read(run, rank, "collectives.jsonl") if "seq" in line and line["segment"] == number]


def service_ns(run: Path, ranks: tuple[int, ...], number: int) -> list[int]:
    """Time after the last arrival of each collective of a segment, in the order of issue."""
    by_rank = [collectives_of(run, rank, number) for rank in ranks]
    return [min(c["end_ns"] for c in same) - max(c["enter_ns"] for c in same) for same in zip(*by_rank, strict=True)]


@pytest.fixture(scope="module")
def emulated(launch: Launch) -> Path:
    """Three ranks on two hosts: n0 holds 0 and 1, n1 holds 2. Segments 2 and 3 leave rank 2 out."""
    pair_of_one_host = {"active": [0, 1], "shards": {"0": 2, "1": 0}}
    return launch(
        STEP,
        (2, 1),
        {
            "device": "emulated",
            "seed": 7,
            "base": {"fabric_jitter": 0.0, "loader_us": 1000},
            "arms": {"healthy": {}, "regressed": {"slow_link": {"mbit": 500, "delay_us": 1000}, "packing": "greedy"}},
            "num_shards": 3,
            "segments": [
                segment(0, 0, "healthy"),
                segment(1, 0, "regressed"),
                segment(2, 1, "regressed", **pair_of_one_host),
                segment(3, 1, "healthy", **pair_of_one_host),
            ],
        },
    )


@pytest.mark.dist
def test_each_arm_has_a_run_directory_that_declares_its_configuration(emulated: Path) -> None:
    manifests = {arm: json.loads((emulated / arm / "manifest.json").read_text()) for arm in ("healthy", "regressed")}
    for arm, manifest in manifests.items():
        assert (manifest["arm"], manifest["program"], manifest["emulated"]) == (arm, "step", True)
        assert manifest["groups"]["dp"] == [0, 1, 2]
        assert set(manifest["config"]) == set(BUILTIN["step"])
    healthy, regressed = manifests["healthy"]["config"], manifests["regressed"]["config"]
    assert {key for key in healthy if healthy[key] != regressed[key]} == {"slow_link", "packing"}
    assert regressed["slow_link"] == {"mbit": 500, "delay_us": 1000, "host": ""}
    assert manifests["healthy"]["workload"] == manifests["regressed"]["workload"]


@pytest.mark.dist
@pytest.mark.parametrize(("arm", "number"), [("healthy", 0), ("regressed", 1)])
def test_every_rank_records_every_step_of_a_segment_in_tiling_windows(emulated: Path, arm: str, number: int) -> None:
    for rank in range(3):
        steps = steps_of(emulated / arm, rank, number)
        assert [step["batch"] for step in steps] == [0, 1, 2]
        assert [step.get("warmup", False) for step in steps] == [True, False, False]
        assert all(step["pair"] == 0 for step in steps)
        assert [step["start_ns"] for step in steps[1:]] == [step["end_ns"] for step in steps[:-1]]
        for step in steps:
            names = {name for name, _, _ in step["spans_ns"]}
            assert {"h2d", "forward", "backward", "wait", "optimizer"} <= names
            length = step["end_ns"] - step["start_ns"]
            assert all(0 <= begin < end <= length for _, begin, end in step["spans_ns"])


@pytest.mark.dist
def test_the_same_group_and_sequence_mean_the_same_collective_on_all_ranks(emulated: Path) -> None:
    for arm, number in (("healthy", 0), ("regressed", 1)):
        seen = [
            [(c["group"], c["seq"], c["op"], c["payload_bytes"]) for c in collectives_of(emulated / arm, rank, number)]
            for rank in range(3)
        ]  # fmt: skip
        assert seen[0]
        assert seen[0] == seen[1] == seen[2]


@pytest.mark.dist
def test_buckets_are_in_flight_while_backward_goes_on(emulated: Path) -> None:
    for step in steps_of(emulated / "healthy", 1, 0):
        backward_end = step["start_ns"] + max(end for name, _, end in step["spans_ns"] if name == "backward")
        mine = [c for c in collectives_of(emulated / "healthy", 1, 0) if c["step"] == step["step"]]
        assert sum(c["enter_ns"] < backward_end for c in mine) >= len(mine) - 1
        assert max(c["end_ns"] for c in mine) > backward_end


@pytest.mark.dist
def test_a_slow_link_lengthens_the_collectives_that_cross_hosts_by_what_it_needs(emulated: Path) -> None:
    payload = collectives_of(emulated / "healthy", 0, 0)[0]["payload_bytes"]
    added_ns = 2 * (1_000_000 + (2 / 3) * payload * 8 * 1e9 / 500e6)
    plain, slow = service_ns(emulated / "healthy", (0, 1, 2), 0), service_ns(emulated / "regressed", (0, 1, 2), 1)
    assert min(slow) >= min(plain) + added_ns * 0.999


@pytest.mark.dist
def test_an_injected_delay_lengthens_every_step_of_every_rank_by_its_own_span(launch: Launch) -> None:
    plan = {
        "device": "emulated",
        "base": {"jitter": 0.0, "fabric_jitter": 0.0, "loader_us": 100},
        "arms": {"healthy": {}, "delayed": {"injected_delay_ms": 4.0}},
        "num_shards": 2,
        "segments": [segment(0, 0, "healthy"), segment(1, 0, "delayed")],
    }
    runs = launch(STEP, (2,), plan)
    for rank in range(2):
        plain, delayed = steps_of(runs / "healthy", rank, 0), steps_of(runs / "delayed", rank, 1)
        for before, after in zip(plain[1:], delayed[1:], strict=True):
            [(begin, end)] = [(begin, end) for name, begin, end in after["spans_ns"] if name == "delay"]
            assert end - begin == 4_000_000
            assert end == after["end_ns"] - after["start_ns"]
            longer_ns = after["end_ns"] - after["start_ns"] - (before["end_ns"] - before["start_ns"])
            assert longer_ns == pytest.approx(4_000_000, abs=1_000_000)


@pytest.mark.dist
def test_a_slow_link_leaves_collectives_inside_a_host_alone(emulated: Path) -> None:
    plain, slow = service_ns(emulated / "healthy", (0, 1), 3), service_ns(emulated / "regressed", (0, 1), 2)
    assert min(slow) == pytest.approx(min(plain), rel=0.001)


@pytest.mark.dist
def test_a_rank_that_is_not_active_records_no_step_and_no_collective(emulated: Path) -> None:
    for arm, number in (("regressed", 2), ("healthy", 3)):
        assert len(steps_of(emulated / arm, 0, number)) == 3
        assert steps_of(emulated / arm, 2, number) == []
        assert collectives_of(emulated / arm, 2, number) == []


@pytest.mark.dist
def test_packing_keeps_the_work_of_each_global_batch_and_its_loss(emulated: Path) -> None:
    arms = {"healthy": 0, "regressed": 1}
    played = {arm: [steps_of(emulated / arm, rank, number) for rank in range(3)] for arm, number in arms.items()}
    for index in range(3):
        for counter in ("valid_tokens", "samples", "sum_sq_len", "model_flops"):
            sums = {sum(rank[index]["useful"][counter] for rank in ranks) for ranks in played.values()}
            assert len(sums) == 1, counter
        assert len({rank[index]["loss"] for ranks in played.values() for rank in ranks}) == 1


@pytest.mark.dist
def test_greedy_packing_makes_the_heaviest_rank_heavier(emulated: Path) -> None:
    for index in range(3):
        squares = {
            arm: max(steps_of(emulated / arm, rank, number)[index]["useful"]["sum_sq_len"] for rank in range(3))
            for arm, number in (("healthy", 0), ("regressed", 1))
        }
        assert squares["regressed"] > 1.2 * squares["healthy"]


@pytest.mark.dist
def test_a_reduced_scope_plays_the_shards_that_it_was_given(emulated: Path) -> None:
    whole = {rank: steps_of(emulated / "healthy", rank, 0)[0]["useful"] for rank in range(3)}
    reduced = {rank: steps_of(emulated / "healthy", rank, 3)[0]["useful"] for rank in (0, 1)}
    assert set(reduced) == {0, 1}
    assert reduced[0] != reduced[1]
    assert {counters["valid_tokens"] for counters in whole.values()} != {0}


@pytest.mark.dist
def test_rank_0_reports_its_progress(emulated: Path) -> None:
    assert "E00 segment 4/4 healthy" in (emulated / "printed.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def real(launch: Launch) -> Path:
    """Two ranks that really compute, with the two packings."""
    small = {"layers": 2, "hidden": 32, "tokens_per_rank": 512, "mean_doc_tokens": 64, "max_doc_tokens": 128}
    return launch(
        STEP,
        (2,),
        {
            "device": "cpu",
            "seed": 7,
            "base": {**small, "bucket_bytes": 65536, "loader_us": 0},
            "arms": {"healthy": {}, "regressed": {"packing": "greedy", "accumulate": 2, "recompute": True}},
            "segments": [segment(0, 0, "healthy"), segment(1, 0, "regressed")],
        },
    )


@pytest.mark.dist
def test_real_training_reaches_the_same_losses_whatever_the_packing_and_the_recomputation(real: Path) -> None:
    for key in ("loss", "grad_norm"):
        old, new = (
            [s[key] for s in steps_of(real / arm, 0, number)] for arm, number in (("healthy", 0), ("regressed", 1))
        )
        assert len(set(old)) == 3
        assert new == pytest.approx(old, rel=1e-4)
        assert [s[key] for s in steps_of(real / "healthy", 1, 0)] == pytest.approx(old, rel=1e-6)


@pytest.mark.dist
def test_real_gradients_are_reduced_during_backward(real: Path) -> None:
    for step in steps_of(real / "healthy", 0, 0):
        backward_end = step["start_ns"] + max(end for name, _, end in step["spans_ns"] if name == "backward")
        mine = [c for c in collectives_of(real / "healthy", 0, 0) if c["step"] == step["step"]]
        assert min(c["enter_ns"] for c in mine) < backward_end
        assert all(c["end_ns"] >= c["enter_ns"] for c in mine)


@pytest.fixture(scope="module")
def curves(launch: Launch) -> Path:
    return launch(
        "narrows.experiments.collective",
        (1, 1),
        {
            "device": "cpu",
            "base": {"op": "all_gather", "sizes_bytes": [4096, 10_001], "repeats": 3},
            "arms": {"healthy": {}, "regressed": {"slow_link": {"mbit": 10, "delay_us": 20000}}},
            "segments": [
                {"segment": number, "pair": pair, "arm": arm, "washout": 0}
                for number, (pair, arm) in enumerate(
                    [(0, "healthy"), (0, "regressed"), (1, "regressed"), (1, "healthy")]
                )
            ],
        },
    )  # fmt: skip


@pytest.mark.dist
def test_a_sweep_leaves_one_point_for_each_size_arm_and_pair(curves: Path) -> None:
    points = [
        json.loads(line)
        for arm in ("healthy", "regressed")
        for line in (curves / arm / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert sorted((p["payload_bytes"], p["arm"], p["pair"]) for p in points) == sorted(
        (size, arm, pair) for size in (4096, 10_008) for arm in ("healthy", "regressed") for pair in (0, 1)
    )
    assert all((p["schema"], p["kind"], p["op"], p["calls"]) == (1, "curve", "all_gather", 3) for p in points)
    assert len({p["segment"] for p in points}) == 8
    slow = [p["post_barrier_us"] for p in points if p["arm"] == "regressed"]
    assert min(slow) >= 20_000 + (4096 / 2) * 8 / 10


@pytest.mark.dist
def test_every_call_of_a_sweep_is_recorded_on_both_ranks(curves: Path) -> None:
    for number in (0, 4):
        both = [collectives_of(curves / "healthy", rank, number) for rank in (0, 1)]
        assert [c["seq"] for c in both[0]] == [c["seq"] for c in both[1]]
        assert {c["payload_bytes"] for c in both[0]} == {4096 if number == 0 else 10_008}


@pytest.mark.dist
def test_a_single_rank_trains_without_torchrun(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, device="emulated", segments=[segment(0, 0, "healthy", shards={"0": 1})], num_shards=2)
    outside = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(
        [sys.executable, "-m", STEP, "--plan", str(plan)], env=outside, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(steps_of(tmp_path / "out" / "healthy", 0, 0)) == 3
    assert collectives_of(tmp_path / "out" / "healthy", 0, 0) == []


@pytest.mark.dist
def test_a_rank_that_fails_leaves_its_failure_in_the_run_directory(tmp_path: Path) -> None:
    (tmp_path / "out" / "checkpoints" / "healthy" / "00000.part").mkdir(parents=True)
    plan = write_plan(tmp_path, base={"checkpoint_every": 2})
    done = subprocess.run(
        [sys.executable, "-m", STEP, "--plan", str(plan)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    failure = (tmp_path / "out" / "healthy" / "ranks" / "00000" / "failure.json").read_text(encoding="utf-8")
    assert "IsADirectoryError" in failure
    assert len(steps_of(tmp_path / "out" / "healthy", 0, 0)) == 1


def write_plan(folder: Path, **changes: object) -> Path:
    plan: Line = {
        "schema": 1, "kind": "plan", "experiment": "E00", "out": str(folder / "out"), "device": "emulated",
        "base": {}, "arms": {"healthy": {}}, "segments": [segment(0, 0, "healthy")],
    }  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps({**plan, **changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema = 2, kind = 'plan': expected schema 1 and kind 'plan'"),
        ({"sgements": []}, "sgements is an unknown key"),
        ({"program": "collective"}, "program = 'collective': expected 'step'"),
        ({"device": "tpu"}, "device = 'tpu': expected one of cuda, cpu, emulated"),
        ({"out": "runs"}, "out = 'runs': expected an absolute path"),
        ({"arms": {}}, "arms = {}: expected at least one arm"),
        ({"arms": {"../up": {}}}, "arms: '../up' is no name for a folder"),
        ({"num_shards": 0}, "num_shards = 0: expected a whole number from 1"),
        ({"base": {"loader_ms": 1}}, "arm healthy: loader_ms = 1 has the wrong unit: expected loader_us"),
        ({"segments": []}, "segments = []: expected a non-empty list"),
        ({"segments": [segment(0, 0, "slow")]}, "segments[0].arm = 'slow': expected one of healthy"),
        ({"segments": [segment(0, 0, "healthy", washout=3)]}, "segments[0].washout = 3: expected less than steps = 3"),
        ({"segments": [segment(0, 0, "healthy", active=[0, 0])]}, "active = [0, 0]: expected each rank once"),
        ({"segments": [segment(0, 0, "healthy", ranks=[0])]}, "segments[0].ranks is an unknown key"),
        (
            {"segments": [segment(0, 0, "healthy", active=[0], shards={"1": 0})]},
            "segments[0].shards = {'1': 0}: expected a shard for each of the ranks [0]",
        ),
        (
            {"segments": [segment(0, 0, "healthy"), segment(1, 0, "healthy", first_batch=9)]},
            "segments[1] plays 3 batches from 9: expected 3 from 0, as in the other segment of pair 0",
        ),
        (
            {"segments": [segment(0, 0, "healthy"), segment(0, 1, "healthy")]},
            "segments: two of them have the same number",
        ),
    ],
)  # fmt: skip
def test_a_bad_plan_is_refused_in_one_line_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Line, message: str
) -> None:
    assert step_main(["--plan", str(write_plan(tmp_path, **changes))]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'plan.json'}: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_plan_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert step_main(["--plan", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_arms_of_a_sweep_share_their_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"healthy": {"sizes_bytes": [4096]}, "regressed": {"sizes_bytes": [8192]}}
    segments = [{"arm": "healthy"}, {"arm": "regressed"}]
    assert collective_main(["--plan", str(write_plan(tmp_path, arms=arms, segments=segments))]) == 2
    assert "sizes_bytes differs between the arms" in capsys.readouterr().err


@pytest.mark.dist
def test_ranks_outside_the_launch_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, segments=[segment(0, 0, "healthy", active=[0, 5])])
    done = subprocess.run(
        [sys.executable, "-m", STEP, "--plan", str(plan)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "segments[0].active = [0, 5] names a rank outside this launch: expected ranks from 0 to 0" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_every_program_is_in_the_registry_and_can_be_started_by_its_module_name() -> None:
    assert {program.name for program in PROGRAMS} == set(BUILTIN)
    for program in PROGRAMS:
        assert program.module == f"narrows.experiments.{program.name}"
        assert Path(__file__).parents[2].joinpath("experiments", f"{program.name}.py").is_file()
