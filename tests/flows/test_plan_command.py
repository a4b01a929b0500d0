"""`narrows plan`: pairs and cost of every scope from the noise of identical runs, before anything is launched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from narrows.flows import cli
from narrows.flows.plan_command import plan_case
from narrows.inquiry.errors import CaseError
from narrows.reducers.pilot import noise_of, pilot_of
from narrows.reducers.planning import pairs_needed

STEPS = 12
CASE: dict[str, Any] = {
    "case": "planned",
    "question": "The step got slower.",
    "runs": {"healthy": "runs/healthy", "regressed": "runs/regressed"},
    "workload": {"program": "step", "healthy": {"slow_input": 0}, "regressed": {"slow_input": 6000}},
    "cluster": {"nodes": 2, "ranks_per_node": 2},
    "budget": {"device_hours": 9, "ask_above_device_hours": 9},
    "judge": {"margin_percent": 2, "steps": STEPS, "washout": 0},
}


@pytest.fixture
def case_with(tmp_path: Path, recorded_arm: type[Any], record_pair: Callable[..., Any]) -> Callable[..., Path]:
    """A case whose regressed runs read ``loss_ms`` longer, with a spread of ``noise_ms`` between segments."""

    def make(loss_ms: float, noise_ms: float, **budget: float) -> Path:
        draws = np.random.default_rng(3).normal(0, noise_ms, 16)

        def read(extra: float) -> Callable[[int, int], float]:
            return lambda _rank, step: 5.0 + extra + float(draws[step // STEPS])

        record_pair(
            tmp_path,
            recorded_arm(read=read(0.0), pairs=8, steps=STEPS),
            recorded_arm(read=read(loss_ms), pairs=8, steps=STEPS),
        )
        path = tmp_path / "case.yaml"
        path.write_text(yaml.safe_dump(CASE | {"budget": CASE["budget"] | budget}))
        return path

    return make


def test_a_loss_far_above_the_noise_takes_the_first_look_at_every_scope(case_with: Callable[..., Path]) -> None:
    found = plan_case(case_with(6.0, 0.2), [])
    assert found.decidable
    assert [row.scope.value for row in found.scopes] == ["one_rank", "one_node", "two_nodes"]
    assert {row.pairs for row in found.scopes} == {4}
    costs = [row.device_hours for row in found.scopes]
    assert costs == sorted(costs)
    assert found.advice == ()


def test_a_loss_near_the_noise_cannot_be_decided_and_the_plan_says_what_would_help(
    case_with: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = case_with(2.5, 1.0)
    found = plan_case(path, [])
    row = found.scopes[0]
    signal = row.predicted_ms / found.pilot.sd_upper_ms
    needed = pairs_needed(signal, n_f=8)
    assert row.pairs is None
    assert needed is None or needed > 12
    assert not found.decidable
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", str(path)])
    assert stopped.value.code == 3
    text = capsys.readouterr().out
    assert "cannot be decided with this budget" in text
    assert "longer runs" in text
    assert "differential metric" in text


def test_a_case_that_costs_more_than_its_budget_says_so(case_with: Callable[..., Path]) -> None:
    found = plan_case(case_with(6.0, 0.2, device_hours=0.001, ask_above_device_hours=0.001), [])
    assert not found.decidable
    assert found.advice[0].startswith("raise budget.device_hours above")


def test_given_runs_that_leave_the_loss_open_are_planned_to_be_repeated_at_full_scale(
    case_with: Callable[..., Path],
) -> None:
    found = plan_case(case_with(0.9, 1.5), [])
    assert found.status == "inconclusive"
    assert [row.scope.value for row in found.scopes] == ["two_nodes"]
    assert "margin" in found.scopes[0].reason


def test_planning_begins_nothing_and_is_the_same_as_json(
    case_with: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = case_with(6.0, 0.2)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", str(path), "--json"])
    assert stopped.value.code == 0
    value = json.loads(capsys.readouterr().out)
    assert value["kind"] == "plan"
    assert value["scopes"][0]["pairs"] == 4
    assert not (path.parent / "cases").exists()


def test_a_pilot_of_identical_runs_is_preferred_and_a_short_one_is_refused(
    case_with: Callable[..., Path], recorded_arm: type[Any], tmp_path: Path
) -> None:
    path = case_with(6.0, 0.2)
    noise = np.random.default_rng(5).normal(0, 2.0, 40)
    runs = []
    for at in range(8):
        quiet = recorded_arm(
            read=lambda _rank, step: 5.0 + float(noise[step // STEPS]), pairs=1, steps=STEPS, began_ns=(at + 1) * 10**12
        )
        runs.append(quiet.write(tmp_path / "pilot" / f"{at}", segments={at: 0}))
    found = plan_case(path, runs)
    assert found.pilot.pairs == 4
    assert found.pilot.sd_ms > 1.0
    assert "pilot" in found.pilot.source
    with pytest.raises(CaseError, match=r"--pilot: 2 runs or segments make 1 pairs; give at least 8"):
        plan_case(path, runs[:2])


def test_noise_between_units_is_told_from_noise_within_them() -> None:
    draw = np.random.default_rng(11)

    def units(within: float, between: float) -> list[np.ndarray[Any, Any]]:
        return [np.exp(draw.normal(0, between) + draw.normal(0, within, 200)) for _ in range(60)]

    inside, outside = noise_of(units(0.05, 0.0)), noise_of(units(0.05, 0.02))
    assert inside is not None
    assert outside is not None
    assert inside.unit_sd < 0.003
    assert outside.unit_sd == pytest.approx(0.02, rel=0.3)
    assert inside.pair_sd(4 * inside.steps) / inside.pair_sd() == pytest.approx(0.5, abs=0.15)
    assert outside.pair_sd(4 * outside.steps) / outside.pair_sd() > 0.9
    longer = outside.best_steps(start_s=120, step_s=2)
    assert longer is not None
    assert longer >= 50


def test_three_pairs_are_no_pilot() -> None:
    assert pilot_of([1.0, 2.0, 3.0], "x") is None
