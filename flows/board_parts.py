"""What the board of a case shows beside its hypotheses: what waits and its cost, the ledger, the answers, the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrows.flows.board import escaped, page_key, page_links, table, wrapped
from narrows.flows.claims_links import claims_of
from narrows.flows.postmortem import view_of
from narrows.inquiry.docket import Kind

if TYPE_CHECKING:
    from narrows.flows.session import Session
    from narrows.templates.parts import LedgerRow, LedgerTable

_QUESTION_WIDTH, _REASON_WIDTH = 40, 30


def waiting_of(session: Session, run: str | None = None) -> list[str]:
    """The question that waits for a person, with its cost and how to answer; nothing where none does.

    ``run`` is what `narrows approve` calls the flow run that waits, by default the case.
    """
    last = session.docket.entries[-1]
    if last.kind is not Kind.ASKED:
        return []
    spent, budget_h = session.state.device_hours, session.case.budget.device_hours
    return [
        "### Waits for approval", "",
        f"**{escaped(str(last.body['question']))}**", "",
        f"It would cost {last.body['device_hours']:.3g} device-hours; {spent:.3g} of {budget_h:g} are spent.",
        f"Answer with *Resume* on the page of the flow run, or with `narrows approve {run or session.case.name}`.", "",
    ]  # fmt: skip


def answers_of(session: Session) -> list[str]:
    """Every question that a person answered, with the answer and its reason; nothing where none was."""
    questions = {entry.body["gate"]: str(entry.body["question"]) for entry in session.docket.of(Kind.ASKED)}
    rows = [
        (
            wrapped(questions.get(one.body["gate"], one.body["gate"]), _QUESTION_WIDTH),
            f"**{escaped(one.body['decision'])}**",
            escaped(one.body["by"]),
            wrapped(one.body["reason"], _REASON_WIDTH),
        )
        for one in session.docket.of(Kind.ANSWERED)
    ]
    if not rows:
        return []
    return ["", "### Asked and answered", "", *table(("asked", "decision", "by", "reason"), rows)]


def ledger_of(session: Session) -> list[str]:
    """Where the step's time goes in both runs; nothing before the wall-time reconciliation has read it."""
    if not session.state.reconciliation:
        return []
    return [line for one in view_of(session).ledgers[:1] for line in _ledger(one)]


def _ledger(one: LedgerTable) -> list[str]:
    headers = ("account", f"{one.before}, ms", f"{one.after}, ms", "difference, ms", "share")
    rows = [_ledger_cells(row) for row in (*one.rows, one.total)]
    return ["", "### Where the step's time goes", "", f"In {escaped(one.words)}.", "", *table(headers, rows)]


def _ledger_cells(row: LedgerRow) -> tuple[str, ...]:
    change = f"{row.difference.figure} {row.difference.brackets}".rstrip()
    return escaped(row.account), row.before.figure, row.after.figure, change, row.share.short if row.share else ""


def links_of(session: Session) -> list[str]:
    """Links to the postmortem and to the page of each claim of the case, as far as the server has them."""
    pages = {"postmortem": page_key("postmortem", session.case.name)}
    for name in claims_of(session):
        words = "its claim" if name == session.case.name else f"claim {name}"
        pages[f"{words}, and every revalidation"] = page_key("claim", name)
    found = page_links(pages)
    return ["", " \u00b7 ".join(found)] if found else []
