"""The canary roll-out as a Prefect flow: one run, with a task an experiment and one a verdict, and its board.

What comes next follows from the roll-out and its docket; this file carries it to the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow, tags, task
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from narrows.flows.approval import Answer, ApprovalRequest
from narrows.flows.approval import ask as ask_person
from narrows.flows.board import Board, label_run, page_key, page_links, show_page, tag_run, untagged
from narrows.flows.board_parts import answers_of, waiting_of
from narrows.flows.board_rows import rows_of
from narrows.flows.canary_rollout_command import opened, workspace_of
from narrows.flows.canary_rollout_report import finish
from narrows.flows.canary_rollout_run import held, perform
from narrows.flows.canary_rollout_sets import Wanted
from narrows.flows.cancelling import CancelledRunError, CancelWatch, ended_state
from narrows.flows.client_settings import server_needed, without_heartbeat
from narrows.flows.context import put
from narrows.flows.dead_runs import crash_dead_runs, docket_tag
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.run_log import log, logged
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session
from narrows.flows.zombies import TAG, beating
from narrows.inquiry.docket import Kind
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.rollout import Rollout, next_step
from narrows.inquiry.steps import Ask, Launch
from narrows.templates.canary_rollout import headline, report_markdown, word

_open: ContextVar[tuple[Session, Rollout, dict[str, Any]] | None] = ContextVar("narrows_rollout", default=None)
"""The roll-out that is carried out, and how it ended: ``record`` or ``error``."""


def run_on_board(session: Session, rollout: Rollout, server: ServerHandle) -> dict[str, Any]:
    """The roll-out as a flow run on ``server``: its record. Raises what ended it before its time."""
    ended: dict[str, Any] = {"page": server.ui_url}
    with server_needed(server.url, "the docket keeps what was found: give the same command again"):
        with put(_open, (session, rollout, ended)), without_heartbeat():  # the pulse beats for it
            state = canary_rollout(list(rollout.upgraded), list(rollout.control), return_state=True)
        if "error" in ended:
            raise ended["error"]
        if "record" not in ended:
            state.result()  # raises what nobody foresaw
    record: dict[str, Any] = ended["record"]
    return record


def _run_name() -> str:
    current = _open.get()
    if current is not None:
        return f"canary-rollout {current[1].name}"
    return f"canary-rollout of {','.join(flow_run.parameters['upgraded'])}"


@flow(name="canary-rollout", flow_run_name=_run_name, persist_result=False)
def canary_rollout(
    upgraded: list[str],
    control: list[str],
    case: str | None = None,
    workspace: str | None = None,
    state: str | None = None,
    before: bool = False,
    baseline: list[str] | None = None,
    margin_percent: float | None = None,
    max_pairs: int | None = None,
    steps: int | None = None,
    ranks_per_node: int | None = None,
    device: str | None = None,
    approve_all: bool = False,
) -> State[Any]:
    """Compares upgraded hosts with hosts that were not upgraded, and admits the upgrade or not.

    ``case`` is a case file whose work is played, ``workspace`` the folder that keeps the record (else the case file's),
    ``state`` where fingerprints are kept; ``before`` measures the baseline, and ``baseline`` names one.
    """
    given = _from_command_line()
    if given is not None:
        return _judge(*given)
    wanted = Wanted(
        upgraded=",".join(upgraded), control=",".join(control), case=Path(case) if case else None, before=before,
        margin_percent=margin_percent, max_pairs=max_pairs, steps=steps, ranks_per_node=ranks_per_node, device=device,
    )  # fmt: skip
    try:
        place = workspace_of(wanted, Path(workspace) if workspace else None)
        with held(place):
            known = [Path(one) for one in baseline or ()]
            session, rollout = opened(wanted, place, known, Path(state) if state else None, say=print)
            session.ask = lambda step: _ask(session, rollout, step, approve_all=approve_all)
            current: tuple[Session, Rollout, dict[str, Any]] = (session, rollout, {})
            with put(_open, current):
                return _judge(*current)
    except NarrowsError as error:
        return Failed(message=str(error))


def _from_command_line() -> tuple[Session, Rollout, dict[str, Any]] | None:
    """What the command line opened. A served flow is pickled with all that its body names, so it names no variable."""
    return _open.get()


def _ask(session: Session, rollout: Rollout, step: Ask, *, approve_all: bool) -> Answer:
    text = f"{step.question}\n\n{rollout.question}"
    key = f"{session.directory.name}-{step.gate}"  # an answer holds for the docket that asked
    request = ApprovalRequest(key=key, title=f"Approve {step.gate}?", text=text)
    return ask_person(request, auto_yes=approve_all, note=session.say)


def tags_of(session: Session, rollout: Rollout) -> list[str]:
    """The tags of all flow runs of a roll-out: its name, its first hosts, and its docket."""
    hosts = [f"upgraded:{host}" for host in rollout.upgraded[:8]]
    return [TAG, f"rollout:{rollout.name}", *hosts, *filter(None, [docket_tag(session.directory)])]


def _judge(session: Session, rollout: Rollout, ended: dict[str, Any]) -> State[Any]:
    names = tags_of(session, rollout)
    tag_run(names)
    crash_dead_runs(session.directory, session.say, own_run=flow_run.id)
    with logged(session), tags(*names), CancelWatch.of_current_run() as watch, beating(names):
        session.cancelled = watch
        if ended.get("page"):
            session.say(f"follow it at {ended['page']}/runs/flow-run/{flow_run.id}")
        try:
            _take_steps(session, rollout, watch)
            record = finish(session, rollout)
        except NarrowsError as error:
            ended["error"] = error
            return ended_state(error, watch)
        ended["record"] = record
        _show_end(session, rollout, record)
        return Completed(name=word(record).capitalize(), message=headline(record))


def _show_end(session: Session, rollout: Rollout, record: dict[str, Any]) -> None:
    """The report's page and the board, each with a link to the other, and the outcome in the run's name."""
    report, board = page_key("canary", rollout.name), page_key("board", rollout.name)
    text = "\n".join([report_markdown(record), *page_links({"every hypothesis": board})])
    show_page(report, f"{text}\n", f"{word(record)}: {rollout.name}")
    _put_up(Board(rollout.name, rollout.question), session, page_links({"report": report}))
    label_run(word(record))


def _take_steps(session: Session, rollout: Rollout, watch: CancelWatch) -> None:
    board, ask = Board(rollout.name, rollout.question), session.ask
    assert ask is not None

    def ask_on_board(step: Ask) -> Answer:
        _put_up(board, session)  # with the question on it
        log(f"waits for approval: {step.question}")
        return ask(step)

    session.ask = ask_on_board
    while (step := next_step(rollout, session.docket)) is not None:
        if watch():
            raise CancelledRunError("the run was cancelled between two launches; the same command continues it")
        known = set(session.state.judgements)
        if isinstance(step, Launch):
            with untagged():
                state = experiment(step.experiment.key, step.launch, step, return_state=True)
            if error := _current()[2].get("error"):
                raise error
            if session.docket.entries[-1].kind not in (Kind.EVIDENCE, Kind.FAILED):
                state.result()  # raises what kept it from both
        else:
            perform(session, step)
        for number in [one for one in session.state.judgements if one not in known]:
            _show(session, number)
        _put_up(board, session)


def _put_up(board: Board, session: Session, links: Sequence[str] = ()) -> None:
    """All that is known now: what waits and its cost, the hypotheses, and what was answered."""
    above = ["", " \u00b7 ".join(links), ""] if links else waiting_of(session)
    board.show(rows_of(session.state), above=above, below=answers_of(session))


def _current() -> tuple[Session, Rollout, dict[str, Any]]:
    current = _open.get()
    assert current is not None, "an experiment runs inside a roll-out"
    return current


@task(task_run_name="{key} launch {launch}", persist_result=False)
def experiment(key: str, launch: int, step: Launch) -> State[Any]:
    """One launch of an experiment. Called, never submitted: signals must reach it."""
    assert step.experiment.key == key
    assert step.launch == launch
    session, _, ended = _current()
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
