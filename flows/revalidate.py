"""Revalidation as a Prefect flow: a root run over all claims, a subflow a claim, a task an experiment and a verdict.

What is due and what comes next follow from the claims and the dockets; this file carries it to the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.client.schemas.objects import State
from prefect.exceptions import Pause
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from narrows.flows import revalidating
from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.board import label_run, tag_run, untagged
from narrows.flows.cancelling import CancelledRunError, CancelWatch, ended_state
from narrows.flows.claims_store import ClaimStore, store_at
from narrows.flows.client_settings import server_needed, without_heartbeat
from narrows.flows.commands import launcher_of
from narrows.flows.context import put
from narrows.flows.dead_runs import crash_dead_runs, docket_tag
from narrows.flows.fingerprint import state_folder
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.progress import Progress
from narrows.flows.revalidating import Due, Revalidated, conclude, find_due_or_damaged, open_revalidation, perform
from narrows.flows.revalidating_nodes import nodes_of
from narrows.flows.revalidating_pages import emit, put_up, show_claim
from narrows.flows.revalidating_report import damaged_rows, keep_report, rows_of, tell
from narrows.flows.run_log import log, logged
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session
from narrows.flows.zombies import TAG, Pulse, beating
from narrows.inquiry.claim import Outcome
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.revalidation import next_step
from narrows.inquiry.steps import Ask, Launch
from narrows.templates.revalidation import counts

_given: ContextVar[dict[str, Any] | None] = ContextVar("narrows_revalidation", default=None)
"""What the command line found already (``store``, ``found``, ``say``), and how it ended (``rows`` or ``error``)."""
_open: ContextVar[tuple[Session, Due, ClaimStore] | None] = ContextVar("narrows_open_claim", default=None)
_pulse: ContextVar[Pulse | None] = ContextVar("narrows_claims_pulse", default=None)
SETTLED_AT_MOST = 20
"""A roll-out that never comes to rest is not waited for longer than so many times the pause that was asked for."""


def run_on_board(
    store: ClaimStore,
    found: Sequence[Due],
    progress: Progress,
    server: ServerHandle,
    left_out: Sequence[dict[str, Any]],
    *,
    approve_all: bool,
) -> list[dict[str, Any]]:
    """The revalidation of ``found`` as a flow run on ``server``: its rows. Raises what ended it before its time."""
    given: dict[str, Any] = {"store": store, "found": found, "say": progress.say, "line": progress.line,
                             "page": server.ui_url, "left_out": left_out}  # fmt: skip
    with server_needed(server.url, "the docket keeps what was found: give the same command again"):
        with put(_given, given), without_heartbeat():  # the pulse beats for it
            names = [one.claim.name for one in found if one.reasons]
            state = revalidate(
                str(store.folder), claims=names, reason="the command line", approve_all=approve_all, return_state=True
            )
        if "error" in given:
            raise given["error"]
        if "rows" not in given:
            state.result()
    rows: list[dict[str, Any]] = given["rows"]
    return rows


@flow(name="revalidate", flow_run_name="revalidate", persist_result=False)
def revalidate(
    folder: str | None = None,
    claims: list[str] | None = None,
    hosts: list[str] | None = None,
    state: str | None = None,
    every: bool = False,
    reason: str = "a person",
    settle_s: float = 0.0,
    approve_all: bool = False,
) -> State[Any]:
    """Runs the claims in ``folder`` again that are due; all of them with ``every``.

    ``claims`` and ``hosts`` leave out the others; ``state`` is where fingerprints are kept. ``settle_s``: wait until no
    host was looked at for so long, so that one run sees a whole roll-out.
    """
    with _alive():
        given = _from_command_line()
        if given is not None:
            return _revalidate(given["store"], given["found"], given, reason, approve_all=approve_all)
        try:
            store, place = store_at(Path(folder) if folder else None), Path(state) if state else None
            with store.held():
                _come_to_rest(state_folder(place), settle_s)
                nodes = nodes_of(hosts=hosts or (), state=place)
                found, damaged = find_due_or_damaged(store, claims or (), nodes, every=every)
                given = {"say": print, "left_out": damaged_rows(damaged)}
                return _revalidate(store, found, given, reason, approve_all=approve_all)
        except NarrowsError as error:
            return Failed(message=str(error))


@contextmanager
def _alive() -> Iterator[None]:
    """The current run beats while it lasts, and so can what runs below it."""
    tag_run([TAG])
    with beating([TAG]) as pulse, put(_pulse, pulse), tags(TAG):
        yield


def _from_command_line() -> dict[str, Any] | None:
    """What the command line found. A served flow is pickled with all that its body names, so it names no variable."""
    return _given.get()


def _come_to_rest(folder: Path, settle_s: float) -> None:
    """Waits until no fingerprint in ``folder`` is younger than ``settle_s`` seconds."""
    end = time.monotonic() + SETTLED_AT_MOST * settle_s
    while settle_s > 0 and time.monotonic() < end:
        newest = max((path.stat().st_mtime for path in folder.glob("*.json")), default=0.0)
        if time.time() - newest >= settle_s:
            return
        time.sleep(min(1.0, settle_s))


def _revalidate(
    store: ClaimStore, found: Sequence[Due], given: dict[str, Any], reason: str, *, approve_all: bool
) -> State[Any]:
    say = given["say"]
    if given.get("page"):
        say(f"follow it at {given['page']}/runs/flow-run/{flow_run.id}")
    for one in found:
        log(f"claim {one.claim.name}: " + ("; ".join(reason.words for reason in one.reasons) or "not due"))
    tag_run([f"claim:{one.claim.name}" for one in found if one.reasons])
    ended = _settled_before(store, found)

    def all_rows() -> list[dict[str, Any]]:
        return [*rows_of(found, ended), *given["left_out"]]

    def show(asking: Session | None = None) -> None:
        put_up(all_rows(), reason, asking)

    with _reported(store, all_rows, reason), CancelWatch.of_current_run() as watch:
        try:
            show()
            for one in found:
                if one.reasons and one.claim.name not in ended:
                    if watch():
                        raise CancelledRunError("the run was cancelled between two claims")
                    ended[one.claim.name] = _run_claim(store, one, given, watch, show, approve_all=approve_all)
                    show()
        except NarrowsError as error:
            given["error"] = error
            return ended_state(error, watch)
    given["rows"] = rows = all_rows()
    tell(store, rows, say)
    word = _worst([one.outcome for one in ended.values()])
    label_run(word)
    if given["left_out"]:
        return Failed(message=f"{counts(rows)}; " + "; ".join(row["problem"] for row in given["left_out"]))
    return Completed(name=word.capitalize(), message=counts(rows))


def _settled_before(store: ClaimStore, found: Sequence[Due]) -> dict[str, Revalidated]:
    """What this very run found before it was started again: a deployment's run ends while it waits for a person."""
    if (flow_run.run_count or 0) < 2:
        return {}
    earlier = {one.claim.name: revalidating.settled_by(store, one.claim.name, str(flow_run.id)) for one in found}
    return {name: one for name, one in earlier.items() if one is not None}


@contextmanager
def _reported(store: ClaimStore, rows: Callable[[], Sequence[Mapping[str, Any]]], reason: str) -> Iterator[None]:
    """The report is kept however it ends; not where the run goes on in another process, once a person answered."""
    waits = False
    try:
        yield
    except Pause:
        waits = True
        raise
    finally:
        if not waits:
            keep_report(store, rows(), reason)


def _worst(outcomes: Sequence[Outcome]) -> str:
    order = (Outcome.MOVED, Outcome.GONE, Outcome.INCONCLUSIVE, Outcome.HOLDS)
    return next((one.value for one in order if one in outcomes), "nothing due")


def _run_claim(
    store: ClaimStore, one: Due, given: dict[str, Any], watch: CancelWatch, show: Callable[[Session | None], None],
    *, approve_all: bool,
) -> Revalidated:  # fmt: skip
    """One claim, from its docket to its history; the questions of its launches are asked in the root run."""
    claim = one.claim
    session = open_revalidation(
        store, one, launcher=launcher_of(), say=given["say"], show_line=given.get("line"), cancelled=watch
    )
    crash_dead_runs(session.directory, session.say, own_run=flow_run.id)
    session.ask = lambda step: _ask(session, step, show, approve_all=approve_all)
    ended: dict[str, Any] = {}
    docket = list(filter(None, [docket_tag(session.directory)]))
    tag_run(docket)
    names = [f"claim:{claim.name}", f"investigation:{claim.case}", f"case:{claim.case}", *docket]
    with logged(session), put(_open, (session, one, store)), put(_ended, ended), tags(*names):
        while True:
            with without_heartbeat():
                state = run_claim(claim.name, return_state=True)
            if "error" in ended:
                raise ended["error"]
            if "found" in ended:
                found: Revalidated = ended["found"]
                log(f"claim {claim.name}: {found.outcome.value.upper()}: {found.sentence}")
                return found
            state.result()  # raises what nobody foresaw
            step = next_step(claim, session.docket)
            assert isinstance(step, Ask), step
            perform(session, step)
            show(session)  # without the question


_ended: ContextVar[dict[str, Any] | None] = ContextVar("narrows_claim_ended", default=None)


def _ask(session: Session, step: Ask, show: Callable[[Session | None], None], *, approve_all: bool) -> Answer:
    """The answer of a person, who sees what waits on the page; an answer holds for the docket that asked."""
    show(session)
    log(f"waits for approval: {step.question}")
    text = f"{step.question}\n\nRevalidation of claim {session.case.name}."
    request = ApprovalRequest(key=f"{session.directory.name}-{step.gate}", title=f"Approve {step.gate}?", text=text)
    return ask_person(request, auto_yes=approve_all, note=session.say)


def _current() -> tuple[Session, Due, ClaimStore, dict[str, Any]]:
    current, ended = _open.get(), _ended.get()
    assert current is not None, "a claim runs inside a revalidation"
    assert ended is not None
    return (*current, ended)


@flow(name="claim", flow_run_name="claim {name}", persist_result=False)
def run_claim(name: str) -> State[Any]:
    """Everything that one claim still has to do, short of asking a person; the state's name is the outcome."""
    session, one, store, ended = _current()
    assert one.claim.name == name
    pulse = _pulse.get()
    assert pulse is not None, "a claim runs inside a revalidation"
    with pulse.of(str(flow_run.id), f"claim {name}", list(flow_run.tags)):
        for reason in one.reasons:
            session.say(f"claim {name}: {reason.words}")
        stopped = _take_steps(session, one, ended)
        if stopped is not None:
            return stopped
        how = conclude(session, one.claim)
        found = revalidating.settle(store, one, session, *how, run=str(flow_run.root_flow_run_id))
        ended["found"] = found
        show_claim(store, one.claim, session, found)
        emit(found)
    label_run(found.outcome.value)
    return Completed(name=found.outcome.value.capitalize(), message=found.sentence)


def _take_steps(session: Session, one: Due, ended: dict[str, Any]) -> State[Any] | None:
    """Everything up to a question or a cancel, which is the state; None where nothing is left to do."""
    while (step := next_step(one.claim, session.docket)) is not None:
        if isinstance(step, Ask):
            label_run("open")
            return Completed(name="Open", message=step.question)
        if isinstance(step, Launch):
            with untagged():
                experiment(step.experiment.key, step.launch, step, return_state=True)
            if error := ended.get("error"):
                return Cancelled(message=str(error))
            continue
        known = set(session.state.judgements)
        perform(session, step)
        for number in [one for one in session.state.judgements if one not in known]:
            _show(session, number)
    return None


@task(task_run_name="{key} launch {launch}", persist_result=False)
def experiment(key: str, launch: int, step: Launch) -> State[Any]:
    """One launch of an experiment. Called, never submitted: signals must reach it."""
    assert step.experiment.key == key
    assert step.launch == launch
    session, _, _, ended = _current()
    try:
        perform(session, step)
    except LaunchCancelledError as error:
        ended["error"] = error
        return Cancelled(message=str(error))
    last = session.docket.entries[-1]
    if last.kind is Kind.FAILED:
        return Failed(message=str(last.body["reason"]))
    return Completed(message=f"{last.body['pairs']} pairs in {last.body['file']}")


def _show(session: Session, number: str) -> None:
    verdict = session.state.judgements[number].verdict.value
    claim = session.state.registrations[number].hypothesis.claim
    with untagged():
        hypothesis(number, verdict.upper(), claim, return_state=True)


@task(task_run_name="{number} {verdict}: {claim}", persist_result=False)
def hypothesis(number: str, verdict: str, claim: str) -> State[Any]:
    """One verdict, as the docket holds it; the state's name is the verdict, and its message the reason."""
    session, *_ = _current()
    return Completed(name=verdict.capitalize(), message=f"{claim}: {session.state.judgements[number].reason}")
