"""An investigation that is shown while it goes on: the engine in this thread, the page in one that follows it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from narrows.flows import engine
from narrows.flows.board import Board
from narrows.flows.feed import Feed, FollowerGoneError
from narrows.flows.launching import LaunchCancelledError
from narrows.flows.postmortem import write_postmortem
from narrows.flows.server import ServerHandle
from narrows.flows.session import Session
from narrows.flows.zombies import Pulse
from narrows.inquiry.scopes import Rung
from narrows.inquiry.steps import Stop

Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(Generic[Shown]):
    """How it ended: with a ``stop``, or an ``error`` before its time; and what showing it gave."""

    stop: Stop | None = None
    error: BaseException | None = None
    shown: Shown | None = None


@dataclass(slots=True, kw_only=True)
class Following:
    """What showing an investigation needs; ``log_line`` takes the lines of a running experiment."""

    feed: Feed
    board: Board
    approve_all: bool
    pulse: Pulse
    log_line: Callable[[str], None]


class _Follower(threading.Thread, Generic[Shown]):
    """Calls ``follow`` in a thread that knows what the caller's context holds: the flow run that it may be in."""

    def __init__(self, feed: Feed, follow: Callable[[Feed], Shown]) -> None:
        super().__init__(name="follower", daemon=True)
        self._feed, self._follow, self._context = feed, follow, contextvars.copy_context()
        self.shown: Shown | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.shown = self._context.run(self._follow, self._feed)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the thread of the engine hears of it
            self.error = error
        finally:
            self._feed.left()


def run_followed(session: Session, until: Rung | None, follow: Callable[[Feed], Shown]) -> Followed[Shown]:
    """The investigation of an open session, carried out here while ``follow`` shows it, to the written postmortem.

    Nothing is launched any more once ``follow`` has failed, and what it failed of is the error then.
    """
    feed = Feed(session)
    follower = _Follower(feed, follow)
    stop, error = None, None
    with feed.attached():
        follower.start()
        try:
            stop = engine.run(session, until, feed)
            for line in write_postmortem(session):
                session.say(line)
            feed.written()
        except BaseException as caught:  # noqa: BLE001  # Ctrl-C included: the page shows it, and it is raised then
            error = caught
            feed.broke(caught)
        follower.join()
    if follower.error is not None and (error is None or isinstance(error, FollowerGoneError | LaunchCancelledError)):
        error = follower.error
    return Followed(stop=stop, error=error, shown=follower.shown)


def run_on_board(
    session: Session, case_file: Path, until: Rung | None, server: ServerHandle, *, approve_all: bool = False
) -> Stop:
    """The investigation of an open session as a flow run on ``server``. Raises what ended it before its time."""

    def follow(feed: Feed) -> None:
        feed.await_quiet()  # importing Prefect takes two seconds
        if isinstance(feed.error, KeyboardInterrupt):  # before there was anything to see
            return
        from narrows.flows.investigate import show

        show(feed, case_file, until, server, approve_all=approve_all)

    found = run_followed(session, until, follow)
    if found.error is not None:
        raise found.error
    assert found.stop is not None
    return found.stop
