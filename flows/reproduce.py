"""Runs a case's smallest reproducer again, beside the record, and compares it with what was found."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from narrows.flows.launching import launch
from narrows.flows.plan_files import jobs
from narrows.flows.session import Session
from narrows.inquiry import plans
from narrows.inquiry.errors import CaseError
from narrows.inquiry.verdict import Verdict
from narrows.reducers.comparison import judge_scope
from narrows.reducers.evidence import ArmRuns, build_evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The repeated effect (ms a step, 90 % interval) beside the recorded one, and whether the loss is still there."""

    scope: str
    verdict: Verdict
    effect_ms: float
    interval_ms: tuple[float, float] | None
    recorded_ms: float | None
    reason: str
    folder: str


def reproduce(session: Session) -> Reproduction:
    """The smallest experiment that showed the loss, run again into ``reproductions/`` in the case's folder.

    Raises ``CaseError`` when no scope has shown the loss, ``LaunchError`` when it cannot be run.
    """
    state = session.state
    scope = state.first_scope
    if scope is None:
        raise CaseError(f"{session.case.name}: no experiment has shown the loss yet, so there is nothing to reproduce")
    hypothesis = state.hypothesis(f"scope:{scope.value}")
    recorded = state.judgement(f"scope:{scope.value}")
    assert hypothesis is not None
    experiment = plans.at_scope(session.case, state, scope)
    folder = session.directory / "reproductions" / time.strftime("%Y%m%d-%H%M%S")
    runs: dict[str, list[Path]] = {}
    for job in jobs(experiment, folder, first_pair=0, pairs=experiment.pairs, base=session.base):
        launch(session.launcher, job.plan, on_line=session.show_line)
        for arm, path in job.runs.items():
            runs.setdefault(arm, []).append(path)
    evidence = build_evidence(
        experiment.key,
        (
            ArmRuns(name=experiment.before.name, paths=tuple(runs[experiment.before.name])),
            ArmRuns(name=experiment.after.name, paths=tuple(runs[experiment.after.name])),
        ),
        statistic=session.case.judging.statistic,
        mode=experiment.mode.value,
        first_pair=0,
        washout=experiment.washout,
    )
    found = judge_scope(
        evidence["difference"]["step_ms"],
        [float(one) for one in state.reference["d_ms"]],
        rho=hypothesis.rho,
        alpha=hypothesis.alpha,
        looks=hypothesis.looks,
        predicted_ms=hypothesis.pi_ms,
    )
    return Reproduction(
        scope=scope.words,
        verdict=found.verdict,
        effect_ms=found.effect_ms,
        interval_ms=found.interval_ms,
        recorded_ms=recorded.effect_ms if recorded else None,
        reason=found.reason,
        folder=str(folder.relative_to(session.directory)),
    )
