"""The hypotheses on a change that was tried: what it gives back, what it leaves alone, and that it lasts."""

from __future__ import annotations

from narrows.inquiry.accounts import ACCOUNT_MEANINGS, ACCOUNTS, LOCAL_ACCOUNTS, Account
from narrows.inquiry.case import Case
from narrows.inquiry.design import Experiment
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Prediction, RejectionCriterion, Test
from narrows.inquiry.playbook import Play
from narrows.inquiry.proposals import RHO, account_view, common, step_prediction
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State


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
