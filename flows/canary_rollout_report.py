"""What is said and kept of a canary roll-out: one record, from which the terminal, the report and the page are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from narrows.flows.canary_rollout_case import write_regressed_case
from narrows.flows.canary_rollout_judge import BASELINE
from narrows.flows.canary_rollout_run import conclude
from narrows.flows.session import Session
from narrows.inquiry.accounts import ACCOUNTS
from narrows.inquiry.design import CONTROL
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.findings import Finding
from narrows.inquiry.fingerprint import Fields, changes
from narrows.inquiry.proposals import account_view
from narrows.inquiry.rollout import EXPERIMENT, SLOWER, UPGRADED, Admission, Rollout
from narrows.inquiry.state import State
from narrows.reducers.admission import account_changes, without_baseline
from narrows.reducers.estimates import estimate
from narrows.reducers.reconcile import Shape, reconcile
from narrows.templates.canary_rollout import report_markdown

REPORT = "report.md"
_CONFOUNDED = (
    "hosts and upgrade are one here: what differs may be the hosts' own, and it may hide what the upgrade costs. "
    "Measuring the same two sets before the upgrade (--before), or runs of both from then (--baseline), separates them"
)
_EMULATED = (
    "the device is emulated: its steps are timers, and an upgrade of a driver or of firmware cannot show in them"
)
_LOCAL = "the local launcher plays all hosts on this machine; nothing is said of machines of these names"


def finish(session: Session, rollout: Rollout) -> dict[str, Any]:
    """The record of a roll-out that has nothing left to do: concluded, with its report kept, and its case if slower.

    Raises ``LaunchError`` where nothing could be measured.
    """
    ended, sentence = conclude(session)
    new_case = _new_case(session, rollout) if ended is Admission.REGRESSED and not rollout.before else None
    record = record_of(session, rollout, ended, sentence) | {"new_case": new_case}
    keep_report(session, record)
    return record


def _new_case(session: Session, rollout: Rollout) -> str | None:
    """The case file relative to the workspace; None where the runs make no case."""
    try:
        return write_regressed_case(session.base, rollout, session).name
    except NarrowsError as error:
        session.say(f"no case file can be made of it: {error}")
        return None


def record_of(session: Session, rollout: Rollout, ended: Admission, sentence: str) -> dict[str, Any]:
    """The whole outcome as plain JSON values; times in ms a step. What was not measured is None or empty."""
    state = session.state
    judged, hosts = state.judgement(SLOWER), _hosts(state)
    numbers = judged.numbers if judged else {}
    workspace = session.directory.parent.parent
    found: dict[str, Any] = {
        "schema": 1,
        "kind": "canary-rollout",
        "name": rollout.name,
        "outcome": ended.value,
        "admitted_as": numbers.get("kind") or None,
        "before": rollout.before,
        "sentence": sentence,
        "upgraded": list(rollout.upgraded),
        "control": list(rollout.control),
        "left_out": list(state.opened["left_out"]),
        "effect_ms": judged.effect_ms if judged else None,
        "interval_ms": list(judged.interval_ms) if judged and judged.interval_ms else None,
        "margin_percent": rollout.judging.margin_percent,
        "margin_ms": numbers.get("margin_ms"),
        "pairs": numbers.get("pairs_used", 0),
        "more_pairs": numbers.get("more_pairs"),
        "statistic": rollout.judging.statistic,
        "fingerprints": _between_sets(rollout, hosts),
        "unknown_hosts": [host for host in (*rollout.control, *rollout.upgraded) if host not in hosts],
        "baseline": _baseline(session, rollout, hosts),
        "device": rollout.device,
        "device_hours": round(state.device_hours, 6),
        "folder": str(session.directory.relative_to(workspace)),
        "report": str((session.directory / REPORT).relative_to(workspace)),
    }
    found |= _measured(session, rollout, ended) if state.evidence.get(EXPERIMENT) else _NOT_MEASURED
    found["effect_percent"] = _percent(found["effect_ms"], found["step_ms"].get(CONTROL))
    return found | {"limits": _limits(rollout, found)}


_NOT_MEASURED: dict[str, Any] = {"step_ms": {}, "accounts_ms": {}, "account": None, "carried_by": None, "findings": [],
                                 "emulated": None}  # fmt: skip


def keep_report(session: Session, record: Mapping[str, Any]) -> Path:
    """The report as a file in the roll-out's folder, and the record beside it."""
    session.write_json("record.json", record)
    path = session.directory / REPORT
    path.write_text(report_markdown(record), encoding="utf-8")
    return path


def _hosts(state: State) -> dict[str, Fields]:
    found: dict[str, Fields] = state.findings.get("hosts", {}).get("fields") or state.opened["hosts"]
    return found


def _percent(effect_ms: float | None, control_ms: float | None) -> float | None:
    return 100 * effect_ms / control_ms if effect_ms is not None and control_ms else None


def _measured(session: Session, rollout: Rollout, ended: Admission) -> dict[str, Any]:
    evidence = session.evidence(EXPERIMENT)
    arms = evidence["arms"]
    net = without_baseline(evidence, session.evidence(BASELINE)) if BASELINE in session.state.findings else evidence
    change = account_changes(net)
    found: dict[str, Any] = {
        "step_ms": {arm: arms[arm]["step_ms"] for arm in (CONTROL, UPGRADED)},
        "accounts_ms": {
            one.value: {
                **{arm: arms[arm]["accounts"][account_view(one).value][one.value] for arm in (CONTROL, UPGRADED)},
                "change": change[one.value],
            }
            for one in ACCOUNTS
        },
        "findings": [one["sentence"] for one in evidence["findings"] if one["name"] != Finding.RANK_DIFFERENCE],
        "emulated": evidence["emulated"],
        "account": None,
        "carried_by": None,
    }
    return found | (_carried(net, rollout) if ended is Admission.REGRESSED else {})


def _carried(evidence: dict[str, Any], rollout: Rollout) -> dict[str, Any]:
    """The account that holds the loss, and whose own time it is. It describes; the hypothesis named no host."""
    case = rollout.as_case()
    shape = Shape(
        nodes=len(rollout.upgraded),
        ranks_per_node=rollout.ranks_per_node,
        hosts=tuple(host for host in rollout.upgraded for _ in range(rollout.ranks_per_node)),
        scopes=case.scopes(),
    )
    reading = reconcile(evidence, shape)
    kind, members = reading.culprit["kind"], list(reading.culprit["members"])
    if kind == "rank":  # of some ranks the hosts are named as well
        hosts = list(dict.fromkeys(shape.hosts[at] for at in members))
    elif kind == "all":
        hosts = list(rollout.upgraded)
    else:
        hosts = members if kind == "host" else []
    carried = {"kind": kind, "members": members, "hosts": hosts, "sentence": reading.sentence}
    return {"account": reading.account.value, "carried_by": carried}


def _between_sets(rollout: Rollout, hosts: Mapping[str, Fields]) -> dict[str, dict[str, dict[str, list[str]]]]:
    """By field in which the sets differ, each value with the hosts that have it, set by set."""
    tables = {CONTROL: _values(rollout.control, hosts), UPGRADED: _values(rollout.upgraded, hosts)}
    fields = dict.fromkeys((*tables[CONTROL], *tables[UPGRADED]))
    return {
        name: {arm: table.get(name, {}) for arm, table in tables.items()}
        for name in fields
        if set(tables[CONTROL].get(name, {})) != set(tables[UPGRADED].get(name, {}))
    }


def _values(members: Sequence[str], hosts: Mapping[str, Fields]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    for host in members:
        for name, value in hosts.get(host, {}).items():
            found.setdefault(name, {}).setdefault(value, []).append(host)
    return found


def _baseline(session: Session, rollout: Rollout, hosts: Mapping[str, Fields]) -> dict[str, Any] | None:
    known = session.state.findings.get(BASELINE)
    if known is None:
        return None
    before = estimate(known["d_ms"])
    then: Mapping[str, Fields] = known["hosts"]
    changed = {
        arm: {host: changes(then[host], hosts[host]) for host in members if host in then and host in hosts}
        for arm, members in ((UPGRADED, rollout.upgraded), (CONTROL, rollout.control))
    }
    return {
        "source": known["source"],
        "pairs": before.n,
        "effect_ms": before.mean,
        "interval_ms": list(before.interval) if before.n > 1 else None,
        "step_ms": known["step_ms"],
        "changed": {arm: {host: one for host, one in table.items() if one} for arm, table in changed.items()},
        "compared_hosts": {arm: len(table) for arm, table in changed.items()},
    }


def _limits(rollout: Rollout, found: Mapping[str, Any]) -> list[str]:
    """What the outcome cannot say, each in a sentence."""
    baseline, limits = found["baseline"], []
    if baseline is None and not rollout.before:
        limits.append(_CONFOUNDED)
    if baseline is not None and baseline["compared_hosts"][UPGRADED] and not baseline["changed"][UPGRADED]:
        limits.append("no field of the upgraded hosts' fingerprints changed since the baseline: were they upgraded?")
    if baseline is not None and baseline["changed"][CONTROL]:
        changed = ", ".join(baseline["changed"][CONTROL])
        limits.append(
            f"control hosts changed since the baseline too ({changed}), which the difference cannot tell apart"
        )
    if baseline is None and not rollout.before and not found["fingerprints"] and not found["unknown_hosts"]:
        limits.append(
            "no field of the fingerprints differs between the two sets: nothing that is known tells them apart"
        )
    if found["unknown_hosts"]:
        limits.append(f"nothing is known of {', '.join(found['unknown_hosts'])}; run `narrows watch` there")
    if found["left_out"]:
        limits.append(f"control hosts that were not measured, because there are more than upgraded ones: "
                      f"{', '.join(found['left_out'])}")  # fmt: skip
    if rollout.launcher == "local":
        limits.append(_LOCAL)
    if found["emulated"]:
        limits.append(_EMULATED)
    return limits
