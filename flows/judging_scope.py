"""Verdicts against a registered prediction, and the control that a rejected scope needs before it counts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from narrows.flows.found import GIVEN, Found, evidence_file, unable
from narrows.flows.session import Session
from narrows.inquiry.codec import plain
from narrows.inquiry.hypotheses import Hypothesis, Registration, Test
from narrows.inquiry.proposals import delay_of
from narrows.inquiry.pursuit import exhausted
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import ScopeResult, check_sensitivity, delay_seen, judge_scope, needs_more
from narrows.reducers.estimates import format_ms
from narrows.reducers.planning import MAX_PAIRS, chance_to_decide, pairs_on_trend
from narrows.reducers.sequential import nominal_levels

FUTILE = 0.2
"""Conditional power below which no more pairs are launched at full scale. Source: Lan, Simon & Halperin 1982."""


def judge_one_scope(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """The three-outcome rule on the step; a rejection is only put down as pending until its control ran."""
    ds, order = evidence["difference"]["step_ms"], evidence["order"]
    hypothesis = one.hypothesis
    if not ds or not hypothesis.key.startswith("scope:"):
        return against_prediction(session, one, ds, order)
    result = rule(session, hypothesis, ds, order)
    if result.verdict is not Verdict.REJECTED:
        return against_prediction(session, one, ds, order)
    if session.state.pending(hypothesis.key) is None:
        return Found(findings={f"pending:{hypothesis.key}": _pending(one, result)}, file=evidence_file(hypothesis))
    return _checked(session, one, result)


def _pending(one: Registration, result: ScopeResult) -> dict[str, Any]:
    return {
        "hypothesis": one.id,
        "effect_ms": result.effect_ms,
        "interval_ms": result.interval_ms,
        "reason": result.reason,
        "delay_ms": delay_of(one.hypothesis),
    }


def _checked(session: Session, one: Registration, result: ScopeResult) -> Found:
    """The rejection where the injected delay was seen; inconclusive where it was not, or could not be tried."""
    state, hypothesis = session.state, one.hypothesis
    delay_ms = delay_of(hypothesis)
    control = state.hypothesis(f"sensitivity:{hypothesis.scope}")
    name = control.experiment if control else None
    found = conclusion(one, result)
    if control is None or name is None:
        return found
    judged = state.judgement(control.key)
    if judged is None or judged.verdict is Verdict.INCONCLUSIVE:
        why = f"sensitivity not checked: {judged.reason if judged else why_missing(state, name)}"
        return conclusion(one, result, verdict=Verdict.INCONCLUSIVE, reason=f"{result.reason}; {why}")
    ds = session.evidence(name)["difference"]["step_ms"]
    checked = check_sensitivity(result, ds, delay_ms)
    numbers = {"sensitivity": {"hypothesis": state.ids[control.key], "delay_ms": delay_ms, "moved_ms": ds}}
    if checked.verdict is Verdict.REJECTED:
        said = format_ms(delay_ms)[0]
        return conclusion(one, checked, notes=f"; an injected delay of {said} ms was seen here", numbers=numbers)
    return conclusion(one, checked, numbers=numbers)


def judge_sensitivity(_session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """Every pair of the control must show more than half of what was injected."""
    hypothesis, ds = one.hypothesis, evidence["difference"]["step_ms"]
    assert hypothesis.pi_ms is not None
    if len(ds) < max(hypothesis.looks):
        return unable(one, f"{len(ds)} pairs of {max(hypothesis.looks)} were completed", hypothesis.experiment or GIVEN)
    seen = delay_seen(ds, hypothesis.pi_ms)
    injected, *moved = format_ms(hypothesis.pi_ms, *ds)
    return Found(
        hypothesis=one.id,
        verdict=Verdict.SUPPORTED if seen else Verdict.REJECTED,
        effect_ms=sum(ds) / len(ds),
        reason=f"{injected} ms were injected; the pairs moved by {', '.join(moved)} ms",
        numbers={"injected_ms": hypothesis.pi_ms, "moved_ms": ds},
        file=evidence_file(hypothesis),
        pairs=len(ds),
    )


def against_prediction(
    session: Session,
    one: Registration,
    ds: list[float],
    order: list[int] | None,
    notes: str = "",
    alpha: float | None = None,
) -> Found:
    """The three-outcome rule at the boundary of ``rho`` times the registered prediction, with its looks.

    ``alpha``: what the hypothesis gets of its family's error, by default all of it.
    """
    hypothesis = one.hypothesis
    if not ds:
        return unable(one, "no pair was completed", hypothesis.experiment or GIVEN)
    result = rule(session, hypothesis, ds, order, alpha)
    wanted = needs_more(result, hypothesis.looks)
    limit = max(hypothesis.looks)
    if wanted is not None and wanted <= limit and len(ds) < wanted and can_grow(session, hypothesis):
        if why := _futile(session, hypothesis, ds, hypothesis.alpha if alpha is None else alpha):
            return conclusion(one, result, notes=f"; {why}")
        return Found(
            hypothesis=one.id, reason=result.reason, wanted_pairs=wanted, pairs=len(ds), file=evidence_file(hypothesis)
        )
    return conclusion(one, result, notes=notes)


def _futile(session: Session, hypothesis: Hypothesis, ds: list[float], alpha: float) -> str | None:
    """Why further pairs at full scale would be spent for little: a stop that can only leave a question open.

    Below the full scale none is needed: leaving a question open there sends it to a larger scope, which costs more.
    """
    if hypothesis.scope is not session.case.full_scope or hypothesis.pi_ms is None:
        return None
    reference = [float(one) for one in session.state.reference["d_ms"]]
    last, level = max(hypothesis.looks), nominal_levels(hypothesis.looks, alpha)[-1]
    against = (ds, reference, hypothesis.pi_ms)
    if len(ds) < min(hypothesis.looks):
        return None
    chance = chance_to_decide(*against, last, level, hypothesis.rho)
    if chance >= FUTILE:
        return None
    needed = pairs_on_trend(*against, level, hypothesis.rho)
    return (
        f"stopped: as the pairs go, {last} of them would decide in {chance:.0%} of the cases; it would take "
        f"{needed or f'more than {MAX_PAIRS}'}"
    )


def rule(
    session: Session, hypothesis: Hypothesis, ds: list[float], order: list[int] | None, alpha: float | None = None
) -> ScopeResult:
    """The pair differences against the registered prediction, by the reference measurement's own error."""
    return judge_scope(
        ds,
        [float(one) for one in session.state.reference["d_ms"]],
        rho=hypothesis.rho,
        alpha=hypothesis.alpha if alpha is None else alpha,
        looks=hypothesis.looks,
        predicted_ms=hypothesis.pi_ms,
        order=order,
    )


def conclusion(
    one: Registration,
    result: ScopeResult,
    *,
    verdict: Verdict | None = None,
    reason: str | None = None,
    notes: str = "",
    numbers: dict[str, Any] | None = None,
) -> Found:
    """The result as a verdict with its numbers, or with another verdict and reason in its place."""
    return Found(
        hypothesis=one.id,
        verdict=verdict or result.verdict,
        effect_ms=result.effect_ms,
        interval_ms=result.interval_ms,
        reason=(reason or result.reason) + notes,
        numbers=_numbers(result) | (numbers or {}),
        file=evidence_file(one.hypothesis),
        pairs=result.pairs_used,
    )


def can_grow(session: Session, hypothesis: Hypothesis) -> bool:
    """Whether another launch could still bring pairs: it may have failed too often, or have been declined."""
    return hypothesis.test is not Test.SOAK and not exhausted(session.state, hypothesis.experiment or "")


def why_missing(state: State, experiment: str) -> str:
    """Why an experiment left no evidence."""
    answer = state.answers.get(experiment, {})
    if answer.get("decision") == "skip":
        return f"not run: {answer.get('by')} declined it" + (f" ({answer['reason']})" if answer.get("reason") else "")
    failures = state.failures.get(experiment) or [{}]
    return f"could not be run: {failures[-1].get('reason', 'no evidence came back')}"


def _numbers(result: ScopeResult) -> dict[str, Any]:
    keep = (
        "look",
        "pairs_used",
        "kappa",
        "predicted_ms",
        "boundary_ms",
        "ratio",
        "sublabel",
        "sign_flip_p",
        "order_effect",
        "order_effect_ms",
        "reference_described",
        "reference_weak",
        "vetoed",
    )
    values = asdict(result)
    return {name: plain(values[name]) for name in keep if values[name] is not None}
