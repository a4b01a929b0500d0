"""Steps in which the emulating machine stalled are left out of both arms alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers.stalls import leave_out_stalls
from narrows.reducers.sweep import CODES


@dataclass
class FewFields:
    """What the rule reads of a ledger."""

    steps: pd.DataFrame
    account_ns_RSA: np.ndarray
    present_RS: np.ndarray


def ledger(residual_ms: dict[int, float], *, steps: int = 8, pair: int = 0) -> FewFields:
    """One unit of one rank and ``steps`` steps, with a residual at the given steps."""
    accounts = np.zeros((1, steps, len(ACCOUNTS)), dtype=np.int64)
    for step, value in residual_ms.items():
        accounts[0, step, CODES[Account.RESIDUAL]] = int(value * 1e6)
    table = pd.DataFrame(
        {
            "segment": 0,
            "pair": pair,
            "batch": np.arange(steps),
            "warmup": np.arange(steps) < 1,
            "step": np.arange(steps),
        }
    )
    return FewFields(steps=table, account_ns_RSA=accounts, present_RS=np.ones((1, steps), dtype=bool))


def marked(one: FewFields) -> list[int]:
    return np.flatnonzero(one.steps["warmup"].to_numpy()).tolist()


def test_a_stalled_step_goes_with_the_step_of_the_same_batch_in_the_other_arm() -> None:
    healthy, regressed = ledger({3: 5.0}), ledger({6: 1.1})

    taken = leave_out_stalls([healthy, regressed])

    assert marked(healthy) == marked(regressed) == [0, 3, 6]
    assert taken == 4


@pytest.mark.parametrize("swap", [False, True])
def test_the_rule_does_not_look_at_the_arms(swap: bool) -> None:
    pair = [ledger({2: 9.0}), ledger({5: 3.0})]
    leave_out_stalls(pair[::-1] if swap else pair)

    assert [marked(one) for one in pair] == [[0, 2, 5], [0, 2, 5]]


def test_a_small_residual_stays_and_so_do_other_pairs() -> None:
    first, second = ledger({3: 0.9}), ledger({4: 2.0}, pair=1)
    leave_out_stalls([first, second])

    assert marked(first) == [0]
    assert marked(second) == [0, 4]


def test_a_unit_that_would_lose_most_of_its_steps_keeps_them_all() -> None:
    noisy = ledger(dict.fromkeys(range(1, 7), 4.0))

    assert leave_out_stalls([noisy]) == 0
    assert marked(noisy) == [0]
