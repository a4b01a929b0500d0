"""The verdict on a roll-out: the margin, the looks, the baseline, and the control that an admission needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from narrows.flows.found import Found, evidence_file, unable
from narrows.flows.judging import judge
from narrows.flows.judging_scope import why_missing
from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.design import CONTROL
from narrows.inquiry.hypotheses import Registration, Test
from narrows.inquiry.pursuit import exhausted
from narrows.inquiry.rollout import sensitivity_key
from narrows.inquiry.steps import Judge
from narrows.inquiry.verdict import Verdict
from narrows.reducers.admission import AdmissionResult, judge_admission
from narrows.reducers.estimates import format_ms

BASELINE = "baseline"


def judge_rollout(session: Session, step: Judge) -> list[Found]:
    """The verdicts that ``step`` asks for, in order. Evidence that is missing or unfit gives ``inconclusive``."""
    state, name = session.state, step.experiment or ""
    if not state.evidence.get(name) or session.evidence(name)["confounded"]:
        return judge(session, step)
    found = []
    for number in step.hypotheses:
        one = state.registrations[number]
        if one.hypothesis.test is Test.ROLLOUT:
            found.append(_slower(session, one, session.evidence(name)))
        else:
            found += judge(session, replace(step, hypotheses=(number,)))
    return found


def _slower(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    hypothesis, state = one.hypothesis, session.state
    values = [float(d) for d in evidence["difference"]["step_ms"]]
    if not values:
        return unable(one, "no pair was completed", hypothesis.experiment or "")
    assert hypothesis.prediction.low is not None
    margin_ms = hypothesis.prediction.low / 100 * float(evidence["arms"][CONTROL]["step_ms"])
    before = session.evidence(BASELINE)["difference"]["step_ms"] if BASELINE in state.findings else None
    result = judge_admission(values, margin_ms, before, alpha=hypothesis.alpha, looks=hypothesis.looks)
    file, wanted = evidence_file(hypothesis), result.wanted_pairs
    if wanted is not None and len(values) < wanted and not exhausted(state, hypothesis.experiment or ""):
        return Found(hypothesis=one.id, reason=result.reason, wanted_pairs=wanted, pairs=len(values), file=file)
    if result.verdict is not Verdict.REJECTED:
        return _conclusion(one, result, result.verdict, result.reason)
    if state.pending(hypothesis.key) is None:
        pending = {
            "hypothesis": one.id, "effect_ms": result.effect_ms, "interval_ms": result.interval_ms,
            "reason": result.reason, "delay_ms": margin_ms,
        }  # fmt: skip
        return Found(findings={f"pending:{hypothesis.key}": pending}, file=file)
    return _checked(session, one, result)


def _checked(session: Session, one: Registration, result: AdmissionResult) -> Found:
    """The admission where a delay of the margin was seen; inconclusive where it was not, or could not be tried."""
    state = session.state
    control = state.hypothesis(sensitivity_key(session.case))
    judged = state.judgement(control.key) if control else None
    delay = format_ms(result.margin_ms)[0]
    if judged is not None and judged.verdict is Verdict.SUPPORTED:
        seen = f"{result.reason}; an injected delay of {delay} ms was seen here"
        return _conclusion(one, result, Verdict.REJECTED, seen)
    name = control.experiment if control and control.experiment else ""
    if judged is not None and judged.verdict is Verdict.REJECTED:
        why = f"insensitive: {judged.reason}; longer units (--steps), or a larger margin, are needed to see it"
    else:
        why = f"sensitivity not checked: {judged.reason if judged else why_missing(state, name)}"
    return _conclusion(one, result, Verdict.INCONCLUSIVE, f"{result.reason}; {why}")


def _conclusion(one: Registration, result: AdmissionResult, verdict: Verdict, reason: str) -> Found:
    keep = ("kind", "margin_ms", "baseline_pairs", "more_pairs", "sign_flip_p", "pairs_used")
    return Found(
        hypothesis=one.id,
        verdict=verdict,
        effect_ms=result.effect_ms,
        interval_ms=result.interval_ms,
        reason=reason,
        numbers={name: plain(getattr(result, name)) for name in keep},
        file=evidence_file(one.hypothesis),
        pairs=result.pairs_used,
    )
