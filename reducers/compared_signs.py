"""Where the difference of two arms is: the account, whom it follows, and the signs that choose the next experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from narrows.inquiry.accounts import Account
from narrows.inquiry.proposals import account_view
from narrows.inquiry.scopes import Scope
from narrows.reducers.compared_parts import MARGIN, ArmExtras, Change
from narrows.reducers.compared_scan import Drift, culprit_of
from narrows.reducers.decisions import SERVICE_RISE, Signs
from narrows.reducers.ledger import COVERAGE_NEEDED
from narrows.reducers.manifest_rules import DifferenceKind
from narrows.reducers.numerator import NumeratorResult, NumeratorVerdict, Work, judge_numerator
from narrows.reducers.patterns import autocorrelation_rise, growth_share, tail_share
from narrows.reducers.reconcile import RHO, Reconciliation, Shape, reconcile
from narrows.reducers.structure import StructureResult

NAMED_SHARE = 0.3
"""An account with a smaller part of the change is not called its holder."""
SERVICE_RISE_MS = 0.02
NOBODY: Mapping[str, Any] = {"kind": "none", "members": []}


def reading(evidence: Mapping[str, Any], regressed: Mapping[str, Any], step: Change) -> Reconciliation | None:
    """The reconciliation, in the direction in which time was lost; None where nothing moved."""
    if not evidence["difference"]["step_ms"] or step.delta == 0 or fmean(evidence["difference"]["step_ms"]) == 0:
        return None
    lost = fmean(evidence["difference"]["step_ms"]) > 0
    directed = dict(evidence) if lost else _swapped(evidence)
    arm = regressed if lost else evidence["arms"]["healthy"]
    return reconcile(directed, _shape(tuple(arm["rank_hosts"])))


def _swapped(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The same evidence with the arms exchanged: every difference has the other sign."""
    healthy, regressed = evidence["arms"].values()
    change = evidence["difference"]
    return dict(evidence) | {
        "arms": {"healthy": regressed, "regressed": healthy},
        "difference": {
            "step_ms": [-one for one in change["step_ms"]],
            "accounts": {
                view: {account: [-one for one in values] for account, values in table.items()}
                for view, table in change["accounts"].items()
            },
            "local_ms": [[-one for one in row] for row in change["local_ms"]],
        },
    }


def _shape(hosts: tuple[str, ...]) -> Shape:
    names = list(dict.fromkeys(hosts))
    per_node = max(hosts.count(name) for name in names)
    return Shape(nodes=len(names), ranks_per_node=per_node, hosts=hosts, scopes=(Scope.ONE_RANK, Scope.FULL))


def lead(reading: Reconciliation | None, status: str, step: Change) -> Account | None:
    """The account that holds the change, where there is a change and one account holds a good part of it."""
    small = status == "same" or (status == "unclear" and abs(step.delta) <= MARGIN * step.healthy)
    return None if reading is None or small or reading.share < NAMED_SHARE else reading.account


def work(healthy: Mapping[str, Any], regressed: Mapping[str, Any]) -> NumeratorResult | None:
    """None where the runs counted no work, or spent no time on it."""
    compute = float(healthy["accounts"]["rank_mean"]["compute"])
    if compute <= 0 or not (_counters(healthy) and _counters(regressed)):
        return None
    return judge_numerator(
        _work_of(healthy),
        _work_of(regressed),
        compute_ms=compute,
        compute_change_ms=float(regressed["accounts"]["rank_mean"]["compute"]) - compute,
        delta_ms=float(regressed["step_ms"]) - float(healthy["step_ms"]),
    )


def _counters(arm: Mapping[str, Any]) -> dict[str, Any]:
    # Bytes on the wire are work of the link, not of the kernels.
    return {name: one for name, one in arm["work"].items() if name not in ("payload_bytes", "collectives")}


def _work_of(arm: Mapping[str, Any]) -> Work:
    counters = _counters(arm)
    return Work(
        total={name: one["total"] for name, one in counters.items() if "total" in one},
        max_rank={name: one["max"] for name, one in counters.items() if "max" in one},
    )


def signs(
    evidence: Mapping[str, Any],
    extras: Mapping[str, ArmExtras],
    reading: Reconciliation | None,
    lead: Account | None,
    work: NumeratorResult | None,
    step: Change,
    drift: Drift | None,
) -> Signs:
    """What the decision table looks at, all but the culprit, who is named last."""
    inside, across, groups = _slower_groups(extras)
    units = [[unit["steps_ms"] for unit in evidence["arms"][arm]["units"]] for arm in ("healthy", "regressed")]
    hidden = [evidence["arms"][arm]["hidden_ms"] for arm in ("healthy", "regressed")]
    changed = work is not None and work.verdict is NumeratorVerdict.NUMERATOR
    coverage = evidence["coverage"]
    return Signs(
        delta_ms=step.delta,
        account=lead,
        account_ms=reading.share * step.delta if reading is not None else 0.0,
        culprit="none",
        work_changed=changed,
        work_ms=work.pi_num_ms if work is not None and changed else 0.0,
        heaviest_rank_up=work is not None and work.verdict is NumeratorVerdict.DISTRIBUTION,
        skew_share=reading.shares[Account.SKEW.value] if reading is not None else 0.0,
        slower_inside_hosts=inside,
        slower_across_hosts=across,
        num_groups=groups,
        hidden_ms=hidden[1] - hidden[0],
        rise_of_autocorrelation=autocorrelation_rise(*units),
        tail_share=tail_share(*units, delta_ms=step.delta),
        growth_share=_growth(evidence, units, drift, step.delta),
        covered=coverage is None or coverage >= COVERAGE_NEEDED,
    )


def _growth(
    evidence: Mapping[str, Any], units: list[list[list[float]]], drift: Drift | None, delta_ms: float
) -> float | None:
    """Last third against first, as a share of the loss; 0 where the slopes of the pairs do not show that it grows.

    Whole runs are read with their start, from which the warm-up rule may have cut a part of the growth.
    """
    if drift is None or drift.excluded:
        return None if drift is None else 0.0
    whole = evidence["difference"].get("drift_ms")
    return fmean(whole) / delta_ms if whole and delta_ms > 0 else growth_share(*units, delta_ms=delta_ms)


def _slower_groups(extras: Mapping[str, ArmExtras]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Groups inside hosts and across hosts whose median service rose by 5 % and by more than timers resolve."""
    before, after = extras["healthy"].services or {}, extras["regressed"].services or {}
    risen = [
        one
        for name, one in after.items()
        if name in before
        and one.service_ms > SERVICE_RISE * before[name].service_ms
        and one.service_ms - before[name].service_ms > SERVICE_RISE_MS
    ]
    inside = tuple(one.group for one in risen if not one.crosses_hosts)
    return inside, tuple(one.group for one in risen if one.crosses_hosts), len(after)


def culprit(
    reading: Reconciliation | None, signs: Signs, regressed: Mapping[str, Any], scanned: StructureResult | None
) -> Mapping[str, Any]:
    """Whom the change follows, ranks (and a rail that only its ranks tell) by their number, else as the scan says."""
    if reading is None:
        return NOBODY
    found = dict(reading.culprit)
    if found["kind"] in ("rank", "rail"):
        found["members"] = [regressed["ranks"][at] for at in found["members"]]
    if found["kind"] == "link" and signs.slower_inside_hosts and not signs.slower_across_hosts:
        found = {"kind": "group", "members": list(signs.slower_inside_hosts)}
    return culprit_of(found, scanned, [regressed["ranks"][at] for at in reading.ranks])


def with_culprit(signs: Signs, culprit: Mapping[str, Any]) -> Signs:
    kind = culprit["kind"]
    members = [one if kind in ("link", "group") else f"{kind} {one}" for one in culprit["members"]]
    return replace(signs, culprit=kind, members=tuple(map(str, members)))


def differences(evidence: Mapping[str, Any], step: Change) -> tuple[Mapping[str, Any], ...]:
    """Differences of the manifests that can touch an account, each with whether its accounts moved at all."""
    found = []
    for one in evidence["manifest_differences"]:
        if one["kind"] == DifferenceKind.HARMLESS.value:
            continue
        moved = sum(max(0.0, _upper(evidence, account)) for account in one["accounts"])
        found.append({**one, "possible": not one["accounts"] or step.delta <= 0 or moved >= RHO * step.delta})
    return tuple(sorted(found, key=lambda one: not one["possible"]))


def _upper(evidence: Mapping[str, Any], account: str) -> float:
    """The most that the account may have grown by, in the view in which it closes."""
    view = account_view(Account(account))
    bounds = evidence["intervals"][view][account]
    values = evidence["difference"]["accounts"][view][account]
    return float(bounds[1]) if bounds is not None else fmean(values) if values else 0.0
