"""What the findings of the docket say: the symptom, the work, what differs, the cause and the culprit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from narrows.inquiry import proposals
from narrows.inquiry.state import State
from narrows.templates import ladder_rows
from narrows.templates.inputs import Inputs
from narrows.templates.numbers import number, real, reals, share, significant
from narrows.templates.parts import Counter, Difference, Symptom

SHARD_WORDS = "the slow part goes along with its share of the data, whichever rank works on it"


def symptom(inputs: Inputs) -> Symptom:
    state, reference = inputs.state, inputs.state.reference
    source = inputs.finding_source("reference")
    healthy, change = real(reference.get("healthy_ms")), real(reference.get("delta_ms"))
    margin = reference.get("margin_ms", state.opened.get("margin_ms"))
    # Both steps carry the decimals in which their difference shows.
    places = max(1, min(2, significant(change))) if change else 1
    judged = state.judgement("regression:again") or state.judgement("regression")
    return Symptom(
        healthy=number(healthy, source, decimals=places),
        regressed=number(reference.get("regressed_ms"), source, decimals=places),
        difference=number(change, source, interval=reference.get("interval_ms"), signed=True),
        percent=share(change, healthy, source) if healthy and change is not None else None,
        margin=number(margin, source),
        pairs=len(reals(reference.get("d_ms"))),
        tested=bool(reference.get("tested", True)),
        statistic=_statistic(str(reference.get("statistic") or inputs.case.judging.statistic)),
        reason=ladder_rows.scrub(judged.reason, inputs.directory) if judged else "",
    )


_STATISTICS = {
    "mean": "mean of the steps",
    "median": "median step",
    "low50": "mean of the faster half of the steps",
    "es95": "mean of the slowest twentieth of the steps",
}


def _statistic(name: str) -> str:
    """What a run's steps are reduced to, in words; percentiles keep their names."""
    return _STATISTICS.get(name, f"{name} of the steps")


def counters(inputs: Inputs) -> tuple[Counter, ...]:
    source = inputs.finding_source("numerator")
    counters = inputs.state.findings.get("numerator", {}).get("counters") or {}
    return tuple(
        Counter(
            name=_counter_words(str(name)),
            healthy=number(one.get("healthy"), source, unit=""),
            regressed=number(one.get("regressed"), source, unit=""),
            ratio=number(one.get("ratio"), source, unit=""),
        )
        for name, one in counters.items()
    )


def _counter_words(name: str) -> str:
    """``sum of squared sequence lengths (largest rank)`` for ``sum_sq_len (max)``."""
    words = name.replace("sum_sq_len", "sum of squared sequence lengths").replace("_", " ")
    return (
        words.replace("(max)", "(largest rank)")
        .replace("(max rank)", "(largest rank)")
        .replace("(total)", "(all ranks)")
    )


def differences(inputs: Inputs) -> tuple[Difference, ...]:
    found = inputs.state.findings.get("manifest", {}).get("differences") or ()
    return tuple(_difference(one, inputs.directory) for one in found)


def _difference(one: Mapping[str, Any], directory: Path) -> Difference:
    touched = one.get("accounts") or ()
    accounts = ", ".join(str(name) for name in touched) if isinstance(touched, (list, tuple)) else str(touched)
    return Difference(
        field=str(one.get("field", "")),
        healthy=_shown(one.get("healthy"), directory),
        regressed=_shown(one.get("regressed"), directory),
        touches=accounts or str(one.get("kind") or ""),
        matters=bool(accounts) or one.get("kind") != "harmless",
        why=ladder_rows.scrub(str(one.get("why") or ""), directory),
    )


def _shown(value: Any, directory: Path) -> str:
    """A manifest's value in few characters; a field that one run lacks says so."""
    if value is None:
        return "absent"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {item}" for name, item in value.items()) or "empty"
    text = ladder_rows.scrub(str(value), directory)
    return text if len(text) <= 60 else f"{text[:57]}..."


def equal_fields(state: State) -> int | None:
    found = state.findings.get("manifest", {}).get("equal")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def mechanism_words(inputs: Inputs) -> str:
    named = inputs.concluded.mechanism or inputs.state.mechanism
    if named == "shard":
        return SHARD_WORDS
    return proposals.MECHANISM_WORDS.get(named, named.replace("_", " ")) if named else ""


def culprit(inputs: Inputs) -> str:
    """``host n1``, ``ranks 2 and 3``; empty where nobody in particular is to blame."""
    found = inputs.concluded.culprit
    if found.get("kind") == "none":
        found = inputs.state.culprit or found
    kind, members = str(found.get("kind") or "none"), [str(one) for one in found.get("members") or ()]
    if kind in ("none", "all", "varies") or not members:
        return ""
    named = " and ".join(members) if len(members) < 3 else ", ".join(members)
    if kind == "link":
        return f"the link between {named}"
    if kind == "rail":
        return f"the rail of ranks {named}"
    if kind == "group":
        return f"process group {named}"
    return f"{kind.removesuffix('s')}{'s' if len(members) > 1 else ''} {named}"
