"""Accounts judged side by side: what one alone would support, several together may not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from narrows.inquiry.verdict import Verdict
from narrows.reducers.shares import judge_share, judge_shares

STEP = [10.0] * 8


def account(share: float, sd: float, seed: int) -> list[float]:
    noise = np.random.Generator(np.random.PCG64(seed)).normal(0, 1, 8)
    return (10 * share + sd * (noise - noise.mean()) / noise.std(ddof=1)).tolist()


def test_a_clear_account_stays_supported_and_clear_others_rejected_however_many_there_are() -> None:
    table = {"skew": account(0.95, 0.3, 0), **{f"a{at}": account(0.0, 0.3, at) for at in range(1, 8)}}
    found = judge_shares(table, STEP)
    assert found["skew"].verdict is Verdict.SUPPORTED
    assert {found[name].verdict for name in table if name != "skew"} == {Verdict.REJECTED}


@pytest.mark.parametrize(("share", "alone"), [(0.58, Verdict.SUPPORTED), (0.42, Verdict.REJECTED)])
def test_what_barely_stands_alone_falls_among_others(share: float, alone: Verdict) -> None:
    close = account(share, 1.0, 3)
    assert judge_share(close, STEP, "input").verdict is alone
    others = {f"a{at}": account(0.5, 1.0, at) for at in range(4, 8)}
    found = judge_shares({"input": close, **others}, STEP)["input"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "these runs do not settle it among 5 accounts" in found.reason
    assert judge_shares({"input": close}, STEP)["input"].verdict is alone


def test_the_error_of_all_accounts_together_keeps_its_promise() -> None:
    """Five accounts that each hold exactly half: none should be called more, nor less."""
    rng = np.random.Generator(np.random.PCG64(11))

    def wrong(judge: Callable[[dict[str, list[float]]], set[Verdict]]) -> float:
        draws = ({f"a{at}": rng.normal(5, 1, 8).tolist() for at in range(5)} for _ in range(400))
        return float(np.mean([Verdict.SUPPORTED in judge(table) for table in draws]))

    together = wrong(lambda table: {one.verdict for one in judge_shares(table, STEP).values()})
    alone = wrong(lambda table: {judge_share(values, STEP, name).verdict for name, values in table.items()})
    assert together < 0.08
    assert alone > 0.15


def test_three_pairs_rule_nothing_in_or_out() -> None:
    found = judge_shares({"input": [10.0, 10.1, 9.9]}, [10.0] * 3)["input"]
    assert (found.verdict, found.p_more, found.p_less) == (Verdict.INCONCLUSIVE, 1.0, 1.0)
