"""A closed case proposes its claim: the explanation, the experiment that shows it, and the ranges that were found."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from narrows.flows.claims_store import ClaimStore
from narrows.flows.claims_text import claim_text
from narrows.inquiry import changes, plans, proposals
from narrows.inquiry.claim import Claim, Metric, MetricRange, Mitigation
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.dependencies import dependencies
from narrows.inquiry.design import Experiment
from narrows.inquiry.errors import CaseError, in_words
from narrows.inquiry.fingerprint import manifest_fields, run_fields
from narrows.inquiry.playbook import Play
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung, Scope
from narrows.inquiry.state import Judgement, State
from narrows.inquiry.steps import StopReason
from narrows.inquiry.verdict import Verdict

if TYPE_CHECKING:
    from narrows.flows.session import Session

TOLERANCE = 0.25
"""A range is wider than the interval of the case by this share of the effect, on each side: a smaller move is not worth
an investigation (it is the share within which an account closes)."""
WRITTEN_DIGITS = 1e-3
"""Numbers in a claim's file are rounded to four digits."""
_HEAD = (
    "The claim of case {case}, proposed by narrows on {day}. Review it like code: `narrows claims accept {name}`\n"
    "puts it in force, and from then on `narrows revalidate` runs it again when what it depends on changes."
)


def propose(session: Session) -> Claim:
    """The claim that the closed case makes. Raises ``CaseError`` for a case that explains nothing."""
    state, case = session.state, session.case
    done = state.concluded
    scope = state.first_scope
    if done is None or done["reason"] != StopReason.EXPLAINED.value:
        why = done["reason"] if done else "it is not concluded"
        raise CaseError(f"{case.name}: proposes no claim: {why.rstrip('.')}; only an explained loss can be claimed")
    if scope is None:
        raise CaseError(f"{case.name}: proposes no claim: no scope showed the loss, so there is nothing to run again")
    reproducer = replace(plans.at_scope(case, state, scope), rung=SCOPE_RUNGS[scope])
    play = _play(session, state)
    remedy = _remedy(session, state, play, scope)
    found = conclude(state)
    return Claim(
        name=case.name,
        case=case.name,
        case_file=_case_file(session),
        explanation=proposals.MECHANISM_WORDS.get(found.mechanism or "", found.mechanism or "unknown"),
        mechanism=found.mechanism or "unknown",
        account=play.account,
        ledger=play.ledger,
        culprit=found.culprit,
        launcher=case.cluster.launcher,
        reproducer=reproducer,
        remedy=remedy,
        ranges=_ranges(session, state, scope, play, remedy),
        depends_on=dependencies(play.account, _recorded(session, reproducer)),
        mitigation=_mitigation(play),
        confirmed=today(),
        budget=case.budget,
        judging=case.judging,
    )


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def propose_beside(session: Session) -> Path | None:
    """``claims/NAME.yaml.proposed`` beside the case file, written anew; None where the case proposes none.

    Where the very claim is in force already, that is its file.
    """
    try:
        claim = propose(session)
    except CaseError:
        return None
    store = ClaimStore(session.base / "claims")
    with contextlib.suppress(CaseError):
        known = store.load(claim.name)
        if known.case == claim.case and known.reproducer.key == claim.reproducer.key and _same_pairs(known, claim):
            return store.path(claim.name)
    return write_proposal(session.base, claim)


def _same_pairs(known: Claim, new: Claim) -> bool:
    """Whether both come from the same measurement; a person may have changed all else in review."""
    first, second = (one.range(Metric.EFFECT) for one in (known, new))
    if first is None or second is None or len(first.pairs) != len(second.pairs):
        return False
    pairs = zip(first.pairs, second.pairs, strict=True)
    return all(math.isclose(one, other, rel_tol=WRITTEN_DIGITS) for one, other in pairs)


def write_proposal(workspace: Path, claim: Claim) -> Path:
    path = ClaimStore(workspace / "claims").proposal(claim.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = _HEAD.format(case=claim.case, name=claim.name, day=claim.confirmed)
    path.write_text(claim_text(claim, head), encoding="utf-8")
    return path


def _case_file(session: Session) -> str:
    from narrows.flows.casefile import load_case

    for path in sorted(session.base.glob("*.yaml")):
        try:
            if load_case(path).name == session.case.name:
                return path.name
        except CaseError:
            continue
    return f"cases/{session.case.name}"


def _play(session: Session, state: State) -> Play:
    """The change whose account closed."""
    chosen = changes.supported_play(state)
    plays = [changes.RESTORE_WORK, *changes.plays(session.case, state)]
    return next(play for play in plays if play.id == chosen)


def _remedy(session: Session, state: State, play: Play, scope: Scope) -> Experiment | None:
    """The change at the scope of the reproducer; None where the healthy arm itself was the change."""
    if play.id == changes.RESTORE_WORK.id:
        return None
    return plans.perturb(session.case, state, play, scope, Rung.PERTURBATION, f"{play.id}-{scope.value}")


def _ranges(
    session: Session, state: State, scope: Scope, play: Play, remedy: Experiment | None
) -> tuple[MetricRange, ...]:
    effect = state.judgement(f"scope:{scope.value}")
    assert effect is not None
    found = [_time_range(session, state, Metric.EFFECT, effect)]
    gain = state.judgement(f"perturbation:{play.id}")
    if remedy is not None and gain is not None and gain.verdict is Verdict.SUPPORTED:
        found.append(_time_range(session, state, Metric.GAIN, gain))
    closing = state.judgement(f"closing:{play.id}")
    if closing is not None and closing.numbers.get("share") is not None:
        low, high = closing.numbers["share_interval"] or (None, None)
        shown = f" [{low:.2f}, {high:.2f}]" if low is not None else ""
        how = (
            f"{closing.hypothesis} found {closing.numbers['share']:.2f}{shown} of the gain in {play.account.value}; "
            "with less than half of the loss, the account would not explain it"
        )
        found.append(
            MetricRange(metric=Metric.SHARE, low=0.5, high=None, found=float(closing.numbers["share"]), how=how)
        )
    return tuple(found)


def _time_range(session: Session, state: State, metric: Metric, found: Judgement) -> MetricRange:
    effect = found.effect_ms
    assert effect is not None
    low, high = found.interval_ms or (effect, effect)
    hypothesis = state.registrations[found.hypothesis].hypothesis
    evidence = session.evidence(str(hypothesis.experiment))
    pairs = [float(one) for one in evidence["difference"]["step_ms"]]
    if metric is Metric.GAIN and next(reversed(evidence["arms"])) != "regressed":
        pairs = [-one for one in pairs]
    slack = TOLERANCE * abs(effect)
    how = (
        f"{found.hypothesis} of the case found {effect:.3g} ms [{low:.3g}, {high:.3g}] (90 %); the range is that "
        "interval, a quarter of the effect wider on each side"
    )
    return MetricRange(
        metric=metric, low=low - slack, high=high + slack, found=effect, how=how, pairs=tuple(pairs)
    )  # fmt: skip


def _recorded(session: Session, reproducer: Experiment) -> dict[str, tuple[str, ...]]:
    """The fields of what was measured: hosts and packages of the reproducer's own run, the job's shape of the given."""
    second = list(session.evidence(reproducer.key)["arms"].values())[1]
    own = _manifest(session.directory / second["runs"][0]["path"])
    given = _manifest(session.base / session.case.runs["regressed"][0])
    fields = {name: value for name, value in manifest_fields(own).items() if name.startswith(("host.", "packages."))}
    return fields | {name: (value,) for name, value in run_fields(given).items()}


def _manifest(run: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CaseError(
            f"{run}: its manifest cannot be read ({in_words(error)}); a claim records what it was made on"
        ) from None


def _mitigation(play: Play) -> Mitigation:
    setting = ", ".join(f"{key}: {value}" for key, value in play.config.items())
    where = {"replace": "another host in its place", "colocate": "its ranks on one host"}.get(play.placement or "")
    change = setting or where or play.claim
    if not play.mitigation:
        change = f"none: {change} diagnoses, and is nothing that a job could keep"
    return Mitigation(
        change=change, in_force=False, rollback=play.rollback or "Take the change back.", reopen=play.reopen
    )  # fmt: skip
