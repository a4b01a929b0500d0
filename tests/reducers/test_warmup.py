"""Warm-up is cut where MSER-5 finds it, alike for both arms, and what the cut cannot remove is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.warmup import FLOOR_STEPS, block_cut, drift, is_steady, mser5, run_cut


def settling(num: int, height: float, tau: float, seed: int, sd: float = 0.02) -> np.ndarray[Any, Any]:
    rng = np.random.Generator(np.random.PCG64(seed))
    return np.asarray(100 * (1 + height * np.exp(-np.arange(num) / tau)) * np.exp(rng.normal(0, sd, num)))


def test_a_run_that_settles_is_cut_where_it_has_settled_and_a_steady_one_hardly() -> None:
    cuts = [mser5(settling(200, 0.3, 20.0, seed)) for seed in range(40)]
    assert 40 <= np.median(cuts) <= 90
    steady = [mser5(settling(200, 0.0, 20.0, seed)) for seed in range(40)]
    assert np.median(steady) <= 20


def test_the_cut_leaves_less_bias_than_a_fixed_one() -> None:
    runs = [settling(200, 0.3, 20.0, seed) for seed in range(60)]
    fixed = np.mean([run[20:].mean() for run in runs]) / 100 - 1
    found = np.mean([run[mser5(run) :].mean() for run in runs]) / 100 - 1
    block = np.mean([run[block_cut(runs[at : at + 4]) :].mean() for at, run in enumerate(runs)]) / 100 - 1
    assert fixed > 0.01
    assert abs(block) < found < fixed / 2


@given(st.lists(st.floats(1, 1000), max_size=80), st.integers(0, 100))
def test_a_cut_is_at_most_half_of_the_run_whatever_it_looks_like(steps: list[float], marked: int) -> None:
    assert 0 <= mser5(steps) <= max(0, len(steps) // 2)
    assert mser5(steps) % 5 == 0
    assert run_cut(steps, marked) <= len(steps) // 2


def test_short_runs_lose_a_quarter_and_long_ones_the_floor() -> None:
    assert run_cut([10.0] * 12) == 3
    assert run_cut([10.0] * 100) == FLOOR_STEPS
    assert run_cut([10.0] * 12, marked=5) == 5


def test_all_runs_of_a_block_get_the_longest_cut_in_whichever_order_they_stand() -> None:
    late, early = settling(200, 0.5, 25.0, 1), settling(200, 0.0, 1.0, 2)
    assert block_cut([late, early]) == block_cut([early, late]) == run_cut(late)
    assert block_cut([early, early]) < block_cut([late, early])


def test_a_run_that_settles_for_more_than_a_third_of_itself_is_not_steady() -> None:
    assert is_steady(90, 30)
    assert not is_steady(90, 35)


def test_drift_is_the_last_third_against_the_first() -> None:
    assert drift(np.arange(9.0)) == 6.0
    assert drift([5.0] * 9) == 0.0


def test_times_that_are_not_positive_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        mser5([1.0] * 10 + [0.0] * 10)


@pytest.fixture
def restarted(tmp_path: Path, recorded_arm: type[Any]) -> Callable[..., dict[str, Any]]:
    """Evidence of runs without pair numbers, one a launch: two quadruples, with compute by (arm, step) in ms."""

    def make(compute: Callable[[str, int], float], **given: Any) -> dict[str, Any]:
        paths: dict[str, list[Path]] = {"healthy": [], "regressed": []}
        for at, name in enumerate(["healthy", "regressed", "regressed", "healthy"] * 2):

            def own(rank: int, step: int, name: str = name, at: int = at) -> float:
                return compute(name, step) + 0.01 * ((7 * step + 3 * rank + at) % 5)

            labels = {"numbered": False, "began_ns": 10**11 * (at + 1), "manifest": {"launch": f"r{at}"}}
            run = recorded_arm(compute=own, steps=60, **labels)
            paths[name].append(run.write(tmp_path / str(at) / name, arm=name, segments={0: 0}))
        arms = tuple(ArmRuns(name=name, paths=tuple(runs)) for name, runs in paths.items())
        options: dict[str, Any] = {"statistic": "mean", "mode": "restart", "first_pair": 0} | given
        return build_evidence("E1", arms, **options)  # type: ignore[arg-type]  # exactly two

    return make


def test_restarts_lose_their_start_in_both_arms_alike_and_the_record_says_how(
    restarted: Callable[..., dict[str, Any]],
) -> None:
    """Only the regressed arm warms up slowly: both arms lose as much."""
    found = restarted(lambda arm, step: 20.0 + (10.0 if arm == "regressed" and step < 15 else 0.0))
    assert found["warmup"]["rule"].startswith("mser-5")
    assert found["warmup"]["cut_steps"] == 15
    assert {unit["steps"] for arm in found["arms"].values() for unit in arm["units"]} == {45}
    assert np.mean(found["difference"]["step_ms"]) == pytest.approx(0.0, abs=0.05)


def test_what_the_cut_removes_is_still_seen_as_a_change_within_the_run(
    restarted: Callable[..., dict[str, Any]],
) -> None:
    found = restarted(lambda arm, step: 20.0 + (0.1 * step if arm == "regressed" else 0.0))
    [time] = [one for one in found["findings"] if one["name"] == "time"]
    assert time["drift_ms"] == pytest.approx(4.0, abs=0.3)
    assert "changes within a run" in time["sentence"]


def test_a_run_that_never_settles_is_named(restarted: Callable[..., dict[str, Any]]) -> None:
    found = restarted(lambda _arm, step: 20.0 + max(0.0, 30.0 - step))
    assert found["warmup"]["steady"] is False
    assert "no_steady_state" in [one["name"] for one in found["findings"]]


def test_a_plan_that_asks_for_no_washout_gets_none(restarted: Callable[..., dict[str, Any]]) -> None:
    found = restarted(lambda _arm, _step: 20.0, washout=0)
    assert (found["warmup"]["rule"], found["warmup"]["cut_steps"]) == ("none", None)
    assert {unit["steps"] for arm in found["arms"].values() for unit in arm["units"]} == {60}
