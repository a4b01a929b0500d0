"""Verdicts of a revalidation: the scope test as everywhere, the range, and the account's share of the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from narrows.flows.found import Found, evidence_file, unable
from narrows.flows.judging import judge
from narrows.flows.session import Session
from narrows.inquiry.design import REGRESSED
from narrows.inquiry.hypotheses import Registration, Test
from narrows.inquiry.pursuit import exhausted
from narrows.inquiry.steps import Judge
from narrows.reducers.estimates import estimate
from narrows.reducers.ranges import judge_range
from narrows.reducers.shares import judge_share


def judge_claim(session: Session, step: Judge) -> list[Found]:
    """The verdicts that ``step`` asks for, in order. Evidence that is missing or unfit gives ``inconclusive``."""
    state, name = session.state, step.experiment or ""
    if not state.evidence.get(name) or session.evidence(name)["confounded"]:
        return judge(session, step)
    evidence, found = session.evidence(name), []
    for number in step.hypotheses:
        one = state.registrations[number]
        if one.hypothesis.test is Test.RANGE:
            found.append(_range(session, one, evidence))
        elif one.hypothesis.test is Test.ACCOUNT:
            found.append(_share(one, evidence))
        else:
            found += judge(session, replace(step, hypotheses=(number,)))
    return found


def _range(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    hypothesis, prediction = one.hypothesis, one.hypothesis.prediction
    assert prediction.low is not None
    assert prediction.high is not None
    # The loss is regressed minus healthy; the gain of a remedy is regressed minus perturbed.
    sign = 1.0 if list(evidence["arms"])[1] == REGRESSED else -1.0
    values = [sign * float(d) for d in evidence["difference"]["step_ms"]]
    if not values:
        return unable(one, "no pair was completed", hypothesis.experiment or "")
    result = judge_range(values, prediction.low, prediction.high, alpha=hypothesis.alpha, looks=hypothesis.looks)
    wanted = result.wanted_pairs
    if wanted is not None and len(values) < wanted and not exhausted(session.state, hypothesis.experiment or ""):
        return Found(
            hypothesis=one.id, reason=result.reason, wanted_pairs=wanted, pairs=len(values),
            file=evidence_file(hypothesis),
        )  # fmt: skip
    return Found(
        hypothesis=one.id,
        verdict=result.verdict,
        effect_ms=result.effect_ms,
        interval_ms=result.interval_ms,
        reason=result.reason,
        numbers={"low_ms": prediction.low, "high_ms": prediction.high, "pairs_used": result.pairs_used},
        file=evidence_file(hypothesis),
        pairs=result.pairs_used,
    )


def _share(one: Registration, evidence: dict[str, Any]) -> Found:
    hypothesis = one.hypothesis
    assert hypothesis.account is not None
    changes = evidence["difference"]["accounts"][hypothesis.ledger.value][hypothesis.account.value]
    result = judge_share(
        changes, evidence["difference"]["step_ms"], hypothesis.account.value, rho=hypothesis.rho, alpha=hypothesis.alpha
    )
    if estimate(evidence["difference"]["step_ms"], hypothesis.alpha).lower <= 0:
        return unable(one, "there is no loss that the account could hold a share of", hypothesis.experiment or "")
    return Found(
        hypothesis=one.id,
        verdict=result.verdict,
        effect_ms=result.change_ms,
        interval_ms=result.interval_ms,
        reason=result.reason,
        numbers={"share": result.share, "pairs": result.pairs_used},
        file=evidence_file(hypothesis),
        pairs=result.pairs_used,
    )
