"""Verdicts and findings on the runs that a case brings along: is there a loss, is it the work, where did it go?

They describe. What caused it is tested by experiments.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from narrows.flows.found import GIVEN, Found, evidence_file, unable
from narrows.flows.session import Session
from narrows.inquiry.accounts import Account
from narrows.inquiry.codec import plain
from narrows.inquiry.hypotheses import Hypothesis, Registration, Test
from narrows.inquiry.verdict import RegressionStatus, Verdict
from narrows.reducers.comparison import RegressionResult, confirm_regression
from narrows.reducers.numerator import NumeratorResult, NumeratorVerdict, Work, judge_numerator
from narrows.reducers.planning import power
from narrows.reducers.reconcile import Shape, reconcile
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
    return Found(
        hypothesis=one.id,
        verdict=names.get(result.verdict, Verdict.INCONCLUSIVE),
        effect_ms=result.effect_ms,
        interval_ms=result.interval_ms,
        reason=result.reason,
        numbers={"pairs": len(d), "margin_ms": margin, "sign_flip_p": result.sign_flip_p},
        findings={"reference": _reference(session, evidence, result, one.hypothesis)},
        file=evidence_file(one.hypothesis),
        pairs=len(d),
    )


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
    return Found(
        findings={"reconciliation": plain(reconcile(session.evidence(name), shape))}, file=f"evidence/{name}.json"
    )
