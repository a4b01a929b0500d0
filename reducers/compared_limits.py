"""How sure a comparison is, and what its evidence cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from narrows.reducers.compared_parts import Sources
from narrows.reducers.ledger import COVERAGE_NEEDED
from narrows.reducers.numerator import NumeratorResult
from narrows.reducers.shares import SCREENING_PAIRS

UNMEASURED_SHARE = 0.1


MOST_IN_A_ROW = 2
"""Units of one arm that may follow each other in pairs of random order; more is a block."""


def in_turns(evidence: Mapping[str, Any]) -> bool:
    """Whether the arms took turns: one after the other, and neither three times in a row. One pair cannot."""
    counts = [len(evidence["arms"][arm]["units"]) for arm in ("healthy", "regressed")]
    if evidence.get("together") or min(counts) < 2:
        return False
    units = sorted(
        (unit["started_ns"], arm) for arm in ("healthy", "regressed") for unit in evidence["arms"][arm]["units"]
    )
    longest, current = 1, 1
    for (_, before), (_, after) in pairwise(units):
        current = current + 1 if before == after else 1
        longest = max(longest, current)
    return longest <= MOST_IN_A_ROW


def certainty(pairs: int, *, taking_turns: bool, together: bool = False) -> str:
    if together:
        return "The runs overlap in time, so they are no pairs: described, not tested."
    if pairs >= SCREENING_PAIRS and taking_turns:
        return f"{pairs} pairs, in turns: tested. Brackets are 90 % intervals over pairs."
    if pairs >= SCREENING_PAIRS:
        return (
            f"{pairs} pairs, but the configurations ran in blocks, not in turns: described, not tested. "
            "What drifted in between is part of the difference."
        )
    return (
        f"{pairs} pair{'' if pairs == 1 else 's'} of runs: described, not tested. "
        f"A test needs at least {SCREENING_PAIRS} runs of each, in turns; two runs of one configuration differ too."
    )


def limits(
    evidence: Mapping[str, Any], sources: Sources, work: NumeratorResult | None, *, taking_turns: bool
) -> tuple[str, ...]:
    """What the evidence cannot show, most serious first within each part."""
    found = [*sources.limits, *_limits_of_pairs(evidence, taking_turns=taking_turns)]
    if sources.source != "logs":
        found += _limits_of_coverage(evidence)
        if len(evidence["arms"]["regressed"]["ranks"]) == 1:
            found.append("one rank alone was recorded: which ranks carry the difference is not known")
    if work is None:
        found.append("no work counters on both sides: a step that does more work looks like a slower one")
    if evidence["emulated"]:
        found.append("kernels were emulated: lengths are computed, not measured on a device")
    if evidence["excluded_steps"]:
        found.append(f"{evidence['excluded_steps']} stalled steps were left out, by a rule that does not see the arm")
    if evidence["losses"]:
        found.append("records were lost while reading; they are listed")
    return tuple(found)


def _limits_of_pairs(evidence: Mapping[str, Any], *, taking_turns: bool) -> list[str]:
    found = []
    pairs = evidence["pairs"]
    if evidence.get("together"):
        found.append("the runs overlap in time: if they shared links, storage or processors, they slowed each other")
        return found
    if pairs < SCREENING_PAIRS:
        found.append("too few pairs for a test: nothing is ruled in or out")
    elif not taking_turns:
        found.append("the configurations did not take turns: drift of the machines is part of the difference")
    total = sum(len(evidence["arms"][arm]["units"]) for arm in evidence["arms"])
    if total > 2 * pairs:
        found.append(f"{total - 2 * pairs} of {total} runs have no partner and are in no interval")
    return found


def _limits_of_coverage(evidence: Mapping[str, Any]) -> list[str]:
    found = []
    coverage = evidence["coverage"]
    if coverage is None:
        found.append("no collective was matched: waiting for other ranks cannot be told from anything else")
    elif coverage < COVERAGE_NEEDED:
        found.append(f"only {coverage:.0%} of the collective time was matched: skew and transfer are not conclusive")
    arms = evidence["arms"].values()
    share = max(arm["accounts"]["rank_mean"]["residual"] / arm["step_ms"] for arm in arms)
    if share > UNMEASURED_SHARE:
        found.append(f"up to {share:.0%} of the step is in no measured span (residual)")
    return found
