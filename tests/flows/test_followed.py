"""The engine and whoever shows what it does: in step where it matters, and neither lost where the other ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_machines import ModelLauncher, write_case

from narrows.flows.approval import Answer, Decision
from narrows.flows.cancelling import CancelledRunError
from narrows.flows.feed import Asks, Began, Did, Event, Feed, Said, Stopped, Written
from narrows.flows.followed import run_followed
from narrows.flows.launching import LaunchCancelledError, LaunchPlan, LaunchResult
from narrows.flows.processes import wait_until
from narrows.flows.session import Session, open_session
from narrows.inquiry.docket import Docket, Kind
from narrows.inquiry.errors import DeclinedError, ServerError
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Judge, Launch, StopReason

PATIENCE_S = 30.0


@pytest.fixture
def machines(recorded_arm: type[Any]) -> ModelLauncher:
    return ModelLauncher(recorded_arm)


@pytest.fixture
def session(tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> Session:
    found = open_session(write_case(tmp_path, machines, record_pair), machines)
    found.say = lambda _text: None
    return found


def to_the_end(feed: Feed) -> list[tuple[Event, int]]:
    """Every event, with the number of entries that were seen once it was taken."""
    found: list[tuple[Event, int]] = []
    while not found or not isinstance(found[-1][0], Written):
        event = feed.look()
        feed.take()
        found.append((event, len(feed.seen.docket)))
    return found


def test_what_is_shown_is_the_docket_as_it_was_then(session: Session) -> None:
    found = run_followed(session, None, to_the_end)
    assert found.error is None
    assert found.stop is not None
    assert found.stop.reason is StopReason.EXPLAINED
    assert found.shown is not None
    events = [event for event, _ in found.shown]
    seen = [entries for _, entries in found.shown]
    assert seen == sorted(seen)
    assert seen[-1] == len(session.docket)
    assert isinstance(events[-1], Written)
    assert session.postmortem.is_file()

    kinds = [entry.kind for entry in session.docket]
    for (event, entries), (_, before) in zip(found.shown[1:], found.shown, strict=False):
        if isinstance(event, Began):
            assert entries == before  # nothing of it is on record yet
        if isinstance(event, Did) and isinstance(event.step, Launch):
            assert kinds[entries - 1] is Kind.EVIDENCE
        if isinstance(event, Did) and isinstance(event.step, Judge):
            assert kinds[entries - 1] in (Kind.VERDICT, Kind.FINDING, Kind.LOOK)
    steps = [event for event in events if isinstance(event, Began | Did)]
    assert [type(one) for one in steps] == [Began, Did] * (len(steps) // 2)
    assert [one.step for one in steps[::2]] == [one.step for one in steps[1::2]]
    assert any(isinstance(event, Said) and "SUPPORTED" in event.text for event in events)


def test_the_page_waits_while_the_engine_computes_and_not_longer(
    session: Session, machines: ModelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may look once an experiment runs, or at the end."""
    monkeypatch.setattr("narrows.flows.feed.LATEST_S", PATIENCE_S)
    quiet: list[bool] = []
    shown = threading.Event()

    def wait(_plan: LaunchPlan) -> None:
        assert wait_until(shown.is_set, PATIENCE_S)

    def follow(feed: Feed) -> None:
        while not isinstance(event := feed.look(), Stopped):
            quiet.append(session.waits.is_set())
            feed.take()
            if isinstance(event, Began) and isinstance(event.step, Launch):
                shown.set()

    machines.before = wait
    assert run_followed(session, None, follow).error is None
    assert shown.is_set()
    assert quiet[0]


def test_the_page_is_behind_a_busy_engine_for_a_while_only(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrows.flows.feed.LATEST_S", 0.2)
    feed = Feed(session)
    for _ in range(200):
        feed.say("hello")
    began = time.monotonic()
    for _ in range(200):
        assert isinstance(feed.look(), Said)  # though the engine waits for nothing
        feed.take()
    assert time.monotonic() - began < 200 * 0.2  # the wait is that of one event, whatever their number


def test_where_the_page_fails_at_once_the_running_launch_is_not_waited_for(
    session: Session, machines: ModelLauncher
) -> None:
    def cancelled(plan: LaunchPlan) -> None:
        assert session.cancelled is not None
        assert wait_until(session.cancelled, PATIENCE_S)
        raise LaunchCancelledError(f"{plan.name} was cancelled", LaunchResult(name="", returncode=-1, seconds=0))

    def follow(feed: Feed) -> None:
        feed.await_quiet()
        raise ServerError("it has no automations")

    machines.before = cancelled
    found = run_followed(session, None, follow)
    assert isinstance(found.error, ServerError)
    assert session.docket.entries[-1].kind is Kind.LAUNCHED  # begins again with --resume


def test_where_the_page_is_lost_later_the_running_launch_is_judged_and_no_other_begins(
    session: Session, machines: ModelLauncher
) -> None:
    lost = threading.Event()

    def wait(_plan: LaunchPlan) -> None:
        assert wait_until(lost.is_set, PATIENCE_S)
        time.sleep(0.1)
        assert session.cancelled is not None
        assert not session.cancelled()

    def follow(feed: Feed) -> None:
        feed.watch = lambda: False
        while not (isinstance(event := feed.look(), Began) and isinstance(event.step, Launch)):
            feed.take()
        lost.set()
        raise ServerError("it stopped answering")

    machines.before = wait
    found = run_followed(session, None, follow)
    assert isinstance(found.error, ServerError)
    assert len(machines.submitted) == len(session.docket.of(Kind.EVIDENCE)) == 1
    assert session.state.judgement("scope:one_rank") is not None  # what was measured is judged


def test_a_page_that_is_lost_during_the_last_launch_takes_no_conclusion_away(
    session: Session, machines: ModelLauncher
) -> None:
    gone = threading.Event()

    def wait(plan: LaunchPlan) -> None:
        assert "synthetic" not in plan.name or wait_until(gone.is_set, PATIENCE_S)  # the last one

    def follow(feed: Feed) -> None:
        feed.watch = lambda: False
        launches = 0
        while launches < 2:
            event = feed.look()
            launches += isinstance(event, Began) and isinstance(event.step, Launch)
            feed.take()
        gone.set()
        raise ServerError("it stopped answering")

    machines.before = wait
    found = run_followed(session, None, follow)
    assert isinstance(found.error, ServerError)
    assert session.state.concluded is not None
    assert session.postmortem.is_file()


def test_what_breaks_the_engine_is_told_after_all_that_came_before(session: Session, machines: ModelLauncher) -> None:
    def cut(_plan: LaunchPlan) -> None:
        raise KeyboardInterrupt

    said: list[str] = []

    def follow(feed: Feed) -> None:
        while True:
            if isinstance(event := feed.look(), Said):
                said.append(event.text)
            feed.take()

    machines.before = cut
    found = run_followed(session, None, follow)
    assert isinstance(found.error, KeyboardInterrupt)
    assert "6 pairs of healthy and regressed" in said[-1]
    path = session.docket.path
    assert path is not None
    assert Docket.open(path).entries == session.docket.entries


def test_what_is_meant_for_the_main_thread_reaches_the_page_as_a_cancelled_run(
    session: Session, machines: ModelLauncher
) -> None:
    """Prefect's answer to SIGTERM, raised in a run below the first, would send the process another one."""

    class TerminationSignal(BaseException):
        pass

    def end(_plan: LaunchPlan) -> None:
        raise TerminationSignal

    machines.before = end

    def follow(feed: Feed) -> str:
        with pytest.raises(CancelledRunError, match="told to end") as caught:
            to_the_end(feed)
        return str(caught.value)

    found = run_followed(session, None, follow)
    assert isinstance(found.error, TerminationSignal)
    assert found.shown is not None


def asking(folder: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> Session:
    """A case whose every launch must be approved."""
    path = write_case(folder, machines, record_pair)
    path.write_text(path.read_text().replace("ask_above_device_hours: 9", "ask_above_device_hours: 0"))
    session = open_session(path, machines)
    session.say = lambda _text: None
    return session


def test_an_answer_goes_back_to_the_engine(
    tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]
) -> None:
    session = asking(tmp_path, machines, record_pair)

    def follow(feed: Feed) -> int:
        asked = 0
        while not isinstance(event := feed.look(), Written):
            feed.take()
            if isinstance(event, Asks):
                assert feed.seen.docket.entries[-1].kind is Kind.ASKED
                asked += 1
                feed.answer(Answer(decision=Decision.APPROVE, by="the operator", reason="the queue is empty"))
        return asked

    found = run_followed(session, None, follow)
    assert found.error is None
    assert found.shown == len(session.docket.of(Kind.ANSWERED)) > 0
    assert {entry.body["by"] for entry in session.docket.of(Kind.ANSWERED)} == {"the operator"}


def test_an_answer_that_ends_the_investigation_ends_the_page_too(
    tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]
) -> None:
    session = asking(tmp_path, machines, record_pair)

    def follow(feed: Feed) -> None:
        while True:
            if isinstance(feed.look(), Asks):
                feed.answer(Answer(decision=Decision.DECLINED, by="nobody", reason="nobody answered"))
            feed.take()

    found = run_followed(session, None, follow)
    assert isinstance(found.error, DeclinedError)
    assert machines.submitted == []


def test_ctrl_c_ends_a_question(tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]) -> None:
    feed = Feed(asking(tmp_path, machines, record_pair))
    threading.Timer(0.2, lambda: feed.broke(KeyboardInterrupt())).start()
    feed.say("before")
    with pytest.raises(KeyboardInterrupt):
        feed.pause(PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):  # and nothing goes on after it
        feed.look()


def test_a_question_that_cannot_be_put_ends_the_investigation_with_its_own_error(
    tmp_path: Path, machines: ModelLauncher, record_pair: Callable[..., Any]
) -> None:
    """As a deployment's run does, which is suspended and started again once somebody answered."""

    class PauseError(BaseException):
        pass

    def follow(feed: Feed) -> None:
        while not isinstance(feed.look(), Asks):
            feed.take()
        raise PauseError

    found = run_followed(asking(tmp_path, machines, record_pair), None, follow)
    assert isinstance(found.error, PauseError)
    assert machines.submitted == []


def test_it_stops_after_the_rung_that_was_asked_for(session: Session, machines: ModelLauncher) -> None:
    found = run_followed(session, Rung.RECONCILIATION, to_the_end)
    assert found.stop is not None
    assert found.stop.reason is StopReason.UNTIL
    assert machines.submitted == []
    assert session.docket.of(Kind.CONCLUDED) == []
    assert session.postmortem.is_file()
