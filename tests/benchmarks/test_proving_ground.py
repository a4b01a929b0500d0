"""Planted faults, investigated from the case file to the conclusion by the shipped loop; launches are simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from page import put_section
from proving_ground import BASELINES, HEADING, Score, Task, by_kind, play, summary
from simulation.cases import NOTHING
from simulation.kinds import KINDS, Kind
from simulation.scoring import culprit_shares, grade


def planted(name: str, seed: int = 0, effect: float = 0.12) -> Score:
    return play(Task(name=name, effect=effect, seed=seed, mode="restart"))


@pytest.mark.parametrize("name", ["recompute", "launch-gap", "launch-gap-host"])
def test_a_planted_fault_is_named_with_its_culprit_at_one_rank_and_its_account_closes(name: str) -> None:
    one = planted(name)

    assert (one.grade, one.culprit, one.scope) == ("right", True, True), one
    assert one.closing == "closed"
    assert 0 < one.cost < 0.5


def test_communication_that_is_slow_on_one_node_already_is_that_hosts_and_not_the_links() -> None:
    one = planted("nvlink-host")

    assert (one.grade, one.culprit, one.scope) == ("right", True, True), one
    assert one.found["mechanism"] == "collective"


def test_where_nothing_is_wrong_no_cause_is_named_and_simple_rules_name_one() -> None:
    one = planted(NOTHING, effect=0.0)

    assert one.grade == "right", one
    assert one.found["mechanism"] is None
    assert not one.baselines["B0m"]


def test_the_same_seed_finds_the_same_to_the_last_digit(tmp_path: Path) -> None:
    first, second = planted("copy", seed=3), planted("copy", seed=3)

    assert (first.found, first.cost, first.baselines) == (second.found, second.cost, second.baselines)
    assert first.climb_cost == second.climb_cost > 0


def conclusion(mechanism: str | None, account: str | None = None, regression: str = "confirmed") -> dict[str, object]:
    return {"mechanism": mechanism, "account": account, "regression": regression}


def test_a_case_is_right_only_where_mechanism_and_account_are_those_that_were_planted() -> None:
    kind = KINDS["one-host"]

    assert grade(kind, conclusion("slow_host", "compute")) == "right"
    assert grade(kind, conclusion("slow_host", "input")) == "wrong"
    assert grade(kind, conclusion("link", "transfer")) == "wrong"
    assert grade(kind, conclusion(None)) == "undecided"
    assert grade(None, conclusion(None)) == "wrong"
    assert grade(None, conclusion(None, regression="none")) == "right"


@pytest.mark.parametrize(
    ("kind", "culprit", "shares"),
    [
        (KINDS["one-host"], {"kind": "host", "members": ["n9"]}, (1.0, 1.0)),
        (KINDS["one-host"], {"kind": "rank", "members": [2]}, (1.0, 0.5)),
        (KINDS["one-host"], {"kind": "all", "members": []}, (0.125, 1.0)),
        (KINDS["one-host"], {"kind": "none", "members": []}, (0.0, 0.0)),
        (KINDS["packing"], {"kind": "varies", "members": []}, (None, None)),
        (KINDS["packing"], {"kind": "rank", "members": [2]}, (0.0, 0.0)),
    ],
)
def test_culprits_are_compared_as_sets_of_ranks(
    kind: Kind, culprit: dict[str, object], shares: tuple[float | None, float | None]
) -> None:
    hosts = tuple(host for host in ("n0", "n9", *(f"n{at}" for at in range(2, 8))) for _ in range(2))

    assert culprit_shares(kind, culprit, hosts) == shares


def test_tables_hold_a_row_for_each_kind_and_effect_and_replace_those_of_the_page(tmp_path: Path) -> None:
    scores = [scored("copy", 0.12, "right"), scored("copy", 0.05, "undecided"), scored(NOTHING, 0.0, "right")]
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Benchmarks\n\n{HEADING}\n\nold\n\n## Next\n\nkept\n")

    rows = [line.split(" | ")[:4] for line in by_kind(scores)][2:]
    put_section(page, HEADING, f"{HEADING}\n\nnew\n")

    assert rows == [["| copy", "12%", "1", "100%"], ["| copy", "5%", "1", "0%"], ["| nothing", "0%", "1", "100%"]]
    assert len(list(summary(scores))) == 2 + 3
    assert page.read_text() == f"# Benchmarks\n\n{HEADING}\n\nnew\n\n## Next\n\nkept\n"


def scored(kind: str, effect: float, grade: str) -> Score:
    named = "copy" if grade == "right" and kind != NOTHING else None
    found = {"mechanism": named, "account": named, "first_scope": "one_rank", "culprit": {"kind": "all", "members": []}}
    return Score(
        kind=kind, effect=effect, seed=0, grade=grade, family=True, scope=True, precision=1.0, recall=1.0,
        closing="closed", cost=0.1, wrong_supported=0, supported=1, inconclusive=0, verdicts=4, seconds=1.0,
        found=found, baselines=dict.fromkeys(BASELINES, False),
    )  # fmt: skip
