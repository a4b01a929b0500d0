"""Verdicts on swaps: what stays with the place, what goes with the shard, and what takes both."""

from __future__ import annotations

import math
from typing import Any

from narrows.flows.found import GIVEN, Found, evidence_file, unable
from narrows.flows.judging_scope import can_grow, conclusion
from narrows.flows.session import Session
from narrows.inquiry.hypotheses import Registration, Test
from narrows.reducers.comparison import needs_more
from narrows.reducers.crossover import (
    Decision,
    Judged,
    OrderEffect,
    Source,
    both_in_part,
    cells,
    contrast,
    decide,
    judge_family,
    order_effect,
    williams,
)
from narrows.reducers.estimates import interval_ms

Key = tuple[int, str]
"""The suspected column and the source."""


def judge_swap(session: Session, one: Registration, evidence: dict[str, Any]) -> Found:
    """One contrast of a swap, beside all others that were registered for it.

    More squares are asked for only while what they say of this suspect together is open.
    """
    hypothesis = one.hypothesis
    squares, order = _squares(evidence)
    if not squares:
        return unable(one, "no rotation was completed", hypothesis.experiment or GIVEN)
    family = _family(session, one)
    table = cells(squares)
    contrasts = {key: contrast(table, key[1], key[0], other.hypothesis.ranks[1:]) for key, other in family.items()}
    reference = [float(ms) for ms in session.state.reference["d_ms"]]
    predicted = float(hypothesis.pi_ms or 0.0)
    judged = judge_family(
        contrasts, reference, predicted, rho=hypothesis.rho, alpha=hypothesis.alpha, looks=hypothesis.looks
    )
    suspect, source = hypothesis.ranks[0], hypothesis.mechanism
    decision = _decision(suspect, contrasts, judged, reference, predicted, one)
    mine = judged[suspect, source]
    wanted = needs_more(mine.verdict, hypothesis.looks)
    if decision is Decision.INCONCLUSIVE and wanted is not None and can_grow(session, hypothesis):
        return Found(
            hypothesis=one.id, reason=mine.verdict.reason, wanted_pairs=wanted, pairs=len(squares),
            file=evidence_file(hypothesis),
        )  # fmt: skip
    later = order_effect(squares, order)
    return conclusion(
        one, mine.verdict, notes=_notes(decision, later), numbers=_numbers(suspect, judged, decision, mine, later)
    )


def _family(session: Session, one: Registration) -> dict[Key, Registration]:
    """Every contrast that was registered for the same experiment, this one among them."""
    every = [*session.state.registrations.values(), one]
    return {
        (other.hypothesis.ranks[0], other.hypothesis.mechanism): other
        for other in every
        if other.hypothesis.test is Test.SWAP and other.hypothesis.experiment == one.hypothesis.experiment
    }


def _squares(evidence: dict[str, Any]) -> tuple[list[list[list[float]]], list[int]]:
    """Local times by square, rotation and place, of the squares that are whole, and how each was played."""
    arms = [{unit["pair"]: unit for unit in arm["units"]} for arm in evidence["arms"].values()]
    whole = sorted(set.intersection(*(set(arm) for arm in arms)))
    local = [[list(arm[pair]["local_ms"]) for arm in arms] for pair in whole]
    last = arms[williams(len(arms))[-1]]
    order = [1 if arms[0][pair]["started_ns"] < last[pair]["started_ns"] else -1 for pair in whole]
    return local, order


def _decision(
    suspect: int,
    contrasts: dict[Key, list[float]],
    judged: dict[Key, Judged],
    reference: list[float],
    predicted: float,
    one: Registration,
) -> Decision:
    hardware, data = (suspect, Source.HARDWARE.value), (suspect, Source.DATA.value)
    together = judged.get((suspect, Source.INTERACTION.value))
    alpha = one.hypothesis.alpha / one.hypothesis.family

    def partly() -> bool:
        return both_in_part(
            contrasts[hardware], contrasts[data], reference, predicted, alpha=alpha, looks=one.hypothesis.looks
        )

    return decide(judged[hardware].verdict, judged[data].verdict, together.verdict if together else None, partly=partly)


def _numbers(
    suspect: int, judged: dict[Key, Judged], decision: Decision, mine: Judged, later: OrderEffect | None
) -> dict[str, Any]:
    effects = {
        source: {
            "effect_ms": one.estimate.mean,
            "standard_error_ms": one.estimate.sd / math.sqrt(one.estimate.n) if one.estimate.n > 1 else None,
            "interval_ms": list(one.estimate.interval) if one.estimate.n > 1 else None,
            "verdict": one.verdict.verdict.value,
        }
        for (column, source), one in judged.items()
        if column == suspect
    }
    found = {"decision": decision.value, "effects": effects, "alpha": mine.alpha, "max_t_p": mine.max_t_p}
    return found | ({} if later is None else {"order_effect_ms": later.ms, "order_effect": later.flagged})


def _notes(decision: Decision, later: OrderEffect | None) -> str:
    said = "" if decision is Decision.INCONCLUSIVE else f"; taken together, the loss {_WORDS[decision]}"
    if later is not None and later.flagged:
        said += f"; order_effect: playing later costs {interval_ms(later.ms, -math.inf, math.inf)}"
    return said


_WORDS = {
    Decision.HARDWARE: "stays with the hardware",
    Decision.DATA: "goes with the data",
    Decision.BOTH: "is carried by hardware and data, a part each",
    Decision.INTERACTION: "needs this shard on this hardware",
    Decision.NEITHER: "is not this suspect's",
}
