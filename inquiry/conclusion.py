"""What a docket amounts to: the machine-readable conclusion. A pure view; nothing is stored that it cannot rebuild."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from narrows.inquiry import changes, proposals, pursuit, swaps
from narrows.inquiry.case import Case
from narrows.inquiry.codec import SCHEMA
from narrows.inquiry.docket import Docket
from narrows.inquiry.hypotheses import Registration
from narrows.inquiry.state import State
from narrows.inquiry.verdict import ClosingStatus, RegressionStatus, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """``members`` are rank numbers or host names, as ``kind`` says. What was not established is None."""

    regression: RegressionStatus
    numerator_changed: bool | None
    account: str | None
    mechanism: str | None
    first_scope: str | None
    culprit: dict[str, Any] = field(default_factory=lambda: {"kind": "none", "members": []})
    perturbation: str = "not_run"
    closing: str = ClosingStatus.NOT_RUN.value


NOBODY: dict[str, Any] = {"kind": "none", "members": []}


def conclude(state: State) -> Conclusion:
    """The conclusion that the docket supports so far. A cause is named only where an experiment supported it."""
    status = pursuit.regression_status(state) if state.opened else RegressionStatus.INCONCLUSIVE
    numerator = state.findings.get("numerator", {}).get("changed")
    first = state.first_scope
    perturbed = _perturbation(state)
    named = bool(first) or perturbed == Verdict.SUPPORTED.value
    mechanism, culprit = _cause(state) if named else (None, NOBODY)
    account = proposals.leading_account(state) if named else None
    if named and changes.numerator_explains(state):
        account = changes.RESTORE_WORK.account
    return Conclusion(
        regression=status,
        numerator_changed=numerator,
        account=account.value if account else None,
        mechanism=mechanism,
        first_scope=first.value if first else None,
        culprit=culprit,
        perturbation=perturbed,
        closing=_closing(state),
    )


def _cause(state: State) -> tuple[str | None, dict[str, Any]]:
    if changes.numerator_explains(state):
        return "numerator", {"kind": "all", "members": []}
    culprit = state.culprit or NOBODY
    told = swaps.told(state)
    if told is None:
        return state.mechanism, culprit
    source, names = told
    by_rank = culprit["kind"] == "rank"
    members = [int(one) for one in names] if by_rank else list(names)
    if source == swaps.DATA:
        every = state.reconciliation.get("ranks", [])
        return "shard", {"kind": "shard", "members": members if by_rank and members else every}
    if source == swaps.INTERACTION:
        return "shard on hardware", culprit
    return state.mechanism, culprit | ({"members": members} if members else {})


def _perturbation(state: State) -> str:
    verdicts = [state.verdict(key) for key in state.ids if key.startswith("perturbation:")]
    judged = [verdict for verdict in verdicts if verdict is not None]
    if Verdict.SUPPORTED in judged:
        return Verdict.SUPPORTED.value
    return judged[0].value if judged else "not_run"


def _closing(state: State) -> str:
    chosen = changes.supported_play(state)
    found = state.judgement(f"closing:{chosen}") if chosen else None
    return str(found.numbers.get("status", ClosingStatus.PARTIAL.value)) if found else ClosingStatus.NOT_RUN.value


def hypothesis_row(state: State, registration: Registration) -> dict[str, Any]:
    """One row of the ``hypotheses`` list of ``narrows show --json``."""
    one, found = registration.hypothesis, state.judgements.get(registration.id)
    return {
        "id": registration.id,
        "rung": one.rung.label,
        "scope": one.scope.value if one.scope else None,
        "claim": one.claim,
        "account": one.account.value if one.account else None,
        "verdict": found.verdict.value if found else None,
        "effect_ms": found.effect_ms if found else None,
        "interval_ms": list(found.interval_ms) if found and found.interval_ms else None,
        "registered_at": registration.created_ns,
        "digest": registration.sha256,
    }


def report(case: Case, docket: Docket, postmortem: str | None) -> dict[str, Any]:
    """The object that ``narrows show CASE --json`` prints."""
    state = State.of(docket)
    done = state.concluded
    return {
        "schema": SCHEMA,
        "case": case.name,
        "status": done["status"] if done else "running",
        "reason": done["reason"] if done else None,
        "conclusion": conclude(state),
        "hypotheses": [hypothesis_row(state, one) for one in state.registrations.values()],
        "device_hours": round(state.device_hours, 6),
        "postmortem": postmortem,
    }
