"""Plans that the programs accept: balanced orders, pairs that go on, the right ranks playing the right shards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.experiments.plan import Plan, load_plan
from narrows.flows.plan_files import Job, jobs
from narrows.inquiry.design import Arm, Experiment, Mode
from narrows.inquiry.scopes import Rung, Scope, placement
from narrows.inquiry.workloads import BUILTIN, check_workload


def experiment(**given: Any) -> Experiment:
    fields = {
        "key": "one_node-regressed",
        "rung": Rung.ONE_NODE,
        "scope": Scope.ONE_NODE,
        "program": "step",
        "before": Arm(name="healthy", config={"packing": "snake"}, shards=(2, 3)),
        "after": Arm(name="regressed", config={"packing": "greedy"}, shards=(2, 3)),
        "placement": placement(("n1",), 2),
        "mode": Mode.SWITCHBACK,
        "device": "emulated",
        "base": {"layers": 2},
        "num_shards": 4,
        "steps": 8,
        "washout": 2,
        "seed": 7,
    }
    return Experiment(**(fields | given))


def node_set(**given: Any) -> Experiment:
    """The same parts on a good host (ranks 0, 1) and on a suspect one (ranks 2, 3), never at the same time."""
    arms = {
        "before": Arm(name="healthy", ranks=(0, 1), shards=(2, 3)),
        "after": Arm(name="regressed", ranks=(2, 3), shards=(2, 3)),
    }
    where = placement(("n2", "n1"), 2)
    return experiment(**({"mode": Mode.NODE_SET, "placement": where} | arms | given))


def plan_of(job: Job, program: str = "step") -> Plan:
    """The plan that the job's program would read, checked against the job's own world."""
    path = job.plan.argv[job.plan.argv.index("--plan") + 1]
    plan = load_plan(path, program)
    plan.check_world(job.plan.world_size)
    for config in plan.arms.values():
        assert check_workload(program, config) == []
    return plan


def batch_of(pair: int) -> int:
    """Where a pair begins, so that its 6 steady batches follow those of the pair before, from a whole round of 4 on."""
    return 4 + pair * 6 - 2


def only(found: list[Job]) -> Job:
    assert len(found) == 1
    return found[0]


@settings(max_examples=25, deadline=None)
@given(first=st.integers(0, 6), pairs=st.integers(1, 6), seed=st.integers(0, 99))
def test_switchback_is_one_launch_whose_pairs_are_balanced_and_go_on(
    tmp_path_factory: pytest.TempPathFactory, first: int, pairs: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("plan") / "launch-2"
    job = only(list(jobs(experiment(seed=seed), folder, first_pair=first, pairs=pairs)))
    plan = plan_of(job)
    assert job.pairs == tuple(range(first, first + pairs))
    assert [segment.segment for segment in plan.segments] == list(range(2 * pairs))
    for pair in job.pairs:
        mine = [segment for segment in plan.segments if segment.pair == pair]
        assert {segment.arm for segment in mine} == {"healthy", "regressed"}
        assert {(segment.first_batch, segment.steps, segment.washout) for segment in mine} == {(batch_of(pair), 8, 2)}
    assert job.runs == {"healthy": folder / "healthy", "regressed": folder / "regressed"}
    assert (plan.out, plan.launch) == (folder, "2")


@settings(max_examples=25, deadline=None)
@given(quadruples=st.integers(1, 3), seed=st.integers(0, 99), split=st.integers(1, 5))
def test_more_pairs_go_on_with_the_order_that_one_longer_launch_would_have_had(
    tmp_path_factory: pytest.TempPathFactory, quadruples: int, seed: int, split: int
) -> None:
    folder = tmp_path_factory.mktemp("plan")
    total = 2 * quadruples
    split = min(split, total - 1)

    def arms(name: str, first: int, pairs: int) -> list[str]:
        job = only(list(jobs(experiment(seed=seed), folder / name, first_pair=first, pairs=pairs)))
        return [segment.arm for segment in plan_of(job).segments]

    whole = arms("whole", 0, total)
    assert arms("first", 0, split) + arms("rest", split, total - split) == whole
    for at in range(0, 2 * total, 4):  # ABBA or BAAB
        quadruple = whole[at : at + 4]
        assert quadruple == quadruple[::-1]
        assert Counter(quadruple) == {"healthy": 2, "regressed": 2}


def test_every_rank_plays_its_full_scale_share(tmp_path: Path) -> None:
    plan = plan_of(only(list(jobs(experiment(), tmp_path / "launch-1", first_pair=0, pairs=2))))
    assert plan.num_shards == 4
    for segment in plan.segments:
        assert segment.ranks(2) == (0, 1)
        assert [segment.shard(rank) for rank in segment.ranks(2)] == [2, 3]
    assert plan.arms == {"healthy": {"layers": 2, "packing": "snake"}, "regressed": {"layers": 2, "packing": "greedy"}}


def test_node_sets_take_turns_and_play_the_same_shares(tmp_path: Path) -> None:
    job = only(list(jobs(node_set(), tmp_path / "launch-1", first_pair=0, pairs=4)))
    assert job.plan.hosts == (("n2", (0, 1)), ("n1", (2, 3)))
    active = {"healthy": (0, 1), "regressed": (2, 3)}
    for segment in plan_of(job).segments:
        assert segment.active == active[segment.arm]
        assert [segment.shard(rank) for rank in segment.ranks(4)] == [2, 3]


def test_restarts_are_two_launches_a_pair_in_folders_of_their_own(tmp_path: Path) -> None:
    found = list(jobs(experiment(mode=Mode.RESTART), tmp_path / "launch-3", first_pair=2, pairs=2))
    assert [job.pairs for job in found] == [(2,), (2,), (3,), (3,)]
    arms = [next(iter(job.runs)) for job in found]
    assert arms == arms[::-1]
    assert Counter(arms) == {"healthy": 2, "regressed": 2}
    for job in found:
        plan = plan_of(job)
        (segment,) = plan.segments
        assert set(plan.arms) == {segment.arm} == set(job.runs)
        assert (segment.pair, segment.first_batch) == (job.pairs[0], batch_of(job.pairs[0]))
        assert job.runs[segment.arm] == plan.out / segment.arm
    assert len({job.plan.log_dir for job in found}) == 4
    assert len({job.plan.name for job in found}) == 4


def test_an_own_script_is_restarted_with_its_arguments_environment_and_run_directory(tmp_path: Path) -> None:
    own = experiment(
        program="/home/me/train.py", args=("--width", "8"), base={}, mode=Mode.RESTART,
        before=Arm(name="healthy", args=("--old",)), after=Arm(name="regressed", env={"NCCL_ALGO": "Tree"}),
    )  # fmt: skip
    found = {next(iter(job.runs)): job for job in jobs(own, tmp_path / "launch-1", first_pair=0, pairs=1)}
    assert found["healthy"].plan.argv == ("/home/me/train.py", "--width", "8", "--old")
    assert found["regressed"].plan.argv == ("/home/me/train.py", "--width", "8")
    assert found["regressed"].plan.env["NCCL_ALGO"] == "Tree"
    assert "NCCL_ALGO" not in found["healthy"].plan.env
    for arm, job in found.items():
        assert str(job.runs[arm]) in job.plan.env.values()
        assert job.plan.timeout_s is None  # nobody but the user knows how long it takes
        assert job.plan.silence_s


def test_an_own_script_on_two_sets_of_hosts_runs_on_one_of_them_at_a_time(tmp_path: Path) -> None:
    own = node_set(program="/home/me/train.py", base={})
    found = {next(iter(job.runs)): job for job in jobs(own, tmp_path / "launch-1", first_pair=0, pairs=1)}
    assert found["healthy"].plan.hosts == (("n2", (0, 1)),)
    assert found["regressed"].plan.hosts == (("n1", (0, 1)),)


def test_a_sweep_keeps_of_the_workload_what_touches_its_link(tmp_path: Path) -> None:
    sweep = experiment(
        program="collective", sizes_bytes=(1024, 4096), base={"layers": 2, "fabric_mbit": 900.0},
        before=Arm(name="healthy", config={"packing": "snake"}, shards=(2, 3)),
        after=Arm(name="regressed", config={"packing": "greedy", "fabric_delay_us": 9000.0}, shards=(2, 3)),
    )  # fmt: skip
    job = only(list(jobs(sweep, tmp_path / "launch-1", first_pair=0, pairs=2)))
    plan = plan_of(job, "collective")
    assert plan.arms["healthy"] == {"fabric_mbit": 900.0, "sizes_bytes": [1024, 4096]}
    assert plan.arms["regressed"]["fabric_delay_us"] == 9000.0
    assert set(plan.arms["regressed"]) <= set(BUILTIN["collective"])


@pytest.mark.parametrize("make", [experiment, node_set])
def test_the_launch_watches_its_folder_and_has_a_limit(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "launch-1"
    job = only(list(jobs(make(), folder, first_pair=0, pairs=2)))
    assert job.plan.watch == (str(folder),)
    assert Path(job.plan.log_dir).parent == folder
    assert job.plan.timeout_s is not None
    assert job.plan.timeout_s > 60
    assert json.loads((folder / "plan.json").read_text())["kind"] == "plan"


def test_a_folder_named_from_here_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of `narrows demo` is such a folder, and the launched processes may start elsewhere."""
    monkeypatch.chdir(tmp_path)
    job = only(list(jobs(experiment(), Path("runs"), first_pair=0, pairs=4)))

    assert Path(job.plan.log_dir).is_absolute()
    assert all(path == tmp_path / "runs" / arm for arm, path in job.runs.items())


def test_a_square_plays_every_rotation_once_a_pair_on_the_same_batches_forth_and_back(tmp_path: Path) -> None:
    ranks = (0, 1, 2)
    own, *turned = (Arm(name=f"row-{at}", ranks=ranks, shards=(*ranks[at:], *ranks[:at])) for at in range(3))
    square = experiment(before=own, after=turned[0], rotations=(turned[1],), placement=placement(("n1",), 3))
    (job,) = jobs(square, tmp_path, first_pair=0, pairs=4)
    plan = plan_of(job)
    rows = [[one for one in plan.segments if one.pair == pair] for pair in range(4)]
    assert list(job.runs) == ["row-0", "row-1", "row-2"]
    assert [one.segment for one in plan.segments] == list(range(12))
    for row in rows:
        assert len({one.first_batch for one in row}) == 1
        played = [[one.shard(rank) for one in row] for rank in ranks]
        assert all(sorted(shards) == [0, 1, 2] for shards in played)
    names = [[one.arm for one in row] for row in rows]
    assert names[0] == names[1][::-1]
    assert {tuple(one) for one in names} == {tuple(names[0]), tuple(names[1])}
