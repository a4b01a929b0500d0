"""The error rates that the verdicts promise, on simulated runs; the whole table is the benchmark of the same name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from narrows.inquiry.verdict import RegressionStatus

EXPERIMENTS = 250
SPREAD = 0.5 / EXPERIMENTS**0.5
"""The largest sd of a share over so many experiments."""


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "operating_characteristics.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def differences(simulation: ModuleType) -> Any:
    return simulation.pair_differences(np.random.default_rng(5), simulation.Noise(), EXPERIMENTS, 20)


def test_at_the_boundary_each_verdict_is_wrong_at_most_in_six_of_a_hundred(
    simulation: ModuleType, differences: Any
) -> None:
    found = simulation.scope_rates(differences[:, :12], differences[:, 12:], 2.7, 0.5)
    error = 3 * (0.06 * 0.94 / EXPERIMENTS) ** 0.5
    assert found.supported <= 0.06 + error
    assert found.rejected <= 0.06 + error


@pytest.mark.parametrize(
    ("signal", "present", "absent"), [(8.2, 1.0, 1.0), (4.1, 0.999, 0.998), (2.7, 0.982, 0.98), (1.36, 0.631, 0.632)]
)
def test_what_is_there_is_supported_and_what_is_not_is_rejected_as_often_as_planned(
    simulation: ModuleType, differences: Any, signal: float, present: float, absent: float
) -> None:
    scope, reference = differences[:, :12], differences[:, 12:]
    there, gone = (simulation.scope_rates(scope, reference, signal, share) for share in (1.0, 0.0))
    assert there.supported == pytest.approx(present, abs=0.01 + 3 * SPREAD)
    assert gone.rejected == pytest.approx(absent, abs=0.01 + 3 * SPREAD)
    assert max(there.rejected, gone.supported) <= 0.01


def test_looking_without_correction_is_wrong_twice_as_often(simulation: ModuleType, differences: Any) -> None:
    scope, reference = differences[:, :12], differences[:, 12:]
    peeking = simulation.peeking_error(scope, reference, 2.7)
    assert peeking > 1.5 * simulation.scope_rates(scope, reference, 2.7, 0.5).supported


def test_rules_that_count_steps_call_identical_runs_different(simulation: ModuleType) -> None:
    found = simulation.naive_errors(np.random.default_rng(3), simulation.Noise(), 120)
    assert found["paired t on 8 pairs, ABBA"] < 0.15
    for rule in ("Mann-Whitney on all steps of two runs", "Mann-Whitney on pooled steps, AABB"):
        assert found[rule] > 0.4
    assert found["Welch t on run means, AABB"] > found["paired t on 8 pairs, ABBA"]


def test_identical_arms_are_no_regression_and_a_large_one_is_confirmed(
    simulation: ModuleType, differences: Any
) -> None:
    margin = 1.0
    assert simulation.regression_rates(differences, 0.0, margin)[RegressionStatus.CONFIRMED] <= 0.01
    at_margin = simulation.regression_rates(differences, margin, margin)
    assert at_margin[RegressionStatus.CONFIRMED] <= 0.06 + 3 * (0.06 * 0.94 / EXPERIMENTS) ** 0.5
    spread = float(differences.std())
    assert simulation.regression_rates(differences, margin + 4 * spread, margin)[RegressionStatus.CONFIRMED] > 0.99


def test_the_account_that_holds_the_gain_closes_and_another_never(simulation: ModuleType) -> None:
    true, wrong = simulation.closing_rates(np.random.default_rng(2), EXPERIMENTS, 14.0)
    assert true.get("closed", 0.0) >= 0.95
    assert wrong.get("closed", 0.0) == 0.0
