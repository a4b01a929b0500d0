"""The investigation as a Prefect flow: a root run, a subflow a rung, a task an experiment and one a hypothesis.

Nothing is decided here: the ladder decides from the docket, the engine carries it out, and this file shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow, get_run_logger, tags, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import MissingContextError
from prefect.states import Cancelled, Completed, Failed

from narrows.flows import engine
from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.board import Board, label_run
from narrows.flows.board_rows import rows_of
from narrows.flows.cancelling import CancelWatch
from narrows.flows.dead_runs import crash_dead_runs
from narrows.flows.judging import Found, judge
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.postmortem import page, write_postmortem
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session, open_session
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.ladder import next_step
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop, StopReason
from narrows.inquiry.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOW_EVERY_S = 10.0
"""A running experiment's own lines reach the server's log this often at most: each is a row in its database."""

_session: ContextVar[Session | None] = ContextVar("narrows_session", default=None)
_ended: ContextVar[dict[str, Any] | None] = ContextVar("narrows_ended", default=None)


def case_tag(name: str) -> str:
    """The tag that all runs of a case carry."""
    return f"case:{name}"


def run_on_board(session: Session, until: Rung | None, server: ServerHandle) -> Stop:
    """The investigation of an open session as a flow run on ``server``. Raises what ended it before its time."""
    ended: dict[str, Any] = {}
    crash_dead_runs(case_tag(session.case.name), session.say)
    with _use(session), _put(_ended, ended), tags(case_tag(session.case.name)):
        investigate(
            str(session.directory), until=until.number if until else None, page_url=server.ui_url, return_state=True
        )
    if "error" in ended:
        raise ended["error"]
    return ended.get("stop") or Stop(reason=StopReason.UNTIL)


@contextmanager
def _put(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _use(session: Session) -> Iterator[None]:
    """The session that flows and tasks of this process work on; what it says goes to the server's log as well."""
    say, show_line = session.say, session.show_line
    session.say, session.show_line = _tee(say), _thinned(show_line)
    try:
        with _put(_session, session):
            yield
    finally:
        session.say, session.show_line = say, show_line


def _tee(say: Callable[[str], None]) -> Callable[[str], None]:
    def both(text: str) -> None:
        say(text)
        try:
            get_run_logger().info(text)
        except MissingContextError:
            return

    return both


def _thinned(show_line: Callable[[str], None] | None) -> Callable[[str], None]:
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        if show_line is not None:
            show_line(text)
        if time.monotonic() - last >= SHOW_EVERY_S:
            last = time.monotonic()
            get_run_logger().info(text)

    return show


def _current() -> Session:
    session = _session.get()
    assert session is not None, "a rung runs inside an investigation"
    return session


def _run_name() -> str:
    from prefect.runtime import flow_run

    session = _session.get()
    return f"investigate {session.case.name if session else Path(str(flow_run.parameters['case'])).stem}"


@flow(name="investigate", flow_run_name=_run_name, persist_result=False)
def investigate(case: str, approve_all: bool = False, until: int | None = None, page_url: str = "") -> State[Any]:
    """Narrows a regression. ``case`` is the case file; ``approve_all`` approves every launch beforehand."""
    session = _session.get()
    if session is None:  # started from a deployment, so nobody opened the case yet
        session = open_session(Path(case), LocalLauncher(), resume=True)
        with _use(session), tags(case_tag(session.case.name)):
            return _investigate(session, approve_all, until, page_url)
    return _investigate(session, approve_all, until, page_url)


def _investigate(session: Session, approve_all: bool, until: int | None, page_url: str) -> State[Any]:
    from prefect.runtime import flow_run

    if page_url:
        session.say(f"follow it at {page_url}/runs/flow-run/{flow_run.id}")
    if session.ask is None:
        session.ask = lambda step: _ask(session, step, approve_all)
    ended = _ended.get()
    try:
        with CancelWatch.of_current_run() as watch:
            session.cancelled = watch
            stop = _climb_all(session, until)
    except LaunchCancelledError as error:
        _keep(ended, "error", error)
        return Cancelled(message=str(error))
    except NarrowsError as error:
        _keep(ended, "error", error)
        return Failed(message=str(error))
    _keep(ended, "stop", stop)
    return _end(session, stop)


def _keep(ended: dict[str, Any] | None, name: str, value: object) -> None:
    if ended is not None:
        ended[name] = value


def _ask(session: Session, step: Ask, approve_all: bool) -> Answer:
    request = ApprovalRequest(
        key=step.gate, title=f"Approve {step.gate}?", text=f"{step.question}\n\n{session.case.question}"
    )
    return ask_person(request, auto_yes=approve_all, note=session.say)


def _climb_all(session: Session, until: int | None) -> Stop:
    board = Board(session.case.name, session.case.question)
    board.show(rows_of(session.state))
    while True:
        step = next_step(session.case, session.docket)
        if isinstance(step, Stop):
            return step
        if until is not None and step.rung.number > until:
            return Stop(reason=StopReason.UNTIL)
        if isinstance(step, Ask):  # only a root run can wait for a person
            engine.perform(session, step)
        else:
            climb(step.rung.label, return_state=True).result()
        board.show(rows_of(session.state))


def _end(session: Session, stop: Stop) -> State[Any]:
    if stop.reason is not StopReason.UNTIL:
        engine.perform(session, stop)
    for line in write_postmortem(session):
        session.say(line)
    create_markdown_artifact(
        page(session), key=f"postmortem-{session.case.name}", description=f"postmortem: {session.case.question}"
    )
    label_run(stop.reason.name.lower().replace("_", " "))
    return Completed(name=stop.reason.name.replace("_", " ").capitalize(), message=stop.reason.value)


@flow(name="rung", flow_run_name="{rung}", persist_result=False)
def climb(rung: str) -> State[Any]:
    """Everything that one rung of the ladder still has to do, short of asking a person."""
    session = _current()
    before = len(session.docket)
    while True:
        step = next_step(session.case, session.docket)
        if isinstance(step, (Stop, Ask)) or step.rung.label != rung:
            break
        _step(session, step)
    verdict, message = _rung_outcome(session, before)
    label_run(verdict)
    return Completed(name=verdict.capitalize(), message=message)


def _step(session: Session, step: Step) -> None:
    if isinstance(step, Register):
        engine.perform(session, step)
        _declare(session, step)
    elif isinstance(step, Launch):
        experiment(step.experiment.key, step.launch, step)
    elif isinstance(step, Judge):
        for found in judge(session, step):
            _show_found(session, step, found)
    else:
        assert isinstance(step, Skip)
        engine.perform(session, step)


def _show_found(session: Session, step: Judge, found: Found) -> None:
    if found.hypothesis is None or found.verdict is None:
        engine.record(session, step, found)
        return
    claim = session.state.registrations[found.hypothesis].hypothesis.claim
    hypothesis(found.hypothesis, claim, step, found, return_state=True)


@task(task_run_name="{key} launch {launch}", persist_result=False)
def experiment(key: str, launch: int, step: Launch) -> None:
    """One launch of an experiment, reduced to its evidence file. Called, never submitted: signals must reach it."""
    assert step.experiment.key == key
    assert step.launch == launch
    engine.perform(_current(), step)


@task(task_run_name="{number} {claim}", persist_result=False)
def hypothesis(number: str, claim: str, step: Judge, found: Found) -> State[Any]:
    """One verdict, put on record; the state's name is the verdict."""
    assert found.verdict is not None
    assert found.hypothesis == number
    engine.record(_current(), step, found)
    return Completed(name=found.verdict.value.capitalize(), message=f"{claim}: {found.reason}")


def _declare(session: Session, step: Register) -> None:
    """What was registered, on the rung's page, before anything runs."""
    lines = ["| | claim | predicts | rejected if | digest |", "|-|-|-|-|-|"]
    for one in _registered_now(session, step):
        claim = one.hypothesis
        lines.append(
            f"| {one.id} | {claim.claim} | {claim.prediction.words()} | {claim.reject_if.words()} | `{one.sha256[:12]}` |"
        )
    key = f"registered-{session.case.name}-{step.rung.number}"
    create_markdown_artifact("\n".join(lines), key=key, description="registered before the launch")


def _registered_now(session: Session, step: Register) -> Sequence[Any]:
    return list(session.state.registrations.values())[-len(step.hypotheses) :]


def _rung_outcome(session: Session, before: int) -> tuple[str, str]:
    """The rung's word and sentence: the verdict on its own main hypothesis, or that there was nothing to do."""
    new = session.docket.entries[before:]
    skipped = [entry for entry in new if entry.kind is Kind.SKIPPED]
    if skipped:
        return "skipped", str(skipped[-1].body["reason"])
    verdicts = [entry.body for entry in new if entry.kind is Kind.VERDICT]
    if not verdicts:
        return "open", "waits for approval"
    if len({one["verdict"] for one in verdicts}) == 1:
        main = verdicts[0]
    else:
        main = next((one for one in verdicts if one["verdict"] == Verdict.SUPPORTED.value), verdicts[0])
    return str(main["verdict"]), str(main["reason"])
