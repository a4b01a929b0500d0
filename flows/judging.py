"""From registered hypotheses and evidence records to verdicts: one function for each kind of test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

from narrows.flows.found import GIVEN, Found, evidence_file, unable
from narrows.flows.judging_given import judge_account, judge_given, judge_regression, reconciliation
from narrows.flows.judging_scope import (
    against_prediction,
    can_grow,
    judge_one_scope,
    judge_sensitivity,
    why_missing,
)
from narrows.flows.judging_swap import judge_swap
from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.design import REGRESSED
from narrows.inquiry.findings import Finding
from narrows.inquiry.hypotheses import Hypothesis, Registration, Test
from narrows.inquiry.steps import Judge, Topic
from narrows.inquiry.verdict import Verdict
from narrows.reducers.closing import ClosingVerdict, closing_test, unchanged
from narrows.reducers.curves import CurvePattern, compare_curves
from narrows.reducers.durability import drift_changes, tail_changes
from narrows.reducers.estimates import estimate, interval_ms
from narrows.reducers.sequential import nominal_levels
from narrows.reducers.shares import SCREENING_PAIRS


def judge(session: Session, step: Judge) -> list[Found]:
    """The verdicts that ``step`` asks for, in order. Evidence that is missing or unfit gives ``inconclusive``."""
    state = session.state
    registrations = [state.registrations[one] for one in step.hypotheses]
    if step.topic is Topic.GIVEN:
        return [_noted(session, one, session.evidence(GIVEN)) for one in judge_given(session, registrations)]
    if step.topic is Topic.RECONCILIATION:
        # The reading first: once the verdicts stand, nobody would ask for it again after a kill.
        return [reconciliation(session), *(judge_account(session, one) for one in registrations)]
    assert step.experiment is not None
    name = step.experiment
    if not state.evidence.get(name):
        return [unable(one, why_missing(state, name), name) for one in registrations]
    evidence = session.evidence(name)
    if evidence["confounded"]:
        fields = ", ".join(evidence["confounded"])
        why = f"confounded: the arms also differ in {fields}, which they do not declare; make these equal and run again"
        return [unable(one, why, name) for one in registrations]
    return [_noted(session, _TESTS[one.hypothesis.test](session, one, evidence), evidence) for one in registrations]


_OF_THE_STEP = {Test.REGRESSION, Test.SCOPE, Test.PERTURBATION, Test.SCALE_UP, Test.SOAK}


def _noted(session: Session, found: Found, evidence: dict[str, Any]) -> Found:
    """A verdict on the step with the named findings of its evidence, in words and by name.

    That one rank moved against the others is said where the step itself does not settle the question.
    """
    registration = session.state.registrations.get(found.hypothesis or "")
    if found.verdict is None or registration is None or registration.hypothesis.test not in _OF_THE_STEP:
        return found
    findings = evidence.get("findings") or []
    undecided = found.verdict is Verdict.INCONCLUSIVE
    said = [one["sentence"] for one in findings if one["name"] != Finding.RANK_DIFFERENCE or undecided]
    if not findings:
        return found
    tail: dict[str, Any] = {}
    if evidence.get("tail"):
        tail = {"tail": evidence["tail"]["leading"]}
        account = tail["tail"]["critical_path"]
        said.append(f"in the slowest 5 % of the steps, on the critical path, {account} changed most")
    numbers = found.numbers | {"findings": [one["name"] for one in findings]} | tail
    return replace(found, reason="; ".join([found.reason, *said]), numbers=numbers)


def _gain(evidence: dict[str, Any], values: list[float]) -> list[float]:
    """Pair differences turned into regressed minus changed: an improvement is positive."""
    second = list(evidence["arms"])[1]
    return [float(one) if second == REGRESSED else -float(one) for one in values]


def _perturbation(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """By its share of the error: the first supported change ends the search, so Holm never comes to a second step."""
    gains = _gain(evidence, evidence["difference"]["step_ms"])
    share = one.hypothesis.alpha / one.hypothesis.family
    return against_prediction(session, one, gains, evidence["order"], alpha=share)


def _unchanged(_session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    hypothesis = one.hypothesis
    assert hypothesis.account is not None
    assert hypothesis.pi_ms is not None
    values = evidence["difference"]["accounts"][hypothesis.ledger.value][hypothesis.account.value]
    result = unchanged(values, hypothesis.tau_close * abs(hypothesis.pi_ms), hypothesis.alpha)
    return Found(
        hypothesis=one.id,
        verdict=result.verdict,
        effect_ms=result.change_ms,
        interval_ms=result.interval_ms,
        reason=result.reason,
        numbers={"margin_ms": result.margin_ms},
        file=evidence_file(hypothesis),
        pairs=len(values),
    )


def _closing(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """The account at the last look that the pairs reach; an open one asks for the next look, each at its own level."""
    hypothesis = one.hypothesis
    assert hypothesis.account is not None
    table = evidence["difference"]["accounts"][hypothesis.ledger.value]
    gains = {account: _gain(evidence, values) for account, values in table.items()}
    step = _gain(evidence, evidence["difference"]["step_ms"])
    names = [account.value for account in (hypothesis.account, *hypothesis.together_with)]
    predicted = [sum(gains[name][at] for name in names) for at in range(len(step))]
    exposed = [sum(gains[account.value][at] for account in hypothesis.allowed_newly_exposed) for at in range(len(step))]
    result = closing_test(
        step,
        predicted,
        exposed,
        tau=hypothesis.tau_close,
        rho=hypothesis.rho,
        alpha=_level(hypothesis, len(step)),
        name=" and ".join(names),
    )
    more = next((look for look in hypothesis.looks if look > len(step)), None)
    undecided = result.verdict in (ClosingVerdict.PARTIAL, ClosingVerdict.NO_EFFECT)
    if undecided and more is not None and can_grow(session, hypothesis):
        file = evidence_file(hypothesis)
        return Found(hypothesis=one.id, reason=result.reason, wanted_pairs=more, pairs=len(step), file=file)
    verdicts = {ClosingVerdict.CLOSED: Verdict.SUPPORTED, ClosingVerdict.PARTIAL: Verdict.INCONCLUSIVE}
    status = "unsupported" if result.verdict is ClosingVerdict.NO_EFFECT else result.verdict.value
    return Found(
        hypothesis=one.id,
        verdict=verdicts.get(result.verdict, Verdict.REJECTED),
        effect_ms=result.account_ms,
        interval_ms=_interval(predicted),
        reason=result.reason,
        numbers={
            "status": status,
            "share": result.share,
            "share_interval": result.share_interval,
            "improvement_ms": result.improvement_ms,
            "gap_ms": result.gap_ms,
            "gap_interval_ms": result.gap_interval_ms,
            "accounts": {name: {"change_ms": fmean(v), "interval_ms": _interval(v)} for name, v in gains.items()},
        },
        file=evidence_file(hypothesis),
        pairs=len(step),
    )


def _level(hypothesis: Hypothesis, pairs: int) -> float:
    """The one-sided p that decides at the last look that ``pairs`` reach, so that looking again costs no error."""
    looks = hypothesis.looks
    at = sum(look <= pairs for look in looks) - 1
    return nominal_levels(looks, hypothesis.alpha)[max(at, 0)]


def _interval(values: list[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    found = estimate(values)
    return (found.lower, found.upper)


def _curve(_session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    healthy, regressed = (arm["post_barrier_us"] for arm in evidence["arms"].values())
    if len(healthy) < SCREENING_PAIRS:
        return unable(one, f"{len(healthy)} pairs are too few for a curve", one.hypothesis.experiment or GIVEN)
    result = compare_curves(evidence["sizes_bytes"], healthy, regressed, alpha=one.hypothesis.alpha)
    steeper = result.pattern in (CurvePattern.BANDWIDTH, CurvePattern.BOTH) and result.bandwidth.ratio > 1
    return Found(
        hypothesis=one.id,
        verdict=Verdict.SUPPORTED if steeper else Verdict.REJECTED,
        reason=result.sentence,
        numbers={
            "pattern": result.pattern.value,
            "bandwidth_ratio": result.bandwidth.ratio,
            "latency_ratio": result.latency.ratio,
            "sizes": [plain(size) for size in result.sizes],
        },
        file=evidence_file(one.hypothesis),
        pairs=result.pairs_used,
    )


SAME_WORK = 1e-9
SAME_LOSS = 1e-3


def _scale_up(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """The improvement, and beside it what must not change: the useful work and the loss."""
    problem = _unequal(evidence)
    if problem:
        return Found(hypothesis=one.id, verdict=Verdict.REJECTED, reason=problem, file=evidence_file(one.hypothesis))
    notes = "; the same work and the same loss"
    return against_prediction(
        session, one, _gain(evidence, evidence["difference"]["step_ms"]), evidence["order"], notes
    )


def _unequal(evidence: dict[str, Any]) -> str | None:
    before, after = evidence["arms"].values()
    for counter in ("valid_tokens", "samples"):
        totals = [arm["work"].get(counter, {}).get("total") for arm in (before, after)]
        if None not in totals and not math.isclose(totals[0], totals[1], rel_tol=SAME_WORK):
            return f"the change alters the useful work: {counter} {totals[0]:.6g} before, {totals[1]:.6g} after"
    losses = [arm["loss"] for arm in (before, after)]
    if None not in losses and not math.isclose(losses[0], losses[1], rel_tol=SAME_LOSS):
        return f"the change alters the loss: {losses[0]:.6g} before, {losses[1]:.6g} after"
    return None


def _soak(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """The improvement over long turns; it must last to their end, and the slowest steps must not get slower."""
    found = _scale_up(session, one, evidence)
    tails = _gain(evidence, tail_changes(evidence))
    late = _gain(evidence, drift_changes(evidence))
    if found.verdict is not Verdict.SUPPORTED or len(tails) < 2:
        return found
    tail, drift = estimate(tails), estimate(late)
    numbers = found.numbers | {
        "tail_gain_ms": tail.mean,
        "tail_interval_ms": [tail.lower, tail.upper],
        "drift_ms": drift.mean,
        "drift_interval_ms": [drift.lower, drift.upper],
    }
    bound = one.hypothesis.rho * abs(one.hypothesis.pi_ms or 0.0)
    worse = tail.upper < 0
    fades = drift.upper < -bound
    verdict = Verdict.REJECTED if worse or fades else Verdict.SUPPORTED
    said = f"the slowest tenth of the steps gained {interval_ms(tail.mean, tail.lower, tail.upper)}"
    return Found(
        hypothesis=one.id,
        verdict=verdict,
        effect_ms=found.effect_ms,
        interval_ms=found.interval_ms,
        reason=f"{found.reason}; {said}" + ("; the gain fades within the run" if fades else ""),
        numbers=numbers,
        file=found.file,
        pairs=found.pairs,
    )


_TESTS: dict[Test, Callable[[Session, Registration, dict[str, Any]], Found]] = {
    Test.REGRESSION: judge_regression,
    Test.SCOPE: judge_one_scope,
    Test.SENSITIVITY: judge_sensitivity,
    Test.PERTURBATION: _perturbation,
    Test.UNCHANGED: _unchanged,
    Test.CLOSING: _closing,
    Test.SWAP: judge_swap,
    Test.CURVE: _curve,
    Test.SCALE_UP: _scale_up,
    Test.SOAK: _soak,
}
