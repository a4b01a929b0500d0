"""Swaps on the simulated cluster, from the plan to the verdict: faults of hosts, of shards, of both, of neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from simulation.faults import Fault
from simulation.job import JobShape
from simulation.kinds import BASE, HOSTS
from simulation.launcher import SimulatedCluster
from simulation.noise import Noise

from narrows.flows.casefile import load_case
from narrows.flows.judging_swap import judge_swap
from narrows.flows.launching import launch
from narrows.flows.plan_files import jobs
from narrows.inquiry import swaps
from narrows.inquiry.case import Case
from narrows.inquiry.design import Experiment
from narrows.inquiry.hypotheses import Hypothesis, Registration
from narrows.reducers.evidence import ArmRuns, build_evidence

DELTA_MS, SLOWER = 2.6, 0.2
"""What a fifth more compute costs on this workload, in ms a step; that is checked by the verdict itself."""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    text = {
        "case": "swap", "question": "One rank got slower.", "runs": {"healthy": "a", "regressed": "b"},
        "workload": {"program": "step", "config": dict(BASE), "healthy": {}, "regressed": {"label": "new"}},
        "cluster": {"nodes": 8, "ranks_per_node": 2, "hosts": list(HOSTS), "device": "emulated"},
        "judge": {"pairs": 8, "steps": 20, "washout": 4},
        "budget": {"device_hours": 1, "ask_above_device_hours": 1},
    }  # fmt: skip
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(text))
    return load_case(tmp_path / "case.yaml", recorded=False)


def planned(case: Case, ranks: Sequence[int]) -> tuple[Experiment, tuple[Hypothesis, ...]]:
    state: Any = SimpleNamespace(
        reconciliation={"ranks": ranks}, mechanism="slow_rank", opened={}, evidence={},
        reference={"delta_ms": DELTA_MS}, verdict=lambda _key: None,
    )  # fmt: skip
    return next(iter(swaps.experiments(case, state)))


def judged(case: Case, folder: Path, ranks: Sequence[int], *faults: Fault, seed: int = 1) -> dict[str, Any]:
    """What every registered hypothesis of the swap gets, by key."""
    experiment, hypotheses = planned(case, ranks)
    cluster = SimulatedCluster(
        seed=seed,
        shape=JobShape(),
        faults=faults,
        noise=Noise(),
        host_facts={host: {"boot_id": "one"} for host in HOSTS},
    )
    (job,) = jobs(experiment, folder / "launch-1", first_pair=0, pairs=8)
    launch(cluster, job.plan)
    arms = [ArmRuns(name=arm.name, paths=(job.runs[arm.name],)) for arm in experiment.arms]
    evidence = build_evidence(
        experiment.key, arms, statistic="mean", mode="switchback", declared=("shards",), washout=4
    )
    assert evidence["confounded"] == []
    known = {f"H{at}": Registration(id=f"H{at}", hypothesis=one, created_ns=1) for at, one in enumerate(hypotheses)}
    state = SimpleNamespace(
        reference={"d_ms": [DELTA_MS + one for one in (-0.1, 0.1) * 4]}, failures={},
        answers={experiment.key: {"decision": "skip"}}, registrations=known,
    )  # fmt: skip
    session: Any = SimpleNamespace(state=state)
    return {one.hypothesis.key: judge_swap(session, one, evidence) for one in known.values()}


ON_HOST, ON_SHARD = Fault(hosts=("n1",), local=1, compute=SLOWER), Fault(shards=(3,), compute=SLOWER)
ON_BOTH = Fault(hosts=("n1",), local=1, shards=(3,), compute=SLOWER)


@pytest.mark.parametrize(
    ("faults", "decision"),
    [
        ((ON_HOST,), "follows the hardware"),
        ((ON_SHARD,), "follows the data"),
        ((ON_HOST, ON_SHARD), "hardware and data each carry a part"),
        ((ON_BOTH,), "needs both together"),
        ((), "is not there"),
    ],
)
def test_a_fault_of_a_place_of_a_shard_or_of_both_is_told_apart(
    faults: tuple[Fault, ...], decision: str, case: Case, tmp_path: Path
) -> None:
    found = judged(case, tmp_path, [3], *faults)
    assert {one.numbers["decision"] for one in found.values()} == {decision}, found


@pytest.mark.parametrize("slow", [3, 4, 9])
def test_of_three_suspects_in_a_square_of_four_the_slow_one_is_named(slow: int, case: Case, tmp_path: Path) -> None:
    fault = Fault(hosts=(HOSTS[slow // 2],), local=slow % 2, compute=SLOWER)
    found = judged(case, tmp_path, [3, 4, 9], fault, seed=slow)
    assert {key: one.verdict.value for key, one in found.items()} == {
        f"square:{source}:{rank}": "supported" if (source, rank) == ("hardware", slow) else "rejected"
        for rank in (3, 4, 9)
        for source in ("hardware", "data")
    }, {key: one.reason for key, one in found.items()}


def test_of_three_suspects_the_shard_that_is_slow_is_named(case: Case, tmp_path: Path) -> None:
    found = judged(case, tmp_path, [3, 4, 9], Fault(shards=(4,), compute=SLOWER))
    supported = [key for key, one in found.items() if one.verdict.value == "supported"]
    assert supported == ["square:data:4"]


def test_where_nothing_is_wrong_no_suspect_is_named(case: Case, tmp_path: Path) -> None:
    named = [
        key
        for seed in range(12)
        for key, one in judged(case, tmp_path / str(seed), [3, 4], seed=seed).items()
        if one.verdict.value == "supported"
    ]
    assert named == []
