"""The worked cases, from nothing to the postmortem: each planted cause is found, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.dist

Play = Callable[..., Any]
LOCAL = {"account": "compute", "first_scope": "one_rank"}


@pytest.fixture
def play(cli: Any, investigated: Callable[..., Any], tmp_path: Path) -> Play:
    """``play("packing", seed=11)`` runs ``narrows demo`` and returns the audited outcome."""

    def run(name: str, *, seed: int) -> Any:
        folder = tmp_path / "out"
        finished = cli("demo", name, "--no-ui", "--seed", str(seed), "--out", folder)
        assert finished.code == 0, finished.out + finished.err
        assert finished.err == ""
        return investigated(folder / "case.yaml", finished)

    return run


def _concludes(one: Any, **expected: Any) -> None:
    found = {key: one.conclusion[key] for key in expected}
    assert found == expected, one.told()


def test_packing_is_the_moving_imbalance_of_a_node_and_not_the_network(play: Play) -> None:
    one = play("packing", seed=101)
    _concludes(
        one, regression="confirmed", numerator_changed=False, account="skew", mechanism="imbalance",
        first_scope="one_node", perturbation="supported", closing="closed",
    )  # fmt: skip
    assert one.conclusion["culprit"]["kind"] == "varies"
    assert one.verdict("account:transfer") == "rejected", one.told()
    assert one.verdict("account:skew") == "supported", one.told()
    assert one.verdict("scope:one_rank") == "rejected", one.told()
    assert one.verdict("scope:one_node") == "supported", one.told()
    assert "two_nodes-regressed" not in one.launched


def test_a_slow_host_is_found_at_one_rank_and_the_shard_is_acquitted(play: Play) -> None:
    one = play("slow-host", seed=102)
    _concludes(one, regression="confirmed", mechanism="slow_host", perturbation="supported", closing="closed", **LOCAL)
    assert one.conclusion["culprit"] == {"kind": "host", "members": ["n2"]}
    assert one.verdict("control:one_rank") == "rejected", one.told()
    assert one.verdict("swap:hardware") == "supported", one.told()
    assert one.verdict("swap:data") == "rejected", one.told()
    larger = {key: verdict for key, verdict in one.verdicts().items() if key.startswith("scale_up:")}
    assert larger, one.told()
    assert set(larger.values()) == {"supported"}, one.told()


def test_a_slow_link_needs_both_hosts_and_shows_in_the_slope_of_the_curve(play: Play) -> None:
    one = play("slow-link", seed=103)
    _concludes(
        one, regression="confirmed", account="transfer", mechanism="link", first_scope="two_nodes",
        culprit={"kind": "link", "members": ["n0", "n1"]}, perturbation="supported", closing="closed",
    )  # fmt: skip
    assert one.verdict("scope:one_rank") == "rejected", one.told()
    assert one.verdict("scope:one_node") == "rejected", one.told()
    assert one.verdict("scope:two_nodes") == "supported", one.told()
    assert one.verdict("curve") == "supported", one.told()
    assert one.state.judgement("curve").numbers["pattern"] in ("bandwidth", "both"), one.told()
    assert one.verdict("perturbation:colocate") == "supported", one.told()


def test_more_padding_is_more_work_and_costs_one_experiment(play: Play) -> None:
    one = play("more-padding", seed=104)
    _concludes(one, regression="confirmed", numerator_changed=True, mechanism="numerator", closing="closed", **LOCAL)
    assert len(one.launched) == 1, one.told()


def test_a_slow_loader_is_found_on_every_rank_alone(play: Play) -> None:
    one = play("slow-input", seed=105)
    _concludes(
        one, regression="confirmed", account="input", mechanism="input", first_scope="one_rank",
        perturbation="supported", closing="closed",
    )  # fmt: skip
    assert one.conclusion["culprit"]["kind"] == "all"


def test_where_nothing_changed_nothing_is_found_and_nothing_is_launched(play: Play) -> None:
    one = play("nothing", seed=106)
    _concludes(
        one, regression="none", account=None, mechanism=None, first_scope=None, culprit={"kind": "none", "members": []},
        perturbation="not_run", closing="not_run",
    )  # fmt: skip
    assert one.launched == []
