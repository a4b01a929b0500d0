"""The hypotheses on a change that was tried: what it gives back, what it leaves alone, and that it lasts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
    return Hypothesis(
        key=f"perturbation:{play.id}",
        test=Test.PERTURBATION,
        claim=play.claim,
        pi_source=source,
        family=family,
        **_of_change(case, play, experiment),
        **_improvement(pi_ms),
    )


def unchanged(case: Case, play: Play, which: Account, experiment: Experiment, pi_ms: float) -> Hypothesis:
    """An account that the change must leave alone stays within a quarter of the predicted improvement."""
    margin = 0.25 * pi_ms
    return Hypothesis(
        key=f"unchanged:{play.id}:{which.value}",
        test=Test.UNCHANGED,
        claim=f"The change leaves {which.value} as it was: {ACCOUNT_MEANINGS[which]}",
        prediction=Prediction(metric=which.value, unit="ms", low=-margin, high=margin),
        reject_if=RejectionCriterion(
            metric=f"{which.value}, absolute change", comparison=Comparison.LOWER_ABOVE, bound=margin, unit="ms"
        ),
        pi_ms=pi_ms,
        pi_source="a quarter of the predicted improvement",
        **_of_change(case, play, experiment) | {"account": which, "ledger": account_view(which)},
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
        test=Test.CLOSING,
        claim=f"{name.capitalize()} {shrink} by the improvement of the step, within a quarter of it",
        together_with=together,
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
        **_of_change(case, play, experiment) | {"rung": Rung.CLOSING},
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
    fields = _of_change(case, play, experiment) | {"steps": experiment.steps}
    if test is Test.SOAK:  # one long launch, so one look
        fields["looks"] = (experiment.max_pairs,)
    return Hypothesis(key=key, test=test, claim=claim, pi_source=source, **fields, **_improvement(pi_ms))


def _of_change(case: Case, play: Play, experiment: Experiment) -> dict[str, Any]:
    """What all hypotheses on the change ``play`` share that ``experiment`` tries."""
    return common(case) | {
        "rung": experiment.rung,
        "basis": Basis.EXPERIMENT,
        "scope": experiment.scope,
        "hosts": experiment.placement.names,
        "experiment": experiment.key,
        "mechanism": play.mechanism,
        "account": play.account,
        "ledger": play.ledger,
        "perturbation": play.id,
    }


def _improvement(pi_ms: float) -> dict[str, Any]:
    """The step gains ``pi_ms``, give or take half; an upper bound below half of it rejects."""
    gained = "improvement of the step"
    prediction, reject = (replace(one, metric=gained) for one in step_prediction(pi_ms))
    return {"prediction": prediction, "reject_if": reject, "pi_ms": pi_ms}
