"""The hypotheses that the ladder puts on record, worded for people and complete for the judge."""

from __future__ import annotations

from typing import Any

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.design import Experiment
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Ledger, Prediction, RejectionCriterion, Test
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung, Scope
from narrows.inquiry.state import State

RHO = 0.5
"""An effect below this share of the prediction does not count as present: it makes both errors symmetric."""

MECHANISM_WORDS: dict[str, str] = {
    "numerator": "more work is executed per step than before",
    "imbalance": "work is spread unevenly, and the rank that has most of it changes from step to step",
    "slow_host": "one host is slower, whatever runs on it",
    "slow_rank": "one rank is slower, whatever it works on",
    "link": "communication that crosses hosts takes longer",
    "collective": "communication takes longer, inside a host too",
    "compute": "every rank computes longer",
    "input": "every rank waits for its data loader",
    "host": "the host launches work late on every rank",
    "copy": "host-device copies take longer on every rank",
    "memory": "memory management takes longer on every rank",
    "checkpoint": "checkpoints or evaluations take longer",
    "recovery": "restarts or retries take time",
    "pipeline": "stages of the pipeline wait for each other",
}


def common(case: Case) -> dict[str, Any]:
    """The fields of the registration that are the same for every hypothesis of the case."""
    judging = case.judging
    return {
        "alpha": judging.alpha,
        "looks": judging.looks,
        "steps": judging.steps,
        "statistic": judging.statistic,
        "order_seed": judging.seed,
        "rho": RHO,
    }


def on_the_climb(case: Case) -> dict[str, Any]:
    """The same for a scope: one of a sequence of tests that share the error of the path."""
    return common(case) | {"alpha": case.judging.scope_alpha}


def step_prediction(pi_ms: float, rho: float = RHO) -> tuple[Prediction, RejectionCriterion]:
    """Step time grows by ``pi_ms``, give or take half; an upper bound below half of it rejects."""
    low, high = sorted((rho * pi_ms, (2 - rho) * pi_ms))
    return (
        Prediction(metric="step time", unit="ms", low=low, high=high),
        RejectionCriterion(metric="step time", comparison=Comparison.UPPER_BELOW, bound=rho * pi_ms, unit="ms"),
    )


def regression(case: Case, state: State, again: Experiment | None = None) -> Hypothesis:
    """The step at full scale got slower by more than the margin."""
    margin = float(state.opened["margin_ms"])
    return Hypothesis(
        key="regression:again" if again else "regression",
        rung=Rung.MANIFEST,
        test=Test.REGRESSION,
        basis=Basis.EXPERIMENT if again else Basis.GIVEN,
        scope=case.full_scope,
        hosts=case.full_hosts,
        experiment=again.key if again else None,
        claim=f"The step got slower at full scale by more than {margin:.3g} ms",
        mechanism="any",
        prediction=Prediction(metric="step time", unit="ms", low=margin, high=None),
        reject_if=RejectionCriterion(
            metric="step time, two one-sided tests", comparison=Comparison.UPPER_BELOW, bound=margin, unit="ms"
        ),
        pi_ms=margin,
        pi_source=f"margin: {case.judging.margin_percent:g} % of the healthy step",
        **common(case),
    )


def numerator(case: Case) -> Hypothesis:
    """The executed work changed enough to explain half of the loss; judged exactly, on counters."""
    return Hypothesis(
        key="numerator",
        rung=Rung.MANIFEST,
        test=Test.NUMERATOR,
        basis=Basis.GIVEN,
        claim="The two runs do not execute the same work per step, and the difference can explain the loss",
        mechanism="numerator",
        account=Account.COMPUTE,
        ledger=Ledger.RANK_MEAN,
        prediction=Prediction(
            metric="compute predicted from the work counters, share of the loss", unit="", low=RHO, high=None
        ),
        reject_if=RejectionCriterion(
            metric="compute predicted from the work counters, share of the loss",
            comparison=Comparison.UPPER_BELOW,
            bound=RHO,
            unit="",
        ),
        **common(case),
    )


def account_view(account: Account) -> Ledger:
    """The view in which the account closes: local on the critical path, transfer on the rank that waits least."""
    if account in (Account.TRANSFER, Account.PIPELINE):
        return Ledger.LEAST_WAITING
    return Ledger.RANK_MEAN if account is Account.SKEW else Ledger.CRITICAL_PATH


_VIEW_WORDS = {
    Ledger.CRITICAL_PATH: "On the critical path",
    Ledger.LEAST_WAITING: "On the rank that waits least",
    Ledger.RANK_MEAN: "Averaged over ranks",
}


def account(case: Case, state: State, which: Account, family: int = 1) -> Hypothesis:
    """At least half of the missing time sits in one account of the given runs."""
    delta = float(state.reference["delta_ms"])
    return Hypothesis(
        key=f"account:{which.value}",
        rung=Rung.RECONCILIATION,
        test=Test.ACCOUNT,
        basis=Basis.GIVEN,
        scope=case.full_scope,
        hosts=case.full_hosts,
        claim=f"{_VIEW_WORDS[account_view(which)]} the missing time is {which.value}: {ACCOUNT_MEANINGS[which]}",
        mechanism=which.value,
        account=which,
        ledger=account_view(which),
        prediction=Prediction(metric=which.value, unit="ms", low=RHO * delta, high=None),
        reject_if=RejectionCriterion(
            metric=which.value, comparison=Comparison.UPPER_BELOW, bound=RHO * delta, unit="ms"
        ),
        pi_ms=delta,
        pi_source="the loss of the given runs",
        family=family,
        **common(case),
    )


def kappa(state: State, scope: Scope) -> float:
    """The share of the full-scale loss that the leading mechanism predicts at ``scope``."""
    return float(state.reconciliation.get("kappa", {}).get(scope.value, 1.0))


def looks(case: Case, state: State, scope: Scope) -> tuple[int, ...]:
    """Numbers of pairs after which the comparison at ``scope`` is judged: the case's, or those that it was planned."""
    planned = state.reconciliation.get("looks", {}).get(scope.value)
    return tuple(int(look) for look in planned) if planned else case.judging.looks


def scope(case: Case, state: State, experiment: Experiment, *, control: bool = False) -> Hypothesis:
    """The loss is there at this scope; where the leading mechanism needs more than that, a local cause is tested."""
    delta, share = float(state.reference["delta_ms"]), kappa(state, experiment.scope)
    mechanism = state.mechanism or "any"
    present = share > 0 and not control
    pi = delta * (share if present else 1.0)
    prediction, reject = step_prediction(pi)
    where, hosts = experiment.scope.words, ", ".join(experiment.placement.names)
    if control:
        claim = f"The loss also appears at {where} on a host that is not suspected ({hosts})"
    elif present:
        claim = f"The loss appears at {where}: {MECHANISM_WORDS.get(mechanism, mechanism)}"
    else:
        claim = f"A cause that {where} holds is enough: the loss appears without the rest of the job"
    return Hypothesis(
        key=f"{'control' if control else 'scope'}:{experiment.scope.value}",
        rung=SCOPE_RUNGS[experiment.scope],
        test=Test.SCOPE,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=claim,
        mechanism=mechanism if present else "local",
        account=leading_account(state) if present else None,
        ledger=leading_view(state),
        prediction=prediction,
        reject_if=reject,
        pi_ms=pi,
        kappa=share if present else 1.0,
        pi_source="the loss at full scale"
        + (f" x {share:.3g} ({state.reconciliation.get('kappa_source', '')})" if present else ""),
        expected="supported" if present else "rejected",
        **on_the_climb(case) | ({} if control else {"looks": looks(case, state, experiment.scope)}),
    )


def sensitivity(case: Case, tested: Hypothesis, experiment: Experiment) -> Hypothesis:
    """A delay of the size at which ``tested`` was rejected is seen where it was rejected."""
    delay_ms = delay_of(tested)
    where = experiment.scope.words
    fields = common(case) | {"looks": (experiment.max_pairs,)}
    return Hypothesis(
        key=f"sensitivity:{experiment.scope.value}",
        rung=tested.rung,
        test=Test.SENSITIVITY,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=f"A delay of {delay_ms:.3g} ms, put into every step on purpose, is seen at {where}",
        mechanism="injected delay",
        account=Account.HOST,
        ledger=account_view(Account.HOST),
        prediction=Prediction(metric="step time", unit="ms", low=RHO * delay_ms, high=(2 - RHO) * delay_ms),
        reject_if=RejectionCriterion(
            metric="step time of a pair", comparison=Comparison.UPPER_BELOW, bound=RHO * delay_ms, unit="ms"
        ),
        pi_ms=delay_ms,
        pi_source=f"the boundary at which {tested.key} is rejected",
        **fields,
    )


def delay_of(tested: Hypothesis) -> float:
    """The boundary of a scope's test in ms: an effect of this size would not have been called absent."""
    return abs(tested.rho * (tested.pi_ms or 0.0))


def leading_account(state: State) -> Account | None:
    found = state.reconciliation.get("account")
    return Account(found) if found else None


def leading_view(state: State) -> Ledger:
    found = leading_account(state)
    return account_view(found) if found else Ledger.RANK_MEAN


def proof_of_numerator(case: Case, state: State, experiment: Experiment) -> Hypothesis:
    """One rank shows the loss when it executes the regressed run's work."""
    pi = float(state.findings["numerator"]["pi_ms"])
    prediction, reject = step_prediction(pi)
    return Hypothesis(
        key=f"scope:{experiment.scope.value}",
        rung=Rung.MANIFEST,
        test=Test.SCOPE,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim="One rank alone shows the loss when it executes the regressed run's work",
        mechanism="numerator",
        account=Account.COMPUTE,
        ledger=Ledger.RANK_MEAN,
        prediction=prediction,
        reject_if=reject,
        pi_ms=pi,
        pi_source="compute of the healthy run x growth of the executed work",
        **on_the_climb(case),
    )


def curve(case: Case, experiment: Experiment) -> Hypothesis:
    """Outside the application, one operation over message sizes: the time per byte grew."""
    return Hypothesis(
        key="curve",
        rung=experiment.rung,
        test=Test.CURVE,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim="The message-size curve of the same operation outside the application rises more steeply",
        mechanism="link",
        account=Account.TRANSFER,
        prediction=Prediction(metric="time per byte, ratio", unit="", low=1.0, high=None),
        reject_if=RejectionCriterion(
            metric="time per byte, ratio", comparison=Comparison.UPPER_BELOW, bound=1.0, unit=""
        ),
        **common(case),
    )
