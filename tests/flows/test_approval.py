"""Asking a person, and being told to stop: in real flow runs, and at a terminal."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from narrows.flows.approval import Answer, ApprovalRequest, Decision, Waiting, answer, ask, ask_terminal, waiting_runs
from narrows.flows.cancelling import CancelWatch
from narrows.flows.launching import LaunchCancelledError, LaunchPlan, launch
from narrows.flows.local_launcher import LocalLauncher
from narrows.flows.processes import is_alive, wait_until
from narrows.flows.server import ServerHandle
from narrows.inquiry.errors import NarrowsError

REQUEST = ApprovalRequest(
    key="two_nodes-regressed", title="Two nodes, 0.5 device hours", text="| reject if |\n|-|\n| < 3 \u03c3 |"
)

Background = Callable[[Callable[[], None]], object]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- without a server ---


def test_yes_beforehand_approves_and_says_so() -> None:
    given = ask(REQUEST, auto_yes=True)
    assert (given.decision, given.by) == (Decision.APPROVE, "--yes")


def test_nobody_to_ask_is_a_no() -> None:
    given = ask_terminal(REQUEST, io.StringIO("approve\n"), io.StringIO())
    assert given.decision is Decision.DECLINED
    assert "--yes" in given.reason


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        ("approve\n", Decision.APPROVE),
        ("\nyes\n SKIP \n", Decision.SKIP),
        ("abort", Decision.ABORT),
        ("", Decision.DECLINED),
        ("y\n\n", Decision.DECLINED),
    ],
)
def test_a_terminal_takes_a_whole_word_and_has_no_default(typed: str, decision: Decision) -> None:
    screen = io.StringIO()
    assert ask_terminal(REQUEST, Terminal(typed), screen).decision is decision
    assert REQUEST.title in screen.getvalue()


# --- in a flow run ---


def gate(**given: Any) -> tuple[Answer, Any]:
    """The answer that a flow run got, and the run's final state."""
    from prefect import flow

    got: list[Answer] = []

    @flow
    def investigate() -> str:
        got.append(ask(REQUEST, poll_s=0.3, note=lambda _: None, **given))
        return "went on"

    state = investigate(return_state=True)
    return got[0], state


def the_waiting_run() -> Waiting:
    assert wait_until(lambda: len(waiting_runs()) == 1, 60)
    return waiting_runs()[0]


@pytest.mark.prefect
def test_only_an_answer_that_fits_the_form_lets_the_flow_go_on(
    narrows_server: ServerHandle, in_background: Background
) -> None:
    from prefect.flow_runs import resume_flow_run

    def person() -> None:
        waiting = the_waiting_run()
        assert REQUEST.title in waiting.text
        with pytest.raises(RuntimeError, match="'decision' is a required property"):
            resume_flow_run(UUID(waiting.flow_run_id))
        with pytest.raises(NarrowsError, match="did not take the answer"):
            answer(waiting.flow_run_id, Answer(decision=Decision.DECLINED, by="Ada"))
        assert the_waiting_run() == waiting, "a wrong answer must leave the question standing"
        answer(waiting.flow_run_id, Answer(decision=Decision.APPROVE, by="Ada", reason="worth it"))

    in_background(person)
    given, state = gate()
    assert given == Answer(decision=Decision.APPROVE, by="Ada", reason="worth it")
    assert state.is_completed()
    assert waiting_runs() == []


@pytest.mark.prefect
def test_silence_is_a_no_and_the_flow_goes_on(narrows_server: ServerHandle) -> None:
    given, state = gate(timeout_s=1)
    assert given.decision is Decision.DECLINED
    assert "nobody answered" in given.reason
    assert state.is_completed()
    with pytest.raises(NarrowsError, match="does not wait for an answer"):
        answer(str(state.state_details.flow_run_id), Answer(decision=Decision.APPROVE, by="Ada"))


@pytest.mark.prefect
def test_a_run_that_is_cancelled_while_it_waits_stops_waiting(
    narrows_server: ServerHandle, in_background: Background
) -> None:
    in_background(lambda: cancel(the_waiting_run().flow_run_id))
    given, _ = gate()
    assert given.decision is Decision.CANCELLED


@pytest.mark.prefect
def test_a_gate_that_was_answered_is_not_asked_again_and_one_that_was_not_is(
    narrows_server: ServerHandle, in_background: Background
) -> None:
    from prefect import flow

    def once() -> None:
        answer(the_waiting_run().flow_run_id, Answer(decision=Decision.SKIP, by="Ada"))

    got: list[Answer] = []

    @flow
    def investigate() -> None:
        got.append(ask(REQUEST, poll_s=0.3, timeout_s=1, note=lambda _: None))  # nobody answers
        in_background(once)
        got.append(ask(REQUEST, poll_s=0.3, note=lambda _: None))
        got.append(ask(REQUEST, poll_s=0.3, note=lambda _: None))

    investigate()
    assert [given.decision for given in got] == [Decision.DECLINED, Decision.SKIP, Decision.SKIP]


@pytest.mark.prefect
def test_asking_in_a_subflow_or_a_task_is_refused(narrows_server: ServerHandle) -> None:
    from prefect import flow, task

    @flow
    def rung() -> None:
        ask(REQUEST)

    @task
    def experiment() -> None:
        ask(REQUEST)

    @flow
    def investigate() -> list[Any]:
        return [rung(return_state=True).message, experiment(return_state=True).message]

    assert all("in the root flow only" in message for message in investigate())


@pytest.mark.prefect
def test_answers_to_runs_that_do_not_wait_or_exist_are_refused(narrows_server: ServerHandle) -> None:
    with pytest.raises(ValueError, match="is no flow run id"):
        answer("seventeen", Answer(decision=Decision.APPROVE, by="Ada"))
    with pytest.raises(NarrowsError, match="no such flow run"):
        answer(str(UUID(int=17)), Answer(decision=Decision.APPROVE, by="Ada"))


# --- cancelling ---


def cancel(flow_run_id: str) -> None:
    """What the page's Cancel button does to a run that no worker started."""
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(flow_run_id), Cancelling())


SLEEP = "import os, pathlib, sys, time\n"
SLEEP += "pathlib.Path(sys.argv[1], 'pid-' + os.environ['RANK']).write_text(str(os.getpid()))\ntime.sleep(300)\n"


@pytest.mark.prefect
@pytest.mark.dist
def test_cancelling_the_root_of_a_flow_ends_its_torchrun(
    narrows_server: ServerHandle, in_background: Background, tmp_path: Path
) -> None:
    from prefect import flow
    from prefect.runtime import flow_run
    from prefect.states import Cancelled

    script = tmp_path / "rank.py"
    script.write_text(SLEEP)
    plan = LaunchPlan(
        name="hang",
        hosts=(("n0", (0, 1)),),
        argv=(str(script), str(tmp_path)),
        log_dir=str(tmp_path / "logs"),
        timeout_s=120,
    )
    root: list[str] = []

    @flow
    def rung() -> object:
        with CancelWatch.of_current_run(poll_s=0.3) as cancelled:
            try:
                launch(LocalLauncher(), plan, cancelled=cancelled)
            except LaunchCancelledError as error:
                return Cancelled(message=str(error))
        return None

    @flow
    def investigate() -> object:
        root.append(str(flow_run.id))
        return rung(return_state=True)

    files = [tmp_path / "pid-0", tmp_path / "pid-1"]

    def person() -> None:
        assert wait_until(lambda: all(file.is_file() and file.read_text() for file in files), 90)
        cancel(root[0])

    in_background(person)
    began = time.monotonic()
    state = investigate(return_state=True)
    assert time.monotonic() - began < 110, "it ran into its own time limit"
    assert state.is_cancelled()
    assert not any(is_alive(int(file.read_text())) for file in files)


@pytest.mark.prefect
def test_a_watch_of_no_run_never_cancels(narrows_server: ServerHandle) -> None:
    with CancelWatch.of_current_run(poll_s=0.05) as cancelled:
        time.sleep(0.2)
        assert not cancelled()
