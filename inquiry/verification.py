"""After a change was supported: does it hold at larger scopes and for longer, and does its account close?"""

from __future__ import annotations

from narrows.inquiry import change_proposals, plans
from narrows.inquiry.case import Case
from narrows.inquiry.changes import RESTORE_WORK, base_scope, plays, scaled, supported_play
from narrows.inquiry.design import Experiment
from narrows.inquiry.playbook import Play
from narrows.inquiry.pursuit import not_pursued, pursue
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import Skip, Step


def _verified(case: Case, state: State, rung: Rung) -> Play | Skip:
    if skip := not_pursued(state, rung):
        return skip
    chosen = supported_play(state)
    if chosen is None:
        return Skip(rung=rung, reason="no perturbation was supported")
    play = next((one for one in [RESTORE_WORK, *plays(case, state)] if one.id == chosen), None)
    assert play is not None, chosen
    return play


def _mitigating(case: Case, state: State, rung: Rung) -> Play | Skip:
    play = _verified(case, state, rung)
    if isinstance(play, Play) and not play.mitigation:
        return Skip(rung=rung, reason="the change is a diagnosis, not a mitigation that a job could keep")
    return play


def scale_up(case: Case, state: State) -> Step | None:
    play = _mitigating(case, state, Rung.SCALE_UP)
    if isinstance(play, Skip):
        return play
    first = base_scope(case, state) or case.full_scope
    larger = [one for one in case.scopes() if one > first]
    if not larger:
        return Skip(rung=Rung.SCALE_UP, reason=f"{first.words} is the full scale already")
    for scope in larger:
        experiment = plans.perturb(case, state, play, scope, Rung.SCALE_UP, f"{play.id}-{scope.value}")
        if experiment is None:
            return Skip(rung=Rung.SCALE_UP, reason="the cluster has no spare host for it")
        pi, source = scaled(state, first, scope)
        step = pursue(
            case, state, Rung.SCALE_UP, [change_proposals.scale_up(case, play, experiment, pi, source)], experiment
        )
        if step is not None:
            return step
    return None


def soak(case: Case, state: State) -> Step | None:
    play = _mitigating(case, state, Rung.SOAK)
    if isinstance(play, Skip):
        return play
    first = base_scope(case, state) or case.full_scope
    short = plans.perturb(case, state, play, case.full_scope, Rung.SOAK, "soak")
    if short is None:
        return Skip(rung=Rung.SOAK, reason="the cluster has no spare host for it")
    pi, source = scaled(state, first, case.full_scope)
    longer = plans.soak(case, short)
    return pursue(case, state, Rung.SOAK, [change_proposals.soak(case, play, longer, pi, source)], longer)


def closing(case: Case, state: State) -> Step | None:
    play = _verified(case, state, Rung.CLOSING)
    if isinstance(play, Skip):
        return play
    registered = state.hypothesis(f"closing:{play.id}")
    assert registered is not None, play.id
    # An account that stays open at a look wants more pairs of the experiment that tried the change.
    return pursue(case, state, Rung.CLOSING, [registered], _tried(case, state, play))


def _tried(case: Case, state: State, play: Play) -> Experiment | None:
    """The experiment that tested ``play``, as it was launched."""
    scope = base_scope(case, state)
    assert scope is not None, play.id
    if play is RESTORE_WORK:
        return plans.at_scope(case, state, scope, Rung.PERTURBATION)
    return plans.perturb(case, state, play, scope, Rung.PERTURBATION, f"{play.id}-{scope.value}")
