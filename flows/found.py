"""What a judgement is made of, shared by those on given runs and those on experiments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from narrows.inquiry.hypotheses import Hypothesis, Registration
from narrows.inquiry.verdict import Verdict

GIVEN = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one judgement says. ``wanted_pairs`` set: not decided, go on to so many pairs. ``file`` is the evidence."""

    hypothesis: str | None = None
    verdict: Verdict | None = None
    effect_ms: float | None = None
    interval_ms: tuple[float, float] | None = None
    reason: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)
    wanted_pairs: int | None = None
    pairs: int = 0
    file: str = "evidence/given.json"


def unable(one: Registration, why: str, experiment: str) -> Found:
    """No verdict can be given, and why."""
    return Found(hypothesis=one.id, verdict=Verdict.INCONCLUSIVE, reason=why, file=f"evidence/{experiment}.json")


def evidence_file(hypothesis: Hypothesis) -> str:
    """The evidence file of the hypothesis, relative to the case's folder."""
    return f"evidence/{hypothesis.experiment}.json" if hypothesis.experiment else f"evidence/{GIVEN}.json"
