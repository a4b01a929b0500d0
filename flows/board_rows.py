"""The board's rows from the state of a case."""

from __future__ import annotations

from narrows.flows.board import BoardRow
from narrows.inquiry.state import State


def rows_of(state: State) -> list[BoardRow]:
    """One row for each registered hypothesis, in the order of registration."""
    rows = []
    for number, registration in state.registrations.items():
        one, found = registration.hypothesis, state.judgements.get(number)
        running = one.experiment is not None and bool(state.launches.get(one.experiment))
        rows.append(
            BoardRow(
                scope=one.rung.label,
                hypothesis=f"{number} {one.claim}",
                prediction=one.prediction.words(),
                reject_if=one.reject_if.words(),
                verdict=found.verdict.value if found else "running" if running else "registered",
                evidence=found.reason if found else f"registered as {registration.sha256[:12]}",
            )
        )
    return rows
