"""Two arms side by side, as a description: which account holds the missing time, where, how sure, and what is next.

Nothing is launched and no cause is claimed: a reading of what was recorded chooses the next experiment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrows.inquiry.accounts import ACCOUNTS, Account
from narrows.reducers import compared_scan, compared_signs, compared_tail
from narrows.reducers.compared_labels import Rules, delta_label_of, label_of
from narrows.reducers.compared_limits import certainty, in_turns, limits
from narrows.reducers.compared_parts import MARGIN, ArmExtras, Change, Comparison, Sources
from narrows.reducers.decisions import NOTHING, NextExperiment, Signs, next_experiment, unsettled
from narrows.reducers.evidence import VIEWS
from narrows.reducers.opinions import opinions
from narrows.reducers.reconcile import Reconciliation
from narrows.reducers.shares import SCREENING_PAIRS
from narrows.reducers.traces.reduced import Label

OFFSET_SHARE = 1.25
"""Of the loss: an account with more than this grew while others fell."""


def compared(evidence: Mapping[str, Any], sources: Sources, extras: Mapping[str, ArmExtras]) -> Comparison:
    """The comparison that ``evidence`` (of arms ``healthy`` and ``regressed``) amounts to.

    Raises ``ValueError`` for arms of different rank counts, which have no ranks to compare.
    """
    arms = evidence["arms"]
    healthy, regressed = (arms[arm] for arm in ("healthy", "regressed"))
    _check_ranks(healthy, regressed, sources)
    bounds = _pair(evidence["intervals"]["step_ms"])
    step = Change(healthy=healthy["step_ms"], regressed=regressed["step_ms"], interval=bounds)
    turns = in_turns(evidence)
    tested = evidence["pairs"] >= SCREENING_PAIRS and turns
    status = _status(step, tested=tested)
    found = compared_signs.reading(evidence, regressed, step)
    lead = compared_signs.lead(found, status, step)
    share = found.share if found is not None and lead is not None else 0.0
    view = found.view if found is not None and lead is not None else "critical_path"
    tables = {name: _table(evidence, name) for name in VIEWS}
    work = compared_signs.work(healthy, regressed)
    slower = status == "slower"
    drift = compared_scan.drift(evidence) if slower else None
    signs = compared_signs.signs(evidence, extras, found, lead, work, step, drift)
    scanned = compared_scan.scan(evidence, lead, regressed, sources.places) if slower else None
    culprit = compared_signs.NOBODY
    if slower and lead is not None:
        culprit = compared_signs.culprit(found, signs, regressed, scanned)
    return Comparison(
        source=sources.source,
        statistic=evidence["statistic"],
        names=sources.names,
        status=status,
        step=step,
        view=view,
        accounts=tables[view],
        views=tables,
        lead=None if lead is None else lead.value,
        lead_ms=share * step.delta,
        lead_share=share,
        reading=_sentence(status, step, found, lead, tables[view])
        if sources.source != "logs"
        else _moved(status, step),
        culprit=culprit,
        follows=" ".join(
            filter(None, (compared_scan.told(scanned, lead), compared_scan.drift_told(drift, signs.growth_share)))
        ),
        pairs=evidence["pairs"],
        tested=tested,
        certainty=certainty(evidence["pairs"], taking_turns=turns, together="together" in evidence),
        window_steps={arm: sum(unit["steps"] for unit in one["units"]) for arm, one in arms.items()},
        work=work,
        differences=compared_signs.differences(evidence, step),
        labels=_labels(tables, view, healthy, regressed, sources),
        coverage=evidence["coverage"],
        losses=tuple(evidence["losses"]),
        limits=limits(evidence, sources, work, taking_turns=turns),
        next=_next(status, step, compared_signs.with_culprit(signs, culprit)),
        steps_ms={arm: tuple(one["steps_ms"]) for arm, one in arms.items()},
        extras=extras,
        emulated=bool(evidence["emulated"]),
        windows=compared_tail.windows(healthy, regressed),
        tail=compared_tail.told(evidence, signs) if slower else "",
        opinions=opinions(evidence) if slower else None,
        expected=evidence.get("expected"),
    )


def _check_ranks(healthy: Mapping[str, Any], regressed: Mapping[str, Any], sources: Sources) -> None:
    counts = len(healthy["ranks"]), len(regressed["ranks"])
    if counts[0] != counts[1]:
        raise ValueError(
            f"{sources.names[0]} has {counts[0]} ranks and {sources.names[1]} has {counts[1]}: a step of another size "
            "is other work; compare runs of the same rank count"
        )


def _status(step: Change, *, tested: bool) -> str:
    margin = MARGIN * step.healthy
    low, high = step.interval if tested and step.interval is not None else (step.delta, step.delta)
    if low > margin:
        return "slower"
    if high < -MARGIN * step.regressed:
        return "faster"
    if max(abs(low), abs(high)) <= margin:
        return "same"
    return "unclear"


def _next(status: str, step: Change, signs: Signs) -> NextExperiment:
    if status == "unclear":
        return unsettled(step.delta, MARGIN * step.healthy)
    return next_experiment(signs) if status == "slower" else NOTHING


def _table(evidence: Mapping[str, Any], view: str) -> dict[str, Change]:
    healthy, regressed = (evidence["arms"][arm]["accounts"][view] for arm in ("healthy", "regressed"))
    bounds = evidence["intervals"][view]
    return {
        str(one): Change(healthy=healthy[one], regressed=regressed[one], interval=_pair(bounds[one]))
        for one in map(str, ACCOUNTS)
    }


def _pair(bounds: Any) -> tuple[float, float] | None:
    return None if bounds is None else (float(bounds[0]), float(bounds[1]))


def _moved(status: str, step: Change) -> str:
    percent = 100 * step.delta / step.healthy if step.healthy else 0.0
    return {
        "slower": f"The second run is slower by {step.delta:.3g} ms a step ({percent:+.1f} %).",
        "faster": f"The second run is faster by {-step.delta:.3g} ms a step ({percent:+.1f} %).",
        "same": f"The step takes the same time within 1 % ({step.delta:+.3g} ms).",
        "unclear": f"The difference of {step.delta:+.3g} ms a step ({percent:+.1f} %) is not settled by these runs.",
    }[status]


def _sentence(
    status: str, step: Change, reading: Reconciliation | None, lead: Account | None, accounts: Mapping[str, Change]
) -> str:
    moved = _moved(status, step)
    if status == "same" or reading is None or (status == "unclear" and lead is None):
        return moved
    if lead is None:
        return f"{moved} No account holds a good part of it."
    if status == "slower":
        return f"{moved.removesuffix('.')}: {reading.sentence}.{_offsets(step, reading, accounts)}"
    return f"{moved.removesuffix('.')}: {lead.value} holds {reading.share:.0%} of the difference."


def _offsets(step: Change, reading: Reconciliation, accounts: Mapping[str, Change]) -> str:
    """What fell meanwhile, where the account grew by clearly more than the step."""
    if reading.share < OFFSET_SHARE:
        return ""
    fallen = sorted((one.delta, name) for name, one in accounts.items() if one.delta < -MARGIN * step.healthy)
    told = ", ".join(f"{name} ({delta:.3g} ms)" for delta, name in fallen)
    return (
        f" {reading.account.capitalize()} grew by more than the step did, since others fell: {told}." if fallen else ""
    )


def _labels(
    tables: Mapping[str, Mapping[str, Change]],
    view: str,
    healthy: Mapping[str, Any],
    regressed: Mapping[str, Any],
    sources: Sources,
) -> dict[str, Label]:
    """Labels of both arms from means over ranks; that of the difference in the view in which it closes."""
    if sources.labels is not None and not sources.labels:
        return {}
    mean = tables["rank_mean"]
    hidden = float(healthy["hidden_ms"]), float(regressed["hidden_ms"])
    rules: Rules = {"has_input_spans": sources.has_input_spans, "thresholds": sources.thresholds}
    return {
        "healthy": label_of({name: one.healthy for name, one in mean.items()}, hidden[0], **rules),
        "regressed": label_of({name: one.regressed for name, one in mean.items()}, hidden[1], **rules),
        "delta": delta_label_of(
            {name: one.healthy for name, one in tables[view].items()},
            {name: one.regressed for name, one in tables[view].items()},
            **rules,
        ),
        **(sources.labels or {}),
    }
