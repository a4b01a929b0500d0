"""The investigation as a Prefect flow: a root run, a subflow a rung, a task an experiment and one a hypothesis.

Nothing is decided here: the ladder decides from the docket, the engine carries it out, and this file shows it.
"""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from narrows.flows import engine
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
from narrows.flows.found import Found
from narrows.flows.judging import judge
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import page, write_postmortem
from narrows.flows.run_log import log, logged
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session, open_session
from narrows.flows.zombies import TAG, Pulse, ensure_reaper
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop, StopReason

_session: ContextVar[Session | None] = ContextVar("narrows_session", default=None)
_page: ContextVar[str] = ContextVar("narrows_page", default="")
_pulse: ContextVar[Pulse | None] = ContextVar("narrows_pulse", default=None)
_ended: ContextVar[dict[str, Any] | None] = ContextVar("narrows_ended", default=None)
"""How the run ended, for whoever called it: ``stop`` or ``error``."""


def run_on_board(session: Session, case_file: Path, until: Rung | None, server: ServerHandle) -> Stop:
    """The investigation of an open session as a flow run on ``server``. Raises what ended it before its time."""
    ended: dict[str, Any] = {}
    with server_needed(server.url, f"the docket keeps what was found: narrows investigate {case_file} --resume"):
        crash_dead_runs(session.directory, session.say)
        ensure_reaper()
        with (
            put(_session, session), put(_page, server.ui_url), put(_ended, ended), tags(*tags_of(session)),
            without_heartbeat(),  # the pulse beats for it
        ):  # fmt: skip
            state = investigate(str(case_file), until=until.number if until else None, return_state=True)
        if "error" in ended:
            raise ended["error"]
        if "stop" not in ended:
            state.result()  # raises what nobody foresaw
    stop: Stop = ended["stop"]
    return stop


def tags_of(session: Session) -> list[str]:
    """The tags of all flow runs of a case: its name, its claims, and its docket: another case may bear the name."""
    claims = [f"claim:{name}" for name in claims_of(session)]
    return [TAG, f"case:{session.case.name}", *claims, *filter(None, [docket_tag(session.directory)])]


def _current() -> Session:
    session = _session.get()
    assert session is not None, "a rung runs inside an investigation"
    return session


def _run_name() -> str:
    session = _session.get()
    if session is not None:
        return f"investigate {session.case.name}"
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
    session, ended = _session.get(), _ended.get()
    if session is not None:
        return _investigate(session, {} if ended is None else ended, approve_all, until)
    session = open_session(Path(case), LocalLauncher(), resume=True)  # a deployment's run: nobody opened it yet
    tag_run(tags_of(session))
    crash_dead_runs(session.directory, session.say, own_run=flow_run.id)
    ensure_reaper()
    with put(_session, session), tags(*tags_of(session)):
        return _investigate(session, {}, approve_all, until)


def _investigate(session: Session, ended: dict[str, Any], approve_all: bool, until: int | None) -> State[Any]:
    with (
        put(_ended, ended),
        logged(session),
        CancelWatch.of_current_run() as watch,
        Pulse() as pulse,
        pulse.of(str(flow_run.id), str(flow_run.name), tags_of(session)),
        put(_pulse, pulse),
    ):
        session.cancelled = watch
        if _page.get():
            session.say(f"follow it at {_page.get()}/runs/flow-run/{flow_run.id}")
        if session.ask is None:
            session.ask = lambda step: _ask(session, step, approve_all)
        try:
            board = Board(session.case.name, session.case.question)
            stop = _climb_all(session, until, watch, board)
        except NarrowsError as error:
            ended["error"] = error
            return ended_state(error, watch)
        ended["stop"] = stop
        return _end(session, stop, board)


def _ask(session: Session, step: Ask, approve_all: bool) -> Answer:
    request = ApprovalRequest(
        key=step.gate, title=f"Approve {step.gate}?", text=f"{step.question}\n\n{session.case.question}"
    )
    return ask_person(request, auto_yes=approve_all, note=session.say)


def _climb_all(session: Session, until: int | None, watch: CancelWatch, board: Board) -> Stop:
    ask = session.ask
    assert ask is not None

    def ask_on_board(step: Ask) -> Answer:
        _put_up(board, session)  # with the question on it
        log(f"waits for approval: {step.question}")
        return ask(step)

    session.ask = ask_on_board
    _put_up(board, session)
    for rung in _climbed(session):  # before this run began: its page shows the whole ladder
        _climb(session, rung)
    while True:
        step = next_step(session.case, session.docket)
        if isinstance(step, Stop):
            return step
        if until is not None and step.rung.number > until:
            return Stop(reason=StopReason.UNTIL)
        if watch():
            raise CancelledRunError("the run was cancelled between two launches; continue with --resume")
        if isinstance(step, Ask):  # only a root run can wait for a person
            engine.perform(session, step)
        else:
            _climb(session, step.rung)
        _put_up(board, session)


def _put_up(board: Board, session: Session, *, over: bool = False) -> None:
    """All that is known now; once it is ``over`` with the postmortem's pictures, and the way to it."""
    folder = session.directory / "figures"
    pictures = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.png"))} if over else {}
    above = [*links_of(session), ""] if over else waiting_of(session)
    board.show(rows_of(session.state), pictures, above=above, below=[*ledger_of(session), *answers_of(session)])


def _climbed(session: Session) -> list[Rung]:
    step = next_step(session.case, session.docket)
    done = len(Rung) if isinstance(step, Stop) else step.rung.number - 1
    state = session.state
    return [rung for rung in list(Rung)[:done] if rung in state.skipped or judged_at(state, rung)]


def _climb(session: Session, rung: Rung) -> None:
    with without_heartbeat():
        state = climb(rung.label, return_state=True)
    if error := (_ended.get() or {}).get("error"):
        raise error
    state.result()
    word, sentence = rung_outcome(session.state, rung)
    log(f"{rung.label}: {word.upper()}: {sentence}")


def _end(session: Session, stop: Stop, board: Board) -> State[Any]:
    if stop.reason is not StopReason.UNTIL:
        engine.perform(session, stop)
    for line in write_postmortem(session):
        session.say(line)
    tag_run(tags_of(session))  # with the claim that it just proposed
    show_page(page_key("postmortem", session.case.name), page(session), "what was found, with its pictures")
    _put_up(board, session, over=True)
    name = "stopped" if stop.reason is StopReason.UNTIL else stop.reason.name.lower().replace("_", " ")
    label_run(name)
    return Completed(name=name.capitalize(), message=stop.reason.value)


@flow(name="rung", flow_run_name="{rung}", persist_result=False)
def climb(rung: str) -> State[Any]:
    """Everything that one rung of the ladder still has to do, short of asking a person."""
    session = _current()
    this = next(one for one in Rung if one.label == rung)
    for number in judged_at(session.state, this):  # by an earlier run
        _show(session, number)
    pulse = _pulse.get()
    assert pulse is not None, "a rung runs inside an investigation"
    try:
        with pulse.of(str(flow_run.id), rung, list(flow_run.tags)):
            _take_steps(session, this)
    except LaunchCancelledError as error:
        return Cancelled(message=str(error))
    verdict, message = rung_outcome(session.state, this)
    label_run(verdict)
    return Completed(name=verdict.capitalize(), message=message)


def _take_steps(session: Session, rung: Rung) -> None:
    before = len(session.docket)
    while True:
        step = next_step(session.case, session.docket)
        if isinstance(step, (Stop, Ask)) or step.rung is not rung:
            return
        _step(session, step)
        if isinstance(step, Register):
            _declare(session, rung, before)


def _declare(session: Session, rung: Rung, before: int) -> None:
    """What this run of the rung put on record, on its page before anything runs."""
    new = [entry.body["id"] for entry in session.docket.entries[before:] if entry.kind is Kind.REGISTERED]
    text = registered_markdown(session.state.registrations[number] for number in new)
    key = page_key("registered", f"{session.case.name}-{rung.number}")
    show_page(key, text, "registered before anything could judge it")


def _step(session: Session, step: Step) -> None:
    if isinstance(step, (Register, Skip)):
        engine.perform(session, step)
    elif isinstance(step, Launch):
        with untagged():
            state = experiment(step.experiment.key, step.launch, step, return_state=True)
        if error := (_ended.get() or {}).get("error"):
            raise error
        if session.docket.entries[-1].kind not in (Kind.EVIDENCE, Kind.FAILED):
            state.result()  # raises what kept it from both
    else:
        assert isinstance(step, Judge)
        for found in judge(session, step):
            _record(session, step, found)


@task(task_run_name="{key} launch {launch}", persist_result=False)
def experiment(key: str, launch: int, step: Launch) -> State[Any]:
    """One launch of an experiment, reduced to its evidence file. Called, never submitted: signals must reach it."""
    assert step.experiment.key == key
    assert step.launch == launch
    session, ended = _current(), _ended.get()
    assert ended is not None
    try:
        engine.perform(session, step)
    except LaunchCancelledError as error:
        ended["error"] = error
        return Cancelled(message=str(error))
    last = session.docket.entries[-1]
    if last.kind is Kind.FAILED:
        return Failed(message=str(last.body["reason"]))
    return Completed(message=f"{last.body['pairs']} pairs in {last.body['file']}")


def _record(session: Session, step: Judge, found: Found) -> None:
    if found.hypothesis is None or found.verdict is None:  # findings, or that more pairs are wanted
        engine.record(session, step, found)
        return
    _show(session, found.hypothesis, step, found)


def _show(session: Session, number: str, step: Judge | None = None, found: Found | None = None) -> None:
    """The task of a hypothesis that gets its verdict from ``found``, or has it already."""
    verdict = found.verdict if found else session.state.judgements[number].verdict
    assert verdict is not None
    claim = session.state.registrations[number].hypothesis.claim
    with untagged():
        state = hypothesis(number, verdict.value.upper(), claim, step, found, return_state=True)
    state.result()


@task(task_run_name="{number} {verdict}: {claim}", persist_result=False)
def hypothesis(number: str, verdict: str, claim: str, step: Judge | None, found: Found | None) -> State[Any]:
    """One verdict, put on record where it is new; the state's name is the verdict, and its message the reason."""
    session = _current()
    if step is not None and found is not None:
        assert found.hypothesis == number
        engine.record(session, step, found)
    reason = session.state.judgements[number].reason
    return Completed(name=verdict.capitalize(), message=f"{claim}: {reason}")
