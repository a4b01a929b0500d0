"""Which change can test the leading mechanism, at which scope, and what it should give back there."""

from __future__ import annotations

from dataclasses import replace

from narrows.inquiry import proposals
from narrows.inquiry.accounts import LOCAL_ACCOUNTS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.design import ArmKind
from narrows.inquiry.hypotheses import Ledger
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import Rung, Scope
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict

RESTORE_WORK = Play(
    id="restore-work",
    mechanism="numerator",
    account=Account.COMPUTE,
    ledger=Ledger.RANK_MEAN,
    claim="With the healthy run's work restored, the step is as fast as it was",
    mitigation=False,
    rollback="Put the changed work settings back to the regressed run's values.",
)


def supported_play(state: State) -> str | None:
    """The id of the first perturbation that was supported."""
    for key in state.ids:
        if key.startswith("perturbation:") and state.verdict(key) is Verdict.SUPPORTED:
            return key.partition(":")[2]
    return None


def numerator_explains(state: State) -> bool:
    """Whether the executed work was found to explain the loss, and the experiment on it, where judged, agreed."""
    if state.verdict("numerator") is not Verdict.SUPPORTED:
        return False
    proofs = [one for one in state.ids if one.startswith("scope:") and _proves_numerator(state, one)]
    return all(state.verdict(one) in (None, Verdict.SUPPORTED) for one in proofs)


def _proves_numerator(state: State, key: str) -> bool:
    registered = state.hypothesis(key)
    return registered is not None and registered.rung is Rung.MANIFEST


def plays(case: Case, state: State) -> list[Play]:
    """The changes that fit the leading mechanism: the case's own first, then the playbook's."""
    mechanism = state.mechanism or ""
    account = proposals.leading_account(state) or Account.COMPUTE
    found = []
    if case.workload.perturbed is not None:
        found.append(
            Play(
                id="case",
                mechanism=mechanism,
                account=account,
                ledger=proposals.account_view(account),
                claim="The change that the case file names gives the step back",
                mitigation=True,
                rollback="Remove the change that the case file names under workload.perturbed.",
            )
        )
    regressed = {**case.workload.config, **case.workload.regressed.config}
    for play in case.playbook:
        fits = play.mechanism == mechanism and (not play.programs or case.workload.program in play.programs)
        # A spare stands in for a culprit; communication that is slow in every host has none.
        fits = fits and (play.placement != "replace" or mechanism != "collective" or _has_a_host(state))
        changes = play.placement is not None or any(regressed.get(key) != value for key, value in play.config.items())
        if fits and changes:
            found.append(_of_account(play, account))
    return found


def _has_a_host(state: State) -> bool:
    return (state.culprit or {}).get("kind") == "host"


def _of_account(play: Play, account: Account) -> Play:
    """A place may be slow in any local account: exchanging it gives back the one in which the loss was found."""
    if play.placement != "replace" or account not in LOCAL_ACCOUNTS:
        return play
    return replace(play, account=account, ledger=proposals.account_view(account))


def base_scope(case: Case, state: State) -> Scope | None:
    """Where changes are tried: the smallest scope that showed the loss, or, with historical arms, could show it."""
    if state.first_scope or case.workload.kind is not ArmKind.HISTORICAL:
        return state.first_scope
    return next((one for one in case.scopes() if proposals.kappa(state, one) > 0), None)


def scaled(state: State, first: Scope, scope: Scope) -> tuple[float, str]:
    """The improvement expected at ``scope``: what was gained at the first scope, scaled by the mechanism."""
    gained = state.judgement(f"perturbation:{supported_play(state)}")
    assert gained is not None
    assert gained.effect_ms is not None
    here, there = proposals.kappa(state, first), proposals.kappa(state, scope)
    ratio = there / here if here > 0 else 1.0
    return gained.effect_ms * ratio, f"the improvement at {first.words} x {ratio:.3g}"
