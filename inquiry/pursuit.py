"""One experiment of the ladder, from the registration of its hypotheses over launches and looks to their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from narrows.inquiry.case import Case
from narrows.inquiry.design import Experiment, Mode
from narrows.inquiry.hypotheses import Hypothesis
from narrows.inquiry.scopes import Rung
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Topic
from narrows.inquiry.verdict import RegressionStatus, Verdict

FAILURES_ALLOWED = 2
"""A launch that fails twice is not tried again: its hypotheses end inconclusive."""

RESTART_PAIRS = 2
"""Restarts are recorded one quadruple at a time, so that a killed investigation loses no more than that."""


def regression_status(state: State) -> RegressionStatus:
    """Whether the loss is real; the measurement repeated by narrows outranks the given runs."""
    verdict = state.verdict("regression:again") or state.verdict("regression")
    names = {Verdict.SUPPORTED: RegressionStatus.CONFIRMED, Verdict.REJECTED: RegressionStatus.NONE}
    return names.get(verdict, RegressionStatus.INCONCLUSIVE) if verdict else RegressionStatus.INCONCLUSIVE


def pursued(state: State) -> bool:
    """Whether there is a loss to search for: confirmed, or described by single runs that cannot be repeated."""
    status = regression_status(state)
    reference = state.reference
    described = not reference.get("tested", True) and float(reference.get("delta_ms", 0)) > float(
        state.opened["margin_ms"]
    )
    return status is RegressionStatus.CONFIRMED or (status is RegressionStatus.INCONCLUSIVE and described)


def not_pursued(state: State, rung: Rung) -> Skip | None:
    if pursued(state):
        return None
    none = regression_status(state) is RegressionStatus.NONE
    return Skip(rung=rung, reason="there is no regression to search for" if none else "the loss is not confirmed")


def pursue(
    case: Case,
    state: State,
    rung: Rung,
    hypotheses: Sequence[Hypothesis],
    experiment: Experiment | None = None,
    *,
    topic: Topic = Topic.EXPERIMENT,
    later: Sequence[Hypothesis] = (),
) -> Step | None:
    """Register, launch until there is enough, judge; None when all of ``hypotheses`` have their verdict.

    ``later`` are registered along, before the launch, and judged by another rung.
    """
    missing = tuple(one for one in (*hypotheses, *later) if one.key not in state.ids)
    if missing:
        return Register(rung=rung, hypotheses=missing)
    open_ids = tuple(state.ids[one.key] for one in hypotheses if state.judgement(one.key) is None)
    if not open_ids:
        return None
    if experiment is not None and not exhausted(state, experiment.key):
        wanted = min(max(experiment.pairs, state.wanted.get(experiment.key, 0)), experiment.max_pairs)
        have = state.pairs(experiment.key)
        if have < wanted:
            return _launch(case, state, rung, experiment, have, wanted - have)
    return Judge(rung=rung, topic=topic, hypotheses=open_ids, experiment=experiment.key if experiment else None)


def exhausted(state: State, experiment: str) -> bool:
    """Whether no launch of the experiment may follow: it was declined, or failed too often."""
    declined = state.answers.get(experiment, {}).get("decision") == "skip"
    return declined or len(state.failures.get(experiment, ())) >= FAILURES_ALLOWED


def _launch(case: Case, state: State, rung: Rung, experiment: Experiment, first: int, pairs: int) -> Launch | Ask:
    if experiment.mode is Mode.RESTART or not case.workload.builtin:
        pairs = min(pairs, RESTART_PAIRS)
    cost = experiment.device_hours(pairs, case.judging.start_s)
    left = case.budget.device_hours - state.device_hours
    approved = state.answers.get(experiment.key, {}).get("decision") == "approve"
    if not approved and (cost > case.budget.ask_above_device_hours or cost > left):
        where = ", ".join(experiment.placement.names)
        over = f"more than the {left:.3g} left of the budget" if cost > left else "above the ask line"
        return Ask(
            rung=rung,
            gate=experiment.key,
            question=f"Run {experiment.key} on {where}: {cost:.3g} device-hours, {over}",
            device_hours=cost,
        )
    return Launch(
        rung=rung,
        experiment=experiment,
        launch=len(state.launches.get(experiment.key, ())) + 1,
        first_pair=first,
        pairs=pairs,
        device_hours=cost,
    )
