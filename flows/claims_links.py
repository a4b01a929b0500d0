"""Which claims and cases belong together: a case makes a claim, and the moved range of a claim makes a case."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from narrows.flows.casefile import load_case
from narrows.flows.claims_file import load_claim
from narrows.flows.claims_store import ClaimStore
from narrows.inquiry.errors import CaseError

if TYPE_CHECKING:
    from narrows.flows.session import Session
    from narrows.inquiry.claim import Claim


def claims_of(session: Session) -> list[str]:
    """The names of the case's claims beside its file, in force, proposed or revalidated; none where there is none.

    A claim with a problem is left out: whoever runs it again is told.
    """
    store = ClaimStore(session.base / "claims")
    files = [*map(store.path, store.names()), *map(store.proposal, store.proposed())]
    made = [path.name.partition(".yaml")[0] for path in files if _case_of(store, path.name) == session.case.name]
    moved = [path.stem for path in store.histories() if session.case.name in _new_cases(store, path.stem)]
    return sorted({*made, *moved})


def cases_of(store: ClaimStore, claim: Claim) -> list[str]:
    """The case that made the claim, and the cases of its moved ranges."""
    return list(dict.fromkeys([claim.case, *sorted(_new_cases(store, claim.name))]))


def _case_of(store: ClaimStore, file: str) -> str | None:
    with contextlib.suppress(CaseError):
        return load_claim(store.folder / file).case
    return None


def _new_cases(store: ClaimStore, name: str) -> set[str]:
    """The cases that moved ranges of the claim made, as their files call them now."""
    found: set[str] = set()
    with contextlib.suppress(CaseError):
        for entry in store.history(name):
            if entry.get("new_case"):
                with contextlib.suppress(CaseError):
                    found.add(load_case(store.workspace / entry["new_case"], recorded=False).name)
    return found
