"""What the engine does, told to whoever shows it and may be some steps behind.

The docket decides, and a page only shows: the engine waits for no page. A server's client, its runs and its pages take
seconds, and those are spent while an experiment runs and this process has nothing else to do.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from narrows.flows.approval import Answer
from narrows.flows.cancelling import CancelledRunError
from narrows.flows.session import Session
from narrows.inquiry.docket import Docket
from narrows.inquiry.errors import NarrowsError
from narrows.inquiry.steps import Ask, Judge, Launch, Register, Skip, Step, Stop

RungStep = Register | Launch | Judge | Ask | Skip
"""Every step but the last, which belongs to no rung."""

LATEST_S = 5.0
"""An engine that computes is left alone for this long at most: nothing that happened is shown later than that."""
LINE_EVERY_S = 10.0
"""A running experiment's own lines reach the server's log this often at most: each is a row in its database."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened; the docket had ``entries`` entries then."""

    entries: int


@dataclass(frozen=True, slots=True)
class Began(Event):
    """``step`` is about to be taken."""

    step: RungStep


@dataclass(frozen=True, slots=True)
class Did(Event):
    """``step`` is done."""

    step: RungStep


@dataclass(frozen=True, slots=True)
class Asks(Event):
    """A person is asked, and the engine waits for the answer."""

    step: Ask


@dataclass(frozen=True, slots=True)
class Said(Event):
    """A line for the log; ``running``: it is the running experiment's own."""

    text: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """The ladder has no more steps, or none that were asked for."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Written(Event):
    """The postmortem is on disk; nothing comes after this."""


@dataclass(frozen=True, slots=True)
class Broke(Event):
    """The engine ended before its time; nothing comes after this."""

    error: BaseException


class FollowerGoneError(NarrowsError):
    """Whoever shows the investigation has ended with an error of its own."""


class Feed:
    """The events of one investigation, from the thread of the engine to the one that shows them.

    ``seen`` is the case as it was after the last event that was taken: later entries are not in its docket yet.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._say, self._show_line = session, session.say, session.show_line
        self._events: queue.SimpleQueue[tuple[float, Event]] = queue.SimpleQueue()
        self._next: tuple[float, Event] | None = None
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._gone = threading.Event()
        self._line_at = float("-inf")
        self.seen = replace(session, docket=_first(session.docket, len(session.docket)), cache={})
        self.error: BaseException | None = None
        self.watch: Callable[[], bool] | None = None
        """Whether somebody cancelled the run; set by the follower, once it knows of a way to find out."""

    @property
    def _entries(self) -> int:
        return len(self._session.docket)

    # What the engine calls.

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it lasts, what the session says and asks goes through here."""
        session = self._session
        before = session.say, session.show_line, session.ask, session.cancelled
        session.say, session.show_line, session.ask, session.cancelled = self.say, self._line, self._ask, self.cancelled
        try:
            yield
        finally:
            session.say, session.show_line, session.ask, session.cancelled = before

    def begins(self, step: Step) -> None:
        """Raises what forbids to take ``step``: a cancelled run, or a follower that could not show a launch."""
        if isinstance(step, Stop):
            self._put(Stopped(self._entries, step))
            self._session.waits.set()  # the page's own end is all that is left to wait for
            return
        if isinstance(step, Launch | Ask) and self._gone.is_set():  # what is measured is still judged
            raise FollowerGoneError("the investigation is shown no longer")
        if self.watch is not None and self.watch():
            raise CancelledRunError("the run was cancelled between two launches; continue with --resume")
        self._put(Began(self._entries, step))

    def did(self, step: RungStep) -> None:
        self._put(Did(self._entries, step))

    def written(self) -> None:
        self._put(Written(self._entries))

    def broke(self, error: BaseException) -> None:
        self.error = error
        self._put(Broke(self._entries, error))
        self._session.waits.set()

    def cancelled(self) -> bool:
        """Whether a launch that runs must end. One that nobody shows from its beginning on must; later it may finish:
        its evidence is kept, and the investigation ends after it."""
        if self.watch is None:
            return self._gone.is_set()
        return self.watch()

    def say(self, text: str) -> None:
        """To the terminal, and to the log of the run that shows the step."""
        self._say(text)
        self._put(Said(self._entries, text))

    def _line(self, text: str) -> None:
        if self._show_line is not None:
            self._show_line(text)
        if time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            self._put(Said(self._entries, text, running=True))

    def _ask(self, step: Ask) -> Answer:
        self._put(Asks(self._entries, step))
        self._session.waits.set()
        answer = None if self._gone.is_set() else self._answers.get()
        if answer is None:
            raise FollowerGoneError("nobody is there to ask")
        self._session.waits.clear()
        return answer

    def _put(self, event: Event) -> None:
        self._events.put((time.monotonic(), event))

    # What the follower calls.

    def tell(self, text: str) -> None:
        """To the terminal alone."""
        self._say(text)

    def await_quiet(self, seconds: float = LATEST_S) -> None:
        """Returns once the engine waits for something, or has been at work for so long."""
        self._session.waits.wait(max(0.0, seconds))

    def look(self) -> Event:
        """The next event, which stays the next one until it is taken. Raises what ended the engine before its time."""
        if self._next is None:
            self._next = self._events.get()
        happened, event = self._next
        if isinstance(event, Broke):
            raise event.error if isinstance(event.error, Exception | KeyboardInterrupt) else _cut_off()
        self.await_quiet(happened + LATEST_S - time.monotonic())
        return event

    def take(self) -> None:
        """Moves on to the event after the next one."""
        event, self._next = self.look(), None
        if event.entries > len(self.seen.docket):
            self.seen = replace(self.seen, docket=_first(self._session.docket, event.entries), cache={})

    def answer(self, given: Answer) -> None:
        """What a person answered to the question that the engine waits with."""
        self._answers.put(given)

    def pause(self, seconds: float) -> None:
        """Waits between two looks for an answer. Raises what ended the engine meanwhile."""
        end = time.monotonic() + seconds
        while self.error is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))
        if self.error is not None:
            while self._next is None or not isinstance(self._next[1], Broke):
                self._next = self._events.get()
            self.look()

    def left(self) -> None:
        """The follower has ended; nobody will answer."""
        self._gone.set()
        self._answers.put(None)


def _first(docket: Docket, entries: int) -> Docket:
    return Docket(docket.path, docket.entries[:entries])


def _cut_off() -> CancelledRunError:
    """For what must reach the main thread alone, as Prefect's answer to SIGTERM: it would signal the process again."""
    return CancelledRunError("the process was told to end; continue with --resume")
