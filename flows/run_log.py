"""What an investigation says, on the pages of its flow runs as well."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect import get_run_logger
from prefect.exceptions import MissingContextError

from narrows.flows.board import subflow_run
from narrows.flows.feed import LINE_EVERY_S

if TYPE_CHECKING:
    from narrows.flows.session import Session


@contextmanager
def logged(session: Session) -> Iterator[None]:
    """While it lasts, what ``session`` says also goes to the log of the flow or task run that it is said in.

    The lines of a running experiment go to that of the run that this is called in as well: its page alone is enough to
    follow what goes on below it.
    """
    say, show_line = session.say, session.show_line
    session.say, session.show_line = _tee(say), _thinned(show_line, line_log())
    try:
        yield
    finally:
        session.say, session.show_line = say, show_line


def log(text: str) -> None:
    """To the log of the current run alone; nothing outside of one."""
    _logger()(text)


def line_log() -> Callable[[str], None]:
    """To the log of the run that calls this, and of the run below it where it is used in one."""
    above = _logger()

    def both(text: str) -> None:
        above(text)
        if _below_root():
            log(text)

    return both


def _logger() -> Callable[[str], None]:
    try:
        return get_run_logger().info
    except MissingContextError:
        return lambda _text: None


def _below_root() -> bool:
    from prefect.context import TaskRunContext

    return subflow_run() is not None or TaskRunContext.get() is not None


def _tee(say: Callable[[str], None]) -> Callable[[str], None]:
    def both(text: str) -> None:
        say(text)
        log(text)

    return both


def _thinned(show_line: Callable[[str], None] | None, log_line: Callable[[str], None]) -> Callable[[str], None]:
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        if show_line is not None:
            show_line(text)
        if time.monotonic() - last >= LINE_EVERY_S:
            last = time.monotonic()
            log_line(text)

    return show
