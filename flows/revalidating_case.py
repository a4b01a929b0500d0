"""The case file of a claim whose range moved: the runs that showed it, ready to be investigated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from narrows.flows.claims_store import ClaimStore
from narrows.flows.compare_case import write_case
from narrows.flows.compare_inputs import compare_inputs
from narrows.flows.session import Session
from narrows.inquiry.claim import Claim

_HEAD = (
    "# The range of claim {claim} moved; written by `narrows revalidate`. The runs are the revalidation's own, at the\n"
    "# scope of the claim's reproducer ({scope}): the case narrows from there. Look at the budget, then investigate.\n"
)


def write_moved_case(store: ClaimStore, claim: Claim, session: Session) -> Path:
    """A case file in the workspace that ``narrows check`` accepts. Raises ``CaseError`` where none can be made."""
    arms = session.evidence(claim.reproducer.key)["arms"]
    healthy, regressed = ([session.directory / run["path"] for run in arm["runs"]] for arm in arms.values())
    found = compare_inputs(healthy, regressed, claim.judging.statistic)
    path = store.workspace / f"{session.directory.name}.yaml"
    write_case(path, replace(found, statistic=claim.judging.statistic), healthy, regressed)
    text = path.read_text(encoding="utf-8").partition("\n")[2]
    path.write_text(_HEAD.format(claim=claim.name, scope=claim.reproducer.scope.words) + text, encoding="utf-8")
    return path
