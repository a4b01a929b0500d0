"""Contrasts of one swap share their error, and ask for more squares only while a suspect is open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from narrows.flows.judging_swap import judge_swap
from narrows.inquiry.hypotheses import (
    Basis,
    Comparison,
    Hypothesis,
    Prediction,
    Registration,
    RejectionCriterion,
    Test,
)
from narrows.inquiry.scopes import Rung
from narrows.inquiry.verdict import Verdict

SOURCES = ("hardware", "data", "interaction")


def registered(source: str, at: int, family: int) -> Registration:
    one = Hypothesis(
        key=f"swap:{source}", rung=Rung.PERTURBATION, test=Test.SWAP, basis=Basis.EXPERIMENT, claim="it is so",
        mechanism=source, prediction=Prediction(metric="local time", unit="ms", low=5.0, high=15.0),
        reject_if=RejectionCriterion(metric="local time", comparison=Comparison.UPPER_BELOW, bound=5.0, unit="ms"),
        pi_ms=10.0, family=family, experiment="swap", ranks=(1, 0),
    )  # fmt: skip
    return Registration(id=f"H{at}", hypothesis=one, created_ns=1)


def session(*sources: str) -> tuple[Any, dict[str, Registration]]:
    found = {source: registered(source, at, len(sources)) for at, source in enumerate(sources)}
    state = SimpleNamespace(
        reference={"d_ms": [10.0] * 8}, failures={}, answers={}, registrations={one.id: one for one in found.values()}
    )
    return SimpleNamespace(state=state), found


def evidence(cells: list[list[list[float]]]) -> dict[str, Any]:
    """Squares of (good place, suspect) by (good shard, suspect's shard), played forth and back in turns."""

    def unit(pair: int, late: bool, local: list[float]) -> dict[str, Any]:
        return {"pair": pair, "started_ns": 10 * pair + (late is (pair % 2 == 0)), "local_ms": local}

    own = [unit(at, False, [one[0][0], one[1][1]]) for at, one in enumerate(cells)]
    exchanged = [unit(at, True, [one[0][1], one[1][0]]) for at, one in enumerate(cells)]
    return {"arms": {"own": {"units": own}, "exchanged": {"units": exchanged}}}


def squares(pairs: int, hardware: float, data: float, together: float, noise: float = 0.3) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    flat = np.array([[0.0, data], [hardware, hardware + data + together]])
    return evidence((50 + flat + noise * rng.standard_normal((pairs, 2, 2))).tolist())


@pytest.mark.parametrize(
    ("effects", "verdicts", "decision"),
    [
        ((10, 0, 0), ("supported", "rejected", "rejected"), "follows the hardware"),
        ((0, 10, 0), ("rejected", "supported", "rejected"), "follows the data"),
        ((0, 0, 10), ("inconclusive", "inconclusive", "supported"), "needs both together"),
        ((5, 5, 0), ("inconclusive", "inconclusive", "rejected"), "hardware and data each carry a part"),
        ((10, 10, 0), ("supported", "supported", "rejected"), "hardware and data each carry a part"),
        ((0, 0, 0), ("rejected", "rejected", "rejected"), "is not there"),
    ],
)
def test_what_follows_what_is_told_from_the_four_cells(
    effects: tuple[float, ...], verdicts: tuple[str, ...], decision: str
) -> None:
    where, every = session(*SOURCES)
    found = [judge_swap(where, every[source], squares(6, *effects)) for source in SOURCES]
    assert tuple(one.verdict.value for one in found) == verdicts
    assert {one.numbers["decision"] for one in found} == {decision}


def test_a_suspect_that_is_open_asks_for_more_and_a_settled_one_does_not() -> None:
    where, every = session(*SOURCES)
    open_still = judge_swap(where, every["hardware"], squares(4, 6, 0, 0, noise=4.0))
    assert (open_still.verdict, open_still.wanted_pairs) == (None, 6)
    # Of the interaction alone nothing more is asked for once the loss is known to stay with the hardware.
    noisy = squares(4, 10, 0, 3, noise=0.4)
    found = {source: judge_swap(where, every[source], noisy) for source in SOURCES}
    assert found["hardware"].numbers["decision"] == "follows the hardware"
    assert found["interaction"].verdict is Verdict.INCONCLUSIVE
    assert found["interaction"].wanted_pairs is None


def test_standard_errors_and_the_cost_of_playing_second_are_in_the_numbers() -> None:
    where, every = session(*SOURCES)
    raw = squares(8, 10, 0, 0)
    for at in range(8):
        late = "exchanged" if at % 2 == 0 else "own"
        unit = raw["arms"][late]["units"][at]
        unit["local_ms"] = [one + 2.0 for one in unit["local_ms"]]
    numbers = judge_swap(where, every["hardware"], raw).numbers
    assert numbers["order_effect"] is True
    assert numbers["order_effect_ms"] == pytest.approx(2.0, abs=0.3)
    effect = numbers["effects"]["hardware"]
    assert effect["effect_ms"] == pytest.approx(10, abs=4 * effect["standard_error_ms"])
    assert effect["interval_ms"][0] < effect["effect_ms"] < effect["interval_ms"][1]


def test_without_a_whole_square_nothing_is_said() -> None:
    where, every = session(*SOURCES)
    raw = squares(4, 10, 0, 0)
    raw["arms"]["own"]["units"] = [unit | {"pair": 90 + at} for at, unit in enumerate(raw["arms"]["own"]["units"])]
    assert judge_swap(where, every["data"], raw).verdict is Verdict.INCONCLUSIVE
