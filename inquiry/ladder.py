"""What comes next: a pure function of the case and its docket.

The flow is a loop around :func:`next_step`, so a killed investigation resumes by reading its docket, and every
decision can be replayed without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from narrows.inquiry import change_proposals, plans, proposals, swaps, verification
from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.changes import RESTORE_WORK, base_scope, numerator_explains, plays, supported_play
from narrows.inquiry.design import ArmKind, Experiment, Mode
from narrows.inquiry.docket import Docket
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.playbook import Play
from narrows.inquiry.pursuit import not_pursued, pursue, pursued, regression_status
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import Skip, Step, Stop, StopReason, Topic
from narrows.inquiry.verdict import RegressionStatus, Verdict

REFERENCE_PAIRS = 8
"""Pairs of the full-scale measurement that every later prediction is scaled from."""

LEAST_CHANCE = 0.5
"""A scope whose last look would less likely than this decide is not launched at all."""


def next_step(case: Case, docket: Docket) -> Step:
    """The one thing to do now. The same case and docket always give the same answer."""
    state = State.of(docket)
    if any(answer.get("decision") == "abort" for answer in state.answers.values()):
        return Stop(reason=StopReason.ABORTED)
    for rung, plan in LADDER.items():
        step = None if rung in state.skipped else plan(case, state)
        if step is not None:
            return step
    return Stop(reason=stop_reason(state))


def stop_reason(state: State) -> StopReason:
    """Why there is nothing left to do."""
    status = regression_status(state)
    if status is RegressionStatus.NONE:
        return StopReason.NO_REGRESSION
    if not pursued(state):
        return StopReason.INCONCLUSIVE
    if supported_play(state) and any(
        state.verdict(f"closing:{play}") is Verdict.SUPPORTED for play in [supported_play(state)]
    ):
        return StopReason.EXPLAINED
    return StopReason.NOT_CLOSED if state.first_scope or supported_play(state) else StopReason.NOT_REPRODUCED


def _manifest(case: Case, state: State) -> Step | None:
    hypotheses = [proposals.regression(case, state), proposals.numerator(case)]
    step = pursue(case, state, Rung.MANIFEST, hypotheses, topic=Topic.GIVEN)
    if step is not None:
        return step
    if _worth_repeating(state) and case.workload.kind is not ArmKind.HISTORICAL:
        again = replace(
            plans.at_scope(case, state, case.full_scope, Rung.MANIFEST), key="full-again", pairs=REFERENCE_PAIRS
        )
        step = pursue(case, state, Rung.MANIFEST, [proposals.regression(case, state, again)], again)
        if step is not None:
            return step
    if pursued(state) and numerator_explains(state) and case.workload.kind is not ArmKind.HISTORICAL:
        return _prove_numerator(case, state)
    return None


def _worth_repeating(state: State) -> bool:
    """Whether the loss is measured again at full scale: only where there were fewer pairs than it would take.

    What as many pairs left open, as many more would leave open in at least about half of the cases: their power at
    an estimate that did not cross the bound is at most even.
    """
    found = state.judgement("regression")
    if found is None or found.verdict is not Verdict.INCONCLUSIVE:
        return False
    return int(found.numbers.get("pairs", 0)) < REFERENCE_PAIRS or "regression:again" in state.ids


def _prove_numerator(case: Case, state: State) -> Step | None:
    experiment = plans.at_scope(case, state, case.scopes()[0], Rung.MANIFEST)
    pi = float(state.findings["numerator"]["pi_ms"])
    later = [
        change_proposals.perturbation(case, RESTORE_WORK, experiment, pi, "the compute that the work counters predict"),
        change_proposals.closing(case, RESTORE_WORK, experiment, pi),
    ]
    proof = proposals.proof_of_numerator(case, state, experiment)
    return _tested(case, state, Rung.MANIFEST, proof, experiment, later)


def _reconciliation(case: Case, state: State) -> Step | None:
    if skip := not_pursued(state, Rung.RECONCILIATION):
        return skip
    present = [one for one in ACCOUNTS if one.value in state.opened["accounts"] and one is not Account.RESIDUAL]
    hypotheses = [proposals.account(case, state, one, len(present)) for one in present]
    return pursue(case, state, Rung.RECONCILIATION, hypotheses, topic=Topic.RECONCILIATION)


def _scope(scope: Scope) -> Callable[[Case, State], Step | None]:
    def plan(case: Case, state: State) -> Step | None:
        rung = SCOPE_RUNGS[scope]
        if reason := _no_need(case, state, scope):
            return Skip(rung=rung, reason=reason)
        most = max(proposals.looks(case, state, scope))
        experiment = replace(plans.at_scope(case, state, scope), max_pairs=most)
        step = _tested(case, state, rung, proposals.scope(case, state, experiment), experiment)
        return step or _beside(case, state, scope, experiment)

    return plan


def _tested(
    case: Case, state: State, rung: Rung, one: Hypothesis, experiment: Experiment, later: Sequence[Hypothesis] = ()
) -> Step | None:
    """A scope's test. Before a rejection stands, a delay of its boundary is injected there, which must be seen."""
    registered = state.hypothesis(one.key)
    if registered is not None and state.judgement(one.key) is None and state.pending(one.key) is not None:
        control = plans.sensitivity(case, experiment, proposals.delay_of(registered))
        step = pursue(case, state, rung, [proposals.sensitivity(case, registered, control)], control)
        if step is not None:
            return step
    return pursue(case, state, rung, [one], experiment, later=later)


def _no_need(case: Case, state: State, scope: Scope) -> str | None:
    if skip := not_pursued(state, SCOPE_RUNGS[scope]):
        return skip.reason
    if f"scope:{scope.value}" in state.ids and not numerator_explains(state):
        return None
    if numerator_explains(state):
        return "the executed work explains the loss; nothing more is launched than what proved it"
    if case.workload.kind is ArmKind.HISTORICAL:
        return "the healthy run cannot be made again, so there is nothing to compare with at this scope"
    if scope not in case.scopes():
        return (
            f"on this cluster it is the same as {case.full_scope.words}"
            if scope > case.scopes()[0]
            else "it does not exist here"
        )
    first = state.first_scope
    if first and first < scope:
        return f"the loss was reproduced at {first.words}; nothing larger is needed"
    return _undecidable(case, state)


def _undecidable(case: Case, state: State) -> str | None:
    """Why the pairs that are allowed would leave every scope open, as far as the given runs can tell.

    They tell of restarts alone: arms that take turns inside of one launch differ less from pair to pair.
    """
    chance = state.reference.get("chance")
    restarts = case.judging.mode is Mode.RESTART and case.workload.kind is not ArmKind.PLACEMENT
    if chance is None or chance >= LEAST_CHANCE or not restarts:
        return None
    pairs = max(case.judging.looks)
    return (
        f"cannot be decided with {pairs} pairs: the loss varies so much between runs that they would decide in "
        f"{chance:.0%} of the cases; longer runs would vary less"
    )


def _beside(case: Case, state: State, scope: Scope, experiment: Experiment) -> Step | None:
    """What belongs to a scope beside its main comparison: a control, or the message-size curve."""
    rung = SCOPE_RUNGS[scope]
    if state.mechanism in ("slow_host", "slow_rank"):
        other = plans.control(case, state, scope)
        if other is not None:
            return pursue(case, state, rung, [proposals.scope(case, state, other, control=True)], other)
    supported = state.verdict(f"scope:{scope.value}") is Verdict.SUPPORTED
    if state.mechanism in ("link", "collective") and supported and case.workload.builtin:
        sweep = plans.message_sizes(scope, experiment)
        return pursue(case, state, rung, [proposals.curve(case, sweep)], sweep)
    return None


def _perturbation(case: Case, state: State) -> Step | None:
    rung = Rung.PERTURBATION
    if skip := not_pursued(state, rung):
        return skip
    scope = base_scope(case, state)
    if scope is None:
        return Skip(rung=rung, reason="the loss was not reproduced, so there is nothing to perturb")
    if numerator_explains(state) and "perturbation:restore-work" in state.ids:
        proof = plans.at_scope(case, state, scope, rung)
        pi = float(state.findings["numerator"]["pi_ms"])
        return pursue(case, state, rung, [change_proposals.perturbation(case, RESTORE_WORK, proof, pi, "")], proof)
    usable = [
        (play, plans.perturb(case, state, play, scope, rung, f"{play.id}-{scope.value}")) for play in plays(case, state)
    ]
    family = sum(experiment is not None for _, experiment in usable)
    for play, experiment in usable:
        if experiment is None:
            continue
        step = _try(case, state, play, experiment, family)
        if step is not None:
            return step
        verdict = state.verdict(f"perturbation:{play.id}")
        # Another host that is as slow is no exoneration of the first: the shard may have come along.
        if verdict is Verdict.SUPPORTED or (verdict is Verdict.REJECTED and play.placement == "replace"):
            swap = _swap(case, state)
            if swap is not None or verdict is Verdict.SUPPORTED:
                return swap
    if not any(experiment for _, experiment in usable):
        words = proposals.MECHANISM_WORDS.get(state.mechanism or "", "this mechanism")
        return Skip(rung=rung, reason=f"no change is known for it ({words}); name one under workload.perturbed")
    return None


def _try(case: Case, state: State, play: Play, experiment: Experiment, family: int) -> Step | None:
    """One change of ``family`` that could be tried here: the first supported one ends the search among them."""
    found = state.judgement(f"scope:{experiment.scope.value}")
    share = proposals.kappa(state, experiment.scope)
    pi, source = float(state.reference["delta_ms"]) * share, f"the loss at full scale x {share:.3g}"
    if found and found.effect_ms:
        pi, source = found.effect_ms, f"the effect measured at {experiment.scope.words}"
    now = [
        change_proposals.perturbation(case, play, experiment, pi, source, family),
        *(change_proposals.unchanged(case, play, one, experiment, pi) for one in play.unchanged),
    ]
    closing = change_proposals.closing(case, play, experiment, pi, change_proposals.together_with(state, play))
    return pursue(case, state, Rung.PERTURBATION, now, experiment, later=[closing])


def _swap(case: Case, state: State) -> Step | None:
    if state.mechanism not in ("slow_host", "slow_rank"):
        return None
    for experiment, hypotheses in swaps.experiments(case, state):
        step = pursue(case, state, Rung.PERTURBATION, hypotheses, experiment)
        if step is not None:
            return step
    return None


LADDER: dict[Rung, Callable[[Case, State], Step | None]] = {
    Rung.MANIFEST: _manifest,
    Rung.RECONCILIATION: _reconciliation,
    Rung.ONE_RANK: _scope(Scope.ONE_RANK),
    Rung.ONE_NODE: _scope(Scope.ONE_NODE),
    Rung.TWO_NODES: _scope(Scope.TWO_NODES),
    Rung.FULL: _scope(Scope.FULL),
    Rung.PERTURBATION: _perturbation,
    Rung.SCALE_UP: verification.scale_up,
    Rung.SOAK: verification.soak,
    Rung.CLOSING: verification.closing,
}
