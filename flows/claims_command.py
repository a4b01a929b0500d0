"""The body of `narrows claims`: list, show, check, propose, accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from narrows.flows.claims_file import load_claim
from narrows.flows.claims_propose import propose, write_proposal
from narrows.flows.claims_store import ClaimStore, store_at
from narrows.flows.commands import find_case, print_json
from narrows.flows.exits import DONE, USAGE
from narrows.flows.postmortem import shown
from narrows.inquiry.claim import Claim
from narrows.inquiry.codec import plain
from narrows.inquiry.errors import CaseError
from narrows.templates.revalidation import accepted_range, found, in_force


def claims(action: str, name: str | None, folder: Path | None, *, as_json: bool) -> int:
    """Does what ``action`` says. Raises ``CaseError`` for a name that is missing, unknown, or a file with problems."""
    if action == "propose":
        return _propose(_named(name, "propose CASE"), as_json=as_json)
    store = store_at(folder)
    if action == "list":
        return _list(store, as_json=as_json)
    if action == "check":
        return _check(store, name, as_json=as_json)
    if action == "accept":
        return _accept(store, _named(name, "accept NAME"), as_json=as_json)
    return _show(store, _named(name, "show NAME"), as_json=as_json)


def _named(name: str | None, usage: str) -> str:
    if name is None:
        raise CaseError(f"a name is missing; expected `narrows claims {usage}`")
    return name


def _propose(case: str, *, as_json: bool) -> int:
    session = find_case(case)
    path = write_proposal(session.base, propose(session))
    if as_json:
        print_json({"schema": 1, "claim": session.case.name, "file": str(path)})
    else:
        print(f"{shown(path)}: proposed; review it, then: narrows claims accept {session.case.name}")
    return DONE


def _accept(store: ClaimStore, name: str, *, as_json: bool) -> int:
    claim = store.accept(name)
    if as_json:
        print_json({"schema": 1, "claim": claim.name, "file": str(store.path(name))})
    else:
        print(f"{shown(store.path(name).resolve())}: in force; `narrows revalidate` runs it again when it is due")
    return DONE


def _row(store: ClaimStore, name: str, claim: Claim) -> dict[str, Any]:
    history = store.history(name)
    last = history[-1] if history else None
    return {
        "claim": name,
        "case": claim.case,
        "explanation": claim.explanation,
        "account": claim.account,
        "scope": claim.reproducer.scope,
        "confirmed": claim.confirmed,
        "in_force": claim.mitigation.in_force,
        "depends_on": [one.field for one in claim.depends_on],
        "last_outcome": last["outcome"] if last else None,
        "last_day": last["day"] if last else None,
        "revalidations": len(history),
    }


def _list(store: ClaimStore, *, as_json: bool) -> int:
    rows = [_row(store, name, store.load(name)) for name in store.names()]
    if as_json:
        print_json({"schema": 1, "claims": rows, "proposed": store.proposed()})
        return DONE
    for row in rows:
        last = f"{row['last_outcome']} on {row['last_day']}" if row["last_outcome"] else "never run again"
        print(f"{row['claim']}: {row['explanation']} ({row['account'].value}, shown at {row['scope'].words})")
        print(
            f"    confirmed {row['confirmed']}; {last}; mitigation {'in force' if row['in_force'] else 'not in force'}"
        )
    for name in store.proposed():
        print(f"{name}: proposed; `narrows claims accept {name}` puts it in force")
    if not rows and not store.proposed():
        print(f"no claim in {store.folder}")
    return DONE


def _show(store: ClaimStore, name: str, *, as_json: bool) -> int:
    claim = store.load(name) if name in store.names() else load_claim(_file_of(store, name))
    history = store.history(name)
    if as_json:
        print_json({"schema": 1, **plain(claim), "history": history})
        return DONE
    print(f"{claim.name}: {claim.explanation} ({claim.account.value}); case {claim.case}")
    print(f"shown at {claim.reproducer.scope.words} on {', '.join(claim.reproducer.placement.names)}")
    print(f"mitigation: {claim.mitigation.change}; {in_force(claim)}; rollback: {claim.mitigation.rollback}")
    print(f"confirmed {claim.confirmed}; run again after {claim.age_limit_days} days at the latest")
    for one in claim.ranges:
        print(f"  {one.metric.value}: accepted {accepted_range(one.low, one.high)}; {one.how}")
    confirmed = store.confirmed_values(claim)
    for dependency in claim.depends_on:
        values = ", ".join(confirmed[dependency.field])
        print(f"  depends on {dependency.field}: {values}; {dependency.why}")
    for entry in history:
        print(f"  {entry['day']}  {entry['outcome'].upper()}  {found(entry)}  {'; '.join(entry['reasons'])}")
    return DONE


def _file_of(store: ClaimStore, name: str) -> Path:
    if name in store.proposed():
        return store.proposal(name)
    known = ", ".join((*store.names(), *store.proposed())) or "none"
    raise CaseError(f"{name}: there is no claim of this name in {store.folder}; known: {known}")


def _check(store: ClaimStore, name: str | None, *, as_json: bool) -> int:
    """Every problem of every claim, proposals included; 2 where there is one."""
    wanted = [name] if name is not None else [*store.names(), *store.proposed()]
    problems: dict[str, list[str]] = {}
    for one in wanted:
        path = store.path(one) if one in store.names() else _file_of(store, one)
        try:
            load_claim(path)
            problems[one] = []
        except CaseError as error:
            problems[one] = list(error.places)
    if as_json:
        print_json({"schema": 1, "problems": problems})
    else:
        for one, places in problems.items():
            print("\n".join(places) if places else f"{one}: well formed")
        if not wanted:
            print(f"no claim in {store.folder}")
    return USAGE if any(problems.values()) else DONE
