"""Does an accepted explanation still hold? What is registered, what runs next, and how it ends: pure functions.

The rule is that of the ladder: registered first, three outcomes, looks at growing numbers of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from narrows.inquiry import plans, proposals, pursuit
from narrows.inquiry.claim import Claim, Metric, MetricRange, Outcome
from narrows.inquiry.design import Experiment
from narrows.inquiry.docket import Docket
from narrows.inquiry.fingerprint import Fields
from narrows.inquiry.hypotheses import Basis, Comparison, Hypothesis, Prediction, RejectionCriterion, Test
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register
from narrows.inquiry.verdict import Verdict

SHARE = "share"
RANGE_KEYS = {Metric.EFFECT: "range:effect_ms", Metric.GAIN: "range:gain_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a claim is run again: the field (or ``age``) and a sentence."""

    field: str
    words: str


def due(
    claim: Claim, nodes: Mapping[str, Fields], last: str, today: date, confirmed: Mapping[str, tuple[str, ...]]
) -> tuple[Reason, ...]:
    """Why ``claim`` has to be run again; empty where it does not.

    ``nodes`` holds what is known of the hosts concerned, ``last`` is the date of the last confirmation, ``confirmed``
    the values of each field under which the claim was confirmed. A field that a node does not tell is no change.
    """
    reasons = []
    for one in claim.depends_on:
        known = confirmed.get(one.field, one.confirmed)
        new: dict[str, list[str]] = {}
        for host, fields in nodes.items():
            if one.field in fields and fields[one.field] not in known:
                new.setdefault(fields[one.field], []).append(host)
        for value, hosts in new.items():
            was = " or ".join(known) or "not recorded"
            reasons.append(Reason(field=one.field, words=f"{one.field} on {spread(hosts)}: {was} -> {value}"))
    age = (today - date.fromisoformat(last)).days
    if age > claim.age_limit_days:
        reasons.append(Reason(field="age", words=f"last confirmed {age} days ago, the limit is {claim.age_limit_days}"))
    return tuple(reasons)


def spread(hosts: list[str]) -> str:
    """The hosts' names, the first three of many."""
    return ", ".join(hosts) if len(hosts) <= 3 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} more"


def next_step(claim: Claim, docket: Docket) -> Register | Launch | Judge | Ask | None:
    """The one thing to do now; None when everything is judged. The remedy is run only where the loss is still there."""
    state, case = State.of(docket), claim.as_case()
    if step := _insensitive(claim, state):
        return step
    first, rung = _hypotheses(claim), SCOPE_RUNGS[claim.reproducer.scope]
    found = pursuit.pursue(case, state, rung, first, claim.reproducer)
    if found is None and claim.remedy is not None and state.verdict(present_key(claim)) is Verdict.SUPPORTED:
        gain = claim.range(Metric.GAIN)
        assert gain is not None, claim.name
        wanted = [_within(claim, gain, claim.remedy)]
        found = pursuit.pursue(case, state, Rung.PERTURBATION, wanted, claim.remedy)
    assert found is None or isinstance(found, (Register, Launch, Judge, Ask))
    return found


def present_key(claim: Claim) -> str:
    """The key of the hypothesis that the loss is still there."""
    return f"scope:{claim.reproducer.scope.value}"


def _insensitive(claim: Claim, state: State) -> Register | Launch | Judge | Ask | None:
    """Before a rejection stands, a delay of its boundary is injected at the scope, which must be seen."""
    key = present_key(claim)
    registered = state.hypothesis(key)
    if registered is None or state.judgement(key) is not None or state.pending(key) is None:
        return None
    case, delay_ms = claim.as_case(), proposals.delay_of(registered)
    control = plans.sensitivity(case, claim.reproducer, delay_ms)
    step = pursuit.pursue(case, state, registered.rung, [proposals.sensitivity(case, registered, control)], control)
    assert step is None or isinstance(step, (Register, Launch, Judge, Ask))
    return step


def _hypotheses(claim: Claim) -> list[Hypothesis]:
    effect, share = claim.range(Metric.EFFECT), claim.range(Metric.SHARE)
    assert effect is not None, claim.name
    found = [_present(claim, effect), _within(claim, effect, claim.reproducer)]
    return [*found, _share(claim, share)] if share is not None else found


def _common(claim: Claim, experiment: Experiment) -> dict[str, Any]:
    return proposals.common(claim.as_case()) | {
        "rung": experiment.rung,
        "basis": Basis.EXPERIMENT,
        "scope": experiment.scope,
        "hosts": experiment.placement.names,
        "experiment": experiment.key,
        "mechanism": claim.mechanism,
        "account": claim.account,
        "ledger": claim.ledger,
        "pi_source": f"accepted with claim {claim.name}",
    }


def _present(claim: Claim, effect: MetricRange) -> Hypothesis:
    prediction, reject = proposals.step_prediction(effect.found)
    return Hypothesis(
        key=present_key(claim),
        test=Test.SCOPE,
        claim=f"The loss still appears at {claim.reproducer.scope.words}: {claim.explanation}",
        prediction=prediction,
        reject_if=reject,
        pi_ms=effect.found,
        **_common(claim, claim.reproducer),
    )


_WORDS = {Metric.EFFECT: ("step time", "The loss"), Metric.GAIN: ("improvement of the step", "The gain of the remedy")}


def _within(claim: Claim, one: MetricRange, experiment: Experiment) -> Hypothesis:
    assert one.high is not None, one.metric
    name, said = _WORDS[one.metric]
    return Hypothesis(
        key=RANGE_KEYS[one.metric],
        test=Test.RANGE,
        claim=f"{said} lies in the accepted range, {one.low:.3g} to {one.high:.3g} ms",
        prediction=Prediction(metric=name, unit="ms", low=one.low, high=one.high),
        reject_if=RejectionCriterion(
            metric=f"{name}, distance from {(one.low + one.high) / 2:.4g} ms",
            comparison=Comparison.LOWER_ABOVE,
            bound=(one.high - one.low) / 2,
            unit="ms",
        ),
        pi_ms=one.found,
        **_common(claim, experiment),
    )


def _share(claim: Claim, one: MetricRange) -> Hypothesis:
    name = f"{claim.account.value}, share of the loss"
    return Hypothesis(
        key=SHARE,
        test=Test.ACCOUNT,
        claim=f"{claim.account.value.capitalize()} still holds at least {one.low:.0%} of the loss",
        prediction=Prediction(metric=name, unit="", low=one.low, high=one.high),
        reject_if=RejectionCriterion(metric=name, comparison=Comparison.UPPER_BELOW, bound=one.low, unit=""),
        **_common(claim, claim.reproducer) | {"rho": one.low},
    )


def outcome(state: State) -> tuple[Outcome, str]:
    """How the revalidation ends, and the sentences that decide it."""
    verdicts = {key: state.verdict(key) for key in state.ids if not key.startswith("sensitivity:")}
    gone = [key for key, found in verdicts.items() if key.startswith("scope:") and found is Verdict.REJECTED]
    moved = [key for key in (*RANGE_KEYS.values(), SHARE) if verdicts.get(key) is Verdict.REJECTED]
    if gone:
        return Outcome.GONE, f"{_said(state, gone[0])}; the mitigation may be removable"
    if moved:
        return Outcome.MOVED, "; ".join(_said(state, key) for key in moved)
    open_keys = [key for key, verdict in verdicts.items() if verdict is not Verdict.SUPPORTED]
    if open_keys or not verdicts:
        return Outcome.INCONCLUSIVE, "; ".join(_said(state, key) for key in open_keys) or "nothing was registered"
    return Outcome.HOLDS, "; ".join(_said(state, key) for key in verdicts)


def _said(state: State, key: str) -> str:
    found = state.judgement(key)
    return found.reason if found else f"{key} was not judged"
