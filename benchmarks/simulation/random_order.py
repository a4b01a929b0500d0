"""B3: the shipped rules, but the scopes in a random order, up to the first that shows the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from narrows.flows import engine
from narrows.flows.session import Session, begin
from narrows.inquiry.codec import plain
from narrows.inquiry.conclusion import conclude
from narrows.inquiry.docket import Docket
from narrows.inquiry.ladder import LADDER
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung
from narrows.inquiry.steps import Step
from simulation.cases import SimulatedCase
from simulation.scoring import grade


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """Whether the cause was named right, and the device time that the scopes took, in the unit of a score's cost."""

    right: bool
    cost: float


def climb_in_random_order(case: SimulatedCase, opened: Session) -> Climb:
    """The case of ``opened`` once more, from its recorded runs, on a cluster of its own and without perturbations.

    A seed draws the order, so the same case gives the same climb.
    """
    cluster = replace(case.cluster, device_seconds=0.0)
    folder = opened.directory.with_name("random-order")
    folder.mkdir()
    session = replace(opened, directory=folder, docket=Docket.open(folder / "docket.jsonl"), launcher=cluster, cache={})
    begin(session, opened.evidence("given"))
    scopes = [SCOPE_RUNGS[scope] for scope in session.case.scopes()]
    order = np.random.default_rng(case.cluster.seed).permutation(len(scopes))
    rungs = [Rung.MANIFEST, Rung.RECONCILIATION, *(scopes[at] for at in order)]
    for step in _steps(session, rungs):
        engine.perform(session, step)
    right = grade(case.kind, plain(conclude(session.state))) == "right"
    return Climb(right=right, cost=cluster.device_seconds / case.full_scale_device_seconds)


def _steps(session: Session, rungs: list[Rung]) -> Iterator[Step]:
    """What comes next, as long as no scope has shown the loss."""
    for rung in rungs:
        while session.state.first_scope is None and rung not in session.state.skipped:
            step = LADDER[rung](session.case, session.state)
            if step is None:
                break
            yield step
