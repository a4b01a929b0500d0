"""Named findings: a loss in the tail, an order effect, a drift are found where they are, and not where they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from narrows.inquiry.findings import LEAST_STEPS, MEANINGS, Finding, not_estimable
from narrows.reducers.evidence import ArmRuns, build_evidence
from narrows.reducers.named_findings import named_findings

Rng = np.random.Generator


def pairs(
    step: list[float], *, median: list[float] | None = None, tail: list[float] | None = None,
    drift: list[float] | None = None, order: list[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Summarised evidence with so much of it as findings are read from."""
    difference = {"step_ms": step, "median_ms": median or step, "drift_ms": drift or [0.0] * len(step)}
    return {
        "arms": {"healthy": {"ranks": [0]}, "regressed": {"ranks": [0]}},
        "difference": difference | ({"tail_ms": tail} if tail else {}),
        "order": order or [1, -1] * (len(step) // 2),
        "warmup": {"steady": True, "cut_steps": None},
    }


def names(evidence: dict[str, Any]) -> set[str]:
    return {one["name"] for one in named_findings(evidence)}


def test_every_finding_has_its_sentence() -> None:
    assert set(MEANINGS) == set(Finding)


def test_a_loss_that_the_typical_step_does_not_show_sits_in_the_tail() -> None:
    step = [5.0, 5.3, 4.8, 5.1, 5.2, 4.9]
    assert names(pairs(step)) == set()
    assert names(pairs(step, median=[0.1, -0.1, 0.0, 0.1, -0.1, 0.0])) == {"tail_mechanism"}
    assert names(pairs([-one for one in step], median=[0.1, -0.1, 0.0, 0.1, -0.1, 0.0])) == {"tail_mechanism"}
    assert names(pairs(step, median=[2 * one for one in step])) == set(), "the typical step shows all of it, and more"
    assert names(pairs(step, tail=[0.9 * one for one in step])) == {"tail_mechanism"}
    assert names(pairs(step, tail=[0.05 * one for one in step])) == set()


def test_an_order_effect_is_named_with_its_cost() -> None:
    [one] = named_findings(pairs([7.0, 3.1, 7.1, 3.0, 6.9, 3.0], order=[1, -1, 1, -1, 1, -1]))
    assert one["name"] == "order_effect"
    assert one["gamma_ms"] == pytest.approx(2.0, abs=0.1)


def test_pairs_without_an_effect_raise_few_findings() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    raised = 0
    for _ in range(400):
        common = rng.normal(0, 1, 8)
        draw = [(common + rng.normal(0, 0.5, 8)).tolist() for _ in range(2)]
        raised += bool(names(pairs(draw[0], median=draw[1], drift=rng.normal(0, 1, 8).tolist())))
    assert raised / 400 < 0.07


@pytest.mark.parametrize(("statistic", "least"), [("p95", 200), ("p99", 1000), ("es95", 20), ("mean", 1)])
def test_a_statistic_of_the_tail_needs_steps(statistic: str, least: int) -> None:
    assert LEAST_STEPS.get(statistic, 1) == least
    assert not_estimable(statistic, least) == ""
    assert statistic == "mean" or not_estimable(statistic, least - 1).startswith(f"not estimable: {statistic} needs")


def test_the_ledger_of_the_slowest_steps_adds_up_and_names_their_account(
    tmp_path: Path, recorded_arm: type[Any]
) -> None:
    """Every 20th step of the regressed run waits 30 ms for input; all others are as before."""

    def read(rank: int, step: int) -> float:
        return 0.5 + 0.01 * ((3 * step + rank) % 7)

    def stalled(rank: int, step: int) -> float:
        return read(rank, step) + (30.0 if step % 20 == 11 else 0.0)

    arms = []
    for turn, (name, reads) in enumerate({"healthy": read, "regressed": stalled}.items()):
        path = recorded_arm(read=reads, steps=40).write(tmp_path / name, arm=name, turn=turn)
        arms.append(ArmRuns(name=name, paths=(path,)))
    found = build_evidence("E1", (arms[0], arms[1]), statistic="mean", mode="switchback", washout=0)
    assert "tail_mechanism" in [one["name"] for one in found["findings"]]
    assert found["tail"]["statistic"] == "es95"
    assert found["tail"]["leading"]["critical_path"] == "input"
    for view, table in found["tail"]["change_ms"].items():
        total = sum(value for account, value in table.items() if account != "hidden")
        assert total == pytest.approx(30.0, abs=0.2), view


def test_an_even_loss_has_no_tail_ledger(
    tmp_path: Path, recorded_arm: type[Any], record_pair: Callable[..., Any]
) -> None:
    healthy, regressed = record_pair(
        tmp_path, recorded_arm(steps=40), recorded_arm(steps=40, compute=lambda _rank, step: 11.0 + 0.01 * (step % 3))
    )
    arms = ArmRuns(name="healthy", paths=(healthy,)), ArmRuns(name="regressed", paths=(regressed,))
    found = build_evidence("E1", arms, statistic="mean", mode="switchback", washout=0)
    assert found["tail"] is None
