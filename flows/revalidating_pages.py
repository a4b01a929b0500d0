"""What the page shows of a revalidation: all claims with what waits, each claim with its history, and the event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from narrows.flows.board import link_back, page_key, page_links, show_page
from narrows.flows.board_parts import answers_of, waiting_of
from narrows.flows.claims_links import cases_of
from narrows.flows.claims_propose import today
from narrows.flows.claims_store import ClaimStore
from narrows.flows.revalidating import Revalidated
from narrows.flows.session import Session
from narrows.inquiry.claim import Claim
from narrows.inquiry.codec import plain
from narrows.templates.revalidation import claim_markdown, report_markdown

ALL_CLAIMS = "revalidation"
"""The key of the page over all claims."""
_DOT = " \u00b7 "


def put_up(rows: Sequence[Mapping[str, Any]], reason: str, asking: Session | None) -> None:
    """All that is known now of all claims, the question that waits with its cost, and the way to each claim's page."""
    above = waiting_of(asking, "revalidate") if asking else []
    text = report_markdown(rows, today(), reason, above)
    links = page_links({f"claim {row['claim']}": page_key("claim", row["claim"]) for row in rows})
    show_page(ALL_CLAIMS, f"{text}\n{_DOT.join(links)}\n", "all claims")


def show_claim(store: ClaimStore, claim: Claim, session: Session, found: Revalidated) -> None:
    """The claim's page, with links to those of its cases that this server has, and from each case's board to it."""
    key, boards, cases = page_key("claim", claim.name), {}, cases_of(store, claim)
    for case in cases:
        boards[f"board of case {case}"] = page_key("board", case)
        boards[f"its postmortem ({case})"] = page_key("postmortem", case)
    text = claim_markdown(claim, store.history(claim.name))
    links = page_links({**boards, "all revalidations": ALL_CLAIMS})
    text += "\n".join([*answers_of(session), "", _DOT.join(links), ""])
    show_page(key, text, f"claim {claim.name}: {found.outcome.value}")
    for case in cases:
        link_back(page_key("board", case), f"claim {claim.name}, and every revalidation", key)


def emit(found: Revalidated) -> None:
    """Tells the server how the claim ended."""
    from prefect.events import emit_event

    emit_event(
        event=f"narrows.claim.{found.outcome.value.replace(' ', '-')}",
        resource={"prefect.resource.id": f"narrows.claim.{found.claim}", "prefect.resource.name": found.claim},
        payload=plain(found),
    )
