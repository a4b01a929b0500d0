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
from narrows.inquiry.steps import Register, StopReason

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
    [(0.6 * MARGIN_MS, 8, False), (1.2 * MARGIN_MS, 8, True), (0.6 * MARGIN_MS, 4, True)],
)
def test_an_undecided_loss_is_measured_again_only_where_it_is_likelier_than_none_or_pairs_were_few(
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
