"""What comes next: a pure function of the case and its docket.

The flow is a loop around :func:`next_step`, so a killed investigation resumes by reading its docket, and every
decision can be replayed without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from narrows.inquiry import plans, proposals, swaps
from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.changes import RESTORE_WORK, base_scope, numerator_explains, plays, scaled, supported_play
from narrows.inquiry.design import ArmKind, Experiment, Mode
from narrows.inquiry.docket import Docket
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop, StopReason, Topic
from narrows.inquiry.verdict import RegressionStatus, Verdict

FAILURES_ALLOWED = 2
"""A launch that fails twice is not tried again: its hypotheses end inconclusive."""

REFERENCE_PAIRS = 8
"""Pairs of the full-scale measurement that every later prediction is scaled from."""

LEAST_CHANCE = 0.5
"""A scope whose last look would less likely than this decide is not launched at all."""

RESTART_PAIRS = 2
"""Restarts are recorded one quadruple at a time, so that a killed investigation loses no more than that."""


def next_step(case: Case, docket: Docket) -> Step:
    """The one thing to do now. The same case and docket always give the same answer."""
    state = State.of(docket)
    if any(answer.get("decision") == "abort" for answer in state.answers.values()):
        return Stop(reason=StopReason.ABORTED)
    for rung, plan in _LADDER.items():
        step = None if rung in state.skipped else plan(case, state)
        if step is not None:
            return step
    return Stop(reason=stop_reason(state))


def regression_status(state: State) -> RegressionStatus:
    """Whether the loss is real; the measurement repeated by narrows outranks the given runs."""
    verdict = state.verdict("regression:again") or state.verdict("regression")
    names = {Verdict.SUPPORTED: RegressionStatus.CONFIRMED, Verdict.REJECTED: RegressionStatus.NONE}
    return names.get(verdict, RegressionStatus.INCONCLUSIVE) if verdict else RegressionStatus.INCONCLUSIVE


def pursued(state: State) -> bool:
    """Whether there is a loss to search for: confirmed, or described by single runs that cannot be repeated."""
    status = regression_status(state)
    reference = state.reference
    described = not reference.get("tested", True) and float(reference.get("delta_ms", 0)) > float(
        state.opened["margin_ms"]
    )
    return status is RegressionStatus.CONFIRMED or (status is RegressionStatus.INCONCLUSIVE and described)


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


def pursue(
    case: Case,
    state: State,
    rung: Rung,
    hypotheses: Sequence[Hypothesis],
    experiment: Experiment | None = None,
    *,
    topic: Topic = Topic.EXPERIMENT,
    later: Sequence[Hypothesis] = (),
) -> Step | None:
    """Register, launch until there is enough, judge; None when all of ``hypotheses`` have their verdict.

    ``later`` are registered along, before the launch, and judged by another rung.
    """
    missing = tuple(one for one in (*hypotheses, *later) if one.key not in state.ids)
    if missing:
        return Register(rung=rung, hypotheses=missing)
    open_ids = tuple(state.ids[one.key] for one in hypotheses if state.judgement(one.key) is None)
    if not open_ids:
        return None
    if experiment is not None and not exhausted(state, experiment.key):
        wanted = min(max(experiment.pairs, state.wanted.get(experiment.key, 0)), experiment.max_pairs)
        have = state.pairs(experiment.key)
        if have < wanted:
            return _launch(case, state, rung, experiment, have, wanted - have)
    return Judge(rung=rung, topic=topic, hypotheses=open_ids, experiment=experiment.key if experiment else None)


def exhausted(state: State, experiment: str) -> bool:
    """Whether no launch of the experiment may follow: it was declined, or failed too often."""
    declined = state.answers.get(experiment, {}).get("decision") == "skip"
    return declined or len(state.failures.get(experiment, ())) >= FAILURES_ALLOWED


def _launch(case: Case, state: State, rung: Rung, experiment: Experiment, first: int, pairs: int) -> Launch | Ask:
    if experiment.mode is Mode.RESTART or not case.workload.builtin:
        pairs = min(pairs, RESTART_PAIRS)
    cost = experiment.device_hours(pairs, case.judging.start_s)
    left = case.budget.device_hours - state.device_hours
    approved = state.answers.get(experiment.key, {}).get("decision") == "approve"
    if not approved and (cost > case.budget.ask_above_device_hours or cost > left):
        where = ", ".join(experiment.placement.names)
        over = f"more than the {left:.3g} left of the budget" if cost > left else "above the ask line"
        return Ask(
            rung=rung,
            gate=experiment.key,
            question=f"Run {experiment.key} on {where}: {cost:.3g} device-hours, {over}",
            device_hours=cost,
        )
    return Launch(
        rung=rung,
        experiment=experiment,
        launch=len(state.launches.get(experiment.key, ())) + 1,
        first_pair=first,
        pairs=pairs,
        device_hours=cost,
    )


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
    """Whether the loss is measured again: there were too few pairs, or a loss is likelier than none.

    Where as many pairs put it inside of the margin by the point, a search would not follow from as many more.
    """
    found = state.judgement("regression")
    if found is None or found.verdict is not Verdict.INCONCLUSIVE:
        return False
    few = int(found.numbers.get("pairs", 0)) < REFERENCE_PAIRS
    return few or float(found.effect_ms or 0.0) > float(state.opened["margin_ms"])


def _prove_numerator(case: Case, state: State) -> Step | None:
    experiment = plans.at_scope(case, state, case.scopes()[0], Rung.MANIFEST)
    pi = float(state.findings["numerator"]["pi_ms"])
    later = [
        proposals.perturbation(case, RESTORE_WORK, experiment, pi, "the compute that the work counters predict"),
        proposals.closing(case, RESTORE_WORK, experiment, pi),
    ]
    proof = proposals.proof_of_numerator(case, state, experiment)
    return _tested(case, state, Rung.MANIFEST, proof, experiment, later)


def _not_pursued(state: State, rung: Rung) -> Skip | None:
    if pursued(state):
        return None
    none = regression_status(state) is RegressionStatus.NONE
    return Skip(rung=rung, reason="there is no regression to search for" if none else "the loss is not confirmed")


def _reconciliation(case: Case, state: State) -> Step | None:
    if skip := _not_pursued(state, Rung.RECONCILIATION):
        return skip
    present = [one for one in ACCOUNTS if one.value in state.opened["accounts"] and one is not Account.RESIDUAL]
    hypotheses = [proposals.account(case, state, one, len(present)) for one in present]
    return pursue(case, state, Rung.RECONCILIATION, hypotheses, topic=Topic.RECONCILIATION)


def _scope(scope: Scope) -> Callable[[Case, State], Step | None]:
    def plan(case: Case, state: State) -> Step | None:
        rung = SCOPE_RUNGS[scope]
        if reason := _no_need(case, state, scope):
            return Skip(rung=rung, reason=reason)
        experiment = plans.at_scope(case, state, scope)
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
    if skip := _not_pursued(state, SCOPE_RUNGS[scope]):
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
    if skip := _not_pursued(state, rung):
        return skip
    scope = base_scope(case, state)
    if scope is None:
        return Skip(rung=rung, reason="the loss was not reproduced, so there is nothing to perturb")
    if numerator_explains(state) and "perturbation:restore-work" in state.ids:
        proof = plans.at_scope(case, state, scope, rung)
        pi = float(state.findings["numerator"]["pi_ms"])
        return pursue(case, state, rung, [proposals.perturbation(case, RESTORE_WORK, proof, pi, "")], proof)
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
        proposals.perturbation(case, play, experiment, pi, source, family),
        *(proposals.unchanged(case, play, one, experiment, pi) for one in play.unchanged),
    ]
    closing = proposals.closing(case, play, experiment, pi, proposals.together_with(state, play))
    return pursue(case, state, Rung.PERTURBATION, now, experiment, later=[closing])


def _swap(case: Case, state: State) -> Step | None:
    if state.mechanism not in ("slow_host", "slow_rank"):
        return None
    for experiment, hypotheses in swaps.experiments(case, state):
        step = pursue(case, state, Rung.PERTURBATION, hypotheses, experiment)
        if step is not None:
            return step
    return None


def _verified(case: Case, state: State, rung: Rung) -> Play | Skip:
    if skip := _not_pursued(state, rung):
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


def _scale_up(case: Case, state: State) -> Step | None:
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
        step = pursue(case, state, Rung.SCALE_UP, [proposals.scale_up(case, play, experiment, pi, source)], experiment)
        if step is not None:
            return step
    return None


def _soak(case: Case, state: State) -> Step | None:
    play = _mitigating(case, state, Rung.SOAK)
    if isinstance(play, Skip):
        return play
    first = base_scope(case, state) or case.full_scope
    short = plans.perturb(case, state, play, case.full_scope, Rung.SOAK, "soak")
    if short is None:
        return Skip(rung=Rung.SOAK, reason="the cluster has no spare host for it")
    pi, source = scaled(state, first, case.full_scope)
    longer = plans.soak(case, short)
    return pursue(case, state, Rung.SOAK, [proposals.soak(case, play, longer, pi, source)], longer)


def _closing(case: Case, state: State) -> Step | None:
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


_LADDER: dict[Rung, Callable[[Case, State], Step | None]] = {
    Rung.MANIFEST: _manifest,
    Rung.RECONCILIATION: _reconciliation,
    Rung.ONE_RANK: _scope(Scope.ONE_RANK),
    Rung.ONE_NODE: _scope(Scope.ONE_NODE),
    Rung.TWO_NODES: _scope(Scope.TWO_NODES),
    Rung.FULL: _scope(Scope.FULL),
    Rung.PERTURBATION: _perturbation,
    Rung.SCALE_UP: _scale_up,
    Rung.SOAK: _soak,
    Rung.CLOSING: _closing,
}
