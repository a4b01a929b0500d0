"""One rank's own change is seen where the step hides it, named with its metric, and not seen where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narrows.reducers.differential import rank_difference
from narrows.reducers.estimates import estimate
from narrows.reducers.evidence import ArmRuns, build_evidence

RANKS = 4


def simulated(seed: int, *, fault_ms: float = 0.0, pairs: int = 8, steps: int = 40) -> dict[str, Any]:
    """Pair differences of a job whose steps share 13 ms of noise, and whose ranks add 0.5 ms each of their own."""
    rng = np.random.Generator(np.random.PCG64(seed))

    def unit(extra_ms: float) -> tuple[float, Any, Any, Any]:
        common = 100 + rng.normal(0, 13, 1) + rng.normal(0, 5, steps)
        local = common[:, None] + rng.normal(0, 0.5, (steps, RANKS)) + rng.normal(0, 0.2, RANKS)
        local[:, 1] += extra_ms
        end = local.max(axis=1)
        last = np.eye(RANKS)[local.argmax(axis=1)].mean(axis=0)
        return end.mean(), local.mean(axis=0), last, (end[:, None] - local).mean(axis=0)

    both = [(unit(0.0), unit(fault_ms)) for _ in range(pairs)]
    names = ("step_ms", "local_ms", "last_share", "skew_ms")
    return {
        name: [np.subtract(after[at], before[at]).tolist() for before, after in both] for at, name in enumerate(names)
    }


def test_a_delay_of_1_ms_on_one_rank_is_found_under_13_ms_of_step_noise() -> None:
    seeds = range(40)
    found = [rank_difference(simulated(seed, fault_ms=1.0), range(RANKS)) for seed in seeds]
    hits = [one for one in found if one is not None and one.rank == 1]
    assert len(hits) >= 38
    assert all(one is None or one.rank == 1 for one in found)
    # The step itself shows it in no more of them than chance would.
    shown = [estimate(simulated(seed, fault_ms=1.0)["step_ms"]).lower > 0 for seed in seeds]
    assert np.mean(shown) < 0.25
    assert hits[0].metric == "local_ms"
    assert np.mean([one.change for one in hits]) == pytest.approx(0.75, abs=0.1)  # 1 ms, less the mean over 4 ranks


def test_nothing_is_named_where_nothing_changed_more_often_than_promised() -> None:
    found = [rank_difference(simulated(1000 + seed), range(RANKS)) for seed in range(400)]
    assert np.mean([one is not None for one in found]) <= 0.05


@pytest.mark.parametrize(("drop", "metric"), [((), "local_ms"), (("local_ms",), "last_share"),
                                              (("local_ms", "last_share"), "skew_ms")])  # fmt: skip
def test_each_metric_finds_the_rank_by_itself(drop: tuple[str, ...], metric: str) -> None:
    table = {name: values for name, values in simulated(5, fault_ms=3.0).items() if name not in drop}
    found = rank_difference(table, range(RANKS))
    assert found is not None
    assert (found.rank, found.metric) == (1, metric)
    assert found.sentence.startswith("rank 1: it")


def test_of_two_ranks_the_one_that_got_slower_is_named() -> None:
    slower = [[-0.5, 0.5], [-0.4, 0.4], [-0.6, 0.6], [-0.5, 0.5], [-0.45, 0.45], [-0.55, 0.55]]
    for sign, rank in ((1, 1), (-1, 0)):
        found = rank_difference({"local_ms": [[sign * one for one in row] for row in slower]}, (0, 1))
        assert found is not None
        assert found.rank == rank


def test_renumbered_ranks_are_named_by_their_numbers() -> None:
    found = rank_difference(simulated(5, fault_ms=3.0), (8, 9, 10, 11))
    assert found is not None
    assert found.rank == 9


def test_too_few_pairs_or_a_single_rank_settle_nothing() -> None:
    assert rank_difference(simulated(5, fault_ms=3.0, pairs=4), range(RANKS)) is None
    assert rank_difference({"local_ms": [[1.0], [1.1], [1.2], [1.0], [1.1], [1.2]]}, (0,)) is None
    assert rank_difference({}, range(RANKS)) is None


def test_evidence_names_a_rank_that_the_step_hides(tmp_path: Path, recorded_arm: type[Any]) -> None:
    rng = np.random.Generator(np.random.PCG64(2))
    common = {(turn, step): float(rng.exponential(13)) for turn in range(2) for step in range(2 * 8 * 12)}
    own = rng.normal(0, 0.3, (2, 4, 2 * 8 * 12))
    arms = []
    for turn, name in enumerate(("healthy", "regressed")):

        def compute(rank: int, step: int, turn: int = turn) -> float:
            fault = 1.0 if turn and rank == 1 else 0.0
            return 20.0 + common[turn, step] + float(own[turn, rank, step]) + fault

        path = recorded_arm(compute=compute, pairs=8).write(tmp_path / name, arm=name, turn=turn)
        arms.append(ArmRuns(name=name, paths=(path,)))
    found = build_evidence("E1", (arms[0], arms[1]), statistic="mean", mode="switchback", washout=0)
    low, high = found["intervals"]["step_ms"]
    assert low < 0 < high
    [one] = [one for one in found["findings"] if one["name"] == "rank_difference"]
    assert (one["rank"], one["metric"]) == (1, "local_ms")


def test_a_change_that_takes_the_fault_away_names_the_rank_that_had_it(tmp_path: Path, recorded_arm: type[Any]) -> None:
    def faulty(rank: int, step: int) -> float:
        return 20.0 + 0.1 * ((5 * rank + step) % 4) + (1.0 if rank == 1 else 0.0)

    def cured(rank: int, step: int) -> float:
        return 20.0 + 0.1 * ((5 * rank + step) % 4)

    arms = []
    for turn, (name, compute) in enumerate({"regressed": faulty, "perturbed": cured}.items()):
        path = recorded_arm(compute=compute, pairs=8, hosts=("n0", "n0")).write(tmp_path / name, arm=name, turn=turn)
        arms.append(ArmRuns(name=name, paths=(path,)))
    found = build_evidence("E1", (arms[0], arms[1]), statistic="mean", mode="switchback", washout=0)
    [one] = [one for one in found["findings"] if one["name"] == "rank_difference"]
    assert (one["rank"], one["metric"]) == (1, "local_ms")
    assert one["change"] == pytest.approx(0.5)
