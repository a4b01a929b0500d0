"""The investigation as a Prefect flow: a root run, a subflow a rung, a task an experiment and one a hypothesis.

Nothing is decided here, and nothing carried out: the ladder decides from the docket, the engine carries it out in the
main thread, and this file shows it from a second one, which follows the engine's feed.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.board import Board, label_run, page_key, show_page, tag_run, untagged
from narrows.flows.board_parts import answers_of, ledger_of, links_of, waiting_of
from narrows.flows.board_rows import judged_at, registered_markdown, rows_of, rung_outcome
from narrows.flows.cancelling import CancelledRunError, CancelWatch, ended_state
from narrows.flows.casefile import load_case
from narrows.flows.claims_links import claims_of
from narrows.flows.client_settings import server_needed, without_heartbeat
from narrows.flows.context import put
from narrows.flows.dead_runs import crash_dead_runs, docket_tag
from narrows.flows.feed import Asks, Began, Did, Event, Feed, Said, Stopped, Written
from narrows.flows.followed import Following, run_followed
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import page
from narrows.flows.run_log import line_log, log
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session, open_session
from narrows.flows.zombies import TAG, Pulse, ensure_reaper
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import CaseError, NarrowsError
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Stop, StopReason

_CANCELLED = (LaunchCancelledError, CancelledRunError)

_following: ContextVar[Following | None] = ContextVar("narrows_following", default=None)
_asked_for: ContextVar[tuple[Feed, str] | None] = ContextVar("narrows_asked_for", default=None)
"""The feed of the command that the flow shows, and the address of the server's pages."""


def show(feed: Feed, case_file: Path, until: Rung | None, server: ServerHandle, *, approve_all: bool) -> None:
    """Shows an investigation as a flow run on ``server``, to its end. Raises what kept it from that."""
    case = feed.seen
    with server_needed(server.url, f"the docket keeps what was found: narrows investigate {case_file} --resume"):
        crash_dead_runs(case.directory, feed.tell)
        ensure_reaper()
        with (
            put(_asked_for, (feed, server.ui_url)), tags(*tags_of(case)),
            without_heartbeat(),  # the pulse beats for it
        ):  # fmt: skip
            number = until.number if until else None
            state = investigate(str(case_file), approve_all=approve_all, until=number, return_state=True)
        if feed.error is None:  # else it is raised where it happened
            state.result()


def tags_of(session: Session) -> list[str]:
    """The tags of all flow runs of a case: its name, its claims, and its docket: another case may bear the name."""
    claims = [f"claim:{name}" for name in claims_of(session)]
    return [TAG, f"case:{session.case.name}", *claims, *filter(None, [docket_tag(session.directory)])]


def _current() -> Following:
    following = _following.get()
    assert following is not None, "a rung is shown inside an investigation"
    return following


def _run_name() -> str:
    asked_for = _asked_for.get()
    if asked_for is not None:
        return f"investigate {asked_for[0].seen.case.name}"
    path = Path(str(flow_run.parameters["case"]))
    try:
        return f"investigate {load_case(path).name}"
    except NarrowsError:  # the flow itself says what is wrong with it
        return f"investigate {path.name}"


@flow(name="investigate", flow_run_name=_run_name, persist_result=False)
def investigate(case: str, approve_all: bool = False, until: int | None = None) -> State[Any]:
    """Narrows a regression. ``case`` is the path of the case file.

    ``approve_all`` approves every launch beforehand; ``until`` is the number of the last rung to climb, 1 to 10.
    """
    asked_for = _asked_for.get()
    if asked_for is not None:
        feed, address = asked_for
        return _show(feed, approve_all, address)
    session = open_session(Path(case), LocalLauncher(), resume=True)  # a deployment's run: nobody opened it yet
    tag_run(tags_of(session))
    crash_dead_runs(session.directory, session.say, own_run=flow_run.id)
    ensure_reaper()
    with tags(*tags_of(session)):
        found = run_followed(session, _rung(until), lambda feed: _show(feed, approve_all))
    if found.error is not None and (found.shown is None or not isinstance(found.error, NarrowsError)):
        raise found.error
    assert found.shown is not None
    return found.shown


def _rung(number: int | None) -> Rung | None:
    if number is None:
        return None
    found = next((rung for rung in Rung if rung.number == number), None)
    if found is None:
        raise CaseError(f"until is {number}; give the number of a rung, 1 to {len(Rung)}")
    return found


def _show(feed: Feed, approve_all: bool, address: str = "") -> State[Any]:
    session = feed.seen
    with (
        CancelWatch.of_current_run() as watch,
        Pulse() as pulse,
        pulse.of(str(flow_run.id), str(flow_run.name), tags_of(session)),
    ):
        feed.watch = watch
        if address:
            feed.tell(f"follow it at {address}/runs/flow-run/{flow_run.id}")
        board = Board(session.case.name, session.case.question)
        following = Following(feed=feed, board=board, approve_all=approve_all, pulse=pulse, log_line=line_log())
        try:
            with put(_following, following):
                return _end(following, _show_all(following))
        except NarrowsError as error:
            if error is not feed.error:
                raise
            return ended_state(error, watch)


def _next() -> Event:
    """The feed's next event, once what was said before it stands in the log of the run that this is called in."""
    following = _current()
    while isinstance(event := following.feed.look(), Said):
        _log(event)
    return event


def _log(event: Said) -> None:
    following = _current()
    (following.log_line if event.running else log)(event.text)
    following.feed.take()


def _show_all(following: Following) -> Stop:
    feed = following.feed
    _put_up(following)
    for rung in _climbed(feed.seen):  # before this run began: its page shows the whole ladder
        _climb(rung)
    while True:
        event = _next()
        if isinstance(event, Stopped):
            feed.take()
            return event.stop
        if isinstance(event, Began) and not isinstance(event.step, Ask):
            _climb(event.step.rung)
        else:
            feed.take()
        if isinstance(event, Asks):  # only a root run can wait for a person
            _put_up(following)  # with the question on it
            log(f"waits for approval: {event.step.question}")
            feed.answer(_ask(following, event.step))


def _ask(following: Following, step: Ask) -> Answer:
    text = f"{step.question}\n\n{following.feed.seen.case.question}"
    request = ApprovalRequest(key=step.gate, title=f"Approve {step.gate}?", text=text)
    feed = following.feed
    return ask_person(request, auto_yes=following.approve_all, note=feed.tell, pause=feed.pause)


def _put_up(following: Following, *, over: bool = False) -> None:
    """All that is known now; once it is ``over`` with the postmortem's pictures, and the way to it."""
    session = following.feed.seen
    folder = session.directory / "figures"
    pictures = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.png"))} if over else {}
    above = [*links_of(session), ""] if over else waiting_of(session)
    below = [*ledger_of(session), *answers_of(session)]
    following.board.show(rows_of(session.state), pictures, above=above, below=below)


def _climbed(session: Session) -> list[Rung]:
    step = next_step(session.case, session.docket)
    done = len(Rung) if isinstance(step, Stop) else step.rung.number - 1
    state = session.state
    return [rung for rung in list(Rung)[:done] if rung in state.skipped or judged_at(state, rung)]


def _climb(rung: Rung) -> None:
    feed = _current().feed
    with without_heartbeat():
        state = climb(rung.label, return_state=True)
    if feed.error is None:
        state.result()
    word, sentence = rung_outcome(feed.seen.state, rung)
    log(f"{rung.label}: {word.upper()}: {sentence}")


def _end(following: Following, stop: Stop) -> State[Any]:
    while not isinstance(_next(), Written):
        following.feed.take()
    session = following.feed.seen
    tag_run(tags_of(session))  # with the claim that it just proposed
    show_page(page_key("postmortem", session.case.name), page(session), "what was found, with its pictures")
    _put_up(following, over=True)
    name = "stopped" if stop.reason is StopReason.UNTIL else stop.reason.name.lower().replace("_", " ")
    label_run(name)
    return Completed(name=name.capitalize(), message=stop.reason.value)


@flow(name="rung", flow_run_name="{rung}", persist_result=False)
def climb(rung: str) -> State[Any]:
    """Everything that one rung of the ladder still has to do, short of asking a person."""
    following = _current()
    this = next(one for one in Rung if one.label == rung)
    for number in judged_at(following.feed.seen.state, this):  # by an earlier run
        _show_verdict(number)
    try:
        with following.pulse.of(str(flow_run.id), rung, list(flow_run.tags)):
            _show_steps(following, this)
    except _CANCELLED as error:
        return Cancelled(message=str(error))
    verdict, message = rung_outcome(following.feed.seen.state, this)
    label_run(verdict)
    return Completed(name=verdict.capitalize(), message=message)


def _show_steps(following: Following, rung: Rung) -> None:
    feed = following.feed
    before = known = len(feed.seen.docket)
    while True:
        event = _next()
        if isinstance(event, Stopped) or (isinstance(event, Began) and event.step.rung is not rung):
            return
        if isinstance(event, Began) and isinstance(event.step, Ask):
            return
        if isinstance(event, Began) and isinstance(event.step, Launch):
            _show_launch(event.step)
            continue
        feed.take()
        if isinstance(event, Did) and isinstance(event.step, Register):
            _declare(feed.seen, rung, before)
        elif isinstance(event, Did) and isinstance(event.step, Judge):
            for entry in feed.seen.docket.entries[known:]:
                if entry.kind is Kind.VERDICT:
                    _show_verdict(entry.body["hypothesis"])
        known = len(feed.seen.docket)


def _declare(session: Session, rung: Rung, before: int) -> None:
    """What this run of the rung put on record, on its page before anything runs."""
    new = [entry.body["id"] for entry in session.docket.entries[before:] if entry.kind is Kind.REGISTERED]
    text = registered_markdown(session.state.registrations[number] for number in new)
    key = page_key("registered", f"{session.case.name}-{rung.number}")
    show_page(key, text, "registered before anything could judge it")


def _show_launch(step: Launch) -> None:
    feed = _current().feed
    with untagged():
        state = experiment(step.experiment.key, step.launch, return_state=True)
    if feed.error is None and feed.seen.docket.entries[-1].kind not in (Kind.EVIDENCE, Kind.FAILED):
        state.result()  # raises what kept it from both


@task(task_run_name="{key} launch {launch}", persist_result=False)
def experiment(key: str, launch: int) -> State[Any]:
    """One launch of an experiment, until it is reduced to its evidence file."""
    following = _current()
    feed = following.feed
    feed.take()
    try:
        if isinstance(event := feed.look(), Said):  # what runs where; the docket has the launch
            _log(event)
        _put_up(following)
        event = _next()
        feed.take()
    except _CANCELLED as error:
        return Cancelled(message=str(error))
    assert isinstance(event, Did)
    last = feed.seen.docket.entries[-1]
    assert (last.body["experiment"], last.body["launch"]) == (key, launch)
    if last.kind is Kind.FAILED:
        return Failed(message=str(last.body["reason"]))
    return Completed(message=f"{last.body['pairs']} pairs in {last.body['file']}")


def _show_verdict(number: str) -> None:
    """The task of a hypothesis that has its verdict."""
    state = _current().feed.seen.state
    claim = state.registrations[number].hypothesis.claim
    with untagged():
        hypothesis(number, state.judgements[number].verdict.value.upper(), claim, return_state=True).result()


@task(task_run_name="{number} {verdict}: {claim}", persist_result=False)
def hypothesis(number: str, verdict: str, claim: str) -> State[Any]:
    """One verdict; the state's name is the verdict, and its message the reason."""
    reason = _current().feed.seen.state.judgements[number].reason
    return Completed(name=verdict.capitalize(), message=f"{claim}: {reason}")
