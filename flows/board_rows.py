"""What the board and the page say of a case: a row for each hypothesis, a word and a sentence for each rung."""

from __future__ import annotations

from collections.abc import Iterable

from narrows.flows.board import BoardRow, table, wrapped
from narrows.inquiry.hypotheses import Hypothesis, Registration
from narrows.inquiry.scopes import SCOPE_RUNGS, Rung
from narrows.inquiry.state import State
from narrows.inquiry.verdict import Verdict

_SPEAKS = {
    Rung.MANIFEST: ("regression:again", "regression"),
    **{rung: (f"scope:{scope.value}",) for scope, rung in SCOPE_RUNGS.items()},
    Rung.PERTURBATION: ("perturbation:",),
}
"""The hypotheses, by the beginning of their key, that speak for a rung that has others as well."""

_WIDTH = 34


def rung_of(hypothesis: Hypothesis) -> Rung:
    """The rung that judges ``hypothesis``; a change that also proves changed work is registered two rungs early."""
    return Rung.PERTURBATION if hypothesis.key.startswith("perturbation:") else hypothesis.rung


def rows_of(state: State) -> list[BoardRow]:
    """One row for each registered hypothesis, rung by rung, within a rung in the order of registration."""
    rows = []
    for number in sorted(state.registrations, key=lambda one: rung_of(state.registrations[one].hypothesis).number):
        registration = state.registrations[number]
        one, found = registration.hypothesis, state.judgements.get(number)
        running = one.experiment is not None and bool(state.launches.get(one.experiment))
        rows.append(
            BoardRow(
                number=number,
                scope=rung_of(one).label,
                hypothesis=one.claim,
                prediction=one.prediction.words(),
                reject_if=one.reject_if.words(),
                verdict=found.verdict.value if found else "running" if running else "registered",
                evidence=found.reason if found else f"registered as {registration.sha256[:12]}",
            )
        )
    return rows


def registered_markdown(registrations: Iterable[Registration]) -> str:
    """What was put on record, with the digests that the docket holds."""
    rows = [
        (
            f"{one.id}<br>`{one.sha256[:12]}`",
            wrapped(one.hypothesis.claim, _WIDTH),
            wrapped(one.hypothesis.prediction.words(), _WIDTH),
            wrapped(one.hypothesis.reject_if.words(), _WIDTH),
        )
        for one in registrations
    ]
    return "\n".join(table(("", "claim", "predicts", "rejected if"), rows)) + "\n"


def judged_at(state: State, rung: Rung) -> list[str]:
    """The numbers of the hypotheses of ``rung`` that have their verdict, in the order of registration."""
    numbers = [number for number, one in state.registrations.items() if rung_of(one.hypothesis) is rung]
    return [number for number in numbers if number in state.judgements]


def rung_outcome(state: State, rung: Rung) -> tuple[str, str]:
    """A rung's word (a verdict, skipped or open) and its sentence, which names the hypothesis that speaks for it."""
    if rung in state.skipped:
        return "skipped", state.skipped[rung]
    judged = judged_at(state, rung)
    if not judged:
        return "open", "nothing is decided yet; a launch waits for approval, or the investigation ended before it"
    main = _speaker(state, rung, judged)
    found = state.judgements[main]
    others = [f"{number} {state.judgements[number].verdict.value}" for number in judged if number != main]
    also = f" ({', '.join(others)})" if others else ""
    return found.verdict.value, f"{main} {found.verdict.value}: {found.reason}{also}"


def _speaker(state: State, rung: Rung, judged: list[str]) -> str:
    """The hypothesis whose verdict is the rung's: the first supported one of those that may speak for it."""
    for beginning in _SPEAKS.get(rung, ()):
        named = [number for number in judged if state.registrations[number].hypothesis.key.startswith(beginning)]
        if named:
            judged = named
            break
    supported = (number for number in judged if state.judgements[number].verdict is Verdict.SUPPORTED)
    return next(supported, judged[0])
