"""What the ladder does not launch because no verdict could come of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from narrows.inquiry.case import Case
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.docket import Kind
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import Launch, Register, StopReason

MARGIN_MS = 0.5
COMPUTE = {"account": "compute", "mechanism": "compute", "culprit": {"kind": "all", "members": []}}

PlayGiven = Callable[..., Any]


@pytest.fixture
def play_given(player_of: Callable[..., Any], world_of: type[Any]) -> PlayGiven:
    """An investigation played to its end after the given runs said what a test says that they did."""

    def play(case: Case, *, verdict: str, effect_ms: float, pairs: int, chance: float | None = None) -> Any:
        player = player_of(world_of(reading=COMPUTE), case)
        first = next_step(case, player.docket)
        assert isinstance(first, Register)
        player._take(first)
        ids = State.of(player.docket).ids
        reference = {"delta_ms": effect_ms, "d_ms": [effect_ms] * pairs, "tested": True, "chance": chance}
        for topic, numbers in (("reference", reference), ("numerator", {"changed": False, "pi_ms": 0.0})):
            player.note(Kind.FINDING, {"rung": Rung.MANIFEST, "topic": topic, "numbers": numbers, "file": "given.json"})
        for key, said, effect in (("regression", verdict, effect_ms), ("numerator", "rejected", None)):
            body = {"hypothesis": ids[key], "verdict": said, "effect_ms": effect, "interval_ms": None, "reason": "so"}
            player.note(Kind.VERDICT, body | {"numbers": {"pairs": pairs}})
        player.play()
        return player

    return play


@pytest.mark.parametrize(
    ("effect_ms", "pairs", "again"),
    [(0.6 * MARGIN_MS, 8, False), (1.2 * MARGIN_MS, 8, False), (1.2 * MARGIN_MS, 4, True), (0.6 * MARGIN_MS, 4, True)],
)
def test_an_undecided_loss_is_measured_again_only_where_it_was_measured_with_fewer_pairs(
    play_given: PlayGiven, case_of: Callable[..., Case], effect_ms: float, pairs: int, again: bool
) -> None:
    player = play_given(case_of(), verdict="inconclusive", effect_ms=effect_ms, pairs=pairs)

    assert ("full-again" in player.launched) is again
    assert player.steps[-1][1].reason is StopReason.INCONCLUSIVE


def test_where_restarts_vary_too_much_for_the_last_look_no_scope_is_launched_and_the_reason_is_told(
    play_given: PlayGiven, case_of: Callable[..., Case]
) -> None:
    case = case_of(judging={"mode": Mode.RESTART})
    player = play_given(case, verdict="supported", effect_ms=6.0, pairs=8, chance=0.31)

    assert player.launched == []
    assert "cannot be decided with 12 pairs" in player.skips[Rung.ONE_RANK]
    assert "31%" in player.skips[Rung.ONE_RANK]


@pytest.mark.parametrize(
    ("mode", "kind", "chance"),
    [
        (Mode.RESTART, ArmKind.CONFIG, 0.6),
        (Mode.RESTART, ArmKind.CONFIG, None),
        (Mode.SWITCHBACK, ArmKind.CONFIG, 0.31),
    ],
)
def test_a_scope_is_launched_where_its_last_look_is_likely_to_decide_or_its_pairs_vary_less_than_restarts(
    play_given: PlayGiven, case_of: Callable[..., Case], mode: Mode, kind: ArmKind, chance: float | None
) -> None:
    case = case_of(judging={"mode": mode}, workload={"kind": kind})
    player = play_given(case, verdict="supported", effect_ms=6.0, pairs=8, chance=chance)

    assert player.launched[0] == "one_rank-regressed"


LINK = {"account": "transfer", "mechanism": "link", "culprit": {"kind": "link", "members": []}}
NOT_INSIDE = {"scope:one_rank": "rejected", "scope:one_node": "rejected"}


def reading_of(span: int, **more: Any) -> dict[str, Any]:
    kappa = {"one_rank": 0.0, "one_node": 0.0, "two_nodes": 0.6, "full": 1.0}
    return LINK | {"ranks": [], "kappa": kappa, "span": span} | more


@pytest.mark.parametrize(
    ("span", "hosts"), [(8, ("n0", "n7")), (4, ("n0", "n3")), (0, ("n0", "n1")), (1, ("n0", "n1"))]
)
def test_two_hosts_of_a_slower_group_are_those_that_are_farthest_apart_in_it(
    player_of: Callable[..., Any], world_of: type[Any], case_of: Callable[..., Case], span: int, hosts: tuple[str, ...]
) -> None:
    player = player_of(world_of(reading=reading_of(span), verdicts=NOT_INSIDE), case_of(nodes=8))
    player.play()

    two = next(step for step in player.of(Launch) if step.experiment.key == "two_nodes-regressed")
    assert two.experiment.placement.names == hosts
    assert two.experiment.before.shards == tuple(2 * int(host[1:]) + local for host in hosts for local in (0, 1))


def test_hosts_of_a_link_are_not_put_together_on_one_where_that_would_crowd_it(
    player_of: Callable[..., Any], world_of: type[Any], case_of: Callable[..., Case]
) -> None:
    verdicts = NOT_INSIDE | {"scope:two_nodes": "rejected", "scope:full": "supported"}
    player = player_of(world_of(reading=reading_of(8), verdicts=verdicts), case_of(nodes=8))
    player.play()

    assert player.conclusion.first_scope == "full"
    assert not [key for key in player.launched if key.startswith("colocate")]
    assert "no change is known for it" in player.skips[Rung.PERTURBATION]


def test_a_scope_that_was_planned_with_more_pairs_registers_and_takes_them(
    player_of: Callable[..., Any], world_of: type[Any], case_of: Callable[..., Case]
) -> None:
    planned = (4, 6, 8, 12, 16, 24)
    reading = reading_of(8, looks={"two_nodes": list(planned)})
    world = world_of(reading=reading, verdicts=NOT_INSIDE, wanted={"two_nodes-regressed": list(planned)})
    player = player_of(world, case_of(nodes=8))
    player.play()

    assert player.state.hypothesis("scope:two_nodes").looks == planned
    assert player.state.hypothesis("scope:one_node").looks == player.case.judging.looks
    assert player.state.pairs("two_nodes-regressed") == 24
