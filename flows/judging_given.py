"""Verdicts and findings on the runs that a case brings along: is there a loss, is it the work, where did it go?

They describe. What caused it is tested by experiments.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from narrows.flows.found import GIVEN, Found, evidence_file, unable
from narrows.flows.session import Session
from narrows.inquiry.accounts import Account
from narrows.inquiry.codec import plain
from narrows.inquiry.design import ArmKind, Mode
from narrows.inquiry.hypotheses import Hypothesis, Registration, Test
from narrows.inquiry.ladder import REFERENCE_PAIRS
from narrows.inquiry.verdict import RegressionStatus, Verdict
from narrows.reducers.comparison import RegressionResult, confirm_regression
from narrows.reducers.numerator import NumeratorResult, NumeratorVerdict, Work, judge_numerator
from narrows.reducers.opinions import opinions
from narrows.reducers.planning import pairs_to_detect, planned_looks, power
from narrows.reducers.reconcile import Reconciliation, Shape, reconcile
from narrows.reducers.shares import SCREENING_PAIRS, judge_shares

COVERAGE_NEEDED = 0.95


def judge_given(session: Session, registrations: list[Registration]) -> list[Found]:
    evidence = session.evidence(GIVEN)
    manifest = {
        "differences": evidence["manifest_differences"],
        "runs": {arm: [run["path"] for run in one["runs"]] for arm, one in evidence["arms"].items()},
    }
    found = [Found(findings={"manifest": manifest})]
    for one in registrations:
        test = judge_regression if one.hypothesis.test is Test.REGRESSION else _numerator
        found.append(test(session, one, evidence))
    return found


def judge_regression(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    d = evidence["difference"]["step_ms"]
    margin = float(session.state.opened["margin_ms"])
    if not d:
        return unable(one, "no unit of one arm has a partner in the other", GIVEN)
    result = confirm_regression(d, margin, one.hypothesis.alpha)
    names = {RegressionStatus.CONFIRMED: Verdict.SUPPORTED, RegressionStatus.NONE: Verdict.REJECTED}
    verdict = names.get(result.verdict, Verdict.INCONCLUSIVE)
    return Found(
        hypothesis=one.id,
        verdict=verdict,
        effect_ms=result.effect_ms,
        interval_ms=result.interval_ms,
        reason=result.reason + (_what_it_takes(d, margin, one) if verdict is Verdict.INCONCLUSIVE else ""),
        numbers={"pairs": len(d), "margin_ms": margin, "sign_flip_p": result.sign_flip_p},
        findings={"reference": _reference(session, evidence, result, one.hypothesis)},
        file=evidence_file(one.hypothesis),
        pairs=len(d),
    )


def _what_it_takes(d: list[float], margin_ms: float, one: Registration) -> str:
    """How many pairs would confirm a loss of this size, where there are enough to say so."""
    beyond = abs(fmean(d)) - margin_ms
    if len(d) < REFERENCE_PAIRS or beyond <= 0:
        return ""
    needed = pairs_to_detect(beyond / stdev(d), alpha=one.hypothesis.alpha)
    return f"; about {needed} pairs would, or longer runs" if needed else "; longer runs would vary less"


def _chance(session: Session, result: RegressionResult, d: list[float]) -> float | None:
    """The power of the last look at a scope that shows the whole loss, if its pairs vary as the given ones do."""
    judging, sd = session.case.judging, stdev(d) if len(d) > 1 else 0.0
    if result.pairs_used < SCREENING_PAIRS or sd == 0:
        return None
    return power(max(judging.looks), len(d), abs(result.effect_ms) / sd, alpha=judging.scope_alpha)


def _reference(
    session: Session, evidence: dict[str, Any], result: RegressionResult, hypothesis: Hypothesis
) -> dict[str, Any]:
    healthy, regressed = (arm["step_ms"] for arm in evidence["arms"].values())
    return {
        "delta_ms": result.effect_ms,
        "d_ms": evidence["difference"]["step_ms"],
        "interval_ms": list(result.interval_ms) if result.interval_ms else None,
        "healthy_ms": healthy,
        "regressed_ms": regressed,
        "margin_ms": result.margin_ms,
        "tested": result.pairs_used >= SCREENING_PAIRS,
        "chance": _chance(session, result, evidence["difference"]["step_ms"]),
        "statistic": evidence["statistic"],
        "status": result.verdict.value,
        "basis": hypothesis.basis.value,
    }


def _numerator(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    healthy, regressed = evidence["arms"].values()
    delta = fmean(evidence["difference"]["step_ms"])
    compute = float(healthy["accounts"]["rank_mean"]["compute"])
    change = fmean(evidence["difference"]["accounts"]["rank_mean"]["compute"])
    if compute <= 0 or not healthy["work"]:
        return unable(one, "the runs carry no work counters, or no compute time, to compare", GIVEN)
    result = judge_numerator(
        _work(healthy), _work(regressed), compute_ms=compute, compute_change_ms=change, delta_ms=delta
    )
    margin = float(session.state.opened["margin_ms"])
    explains = result.verdict is NumeratorVerdict.NUMERATOR and delta > margin
    return Found(
        hypothesis=one.id,
        verdict=Verdict.SUPPORTED if explains else Verdict.REJECTED,
        effect_ms=result.pi_num_ms if explains else None,
        reason=result.sentence,
        numbers={"status": result.verdict.value}
        | ({} if result.verdict is NumeratorVerdict.DISTRIBUTION else {"share": result.explained_share}),
        findings={"numerator": _numerator_finding(result)},
    )


def _work(arm: dict[str, Any]) -> Work:
    # Bytes on the wire are work of the link, not of the kernels; they stay in the evidence.
    counters = {name: one for name, one in arm["work"].items() if name not in ("payload_bytes", "collectives")}
    return Work(
        total={name: one["total"] for name, one in counters.items() if "total" in one},
        max_rank={name: one["max"] for name, one in counters.items() if "max" in one},
    )


def _numerator_finding(result: NumeratorResult) -> dict[str, Any]:
    changed = [change for change in result.changes if change.aggregate == "total"]
    return {
        "changed": bool(changed),
        "verdict": result.verdict.value,
        "counters": {
            f"{change.counter} ({change.aggregate})": {
                "healthy": change.healthy, "regressed": change.regressed, "ratio": change.factor,
            }
            for change in result.changes
        },
        "counter": result.counter,
        "pi_ms": result.pi_num_ms,
        "share": result.explained_share,
        "sentence": result.sentence,
    }  # fmt: skip


def judge_account(session: Session, one: Registration) -> Found:
    hypothesis, name = one.hypothesis, _reference_evidence(session)
    evidence = session.evidence(name)
    assert hypothesis.account is not None
    # All accounts are judged side by side, each in its own view, whichever of them is asked for.
    tables, family = evidence["difference"]["accounts"], _accounts(session, hypothesis)
    changes = {one.account.value: tables[one.ledger.value][one.account.value] for one in family if one.account}
    results = judge_shares(changes, evidence["difference"]["step_ms"], rho=hypothesis.rho, alpha=hypothesis.alpha)
    result = results[hypothesis.account.value]
    verdict, reason = result.verdict, result.reason
    coverage = evidence["coverage"]
    if coverage is not None and coverage < COVERAGE_NEEDED and hypothesis.account in (Account.TRANSFER, Account.SKEW):
        verdict, reason = Verdict.INCONCLUSIVE, f"{reason}; only {coverage:.0%} of the collective time could be matched"
    return Found(
        hypothesis=one.id,
        verdict=verdict,
        effect_ms=result.change_ms,
        interval_ms=result.interval_ms,
        reason=reason,
        numbers={"share": result.share, "pairs": result.pairs_used, "ledger": hypothesis.ledger.value},
        file=f"evidence/{name}.json",
        pairs=result.pairs_used,
    )


def _accounts(session: Session, one: Hypothesis) -> list[Hypothesis]:
    """The accounts that were registered side by side with this one."""
    known = [other.hypothesis for other in session.state.registrations.values()]
    return [other for other in known if (other.test, other.rung) == (Test.ACCOUNT, one.rung)]


def _reference_evidence(session: Session) -> str:
    """The measurement that the loss is taken from: the repeated one where there is one."""
    again = session.state.hypothesis("regression:again")
    used = again is not None and again.experiment is not None and session.state.evidence.get(again.experiment)
    return str(again.experiment) if again is not None and used else GIVEN


def reconciliation(session: Session) -> Found:
    case, name = session.case, _reference_evidence(session)
    shape = Shape(
        nodes=case.cluster.nodes,
        ranks_per_node=case.cluster.ranks_per_node,
        hosts=tuple(host for host, ranks in case.full_placement.hosts for _ in ranks),
        scopes=case.scopes(),
    )
    evidence = session.evidence(name)
    read = reconcile(evidence, shape)
    found = {"reconciliation": plain(read) | {"looks": _looks(session, read)}}
    if (told := opinions(evidence)) is not None:
        found["opinions"] = plain(told)
    return Found(findings=found, file=f"evidence/{name}.json")


MORE_PAIRS = 2
"""Times the usual pairs that a small scope may take where its share of the loss is too small for those."""


def _looks(session: Session, read: Reconciliation) -> dict[str, list[int]]:
    """The looks of each scope that takes further ones: where the share that is predicted there needs more pairs.

    They may cost no more device time than the usual ones at the next larger scope, where an open question goes on.
    Only restarts are planned so: the given pairs tell nothing of arms that take turns inside of one launch.
    """
    case, reference = session.case, session.state.reference
    d_ms = [float(one) for one in reference["d_ms"]]
    restarts = case.judging.mode is Mode.RESTART and case.workload.kind is ArmKind.CONFIG
    if not restarts or len(d_ms) < SCREENING_PAIRS:
        return {}
    scopes, usual, found = case.scopes(), case.judging.looks, {}
    for here, larger in pairwise(scopes):
        times = min(MORE_PAIRS, case.ranks_at(larger) // case.ranks_at(here))
        share = read.kappa.get(here.value, 0.0)
        looks = planned_looks(usual, d_ms, share, times, case.judging.scope_alpha) if share > 0 else usual
        if looks != usual:
            found[here.value] = list(looks)
    return found
