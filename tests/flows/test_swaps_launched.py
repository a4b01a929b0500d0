"""A swap and a Latin square on real processes: the slow device is told from its shard and from its neighbour."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from narrows.flows.casefile import load_case
from narrows.flows.judging_swap import judge_swap
from narrows.flows.launching import launch
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.plan_files import jobs
from narrows.inquiry import swaps
from narrows.inquiry.hypotheses import Registration
from narrows.reducers.evidence import ArmRuns, build_evidence

STEPS, WASHOUT, SQUARES = 15, 3, 6


def launched(folder: Path, ranks: list[int]) -> dict[str, str]:
    """The verdicts of the swap among ``ranks``, of which only the second one of n1 is slow, by three tenths."""
    text = {
        "case": "swap", "question": "One rank got slower.", "runs": {"healthy": "a", "regressed": "b"},
        "workload": {"program": "step", "healthy": {},
                     "regressed": {"slow_rank": {"host": "n1", "rank": 1, "factor": 1.3}}},
        "cluster": {"nodes": 2, "ranks_per_node": 2, "hosts": ["n0", "n1", "n2"], "device": "emulated"},
        "judge": {"pairs": SQUARES, "steps": STEPS, "washout": WASHOUT, "statistic": "low50"},
        "budget": {"device_hours": 1, "ask_above_device_hours": 1},
    }  # fmt: skip
    (folder / "case.yaml").write_text(yaml.safe_dump(text))
    delta = 9.0
    state: Any = SimpleNamespace(
        reconciliation={"ranks": ranks}, mechanism="slow_rank", opened={}, evidence={}, verdict=lambda _key: None,
        reference={"delta_ms": delta, "d_ms": [delta - 0.2, delta + 0.2] * 4}, failures={}, registrations={},
    )  # fmt: skip
    experiment, hypotheses = next(iter(swaps.experiments(load_case(folder / "case.yaml", recorded=False), state)))
    state.answers = {experiment.key: {"decision": "skip"}}
    state.registrations = {
        f"H{at}": Registration(id=f"H{at}", hypothesis=one, created_ns=1) for at, one in enumerate(hypotheses)
    }
    (job,) = jobs(experiment, folder / "launch-1", first_pair=0, pairs=SQUARES)
    launch(LocalLauncher(), job.plan)
    arms = [ArmRuns(name=arm.name, paths=(job.runs[arm.name],)) for arm in experiment.arms]
    evidence = build_evidence(
        experiment.key, arms, statistic="low50", mode="switchback", declared=experiment.differs, washout=WASHOUT
    )
    assert evidence["confounded"] == []
    session: Any = SimpleNamespace(state=state)
    found = {one.hypothesis.key: judge_swap(session, one, evidence) for one in state.registrations.values()}
    print({key: one.reason for key, one in found.items()})
    return {key: one.verdict.value for key, one in found.items() if one.verdict is not None}


@pytest.mark.dist
def test_a_square_of_real_ranks_names_the_slow_device_and_acquits_its_neighbour_and_both_shards(
    tmp_path: Path,
) -> None:
    assert launched(tmp_path, [3, 2]) == {
        "square:hardware:3": "supported",
        "square:data:3": "rejected",
        "square:hardware:2": "rejected",
        "square:data:2": "rejected",
    }


@pytest.mark.dist
def test_a_swap_of_two_real_ranks_follows_the_hardware(tmp_path: Path) -> None:
    found = launched(tmp_path, [3])
    assert (found["swap:hardware"], found["swap:data"]) == ("supported", "rejected")
