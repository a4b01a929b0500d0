"""The hypotheses that the ladder puts on record, worded for people and complete for the judge."""

from __future__ import annotations

from typing import Any

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, ACCOUNTS, LOCAL_ACCOUNTS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.design import Experiment
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Ledger, Prediction, RejectionCriterion, Test
from narrows.inquiry.playbook import Play
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
        **on_the_climb(case),
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


def perturbation(
    case: Case, play: Play, experiment: Experiment, pi_ms: float, source: str, family: int = 1
) -> Hypothesis:
    """One mechanism changed: the step must get back at least half of the predicted size."""
    prediction, reject = step_prediction(pi_ms)
    back = Prediction(metric="improvement of the step", unit="ms", low=prediction.low, high=prediction.high)
    return Hypothesis(
        key=f"perturbation:{play.id}",
        rung=experiment.rung,
        test=Test.PERTURBATION,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=play.claim,
        mechanism=play.mechanism,
        account=play.account,
        ledger=play.ledger,
        perturbation=play.id,
        prediction=back,
        reject_if=RejectionCriterion(
            metric="improvement of the step", comparison=reject.comparison, bound=reject.bound, unit="ms"
        ),
        pi_ms=pi_ms,
        pi_source=source,
        family=family,
        **common(case),
    )


def unchanged(case: Case, play: Play, which: Account, experiment: Experiment, pi_ms: float) -> Hypothesis:
    """An account that the change must leave alone stays within a quarter of the predicted improvement."""
    margin = 0.25 * pi_ms
    return Hypothesis(
        key=f"unchanged:{play.id}:{which.value}",
        rung=experiment.rung,
        test=Test.UNCHANGED,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=f"The change leaves {which.value} as it was: {ACCOUNT_MEANINGS[which]}",
        mechanism=play.mechanism,
        account=which,
        ledger=account_view(which),
        perturbation=play.id,
        prediction=Prediction(metric=which.value, unit="ms", low=-margin, high=margin),
        reject_if=RejectionCriterion(
            metric=f"{which.value}, absolute change", comparison=Comparison.LOWER_ABOVE, bound=margin, unit="ms"
        ),
        pi_ms=pi_ms,
        pi_source="a quarter of the predicted improvement",
        **common(case),
    )


def together_with(state: State, play: Play) -> tuple[Account, ...]:
    """The account that shrinks along with the waiting where work is uneven: the leading local one.

    The step ends with the rank that has most, so its loss is the growth of the mean, which is local, plus the
    waiting for the rank that has most. With two ranks the mean holds half of it.
    """
    if play.mechanism != "imbalance" or play.account is not Account.SKEW:
        return ()
    shares = state.reconciliation.get("shares", {})
    local = [one for one in ACCOUNTS if one in LOCAL_ACCOUNTS and shares.get(one.value, 0.0) > 0]
    return (max(local, key=lambda one: float(shares[one.value])),) if local else ()


def closing(
    case: Case, play: Play, experiment: Experiment, pi_ms: float, together: tuple[Account, ...] = ()
) -> Hypothesis:
    """The named account, and those ``together`` with it, shrink by about the improvement of the step."""
    name = " and ".join(one.value for one in (play.account, *together))
    shrink = "together shrink" if together else "shrinks"
    return Hypothesis(
        key=f"closing:{play.id}",
        rung=Rung.CLOSING,
        test=Test.CLOSING,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=f"{name.capitalize()} {shrink} by the improvement of the step, within a quarter of it",
        mechanism=play.mechanism,
        account=play.account,
        together_with=together,
        ledger=play.ledger,
        perturbation=play.id,
        prediction=Prediction(metric=f"{name}, share of the improvement", unit="", low=0.75, high=1.25),
        reject_if=RejectionCriterion(
            metric=f"{name}, share of the improvement",
            comparison=Comparison.UPPER_BELOW,
            bound=RHO,
            unit="",
        ),
        pi_ms=pi_ms,
        pi_source="the predicted improvement",
        allowed_newly_exposed=play.newly_exposed,
        **common(case),
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


def scale_up(case: Case, play: Play, experiment: Experiment, pi_ms: float, source: str) -> Hypothesis:
    """The change helps at a larger scope, with the same work and the same loss."""
    where = experiment.scope
    claim = f"At {where.words} the change still gives the step back, with the same work and the same loss"
    return _larger(case, play, experiment, pi_ms, source, Test.SCALE_UP, f"scale_up:{where.value}", claim)


def soak(case: Case, play: Play, experiment: Experiment, pi_ms: float, source: str) -> Hypothesis:
    """Over a longer run the improvement stays, in the mean and in the tail."""
    claim = "Over a longer run the improvement stays: in the mean, in the slowest steps, and to the end"
    return _larger(case, play, experiment, pi_ms, source, Test.SOAK, "soak", claim)


def _larger(
    case: Case, play: Play, experiment: Experiment, pi_ms: float, source: str, test: Test, key: str, claim: str
) -> Hypothesis:
    prediction, reject = step_prediction(pi_ms)
    fields = common(case) | {"steps": experiment.steps}
    if test is Test.SOAK:  # one long launch, so one look
        fields["looks"] = (experiment.max_pairs,)
    return Hypothesis(
        key=key,
        rung=experiment.rung,
        test=test,
        basis=Basis.EXPERIMENT,
        scope=experiment.scope,
        hosts=experiment.placement.names,
        experiment=experiment.key,
        claim=claim,
        mechanism=play.mechanism,
        account=play.account,
        ledger=play.ledger,
        perturbation=play.id,
        prediction=Prediction(metric="improvement of the step", unit="ms", low=prediction.low, high=prediction.high),
        reject_if=RejectionCriterion(
            metric="improvement of the step", comparison=reject.comparison, bound=reject.bound, unit="ms"
        ),
        pi_ms=pi_ms,
        pi_source=source,
        **fields,
    )


def is_local(mechanism: str | None) -> bool:
    """Whether one rank alone can show the mechanism."""
    return mechanism in {one.value for one in LOCAL_ACCOUNTS} | {"numerator", "slow_host", "slow_rank"}
