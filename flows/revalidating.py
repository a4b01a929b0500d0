"""Runs claims again: what is due, one claim's experiments under the full rule, and what is kept of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from narrows.flows import engine
from narrows.flows.claims_propose import today
from narrows.flows.claims_store import ClaimStore
from narrows.flows.revalidating_judge import judge_claim
from narrows.flows.session import Session
from narrows.inquiry.claim import Claim, Metric, Outcome
from narrows.inquiry.codec import plain
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import CaseError, NarrowsError
from narrows.inquiry.fingerprint import Fields
from narrows.inquiry.hypotheses import ANALYSIS_VERSION
from narrows.inquiry.revalidation import RANGE_KEYS, Reason, due, next_step, outcome, present_key
from narrows.inquiry.state import State
from narrows.inquiry.steps import Ask, Judge, Launch, Register

FOLDER = "revalidations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A claim with the reasons to run it again (none: it is not due), and what is known of its nodes."""

    claim: Claim
    reasons: tuple[Reason, ...]
    nodes: Mapping[str, Fields]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revalidated:
    """How one claim ended. Times in ms a step; ``folder`` and ``new_case`` are relative to the workspace."""

    claim: str
    case: str
    outcome: Outcome
    sentence: str
    reasons: tuple[str, ...]
    found_ms: float | None
    interval_ms: tuple[float, float] | None
    accepted_ms: tuple[float, float | None]
    gain_ms: float | None
    folder: str
    device_hours: float
    new_case: str | None = None


def find_due(
    store: ClaimStore, names: Sequence[str], nodes_of: Callable[[Claim], Mapping[str, Fields]], *, every: bool
) -> list[Due]:
    """The claims ``names`` (all where empty) with the reasons to run each again; ``every`` is one for all of them."""
    found = []
    for name in names or store.names():
        claim = store.load(name)
        nodes = nodes_of(claim)
        last = max([claim.confirmed, *(one["day"] for one in held_entries(store, claim))])
        reasons = due(claim, nodes, last, date.fromisoformat(today()), store.confirmed_values(claim))
        if every and not reasons:
            reasons = (Reason(field="asked", words="asked for"),)
        unknown = tuple(host for host in claim.hosts if host not in nodes)
        found.append(Due(claim=claim, reasons=reasons, nodes=nodes, unknown=unknown))
    return found


def find_due_or_damaged(
    store: ClaimStore, names: Sequence[str], nodes_of: Callable[[Claim], Mapping[str, Fields]], *, every: bool
) -> tuple[list[Due], dict[str, str]]:
    """As ``find_due``; asked for all claims, what is wrong with one keeps no other from being run, and is told."""
    if names:
        return find_due(store, names, nodes_of, every=every), {}
    found: list[Due] = []
    damaged: dict[str, str] = {}
    for name in store.names():
        try:
            found += find_due(store, [name], nodes_of, every=every)
        except CaseError as error:
            damaged[name] = "; ".join(error.places)
    return found, damaged


def held_entries(store: ClaimStore, claim: Claim) -> list[dict[str, Any]]:
    """The revalidations in which this very claim held, oldest first."""
    held = Outcome.HOLDS.value
    return [one for one in store.history(claim.name) if one["outcome"] == held and one["claim"] == claim.digest()]


def open_revalidation(store: ClaimStore, one: Due, **given: Any) -> Session:
    """A docket of its own for this revalidation; one that was cut short on the same nodes is continued."""
    opened = {
        "case": one.claim.name,
        "claim_digest": one.claim.digest(),
        "claim": plain(one.claim),
        "reasons": [plain(reason) for reason in one.reasons],
        "nodes": {host: dict(fields) for host, fields in one.nodes.items()},
        "analysis_version": ANALYSIS_VERSION,
        "healthy_step_ms": one.claim.reproducer.expected_step_s * 1e3,
        "run_s": one.claim.reproducer.run_s,
    }
    directory = _unfinished(store, opened) or dated_folder(store.workspace / FOLDER, one.claim.name)
    docket = Docket.open(directory / "docket.jsonl")
    session = Session(case=one.claim.as_case(), directory=directory, docket=docket, **given)
    if len(docket) == 0:
        session.note(Kind.OPENED, opened)
        effect = one.claim.range(Metric.EFFECT)
        assert effect is not None
        reference = {"delta_ms": effect.found, "d_ms": list(effect.pairs) or [effect.found], "tested": True}
        session.note(
            Kind.FINDING, {"topic": "reference", "numbers": reference, "file": f"claims/{one.claim.name}.yaml"}
        )
    return session


def dated_folder(parent: Path, name: str) -> Path:
    """A folder ``NAME-DATE-TIME`` in ``parent`` that is not there yet."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    base, number = parent / f"{name}-{stamp}", 1
    while (folder := base if number == 1 else base.with_name(f"{base.name}-{number}")).exists():
        number += 1
    return folder


def _unfinished(store: ClaimStore, opened: dict[str, Any]) -> Path | None:
    for folder in sorted((store.workspace / FOLDER).glob(f"{opened['case']}-[0-9]*"), reverse=True):
        if not (folder / "docket.jsonl").is_file():
            continue
        state = State.of(Docket.open(folder / "docket.jsonl"))
        same = all(state.opened.get(key) == opened[key] for key in ("claim_digest", "nodes", "analysis_version"))
        return folder if same and state.concluded is None else None
    return None


def perform(session: Session, step: Register | Launch | Judge | Ask) -> None:
    """Does what ``step`` says and appends it to the docket."""
    if isinstance(step, Judge):
        for found in judge_claim(session, step):
            engine.record(session, step, found)
    else:
        engine.perform(session, step)


def conclude(session: Session, claim: Claim) -> tuple[Outcome, str]:
    """Puts the end of a revalidation on record, once."""
    ended, sentence = outcome(session.state)
    if session.state.concluded is None:
        session.note(
            Kind.CONCLUDED, {"status": "concluded", "reason": sentence, "conclusion": {"outcome": ended.value}}
        )
    session.say(f"claim {claim.name}: {ended.value.upper()}: {sentence}")
    return ended, sentence


def settle(
    store: ClaimStore, one: Due, session: Session, ended: Outcome, sentence: str, run: str | None = None
) -> Revalidated:
    """What follows from the end: the history, the date of confirmation, and for a moved range a new case file.

    ``run`` is the flow run that it happened in.
    """
    from narrows.flows.revalidating_case import write_moved_case

    claim, state = one.claim, session.state
    new_case = None
    if ended is Outcome.MOVED:
        try:
            new_case = str(write_moved_case(store, claim, session).relative_to(store.workspace))
        except NarrowsError as error:
            session.say(f"claim {claim.name}: no case file can be made of it: {error}")
    effect = state.judgement(RANGE_KEYS[Metric.EFFECT]) or state.judgement(present_key(claim))
    gain = state.judgement(RANGE_KEYS[Metric.GAIN])
    accepted = claim.range(Metric.EFFECT)
    assert accepted is not None
    found = Revalidated(
        claim=claim.name,
        case=claim.case,
        outcome=ended,
        sentence=sentence,
        reasons=tuple(reason.words for reason in one.reasons),
        found_ms=effect.effect_ms if effect else None,
        interval_ms=effect.interval_ms if effect else None,
        accepted_ms=(accepted.low, accepted.high),
        gain_ms=gain.effect_ms if gain else None,
        folder=str(session.directory.relative_to(store.workspace)),
        device_hours=round(state.device_hours, 6),
        new_case=new_case,
    )
    day = today()
    entry = plain(found) | {"claim": claim.digest(), "day": day, "at_ns": time.time_ns(), "fields": _values(one)}
    entry["run"] = run
    store.record(claim.name, entry)
    if ended is Outcome.HOLDS:
        store.confirm(claim.name, day)
    return found


def settled_by(store: ClaimStore, name: str, run: str) -> Revalidated | None:
    """What the flow run ``run`` found of the claim; None where it did not come to it."""
    names = [one.name for one in dataclasses.fields(Revalidated)]
    for entry in reversed(store.history(name)):
        if entry.get("run") == run:
            known = {key: entry[key] for key in names} | {"claim": name, "outcome": Outcome(entry["outcome"])}
            pairs = {key: tuple(known[key]) for key in ("reasons", "accepted_ms", "interval_ms") if known[key]}
            return Revalidated(**known | pairs)
    return None


def _values(one: Due) -> dict[str, list[str]]:
    """The values of the claim's fields on its nodes, as they were when it was run again."""
    found: dict[str, list[str]] = {}
    for dependency in one.claim.depends_on:
        for fields in one.nodes.values():
            value = fields.get(dependency.field)
            if value is not None and value not in found.setdefault(dependency.field, []):
                found[dependency.field].append(value)
    return found


def revalidate_one(store: ClaimStore, one: Due, **given: Any) -> Revalidated:
    """Runs one claim again, from its docket to its history."""
    session = open_revalidation(store, one, **given)
    for reason in one.reasons:
        session.say(f"claim {one.claim.name}: {reason.words}")
    while (step := next_step(one.claim, session.docket)) is not None:
        perform(session, step)
    return settle(store, one, session, *conclude(session, one.claim))
