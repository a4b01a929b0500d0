"""The worked cases with another seed, rank, host or size: what comes out right by rote comes out wrong here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.dist

SHORT = {"soak_steps": 96}
Solve = Callable[..., Any]


@pytest.fixture
def solve(
    cli: Any, write_case: Callable[..., Path], recorded: Callable[[Path], Path], investigated: Callable[..., Any]
) -> Solve:
    """Records and investigates a case of one's own; returns the audited outcome."""

    def run(workload: dict[str, Any], *, cluster: dict[str, Any] | None = None, **judge: Any) -> Any:
        case_file = recorded(write_case("variation", workload, cluster=cluster or {}, judge=SHORT | judge))
        return investigated(case_file, cli("investigate", case_file, "--yes", "--no-ui"))

    return run


def _concludes(one: Any, **expected: Any) -> None:
    found = {key: one.conclusion[key] for key in expected}
    assert found == expected, one.told()


CLOSED = {"regression": "confirmed", "perturbation": "supported", "closing": "closed"}


@pytest.mark.slow
def test_another_slow_host_in_another_place_is_told_from_the_host_that_only_moved(solve: Solve) -> None:
    one = solve(
        {
            "config": {"slow_host": {"host": "n1", "factor": 1.2}},
            "healthy": {"hosts": ["n0", "n3"]},
            "regressed": {"hosts": ["n3", "n1"]},
        },
        cluster={"hosts": ["n0", "n1", "n2", "n3"]},
        seed=201,
    )
    _concludes(
        one, **CLOSED, account="compute", mechanism="slow_host", first_scope="one_rank",
        culprit={"kind": "host", "members": ["n1"]},
    )  # fmt: skip
    assert one.verdict("control:one_rank") == "rejected", one.told()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 3])
def test_one_slow_device_is_the_same_device_at_every_scope(solve: Solve, rank: int) -> None:
    device = {"host": "n1", "rank": rank - 2, "factor": 1.2}
    one = solve(
        {"healthy": {"slow_rank": None}, "regressed": {"slow_rank": device}},
        cluster={"hosts": ["n0", "n1", "n2"]},
        seed=202,
    )
    _concludes(
        one, **CLOSED, account="compute", mechanism="slow_rank", first_scope="one_rank",
        culprit={"kind": "rank", "members": [rank]},
    )  # fmt: skip
    assert one.verdict("control:one_rank") == "rejected", one.told()
    assert one.verdict("swap:hardware") == "supported", one.told()
    assert one.verdict("swap:data") == "rejected", one.told()


@pytest.mark.slow
def test_packing_on_three_ranks_a_node_and_longer_documents_is_still_imbalance(solve: Solve) -> None:
    one = solve(
        {
            "config": {"tokens_per_rank": 6144, "mean_doc_tokens": 384, "max_doc_tokens": 1536},
            "healthy": {"packing": "snake"},
            "regressed": {"packing": "greedy"},
        },
        cluster={"ranks_per_node": 3},
        seed=203,
        statistic="mean",
    )
    _concludes(one, **CLOSED, account="skew", mechanism="imbalance", first_scope="one_node", numerator_changed=False)
    assert one.verdict("scope:one_rank") == "rejected", one.told()


@pytest.mark.slow
def test_a_link_of_another_rate_and_delay_is_still_the_link(solve: Solve) -> None:
    one = solve({"healthy": {"slow_link": None}, "regressed": {"slow_link": {"mbit": 250, "delay_us": 300}}}, seed=204)
    _concludes(one, **CLOSED, account="transfer", mechanism="link", first_scope="two_nodes")


def test_a_quarter_more_padding_is_still_more_work(solve: Solve) -> None:
    one = solve({"healthy": {"padding": 0.0}, "regressed": {"padding": 0.25}}, seed=205)
    _concludes(one, **CLOSED, numerator_changed=True, account="compute", mechanism="numerator", first_scope="one_rank")
    assert len(one.launched) == 1, one.told()


@pytest.mark.slow
def test_longer_checkpoints_are_found_though_most_steps_have_none(solve: Solve) -> None:
    one = solve(
        {
            "config": {"checkpoint_every": 4},
            "healthy": {"checkpoint_us": 2000},
            "regressed": {"checkpoint_us": 60000},
        },
        seed=206,
        statistic="mean",
    )
    _concludes(one, **CLOSED, account="checkpoint", mechanism="checkpoint", first_scope="one_rank")
    assert one.conclusion["culprit"]["kind"] == "all"
