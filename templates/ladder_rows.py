"""The ladder as rows: what each hypothesis predicted, what came of it, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.hypotheses import Basis, Hypothesis, Prediction, Registration, Test
from narrows.inquiry.scopes import Scope
from narrows.inquiry.state import Judgement, State
from narrows.inquiry.verdict import Verdict
from narrows.templates.evidence import GIVEN, GIVEN_SOURCE, Record
from narrows.templates.numbers import Number, hours, number, real
from narrows.templates.parts import Approval, LadderRow, ScopePoint

DIGEST_SHOWN = 12
NOT_JUDGED = "not judged"
# A slash that begins a path of at least two parts; not one inside a word, a URL or a relative path.
_ABSOLUTE = re.compile(r"(?<![\w.:/~-])/(?:[\w.+@-]+/)+([\w.+@-]+)")


def scrub(text: str, directory: Path | None) -> str:
    """``text`` on one line, with the case's own paths made relative and any other absolute path cut to its end."""
    if directory is not None and str(directory) not in ("", ".", "/"):
        text = text.replace(f"{directory}/", "")
    return _ABSOLUTE.sub(r".../\1", " ".join(text.split()))


def source_of(found: Judgement | None, one: Hypothesis, known: Mapping[str, Record]) -> str | None:
    """The evidence file behind a judgement; None where there is none."""
    names = [str(used.get("experiment")) for used in found.evidence] if found else []
    names += [one.experiment] if one.experiment else []
    for name in names:
        if name in known:
            return known[name].source
    if one.basis is Basis.GIVEN:
        return given_source(known)
    return None


def given_source(known: Mapping[str, Record]) -> str:
    """The file of what the given runs say, from which every finding came."""
    return known[GIVEN].source if GIVEN in known else GIVEN_SOURCE


def ladder_rows(
    docket: Docket, state: State, known: Mapping[str, Record], directory: Path | None
) -> tuple[LadderRow, ...]:
    """One row a registered hypothesis, in the order of registration."""
    payers: dict[str, str] = {}
    sources = {one.source for one in known.values()}
    told = {str(entry.body.get("hypothesis")): entry.body.get("file") for entry in docket.of(Kind.VERDICT)}
    judged = {key: str(file) for key, file in told.items() if file in sources}
    found = []
    for registration in state.registrations.values():
        one = registration.hypothesis
        source = judged.get(registration.id) or source_of(state.judgements.get(registration.id), one, known)
        found.append(_row(state, registration, source, payers, directory))
    return tuple(found)


def _row(
    state: State,
    registration: Registration,
    source: str | None,
    payers: dict[str, str],
    directory: Path | None,
) -> LadderRow:
    one, found = registration.hypothesis, state.judgements.get(registration.id)
    result, finding = _result(one, found, source)
    return LadderRow(
        id=registration.id,
        key=one.key,
        rung=one.rung.label,
        scope=scope_words(one.scope),
        claim=one.claim,
        prediction=prediction_words(one.prediction),
        reject_if=f"{one.reject_if.words()}".strip(),
        digest=registration.sha256[:DIGEST_SHOWN],
        registered=_when(registration.created_ns),
        result=result,
        finding=scrub(finding, directory),
        reason=scrub(found.reason, directory) if found else "",
        verdict=found.verdict.value if found else NOT_JUDGED,
        surprise=_surprise(one, found),
        cost=_cost(state, registration, payers),
        pairs=_pairs(state, one, found),
        source=source,
    )


def scope_words(scope: Scope | None) -> str:
    """``one node``, ``full scale``; a hypothesis on the given runs as they are has none."""
    if scope is None:
        return "the given runs"
    return "full scale" if scope is Scope.FULL else scope.words


def prediction_words(one: Prediction) -> str:
    """The prediction without trailing blanks, with shares in percent."""
    if one.unit or one.low is None:
        return one.words().strip()
    low = f"{100 * one.low:.0f} %" if "share" in one.metric else f"{one.low:.3g}"
    if one.high is None:
        return f"{one.metric}: at least {low}"
    high = f"{100 * one.high:.0f} %" if "share" in one.metric else f"{one.high:.3g}"
    return f"{one.metric}: {low} to {high}"


def _surprise(one: Hypothesis, found: Judgement | None) -> str:
    """A hypothesis that was put up to be rejected says so, either way."""
    if found is None or one.expected != Verdict.REJECTED.value:
        return ""
    return {Verdict.REJECTED: "as expected", Verdict.SUPPORTED: "against expectation"}.get(found.verdict, "")


def _when(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# What a verdict without an effect in ms is about: the number's name, and the words around it.
_OTHER_RESULTS: dict[Test, tuple[tuple[str, str, str], ...]] = {
    Test.CLOSING: (("share", "%", "of the improvement"),),
    Test.NUMERATOR: (("share", "%", "of the loss"),),
    Test.CURVE: (("bandwidth_ratio", "x", "time per byte"),),
}


def _result(one: Hypothesis, found: Judgement | None, source: str | None) -> tuple[Number | None, str]:
    """The judged number, and words for what it is; a verdict without a number says its reason instead."""
    if found is None:
        return None, "not run yet"
    for name, unit, words in _OTHER_RESULTS.get(one.test, ()):
        value = real(found.numbers.get(name))
        if value is not None:
            scale = 100.0 if unit == "%" else 1.0
            between = found.numbers.get(f"{name}_interval")
            scaled = [scale * end for end in between] if isinstance(between, (list, tuple)) else None
            return number(scale * value, source, unit=unit, interval=scaled), words
    if found.effect_ms is not None:
        # An account changes by different amounts in different views; only these two tests read one of their own.
        view = f"({one.ledger.value.replace('_', ' ')})" if one.test in (Test.ACCOUNT, Test.UNCHANGED) else ""
        return number(found.effect_ms, source, interval=found.interval_ms, signed=True), view
    return None, found.reason


def _pairs(state: State, one: Hypothesis, found: Judgement | None) -> int | None:
    told = found.numbers.get("pairs_used", found.numbers.get("pairs")) if found else None
    if isinstance(told, int) and not isinstance(told, bool):
        return told
    return (state.pairs(one.experiment) or None) if one.experiment else None


def _cost(state: State, registration: Registration, payers: dict[str, str]) -> str:
    """Device-hours, told once for each experiment; the hypotheses that share its runs point to the one that pays."""
    name = registration.hypothesis.experiment
    if name is None:
        return "0"
    if name in payers:
        return f"with {payers[name]}"
    payers[name] = registration.id
    spent = sum(real(one.get("device_hours")) or 0.0 for one in state.evidence.get(name, ()))
    return hours(spent)


def scope_points(state: State, known: Mapping[str, Record]) -> tuple[ScopePoint, ...]:
    """Every scope that was judged, smallest first, the control beside its scope."""
    found = []
    for registration in state.registrations.values():
        one, judged = registration.hypothesis, state.judgements.get(registration.id)
        if one.test is not Test.SCOPE or judged is None or judged.effect_ms is None or one.scope is None:
            continue
        record = known.get(one.experiment or "")
        effect = number(judged.effect_ms, record.source if record else None, interval=judged.interval_ms, signed=True)
        assert effect is not None, registration.id
        low, high = one.prediction.low, one.prediction.high
        control = " (control)" if one.key.startswith("control:") else ""
        point = ScopePoint(
            label=scope_words(one.scope) + control,
            effect=effect,
            predicted=(low, high) if low is not None and high is not None else None,
            boundary=one.reject_if.bound,
            pairs=record.pair_differences() if record else (),
            verdict=judged.verdict.value,
        )
        found.append((one.scope, bool(control), point))
    return tuple(point for _, _, point in sorted(found, key=lambda item: (item[0].order, item[1])))


def approvals(docket: Docket, directory: Path | None) -> tuple[Approval, ...]:
    """Every question put to a person with its answer, in the order in which they were asked."""
    answers = {str(entry.body.get("gate")): entry.body for entry in docket.of(Kind.ANSWERED)}
    asked = {str(entry.body.get("gate")): entry.body for entry in docket.of(Kind.ASKED)}
    found = []
    for gate in dict.fromkeys([*asked, *answers]):
        answer = answers.get(gate, {})
        found.append(
            Approval(
                question=scrub(str(asked.get(gate, {}).get("question") or gate), directory),
                decision=str(answer.get("decision") or "not answered yet"),
                who=str(answer.get("by") or answer.get("who") or "not recorded"),
                reason=scrub(str(answer.get("reason") or ""), directory) or "no reason was given",
            )
        )
    return tuple(found)


def failures(state: State, directory: Path | None) -> tuple[str, ...]:
    """Every launch that did not end well, in one sentence each."""
    return tuple(
        scrub(
            f"{name}, launch {one.get('launch', 1)}: {one.get('reason') or 'no reason was recorded'}",
            directory,
        )
        for name, several in state.failures.items()
        for one in several
    )
